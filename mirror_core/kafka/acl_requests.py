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
from mirror_core.kafka.error_mapping import make_fault, retry_per_key
from mirror_core.kafka.fan_out import call_brokers, wait_for_propagation
from mirror_core.model.acl import Acl, Operation, Pattern, Permission, Resource
from mirror_core.model.config_sections import AuthorizerKind
from mirror_core.model.errors import BadRequest, MirrorError, RemoteFault, Unreachable
from mirror_core.model.text import format_count

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
_MAX_ACLS_PER_REQUEST: Final = 1000
DESCRIBE_ALL_ACLS: Final = DescribeAclsRequest(
    resource_type_filter=i8(_ANY),
    resource_name_filter=None,
    pattern_type_filter=i8(_ANY),
    principal_filter=None,
    host_filter=None,
    operation=i8(_ANY),
    permission_type=i8(_ANY),
)
ACL_BARRIER_S: Final = 15.0
_NO_AUTHORIZER: Final = (ErrorCode.security_disabled,)


@dataclass(frozen=True, slots=True)
class AuthorizerOff:
    """Kafka's ACLs do not govern the cluster: they grant, deny and fence nothing."""

    cluster: str
    configured: AuthorizerKind = AuthorizerKind.KAFKA
    """`authorizer` in mirrorbook.yaml; KAFKA: the brokers themselves report that they have none."""

    @property
    def is_foreign(self) -> bool:
        """Otherwise every principal may do everything."""
        return self.configured is AuthorizerKind.FOREIGN

    @property
    def text(self) -> str:
        return self.configured.no_acl_reason


@dataclass(frozen=True, slots=True)
class BrokerAcls:
    entries: frozenset[Acl]
    unknown: tuple[str, ...] = ()
    """Kinds unknown to this version, as text; never changed."""


def describe_acls(client: ClusterClient, broker: int | None = None) -> BrokerAcls | AuthorizerOff:
    """As this broker sees them (any when None). No request where mirrorbook.yaml says that Kafka's ACLs do not
    govern the cluster.
    """
    if disabled := find_disabled_authorizer(client):
        return disabled
    return parse_acls(client, client.call(DESCRIBE_ALL_ACLS, DescribeAclsResponse, broker))


def find_disabled_authorizer(client: ClusterClient) -> AuthorizerOff | None:
    configured = client.config.ruling.authorizer
    return None if configured is AuthorizerKind.KAFKA else AuthorizerOff(client.name, configured)


def parse_acls(client: ClusterClient, response: DescribeAclsResponse) -> BrokerAcls | AuthorizerOff:
    if response.error_code in _NO_AUTHORIZER:
        return AuthorizerOff(client.name)
    if response.error_code is not ErrorCode.none:
        raise make_fault(
            client, "ACLs", "DescribeAcls (needs DESCRIBE on the cluster)", response.error_code, response.error_message
        )
    entries, unknown = set(), []
    for resource in response.resources:
        for entry in resource.acls:
            try:
                entries.add(
                    Acl(
                        resource=_RESOURCES[resource.resource_type],
                        name=resource.resource_name,
                        pattern=_PATTERNS[resource.pattern_type],
                        principal=entry.principal,
                        host=entry.host,
                        operation=_OPERATIONS[entry.operation],
                        permission=_PERMISSIONS[entry.permission_type],
                    )
                )
            except KeyError:
                unknown.append(
                    f"resource type {resource.resource_type} {resource.resource_name!r}, operation {entry.operation}, "
                    f"permission {entry.permission_type}, for {entry.principal} from {entry.host}"
                )
    return BrokerAcls(frozenset(entries), tuple(sorted(unknown)))


def create_acls(client: ClusterClient, acls: Iterable[Acl]) -> None:
    """Call `wait_until_acls_present` before relying on them."""

    def attempt(acls_to_create: list[Acl]) -> dict[Acl, tuple[ErrorCode, str | None]]:
        requests = [
            CreateAclsRequest(creations=tuple(_to_creation(acl) for acl in share))
            for share in _split_into_requests(acls_to_create)
        ]
        responses = client.call_controller_each(requests, CreateAclsResponse)
        results = [result for response in responses for result in response.results]
        return {
            acl: (result.error_code, result.error_message) for acl, result in zip(acls_to_create, results, strict=True)
        }

    retry_per_key(client, "CreateAcls (needs ALTER on the cluster)", _require_managed_acls(client, acls), attempt)


