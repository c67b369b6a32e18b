"""ACLs that each principal of a mirror needs on each cluster."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from mirror_core.model.acl import Acl, Operation, Pattern, Permission, Resource
from mirror_core.model.findings import Finding
from mirror_core.model.names import HEARTBEAT_TOPIC_PREFIX, ClusterName
from mirror_core.model.run import FailbackStrategy, RunMode
from mirror_core.rights.acl_rules import EVERYBODY, OWN_TOPIC_PREFIX, build_denial, can_change_topic, covers

CLUSTER_NAME: Final = "kafka-cluster"
JOURNAL_PREFIX: Final = "mirrorbook."
REPLAY_PREFIX: Final = "mirrorbook.replay."
"""For a replay's transactional ids and groups."""
_O = Operation


class ClusterRole(StrEnum):
    SOURCE = "source"
    DESTINATION = "destination"


@dataclass(frozen=True, slots=True)
class RequiredAcl:
    role: ClusterRole
    principal: str
    resource: Resource
    operation: Operation
    purpose: str
    permission: Permission = Permission.ALLOW
    """DENY: must not have it, on our topics."""
    prefix: str = ""
    """Optional, and only on names with this prefix."""
    lost_feature: str = ""
    """What fails without this optional right."""

    def to_acl(self, user: str) -> Acl:
        """As a grant on all resources of the type, or a denial."""
        if self.permission is Permission.DENY:
            return build_denial(OWN_TOPIC_PREFIX, user, operation=self.operation, pattern=Pattern.PREFIXED)
        journal = self.resource is Resource.TRANSACTIONAL_ID and self.operation is Operation.WRITE
        prefix = JOURNAL_PREFIX if journal and not self.prefix else self.prefix
        return Acl(
            resource=self.resource,
            name=prefix or (CLUSTER_NAME if self.resource is Resource.CLUSTER else "*"),
            pattern=Pattern.PREFIXED if prefix else Pattern.LITERAL,
            principal=user,
            operation=self.operation,
        )


def _build_required_acls(
    role: ClusterRole,
    principal: str,
    resource: Resource,
    permission: Permission = Permission.ALLOW,
    prefix: str = "",
    lost_feature: str = "",
    **purposes: str,
) -> list[RequiredAcl]:
    return [
        RequiredAcl(role, principal, resource, Operation[name], reason, permission, prefix, lost_feature)
        for name, reason in purposes.items()
    ]


REQUIRED_ACLS: Final[tuple[RequiredAcl, ...]] = (
    *_build_required_acls(ClusterRole.SOURCE, "data", Resource.TOPIC, READ="fetch records"),
    *_build_required_acls(
        ClusterRole.SOURCE,
        "control",
        Resource.TOPIC,
        READ="see offsets and open transactions, compare records",
        DESCRIBE_CONFIGS="sync settings",
    ),
    *_build_required_acls(
        ClusterRole.SOURCE,
        "control",
        Resource.TOPIC,
        prefix=HEARTBEAT_TOPIC_PREFIX,
        CREATE="make the topic of heartbeats",
        WRITE="write heartbeats: a clock of what an unplanned failover loses",
    ),
    *_build_required_acls(ClusterRole.SOURCE, "control", Resource.GROUP, DESCRIBE="sync groups' offsets"),
    *_build_required_acls(
        ClusterRole.SOURCE,
        "control",
        Resource.CLUSTER,
        DESCRIBE="sync ACLs, list groups",
        ALTER="fence the source at a failover",
    ),
    *_build_required_acls(
        ClusterRole.SOURCE,
        "control",
        Resource.CLUSTER,
        lost_feature="client quotas are not staged, and promotion sets none",
        DESCRIBE_CONFIGS="sync client quotas",
    ),
    *_build_required_acls(
        ClusterRole.SOURCE, "control", Resource.TRANSACTIONAL_ID, DESCRIBE="see open transactions before a failover"
    ),
    *_build_required_acls(
        ClusterRole.DESTINATION,
        "data",
        Resource.TOPIC,
        READ="see producer states",
        WRITE="write mirror topics",
        DELETE="follow the source's log start",
    ),
    *_build_required_acls(
        ClusterRole.DESTINATION,
        "data",
        Resource.TOPIC,
        Permission.DENY,
        WRITE="leave the state topic to the control principal: it says who gets which rights",
        DELETE="the same",
    ),
    *_build_required_acls(
        ClusterRole.DESTINATION, "data", Resource.GROUP, READ="commit groups' offsets until a failover denies it"
    ),
    *_build_required_acls(ClusterRole.DESTINATION, "data", Resource.CLUSTER, CLUSTER_ACTION="fill gaps with markers"),
    *_build_required_acls(
        ClusterRole.DESTINATION,
        "control",
        Resource.TOPIC,
        READ="read the state topic, compare records",
        WRITE="write the state topic and the canary",
        CREATE="create mirror topics",
        ALTER="add partitions",
        DELETE="follow the source's log start, recreate topics at a failback",
        ALTER_CONFIGS="sync settings",
    ),
    *_build_required_acls(
        ClusterRole.DESTINATION, "control", Resource.GROUP, READ="commit groups' offsets at a failover"
    ),
    *_build_required_acls(
        ClusterRole.DESTINATION, "control", Resource.CLUSTER, ALTER="sync ACLs, promote applications"
    ),
    *_build_required_acls(
        ClusterRole.DESTINATION,
        "control",
        Resource.CLUSTER,
        lost_feature="failback strategies `handover`, `replica` are refused, brokers' settings are not looked at, and "
        "client quotas are not set",
        DESCRIBE_CONFIGS="see brokers' settings and client quotas",
        ALTER_CONFIGS="slow a new replica down: failback strategies `handover` and `replica`; set client quotas",
    ),
    *_build_required_acls(
        ClusterRole.DESTINATION,
        "control",
        Resource.CLUSTER,
        lost_feature="failback strategy `handover` is not chosen: a divergent tail means that its topic is copied anew",
        CLUSTER_ACTION="let a short replica lead: failback strategy `handover`",
    ),
    *_build_required_acls(
        ClusterRole.DESTINATION,
        "control",
        Resource.GROUP,
        prefix=JOURNAL_PREFIX,
        lost_feature="the group of a drill stays",
        DELETE="take the group of a drill away",
    ),
    *_build_required_acls(ClusterRole.DESTINATION, "control", Resource.TRANSACTIONAL_ID, WRITE="own the state topic"),
)
"""Found by trying every request without rights, with each one, and with pairs."""

