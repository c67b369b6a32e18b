"""Kafka ACLs: described, created and deleted exactly, awaited on every broker.

CreateAcls returns when the controller has the change; brokers enforce it later. Only DescribeAcls on each broker,
answered by its own authorizer, shows that it holds there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kio.schema.create_acls.v1.request import AclCreation, CreateAclsRequest
from kio.schema.create_acls.v1.response import CreateAclsResponse
from kio.schema.delete_acls.v1.request import DeleteAclsFilter, DeleteAclsRequest
from kio.schema.delete_acls.v1.response import DeleteAclsResponse
from kio.schema.describe_acls.v1.request import DescribeAclsRequest
from kio.schema.describe_acls.v1.response import DescribeAclsResponse
from kio.schema.errors import ErrorCode
from kio.static.primitive import i8

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.faults import fault, settle
from mirror_core.kafka.shown import late
from mirror_core.model.acl import Acl, Operation, Pattern, Permission, Resource
from mirror_core.model.errors import BadRequest, RemoteFault, Unreachable
from mirror_core.model.ruling import Authorizer

_ANY: Final = 1
_RESOURCES: Final[Mapping[int, Resource]] = MappingProxyType(
    {
        2: Resource.TOPIC,
        3: Resource.GROUP,
        4: Resource.CLUSTER,
        5: Resource.TRANSACTIONAL_ID,
        6: Resource.DELEGATION_TOKEN,
        7: Resource.USER,
    }
)
_PATTERNS: Final[Mapping[int, Pattern]] = MappingProxyType({3: Pattern.LITERAL, 4: Pattern.PREFIXED})
_OPERATIONS: Final[Mapping[int, Operation]] = MappingProxyType(
    dict(enumerate(Operation, start=2))  # The enum follows Kafka's codes from 2 on.
)
_PERMISSIONS: Final[Mapping[int, Permission]] = MappingProxyType({2: Permission.DENY, 3: Permission.ALLOW})
_MOST_IN_ONE_REQUEST: Final = 1000
ALL: Final = DescribeAclsRequest(
    resource_type_filter=i8(_ANY),
    resource_name_filter=None,
    pattern_type_filter=i8(_ANY),
    principal_filter=None,
    host_filter=None,
    operation=i8(_ANY),
    permission_type=i8(_ANY),
)
BARRIER_S: Final = 15.0
_NO_AUTHORIZER: Final = (ErrorCode.security_disabled,)


@dataclass(frozen=True, slots=True)
class AuthorizerOff:
    """Kafka's ACLs do not govern the cluster: nothing can be granted, denied or fenced by them."""

    cluster: str
    said: Authorizer = Authorizer.KAFKA
    """`authorizer` in mirrorbook.yaml; KAFKA: the brokers themselves report that they have none."""

    @property
    def foreign(self) -> bool:
        """Otherwise every principal may do everything."""
        return self.said is Authorizer.FOREIGN

    @property
    def words(self) -> str:
        return self.said.without_acls


@dataclass(frozen=True, slots=True)
class Acls:
    entries: frozenset[Acl]
    unknown: tuple[str, ...] = ()
    """Of kinds unknown to this version, as text; never changed."""


def describe_acls(client: ClusterClient, broker: int | None = None) -> Acls | AuthorizerOff:
    """Entries as this broker sees them (any when None). Needs DESCRIBE on the cluster.

    Sends no request where mirrorbook.yaml says that Kafka's ACLs do not govern the cluster.
    """
    if off := unruled(client):
        return off
    return acls_of(client, client.call(ALL, DescribeAclsResponse, broker))


def unruled(client: ClusterClient) -> AuthorizerOff | None:
    """None: ask the brokers."""
    said = client.config.ruling.authorizer
    return None if said is Authorizer.KAFKA else AuthorizerOff(client.name, said)


def acls_of(client: ClusterClient, answer: DescribeAclsResponse) -> Acls | AuthorizerOff:
    if answer.error_code in _NO_AUTHORIZER:
        return AuthorizerOff(client.name)
    if answer.error_code is not ErrorCode.none:
        raise fault(
            client, "ACLs", "DescribeAcls (needs DESCRIBE on the cluster)", answer.error_code, answer.error_message
        )
    entries, unknown = set(), []
    for resource in answer.resources:
        for row in resource.acls:
            try:
                entries.add(
                    Acl(
                        resource=_RESOURCES[resource.resource_type],
                        name=resource.resource_name,
                        pattern=_PATTERNS[resource.pattern_type],
                        principal=row.principal,
                        host=row.host,
                        operation=_OPERATIONS[row.operation],
                        permission=_PERMISSIONS[row.permission_type],
                    )
                )
            except KeyError:
                unknown.append(
                    f"resource type {resource.resource_type} {resource.resource_name!r}, operation {row.operation}, "
                    f"permission {row.permission_type}, for {row.principal} from {row.host}"
                )
    return Acls(frozenset(entries), tuple(sorted(unknown)))


