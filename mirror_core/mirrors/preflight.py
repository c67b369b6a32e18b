"""`cluster check`: reachability, versions and rights. Changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from mirror_core.decide.clock_skew import find_clock_difference
from mirror_core.decide.fence_limits import warn_foreign_destination, warn_foreign_source
from mirror_core.kafka.acl_requests import AuthorizerOff, BrokerAcls, describe_acls
from mirror_core.kafka.authorization_probe import PrincipalRights, can_write_markers, fetch_features, probe_rights
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.cluster_info import fetch_api_versions, measure_clock_ahead_ms
from mirror_core.kafka.config import ClusterConfig, Principal
from mirror_core.mirrors.broker_checks import (
    check_auto_creation,
    check_first_acl,
    check_producer_expiry,
    check_unclean_election,
)
from mirror_core.model.acl import Acl, Operation, Permission, Resource
from mirror_core.model.config_sections import AuthorizerKind
from mirror_core.model.errors import MirrorError, RemoteFault
from mirror_core.model.findings import Finding
from mirror_core.model.json_documents import FindingDocument, JsonDocument, to_finding_documents
from mirror_core.model.names import HEARTBEAT_TOPIC_PREFIX, ClusterName
from mirror_core.model.text import format_address, format_count
from mirror_core.model.timing import TIMEOUTS
from mirror_core.rights.acl_rules import EVERYBODY, OWN_TOPIC_PREFIX, build_denial, format_acl_command
from mirror_core.rights.first_acl import REFUSED_EFFECTS, FirstAclAssessment, FirstAclEffect
from mirror_core.rights.required_acls import REQUIRED_ACLS, ClusterRole, LackingRight, RequiredAcl, is_allowed
from mirror_core.state.state_records import STATE_TOPIC as STATE
from mirror_core.sync.principals import format_principal, list_uncertain_principals

NEEDED_APIS: Final = (
    (0, "Produce", 8),
    (1, "Fetch", 10),
    (2, "ListOffsets", 5),
    (3, "Metadata", 12),
    (8, "OffsetCommit", 6),
    (9, "OffsetFetch", 8),
    (10, "FindCoordinator", 4),
    (15, "DescribeGroups", 4),
    (16, "ListGroups", 4),
    (19, "CreateTopics", 4),
    (20, "DeleteTopics", 6),
    (21, "DeleteRecords", 1),
    (22, "InitProducerId", 4),
    (23, "OffsetForLeaderEpoch", 2),
    (24, "AddPartitionsToTxn", 2),
    (26, "EndTxn", 2),
    (29, "DescribeAcls", 1),
    (30, "CreateAcls", 1),
    (31, "DeleteAcls", 1),
    (32, "DescribeConfigs", 1),
    (35, "DescribeLogDirs", 1),
    (37, "CreatePartitions", 1),
    (42, "DeleteGroups", 1),
    (44, "IncrementalAlterConfigs", 0),
    (61, "DescribeProducers", 0),
    (65, "DescribeTransactions", 0),
    (66, "ListTransactions", 0),
)
"""API key, name, version used."""
_ACL_APIS: Final = frozenset({"DescribeAcls", "CreateAcls", "DeleteAcls"})
WITHOUT_HEARTBEATS: Final = "no heartbeats: of what an unplanned failover loses one clock is unknown"
WITHOUT_MARKERS: Final = "mirrors created without it fill gaps with hidden records, which every consumer drops"
WITHOUT_COMMITS: Final = "the control principal commits instead, each time after another look at who owns the mirror"
NOT_KAFKA_ACLS: Final = "access rights there are not Kafka's ACLs"


class RightStatus(StrEnum):
    OK = "ok"
    PARTLY = "partly"
    """Right on some topics only: enough if those are the mirror's."""
    MISSING = "missing"
    SPARED = "optional, and missing"
    UNKNOWN = "could not be tested"


@dataclass(frozen=True, slots=True, kw_only=True)
class RightCheck:
    """One right that a principal needs."""

    role: ClusterRole
    principal: str
    """control or data."""
    user: str
    """As Kafka names it."""
    resource: str
    operation: str
    why: str
    verdict: RightStatus
    detail: str = ""
    command: str = ""
    """Grants it; empty when it is there, or ACLs do not rule the cluster."""
    permission: str = Permission.ALLOW
    """DENY: the principal must not have it."""