def delete_acls(client: ClusterClient, acls: Iterable[Acl]) -> None:
    """Missing ones count as deleted."""

    def attempt(acls_to_delete: list[Acl]) -> dict[Acl, tuple[ErrorCode, str | None]]:
        requests = [
            DeleteAclsRequest(filters=tuple(_to_exact_filter(acl) for acl in share))
            for share in _split_into_requests(acls_to_delete)
        ]
        responses = client.call_controller_each(requests, DeleteAclsResponse)
        results = [result for response in responses for result in response.filter_results]
        outcomes = {}
        for acl, result in zip(acls_to_delete, results, strict=True):
            failed_matches = [match for match in result.matching_acls if match.error_code is not ErrorCode.none]
            code = result.error_code if not failed_matches else failed_matches[0].error_code
            outcomes[acl] = (code, result.error_message if not failed_matches else failed_matches[0].error_message)
        return outcomes

    retry_per_key(client, "DeleteAcls (needs ALTER on the cluster)", _require_managed_acls(client, acls), attempt)


def wait_until_acls_present(client: ClusterClient, acls: Collection[Acl], timeout_s: float = ACL_BARRIER_S) -> None:
    """Raises Unreachable, which names a late broker."""
    _wait_on_every_broker(client, lambda entries: set(acls) <= entries, len(acls), "does not show all of", timeout_s)


def wait_until_acls_absent(client: ClusterClient, acls: Collection[Acl]) -> None:
    """Raises Unreachable, which names a late broker."""
    _wait_on_every_broker(
        client, lambda entries: not entries & set(acls), len(acls), "still shows some of", ACL_BARRIER_S
    )


def _require_managed_acls(client: ClusterClient, acls: Iterable[Acl]) -> list[Acl]:
    sorted_acls = sorted(set(acls))
    if sorted_acls and find_disabled_authorizer(client):
        raise BadRequest(
            f"cluster {client.name}: {format_count(len(sorted_acls), 'ACL')} of Mirrorbook's, such as {sorted_acls[0]},"
            f" would be changed there, and mirrorbook.yaml says `authorizer: {client.config.ruling.authorizer}`. They"
            " were made when it said `authorizer: kafka`: write that again until no run is under way and no fence"
            " stands there"
        )
    return sorted_acls


def _wait_on_every_broker(
    client: ClusterClient, is_settled: Callable[[frozenset[Acl]], bool], count: int, problem: str, timeout_s: float
) -> None:
    def shows_acls(connection: Connection) -> bool:
        broker_acls = find_disabled_authorizer(client) or parse_acls(
            client, connection.call(DESCRIBE_ALL_ACLS, DescribeAclsResponse)
        )
        if isinstance(broker_acls, AuthorizerOff):
            raise RemoteFault(f"{connection.where}: has no authorizer, though others have one")
        return is_settled(broker_acls.entries)

    late_brokers = wait_for_propagation(client, shows_acls, timeout_s, retry_timeouts=True) if count else {}
    for error in late_brokers.values():
        if error is not None and not isinstance(error, Unreachable):
            raise error
    acls_text = format_count(count, "ACL")
    for broker, error in late_brokers.items():
        raise Unreachable(
            f"cluster {client.name}, broker {broker}: timed out after {timeout_s:g} s: it {problem} {acls_text}"
            + (f": {error}" if error else "")
        )


def _split_into_requests(acls: Sequence[Acl]) -> Iterator[Sequence[Acl]]:
    for start in range(0, len(acls), _MAX_ACLS_PER_REQUEST):
        yield acls[start : start + _MAX_ACLS_PER_REQUEST]


def _to_code(table: Mapping[int, object], member: object) -> i8:
    return i8(next(code for code, candidate in table.items() if candidate is member))


def _to_creation(acl: Acl) -> AclCreation:
    return AclCreation(
        resource_type=_to_code(_RESOURCES, acl.resource),
        resource_name=acl.name,
        resource_pattern_type=_to_code(_PATTERNS, acl.pattern),
        principal=acl.principal,
        host=acl.host,
        operation=_to_code(_OPERATIONS, acl.operation),
        permission_type=_to_code(_PERMISSIONS, acl.permission),
    )


def _to_exact_filter(acl: Acl) -> DeleteAclsFilter:
    return DeleteAclsFilter(
        resource_type_filter=_to_code(_RESOURCES, acl.resource),
        resource_name_filter=acl.name,
        pattern_type_filter=_to_code(_PATTERNS, acl.pattern),
        principal_filter=acl.principal,
        host_filter=acl.host,
        operation=_to_code(_OPERATIONS, acl.operation),
        permission_type=_to_code(_PERMISSIONS, acl.permission),
    )


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