def create_acls(client: ClusterClient, acls: Iterable[Acl]) -> None:
    """Existing entries stay. Call `wait_until_acls_present` before relying on them. Needs ALTER on the
    cluster."""

    def attempt(wanted: list[Acl]) -> dict[Acl, tuple[ErrorCode, str | None]]:
        requests = [CreateAclsRequest(creations=tuple(_creation(acl) for acl in some)) for some in _shares(wanted)]
        answers = client.call_controller_each(requests, CreateAclsResponse)
        rows = [row for answer in answers for row in answer.results]
        return {acl: (row.error_code, row.error_message) for acl, row in zip(wanted, rows, strict=True)}

    settle(client, "CreateAcls (needs ALTER on the cluster)", _ruled(client, acls), attempt)


def delete_acls(client: ClusterClient, acls: Iterable[Acl]) -> None:
    """Only these; missing ones count as deleted. Needs ALTER on the cluster."""

    def attempt(wanted: list[Acl]) -> dict[Acl, tuple[ErrorCode, str | None]]:
        requests = [DeleteAclsRequest(filters=tuple(_exactly(acl) for acl in some)) for some in _shares(wanted)]
        answers = client.call_controller_each(requests, DeleteAclsResponse)
        rows = [row for answer in answers for row in answer.filter_results]
        said = {}
        for acl, row in zip(wanted, rows, strict=True):
            failed = [m for m in row.matching_acls if m.error_code is not ErrorCode.none]
            code = row.error_code if not failed else failed[0].error_code
            said[acl] = (code, row.error_message if not failed else failed[0].error_message)
        return said

    settle(client, "DeleteAcls (needs ALTER on the cluster)", _ruled(client, acls), attempt)


def present_on_every_broker(client: ClusterClient, acls: Collection[Acl], timeout_s: float = BARRIER_S) -> None:
    """Unreachable names the broker that does not show all entries in time."""
    _everywhere(client, lambda held: set(acls) <= held, len(acls), "it shows all of", timeout_s)


def absent_on_every_broker(client: ClusterClient, acls: Collection[Acl]) -> None:
    """Unreachable names the broker that still shows one of the entries."""
    _everywhere(client, lambda held: not held & set(acls), len(acls), "it has dropped all of", BARRIER_S)


def _ruled(client: ClusterClient, acls: Iterable[Acl]) -> list[Acl]:
    wanted = sorted(set(acls))
    if wanted and unruled(client):
        raise BadRequest(
            f"cluster {client.name}: {len(wanted)} access right(s) of Mirrorbook's, such as {wanted[0]}, would be "
            f"changed there, and mirrorbook.yaml says `authorizer: {client.config.ruling.authorizer}`. They were made "
            "when it said `authorizer: kafka`: write that again until no run is under way and no fence stands there"
        )
    return wanted


def _everywhere(
    client: ClusterClient, settled: Callable[[frozenset[Acl]], bool], count: int, words: str, timeout_s: float
) -> None:
    def shows(connection: Connection) -> bool:
        held = unruled(client) or acls_of(client, connection.call(ALL, DescribeAclsResponse))
        if isinstance(held, AuthorizerOff):
            raise RemoteFault(f"{connection.where}: has no authorizer, though others have one")
        return settled(held.entries)

    waiting = late(client, shows, timeout_s, anew=True) if count else {}
    for why in waiting.values():
        if why is not None and not isinstance(why, Unreachable):
            raise why
    for broker, why in waiting.items():
        raise Unreachable(
            f"cluster {client.name}, broker {broker}: still not so after {timeout_s} s: {words} {count} ACL(s)"
            + (f": {why}" if why else "")
        )


def _shares(acls: Sequence[Acl]) -> Iterator[Sequence[Acl]]:
    for start in range(0, len(acls), _MOST_IN_ONE_REQUEST):
        yield acls[start : start + _MOST_IN_ONE_REQUEST]


def _code(table: Mapping[int, object], member: object) -> i8:
    return i8(next(code for code, known in table.items() if known is member))


def _creation(acl: Acl) -> AclCreation:
    return AclCreation(
        resource_type=_code(_RESOURCES, acl.resource),
        resource_name=acl.name,
        resource_pattern_type=_code(_PATTERNS, acl.pattern),
        principal=acl.principal,
        host=acl.host,
        operation=_code(_OPERATIONS, acl.operation),
        permission_type=_code(_PERMISSIONS, acl.permission),
    )


def _exactly(acl: Acl) -> DeleteAclsFilter:
    return DeleteAclsFilter(
        resource_type_filter=_code(_RESOURCES, acl.resource),
        resource_name_filter=acl.name,
        pattern_type_filter=_code(_PATTERNS, acl.pattern),
        principal_filter=acl.principal,
        host_filter=acl.host,
        operation=_code(_OPERATIONS, acl.operation),
        permission_type=_code(_PERMISSIONS, acl.permission),
    )