class ClusterCheck(JsonDocument, frozen=True, kw_only=True):
    """What a check found."""

    cluster: str
    cluster_id: str
    brokers: tuple[str, ...]
    features: dict[str, int]
    authorizer: str
    """on, off, foreign, or why it is unknown."""
    first_acl: FirstAclAssessment
    """Whether a first ACL shuts out other users of the resource."""
    rights: tuple[RightCheck, ...]
    problems: tuple[str, ...]
    """To be fixed for any role."""
    advice: tuple[str, ...]
    """To be fixed for a destination."""
    expiring_producers: tuple[FindingDocument, ...]
    """Part of the advice: brokers whose producer ids expire."""
    roles: tuple[ClusterRole, ...]
    """Roles for which no right is missing."""


def check_cluster(config: ClusterConfig) -> ClusterCheck:
    """Raises only when neither principal gets an answer."""
    with ClusterClient(config, Principal.CONTROL) as control, ClusterClient(config, Principal.DATA) as data:
        metadata = control.metadata(())
        problems = _broker_problems(control, tuple(metadata.brokers))
        acls = _describe_acls_or_error(control)
        probes: dict[str, PrincipalRights | str] = {"control": _probe_rights(control), "data": _probe_rights(data)}
        can_mark = isinstance(probes["data"], PrincipalRights) and can_write_markers(data)
        problems += [answer for answer in probes.values() if isinstance(answer, str)]
        first_acl = check_first_acl(control, data, acls)
        problems += [first_acl.text] if first_acl.shuts_out in REFUSED_EFFECTS else []
        problems += map(
            str,
            list_uncertain_principals(config, acls)
            if isinstance(acls, BrokerAcls) and not _is_super_user(probes["control"])
            else (),
        )
        rights = tuple(
            check_right(config, need, probes[need.principal], acls, can_mark=can_mark)
            for need in REQUIRED_ACLS
            if not (config.ruling.is_foreign and _is_for_acls(need))
        )
        lacking = {right.role for right in rights if right.verdict is RightStatus.MISSING}
        producer_expiry = check_producer_expiry(control, sorted(metadata.brokers))
        return ClusterCheck(
            cluster=config.name,
            cluster_id=metadata.cluster_id,
            brokers=tuple(
                f"{broker} {format_address(*address)}" for broker, address in sorted(metadata.brokers.items())
            ),
            features=fetch_features(control),
            authorizer=_format_authorizer(acls),
            first_acl=first_acl,
            rights=rights,
            problems=tuple(problems),
            advice=(
                *map(str, warn_foreign_source(config.name, config.ruling)),
                *map(str, warn_foreign_destination(config.name, config.ruling)),
                *map(str, producer_expiry.expiring),
                *producer_expiry.unknown,
                *check_unclean_election(control, sorted(metadata.brokers)),
                *check_auto_creation(control, sorted(metadata.brokers)),
                *_check_clock(config),
            ),
            expiring_producers=to_finding_documents(producer_expiry.expiring),
            roles=tuple(role for role in ClusterRole if role not in lacking),
        )


def _check_clock(config: ClusterConfig) -> Iterator[str]:
    ahead_ms = measure_clock_ahead_ms(config, timeout_s=TIMEOUTS.liveness_probe_s)
    if ahead_ms is None:
        yield f"cluster {config.name}: its brokers do not tell the time: whether the clock here is right is unknown"
    elif difference := find_clock_difference(config.name, ahead_ms):
        yield str(difference)


def _format_authorizer(acls: BrokerAcls | AuthorizerOff | str) -> str:
    if isinstance(acls, AuthorizerOff):
        return "foreign" if acls.is_foreign else "off"
    return "on" if isinstance(acls, BrokerAcls) else acls


def _is_for_acls(need: RequiredAcl) -> bool:
    return need.resource is Resource.CLUSTER and need.operation is Operation.ALTER


def lacks_heartbeats(source: ClusterConfig) -> bool:
    with ClusterClient(source, Principal.CONTROL) as client:
        acls, probed = _describe_acls_or_error(client), _probe_rights(client)
        needs = [need for need in REQUIRED_ACLS if need.prefix == HEARTBEAT_TOPIC_PREFIX]
        return any(
            check_right(source, need, probed, acls, can_mark=True).verdict is RightStatus.SPARED for need in needs
        )


