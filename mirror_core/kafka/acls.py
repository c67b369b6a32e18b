"""Access control entries: read from any one broker's own authorizer, created and deleted exactly, awaited everywhere.

CreateAcls returning means that the controller has it; brokers act on it up to some hundred milliseconds later. Only
DescribeAcls at each broker, answered from that broker's authorizer, says that it holds there.
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
    dict(enumerate(Operation, start=2))  # the enum is in the order of Kafka's codes, of which 0 and 1 are no operation
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
"""Asks for every entry."""
BARRIER_S: Final = 15.0
"""How long every broker has to show a change."""
_NO_AUTHORIZER: Final = (ErrorCode.security_disabled,)


@dataclass(frozen=True, slots=True)
class AuthorizerOff:
    """Kafka's ACLs do not rule the cluster: nothing can be granted, denied or fenced by them."""

    cluster: str
    said: Authorizer = Authorizer.KAFKA
    """What mirrorbook.yaml says of it; KAFKA: its brokers have said that they have no authorizer."""

    @property
    def foreign(self) -> bool:
        """Something else rules it. Otherwise everybody may do everything."""
        return self.said is Authorizer.FOREIGN

    @property
    def words(self) -> str:
        return self.said.without_acls


@dataclass(frozen=True, slots=True)
class Acls:
    """What one broker's authorizer holds."""

    entries: frozenset[Acl]
    unknown: tuple[str, ...] = ()
    """Entries of kinds that this Mirrorbook does not know, described for a person; left alone."""


def describe_acls(client: ClusterClient, broker: int | None = None) -> Acls | AuthorizerOff:
    """All entries, as this broker sees them (any one, when None). Needs DESCRIBE on the cluster.

    Asked of nobody where mirrorbook.yaml says that Kafka's ACLs do not rule the cluster.
    """
    if off := unruled(client):
        return off
    return acls_of(client, client.call(ALL, DescribeAclsResponse, broker))


def unruled(client: ClusterClient) -> AuthorizerOff | None:
    """What mirrorbook.yaml says; None: the brokers are asked."""
    said = client.config.ruling.authorizer
    return None if said is Authorizer.KAFKA else AuthorizerOff(client.name, said)


def acls_of(client: ClusterClient, answer: DescribeAclsResponse) -> Acls | AuthorizerOff:
    """What it says."""
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
    """Create entries; those that exist stay. They hold only after `present_on_every_broker`.

    Needs ALTER on the cluster. Up to 1000 go in one request; each is applied or refused by itself.
    """

    def attempt(wanted: list[Acl]) -> dict[Acl, tuple[ErrorCode, str | None]]:
        requests = [CreateAclsRequest(creations=tuple(_creation(acl) for acl in some)) for some in _shares(wanted)]
        answers = client.call_controller_each(requests, CreateAclsResponse)
        rows = [row for answer in answers for row in answer.results]
        return {acl: (row.error_code, row.error_message) for acl, row in zip(wanted, rows, strict=True)}

    settle(client, "CreateAcls (needs ALTER on the cluster)", _ruled(client, acls), attempt)


def delete_acls(client: ClusterClient, acls: Iterable[Acl]) -> None:
    """Delete exactly these entries, no others; those already gone are done. Needs ALTER on the cluster."""

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
    """Return when every broker shows all these entries; Unreachable names the broker that did not in time."""
    _everywhere(client, lambda held: set(acls) <= held, len(acls), "it shows all of", timeout_s)


def absent_on_every_broker(client: ClusterClient, acls: Collection[Acl]) -> None:
    """Return when no broker shows any of these entries; Unreachable names the broker that did in the end."""
    _everywhere(client, lambda held: not held & set(acls), len(acls), "it has dropped all of", BARRIER_S)


def _ruled(client: ClusterClient, acls: Iterable[Acl]) -> list[Acl]:
    """These entries, in order. BadRequest where the configuration forbids to touch any."""
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