_LOG_REQUESTS: Final = ("Metadata", "ListOffsets", "OffsetForLeaderEpoch", "Fetch")
_ACL_REQUESTS: Final = ("DescribeAcls", "CreateAcls", "DeleteAcls")
_CLUSTER_LOOKS: Final = ("ListGroups", "DescribeQuorum", "DescribeLogDirs", "DescribeUserScramCredentials")
_GROUP_LOOKS: Final = ("FindCoordinator", "DescribeGroups", "OffsetFetch", "DescribeShareGroupOffsets")
_S, _D, _R = ClusterRole.SOURCE, ClusterRole.DESTINATION, Resource

REQUESTS: Final[Mapping[tuple[ClusterRole, str, Resource, Operation], tuple[str, ...]]] = MappingProxyType(
    {
        (_S, "data", _R.TOPIC, _O.READ): _LOG_REQUESTS,
        (_S, "control", _R.TOPIC, _O.READ): (*_LOG_REQUESTS, "DescribeProducers"),
        (_S, "control", _R.TOPIC, _O.DESCRIBE_CONFIGS): ("DescribeConfigs",),
        (_S, "control", _R.TOPIC, _O.CREATE): ("CreateTopics",),
        (_S, "control", _R.TOPIC, _O.WRITE): ("Produce",),
        (_S, "control", _R.GROUP, _O.DESCRIBE): _GROUP_LOOKS,
        (_S, "control", _R.CLUSTER, _O.DESCRIBE): ("DescribeAcls", *_CLUSTER_LOOKS),
        (_S, "control", _R.CLUSTER, _O.ALTER): _ACL_REQUESTS,
        (_S, "control", _R.CLUSTER, _O.DESCRIBE_CONFIGS): ("DescribeClientQuotas",),
        (_S, "control", _R.TRANSACTIONAL_ID, _O.DESCRIBE): ("ListTransactions", "DescribeTransactions"),
        (_D, "data", _R.TOPIC, _O.READ): (*_LOG_REQUESTS, "DescribeProducers"),
        (_D, "data", _R.TOPIC, _O.WRITE): ("Produce",),
        (_D, "data", _R.TOPIC, _O.DELETE): ("DeleteRecords",),
        (_D, "data", _R.GROUP, _O.READ): ("FindCoordinator", "OffsetCommit"),
        (_D, "data", _R.CLUSTER, _O.CLUSTER_ACTION): ("WriteTxnMarkers",),
        (_D, "control", _R.TOPIC, _O.READ): (*_LOG_REQUESTS, "DescribeProducers"),
        (_D, "control", _R.TOPIC, _O.WRITE): ("AddPartitionsToTxn", "Produce"),
        (_D, "control", _R.TOPIC, _O.CREATE): ("CreateTopics",),
        (_D, "control", _R.TOPIC, _O.ALTER): ("CreatePartitions",),
        (_D, "control", _R.TOPIC, _O.DELETE): ("DeleteRecords", "DeleteTopics"),
        (_D, "control", _R.TOPIC, _O.ALTER_CONFIGS): ("DescribeConfigs", "IncrementalAlterConfigs"),
        (_D, "control", _R.GROUP, _O.READ): (*_GROUP_LOOKS, "OffsetCommit", "AlterShareGroupOffsets"),
        (_D, "control", _R.CLUSTER, _O.ALTER): (
            *_ACL_REQUESTS,
            *_CLUSTER_LOOKS,
            "AlterPartitionReassignments",
            "ElectLeaders",
        ),
        (_D, "control", _R.CLUSTER, _O.DESCRIBE_CONFIGS): ("DescribeConfigs", "DescribeClientQuotas"),
        (_D, "control", _R.CLUSTER, _O.ALTER_CONFIGS): ("IncrementalAlterConfigs", "AlterClientQuotas"),
        (_D, "control", _R.CLUSTER, _O.CLUSTER_ACTION): ("Fetch",),
        (_D, "control", _R.GROUP, _O.DELETE): ("DeleteGroups",),
        (_D, "control", _R.TRANSACTIONAL_ID, _O.WRITE): (
            "FindCoordinator",
            "InitProducerId",
            "AddPartitionsToTxn",
            "EndTxn",
        ),
    }
)
"""Each right's requests. READ, WRITE, DELETE and ALTER imply DESCRIBE, ALTER_CONFIGS DESCRIBE_CONFIGS."""
FREE_REQUESTS: Final = frozenset({"ApiVersions", "SaslHandshake", "SaslAuthenticate"})
_COMPONENTS: Final = MappingProxyType({"data": "data plane", "control": "control plane"})