def list_lacking_rights(
    config: ClusterConfig, roles: Collection[ClusterRole], topics: Collection[str]
) -> tuple[LackingRight, ...]:
    """Rights that the principals lack on some of these topics, without optional ones and what cannot be told.

    Denials that runs lift do not count: a fence's, and that of the data principal, which a promotion leaves.
    """
    limit_s = TIMEOUTS.plan_response_s
    with (
        ClusterClient(config, Principal.CONTROL, timeout_s=limit_s) as control,
        ClusterClient(config, Principal.DATA, timeout_s=limit_s) as data,
    ):
        control.metadata(())  # MirrorError at once from a silent cluster
        acls, clients = _describe_acls_or_error(control), {"control": control, "data": data}
        if isinstance(acls, BrokerAcls):
            acls = replace(acls, entries=acls.entries - _build_lifted_denials(config, topics))
        probes = {name: _probe_rights(client, topics) for name, client in clients.items()}
    seen_topics = {t for probed in probes.values() if not isinstance(probed, str) for t in probed.topics}
    lacking = list[LackingRight]()
    for need in REQUIRED_ACLS:
        if need.role not in roles or need.lost_feature or (config.ruling.is_foreign and _is_for_acls(need)):
            continue
        user, probed = format_principal(config, Principal(need.principal)), probes[need.principal]
        if need.resource is Resource.TOPIC and not isinstance(probed, str):
            if not seen_topics:
                continue  # plans refuse hidden topics with the right that shows them
            probed_topics = {topic: probed.topics.get(topic, frozenset()) for topic in seen_topics}
            probed = replace(probed, topics=_add_rights_by_acls(probed_topics, acls, user, need.operation))
        status = _find_status(config, need, user, probed, acls, can_mark=True)[0]
        if status in (RightStatus.MISSING, RightStatus.PARTLY):
            lacking.append(LackingRight(config.name, user, need))
    return tuple(lacking)


def _build_lifted_denials(config: ClusterConfig, topics: Iterable[str]) -> set[Acl]:
    principals = (EVERYBODY, format_principal(config, Principal.DATA))
    return {build_denial(topic, principal) for topic in topics for principal in principals}


def _add_rights_by_acls(
    probed_topics: Mapping[str, frozenset[Operation]],
    acls: BrokerAcls | AuthorizerOff | str,
    user: str,
    operation: Operation,
) -> dict[str, frozenset[Operation]]:
    entries = acls.entries if isinstance(acls, BrokerAcls) else frozenset()
    return {
        topic: rights | {operation} if is_allowed(entries, user, Resource.TOPIC, topic, operation) else rights
        for topic, rights in probed_topics.items()
    }


def check_shut_out(config: ClusterConfig) -> FirstAclAssessment:
    with ClusterClient(config, Principal.CONTROL) as control, ClusterClient(config, Principal.DATA) as data:
        return check_first_acl(control, data, _describe_acls_or_error(control))


def format_unknown_shut_out(answers: Mapping[ClusterName, FirstAclAssessment]) -> list[str]:
    return [
        f"cluster {name}: {answer.text}"
        for name, answer in answers.items()
        if answer.shuts_out is FirstAclEffect.UNKNOWN
    ]


def probe_connection(name: str, properties: Mapping[str, str]) -> str:
    """Raises when no broker answers."""
    config = ClusterConfig(ClusterName(name), properties, properties)
    with ClusterClient(config, timeout_s=TIMEOUTS.liveness_probe_s) as client:
        metadata = client.metadata(())
    return f"cluster {metadata.cluster_id}, {format_count(len(metadata.brokers), 'broker')}"


def check_right(
    config: ClusterConfig,
    need: RequiredAcl,
    probe_result: PrincipalRights | str,
    acls: BrokerAcls | AuthorizerOff | str,
    *,
    can_mark: bool,
) -> RightCheck:
    user = format_principal(config, Principal(need.principal))
    foreign = config.ruling.is_foreign
    status, detail = _find_status(config, need, user, probe_result, acls, can_mark=can_mark)
    if status is RightStatus.MISSING and need.lost_feature:
        status, detail = RightStatus.SPARED, need.lost_feature
    grant = format_acl_command(need.to_acl(user), bootstrap=config.control["bootstrap.servers"])
    return RightCheck(
        role=need.role,
        principal=need.principal,
        user=user,
        resource=need.resource,
        operation=need.operation,
        why=need.purpose,
        verdict=status,
        detail=detail,
        command="" if status is RightStatus.OK or foreign else grant,
        permission=need.permission,
    )


