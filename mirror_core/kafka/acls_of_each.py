"""ACLs of each broker, requested in parallel."""

from __future__ import annotations

from kio.schema.describe_acls.v1.response import DescribeAclsResponse

from mirror_core.kafka.acls import DESCRIBE_ALL_ACLS, AuthorizerOff, BrokerAcls, find_disabled_authorizer, parse_acls
from mirror_core.kafka.at_once import call_brokers
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.model.errors import MirrorError, Unreachable


def describe_acls_on_each_broker(client: ClusterClient) -> dict[int, BrokerAcls | AuthorizerOff | MirrorError]:
    if disabled := find_disabled_authorizer(client):
        return dict.fromkeys(client.brokers(), disabled)

    def describe(connection: Connection) -> BrokerAcls | AuthorizerOff | MirrorError:
        try:
            return parse_acls(client, connection.call(DESCRIBE_ALL_ACLS, DescribeAclsResponse))
        except Unreachable:
            raise
        except MirrorError as error:
            return error

    return dict(call_brokers(client, dict.fromkeys(client.brokers(), describe)))