def format_requests_table() -> Iterator[str]:
    """Markdown: by component and cluster, each right with its requests."""
    yield "| component | cluster | right | requests | for |"
    yield "|---|---|---|---|---|"
    for acl in REQUIRED_ACLS:
        if acl.permission is Permission.ALLOW:
            requests = ", ".join(REQUESTS[acl.role, acl.principal, acl.resource, acl.operation])
            right = f"{acl.operation} on {acl.resource}" + (f" `{acl.prefix}*`" if acl.prefix else "")
            component, note = _COMPONENTS[acl.principal], " (optional)" if acl.lost_feature else ""
            yield f"| {component} | {acl.role} | {right}{note} | {requests} | {acl.purpose} |"


def format_requests_diagram() -> Iterator[str]:
    for principal, component in _COMPONENTS.items():
        for role in ClusterRole:
            requests = sorted({r for key, names in REQUESTS.items() if key[:2] == (role, principal) for r in names})
            lines = textwrap.wrap(", ".join(requests), 70)
            yield f"{component} --> {role}"
            yield from (f"    {line}" for line in lines)


REPLAY_ACLS: Final[tuple[RequiredAcl, ...]] = (
    *_build_required_acls(
        ClusterRole.DESTINATION,
        "replay",
        Resource.TOPIC,
        READ="read the state topic of each cluster; keep progress beside what is written",
        WRITE="write the chosen topics",
    ),
    *_build_required_acls(
        ClusterRole.DESTINATION,
        "replay",
        Resource.GROUP,
        prefix=REPLAY_PREFIX,
        READ="keep progress in the same transaction",
    ),
    *_build_required_acls(
        ClusterRole.DESTINATION,
        "replay",
        Resource.TRANSACTIONAL_ID,
        prefix=REPLAY_PREFIX,
        WRITE="fence an earlier attempt",
    ),
)
"""For the login that replays salvaged records. To a mirror it is an application: a fence stops it."""

_IMPLYING_OPERATIONS: Final = {
    _O.DESCRIBE: frozenset({_O.READ, _O.WRITE, _O.DELETE, _O.ALTER}),
    _O.DESCRIBE_CONFIGS: frozenset({_O.ALTER_CONFIGS}),
}
STRATEGY_RIGHTS: Final[Mapping[FailbackStrategy, frozenset[Operation]]] = MappingProxyType(
    {
        FailbackStrategy.OFFLINE: frozenset({_O.DESCRIBE, _O.ALTER}),
        FailbackStrategy.HANDOVER: frozenset(
            {_O.DESCRIBE, _O.ALTER, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS, _O.CLUSTER_ACTION}
        ),
        FailbackStrategy.REPLICA: frozenset({_O.DESCRIBE, _O.ALTER, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS}),
    }
)
"""On the old source's cluster, for a failback: place replicas, elect a leader, set a rate, act as a replica."""