def _find_status(
    config: ClusterConfig,
    need: RequiredAcl,
    user: str,
    probe_result: PrincipalRights | str,
    acls: BrokerAcls | AuthorizerOff | str,
    *,
    can_mark: bool,
) -> tuple[RightStatus, str]:
    foreign = config.ruling.is_foreign
    if isinstance(acls, AuthorizerOff):
        acls = NOT_KAFKA_ACLS if foreign else acls
    if isinstance(acls, AuthorizerOff):
        status, detail = RightStatus.OK, "no authorizer: everybody may"
        if acls.configured is AuthorizerKind.NONE:
            detail = "not looked at: it gets no ACLs (`authorizer: none`)"
    elif isinstance(probe_result, str):
        status, detail = RightStatus.UNKNOWN, "this principal got no answer"
    elif need.permission is Permission.DENY:
        status, detail = _check_denial(need, user, config, probe_result, acls)
    elif need.operation is Operation.CLUSTER_ACTION and need.principal == "data":
        status, detail = (RightStatus.OK, "") if can_mark else (RightStatus.SPARED, WITHOUT_MARKERS)
    elif need.prefix == HEARTBEAT_TOPIC_PREFIX:
        status, detail = _check_heartbeats(need, user, probe_result, acls)
    elif need.resource is Resource.TOPIC:
        status, detail = _check_topics(need, user, config, probe_result, acls)
    elif need.resource is Resource.GROUP and not need.prefix:
        status, detail = _to_status(need.operation in probe_result.group)
        if status is RightStatus.MISSING and need.principal == "data":
            status, detail = RightStatus.SPARED, WITHOUT_COMMITS
    elif need.resource is Resource.CLUSTER and probe_result.cluster is not None:
        status, detail = _to_status(need.operation in probe_result.cluster)
    else:
        status, detail = _check_by_acls(need, user, probe_result, acls)
    return status, detail


def _to_status(allowed: bool) -> tuple[RightStatus, str]:
    return (RightStatus.OK, "") if allowed else (RightStatus.MISSING, "the broker says so")


def _check_denial(
    need: RequiredAcl, user: str, config: ClusterConfig, probe_result: PrincipalRights, acls: BrokerAcls | str
) -> tuple[RightStatus, str]:
    if user == format_principal(config, Principal.CONTROL):
        return RightStatus.OK, "is the control principal, too: nothing is denied"
    if _is_super_user(probe_result):
        return RightStatus.SPARED, "a super user: nothing can be denied to it"
    if config.ruling.is_foreign:
        return RightStatus.SPARED, f"not denied by Mirrorbook: {NOT_KAFKA_ACLS}"
    if isinstance(acls, str):
        return RightStatus.UNKNOWN, "the ACLs cannot be read"
    if is_allowed(acls.entries, user, need.resource, STATE, need.operation):
        return RightStatus.SPARED, "the first sync of a mirror to this cluster denies it"
    return RightStatus.OK, "by the ACLs"


def _check_topics(
    need: RequiredAcl, user: str, config: ClusterConfig, probe_result: PrincipalRights, acls: BrokerAcls | str
) -> tuple[RightStatus, str]:
    if need.operation is Operation.CREATE and probe_result.cluster and Operation.CREATE in probe_result.cluster:
        return RightStatus.OK, "by CREATE on the cluster"
    probed_topics = {
        t: rights for t, rights in probe_result.topics.items() if need.principal == "control" or not _is_own_topic(t)
    }
    without = sorted(topic for topic, rights in probed_topics.items() if need.operation not in rights)
    denied = _find_denied_by_runs(need, user, config, without, acls)
    without = [topic for topic in without if topic not in denied]
    denied_text = str(Finding("denied_by_runs", topics=denied)) if denied else ""
    if not probed_topics:
        status, detail = _check_by_acls(need, user, probe_result, acls)
        return status, "it may describe no topic, or there is none" + (f"; {detail}" if detail else "")
    if not without:
        return RightStatus.OK, denied_text or f"on all of {len(probed_topics)} topics"
    detail = f"not on {len(without)} of {len(probed_topics)} topics: {', '.join(without[:3])}"
    detail += ("..." if len(without) > 3 else "") + (f"; {denied_text}" if denied else "")
    return (RightStatus.MISSING if len(without) == len(probed_topics) else RightStatus.PARTLY), detail


