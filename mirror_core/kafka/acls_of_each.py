"""ACLs of each broker, requested in parallel."""

from __future__ import annotations

from kio.schema.describe_acls.v1.response import DescribeAclsResponse

from mirror_core.kafka.acls import ALL, Acls, AuthorizerOff, acls_of, unruled
from mirror_core.kafka.at_once import ask_brokers
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.model.errors import MirrorError, Unreachable


def acls_of_each(client: ClusterClient) -> dict[int, Acls | AuthorizerOff | MirrorError]:
    if off := unruled(client):
        return dict.fromkeys(client.brokers(), off)

    def asked(connection: Connection) -> Acls | AuthorizerOff | MirrorError:
        try:
            return acls_of(client, connection.call(ALL, DescribeAclsResponse))
        except Unreachable:
            raise
        except MirrorError as error:
            return error

    return dict(ask_brokers(client, dict.fromkeys(client.brokers(), asked)))