TOPIC_STRATEGY_RIGHTS: Final[Mapping[FailbackStrategy, frozenset[Operation]]] = MappingProxyType(
    {
        FailbackStrategy.RECREATE: frozenset({_O.CREATE, _O.DELETE}),
        FailbackStrategy.HANDOVER: frozenset({_O.ALTER_CONFIGS}),
        FailbackStrategy.REPLICA: frozenset({_O.ALTER_CONFIGS}),
    }
)


def find_lacking_strategy_rights(
    strategies: Mapping[str, FailbackStrategy],
    cluster: Collection[Operation] | None,
    topics: Mapping[str, Collection[Operation]],
) -> Iterator[str]:
    """`cluster`: None if unknown."""
    for strategy in sorted(set(strategies.values())):
        missing = STRATEGY_RIGHTS.get(strategy, frozenset()).difference(cluster or ())
        if missing and cluster is not None:
            yield f"strategy {strategy} needs {' and '.join(sorted(missing))} on the cluster"
    for topic, strategy in sorted(strategies.items()):
        required = TOPIC_STRATEGY_RIGHTS.get(strategy, frozenset()) if topic in topics else frozenset()
        allowed = {*topics.get(topic, ()), *((_O.CREATE,) if _O.CREATE in (cluster or ()) else ())}
        if missing := required - allowed:
            yield f"strategy {strategy} needs {' and '.join(sorted(missing))} on topic {topic}"


_RUN_RIGHTS: Final = frozenset(
    {
        (Resource.TOPIC, _O.READ),
        (Resource.TOPIC, _O.WRITE),
        (Resource.TOPIC, _O.CREATE),
        (Resource.TOPIC, _O.DESCRIBE_CONFIGS),
        (Resource.TOPIC, _O.ALTER_CONFIGS),
        (Resource.CLUSTER, _O.ALTER),
        (Resource.GROUP, _O.READ),
        (Resource.TRANSACTIONAL_ID, _O.WRITE),
    }
)
"""Without these a failover or a failback stops midway."""


@dataclass(frozen=True, slots=True)
class LackingRight:
    cluster: ClusterName
    user: str
    """As Kafka names it."""
    need: RequiredAcl

    def __str__(self) -> str:
        return f"{self.user} lacks {self.need.operation} on {self.need.resource}"


def stops_run(lacking: LackingRight, mode: RunMode) -> bool:
    """An unplanned failover asks nothing of the source, and copies nothing."""
    need = lacking.need
    is_asked = mode is RunMode.PLANNED or (need.role, need.principal) == (ClusterRole.DESTINATION, "control")
    return is_asked and (need.resource, need.operation) in _RUN_RIGHTS


def explain_lacking_rights(lacking: Iterable[LackingRight]) -> Iterator[Finding]:
    by_cluster: dict[ClusterName, list[LackingRight]] = {}
    for right in lacking:
        by_cluster.setdefault(right.cluster, []).append(right)
    for cluster, rights in sorted(by_cluster.items()):
        yield Finding("run_rights_lacking", cluster, lacking=list(dict.fromkeys(map(str, rights))))


def is_allowed(acls: Iterable[Acl], principal: str, resource: Resource, name: str, operation: Operation) -> bool:
    """Kafka's decision for any host, without super users."""
    allowed = False
    for acl in acls:
        if acl.resource is not resource or acl.principal not in (principal, EVERYBODY) or not covers(acl, name):
            continue
        exact = acl.operation in (operation, Operation.ALL)
        if acl.permission is Permission.DENY and exact:
            return False
        if acl.permission is Permission.ALLOW and acl.host == "*":
            allowed |= exact or acl.operation in _IMPLYING_OPERATIONS.get(operation, frozenset())
    return allowed


def find_other_writers(acls: Iterable[Acl], topic: str, own_principals: Collection[str]) -> tuple[str, ...]:
    """They can write this topic or delete it or its records."""
    entries = tuple(acls)
    candidates = {a.principal for a in entries if can_change_topic(a) and covers(a, topic)} - set(own_principals)
    operations = (Operation.WRITE, Operation.DELETE)
    writers = {
        p
        for p in candidates
        if any(is_allowed(entries, p, Resource.TOPIC, topic, operation) for operation in operations)
    }
    return tuple(sorted(writers))