def _find_denied_by_runs(
    need: RequiredAcl, user: str, config: ClusterConfig, topics: Collection[str], acls: BrokerAcls | str
) -> list[str]:
    """Topics where nothing but denials that runs lift takes the right away."""
    if isinstance(acls, str):
        return []
    standing = acls.entries & _build_lifted_denials(config, topics)
    others, denied = acls.entries - standing, {acl.name for acl in standing if acl.operation is need.operation}
    return [t for t in topics if t in denied and is_allowed(others, user, need.resource, t, need.operation)]


def _check_heartbeats(
    need: RequiredAcl, user: str, probe_result: PrincipalRights, acls: BrokerAcls | str
) -> tuple[RightStatus, str]:
    topic_rights = {topic: rights for topic, rights in probe_result.topics.items() if topic.startswith(need.prefix)}
    if need.operation is Operation.WRITE and topic_rights:
        allowed = all(need.operation in rights for rights in topic_rights.values())
        status, detail = _to_status(allowed)
    elif need.operation is Operation.CREATE and probe_result.cluster and Operation.CREATE in probe_result.cluster:
        status, detail = RightStatus.OK, "by CREATE on the cluster"
    else:
        status, detail = _check_by_acls(need, user, probe_result, acls)
    return (RightStatus.SPARED, WITHOUT_HEARTBEATS) if status is RightStatus.MISSING else (status, detail)


def _is_own_topic(topic: str) -> bool:
    return topic.startswith(OWN_TOPIC_PREFIX)


def _is_super_user(probe_result: PrincipalRights | str) -> bool:
    everything = {Operation.CLUSTER_ACTION, Operation.ALTER, Operation.CREATE}
    return (
        isinstance(probe_result, PrincipalRights)
        and probe_result.cluster is not None
        and everything <= probe_result.cluster
    )


def _check_by_acls(
    need: RequiredAcl, user: str, probe_result: PrincipalRights, acls: BrokerAcls | AuthorizerOff | str
) -> tuple[RightStatus, str]:
    if _is_super_user(probe_result):
        return RightStatus.OK, "may do everything on the cluster: a super user"
    if not isinstance(acls, BrokerAcls):
        reason = acls if acls == NOT_KAFKA_ACLS else "the ACLs cannot be read"
        return RightStatus.UNKNOWN, f"the brokers do not say, and {reason}"
    wanted = need.to_acl(user)
    if is_allowed(acls.entries, user, wanted.resource, wanted.name, wanted.operation):
        return RightStatus.OK, "by the ACLs"
    return RightStatus.MISSING, "by the ACLs"


def _probe_rights(client: ClusterClient, topics: Collection[str] | None = None) -> PrincipalRights | str:
    try:
        return probe_rights(client, topics)
    except MirrorError as error:
        return f"as {client.principal} principal: {error}"


def _describe_acls_or_error(client: ClusterClient) -> BrokerAcls | AuthorizerOff | str:
    try:
        return describe_acls(client)
    except RemoteFault as error:
        return f"not known: {error}"


def _broker_problems(client: ClusterClient, brokers: Sequence[int]) -> list[str]:
    problems = []
    for broker in brokers:
        try:
            version_ranges = fetch_api_versions(client, broker)
        except MirrorError as error:
            problems.append(f"broker {broker}: {error}")
            continue
        for key, name, version in NEEDED_APIS:
            if name in _ACL_APIS and client.config.ruling.authorizer is not AuthorizerKind.KAFKA:
                continue
            oldest, newest = version_ranges.get(key, (0, -1))
            if not oldest <= version <= newest:
                problems.append(f"broker {broker} does not understand {name} v{version}: Kafka 3.1 or newer is needed")
    return problems
