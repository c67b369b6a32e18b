"""`cluster check`: reachability, versions and rights. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mirror_core.decide.clocks import differing
from mirror_core.decide.ruled import as_destination, as_source
from mirror_core.kafka.acls import Acls, AuthorizerOff, describe_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, Principal
from mirror_core.kafka.quorum import clock_ahead_ms
from mirror_core.kafka.rights import Probe, features, may_mark, probe
from mirror_core.kafka.versions import api_versions
from mirror_core.mirrors.broker_settings import auto_creation, unclean_election
from mirror_core.mirrors.first_acl import look
from mirror_core.mirrors.forgetful import forgetful
from mirror_core.model.acl import Operation, Permission, Resource
from mirror_core.model.documents import Document
from mirror_core.model.errors import MirrorError, RemoteFault
from mirror_core.model.limits import LIMITS
from mirror_core.model.names import HEARTBEATS, ClusterName
from mirror_core.model.ruling import Authorizer
from mirror_core.model.text import format_address
from mirror_core.rights.acl_command import acl_command
from mirror_core.rights.acls import OUR_TOPICS
from mirror_core.rights.first_acl import REFUSED, FirstAcl, ShutsOut
from mirror_core.rights.needed import NEEDS, Need, Role, allows
from mirror_core.state.records import TOPIC as STATE
from mirror_core.sync.principals import doubtful_principals, principal_name

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
NOT_KAFKAS: Final = "access rights there are not Kafka's ACLs"


class Verdict(StrEnum):
    OK = "ok"
    PARTLY = "partly"
    """Right on some topics only: enough if those are the mirror's."""
    MISSING = "missing"
    SPARED = "optional, and missing"
    UNKNOWN = "could not be tested"


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One right that a principal needs."""

    role: Role
    principal: str
    """control or data."""
    user: str
    """As Kafka names it."""
    resource: str
    operation: str
    why: str
    verdict: Verdict
    detail: str = ""
    command: str = ""
    """Grants it; empty when it is there, or ACLs do not rule the cluster."""
    permission: str = Permission.ALLOW
    """DENY: the principal must not have it."""


class ClusterCheck(Document, frozen=True, kw_only=True):
    """What a check found."""

    cluster: str
    cluster_id: str
    brokers: tuple[str, ...]
    features: dict[str, int]
    authorizer: str
    """on, off, foreign, or why it is unknown."""
    shuts_out: FirstAcl
    """Whether a first ACL shuts out other users of the resource."""
    rights: tuple[Right, ...]
    problems: tuple[str, ...]
    """To be fixed for any role."""
    advice: tuple[str, ...]
    """To be fixed for a destination."""
    forgetful: tuple[str, ...]
    """Part of the advice: brokers whose producer ids expire."""
    roles: tuple[Role, ...]
    """Roles for which no right is missing."""


def check(config: ClusterConfig) -> ClusterCheck:
    """Raises only when neither principal gets an answer."""
    with ClusterClient(config, Principal.CONTROL) as control, ClusterClient(config, Principal.DATA) as data:
        view = control.metadata(())
        problems = _broker_problems(control, tuple(view.brokers))
        acls = _acls(control)
        probes: dict[str, Probe | str] = {"control": _probe(control), "data": _probe(data)}
        marks = isinstance(probes["data"], Probe) and may_mark(data)
        problems += [answer for answer in probes.values() if isinstance(answer, str)]
        shuts_out = look(control, data, acls)
        problems += [shuts_out.words] if shuts_out.answer in REFUSED else []
        problems += (
            doubtful_principals(config, acls) if isinstance(acls, Acls) and not _super(probes["control"]) else ()
        )
        rights = tuple(
            _right(config, need, probes[need.principal], acls, marks=marks)
            for need in NEEDS
            if not (config.ruling.foreign and _is_for_acls(need))
        )
        lacking = {right.role for right in rights if right.verdict is Verdict.MISSING}
        forgets = forgetful(control, sorted(view.brokers))
        return ClusterCheck(
            cluster=config.name,
            cluster_id=view.cluster_id,
            brokers=tuple(f"{broker} {format_address(*address)}" for broker, address in sorted(view.brokers.items())),
            features=features(control),
            authorizer=_in_one_word(acls),
            shuts_out=shuts_out,
            rights=rights,
            problems=tuple(problems),
            advice=(
                *as_source(config.name, config.ruling),
                *as_destination(config.name, config.ruling),
                *forgets.lines,
                *forgets.unseen,
                *unclean_election(control, sorted(view.brokers)),
                *auto_creation(control, sorted(view.brokers)),
                *_clock(config),
            ),
            forgetful=forgets.lines,
            roles=tuple(role for role in Role if role not in lacking),
        )


def _clock(config: ClusterConfig) -> Iterator[str]:
    ahead_ms = clock_ahead_ms(config, timeout_s=LIMITS.answering_cluster_s)
    if ahead_ms is None:
        yield f"cluster {config.name}: its brokers do not tell the time: whether the clock here is right is unknown"
    elif words := differing(config.name, ahead_ms):
        yield words


def _in_one_word(acls: Acls | AuthorizerOff | str) -> str:
    if isinstance(acls, AuthorizerOff):
        return "foreign" if acls.foreign else "off"
    return "on" if isinstance(acls, Acls) else acls


def _is_for_acls(need: Need) -> bool:
    return need.resource is Resource.CLUSTER and need.operation is Operation.ALTER


def lacks_heartbeats(source: ClusterConfig) -> bool:
    with ClusterClient(source, Principal.CONTROL) as client:
        acls, probed = _acls(client), _probe(client)
        needs = [need for need in NEEDS if need.prefix == HEARTBEATS]
        return any(_right(source, need, probed, acls, marks=True).verdict is Verdict.SPARED for need in needs)


def shuts_out(config: ClusterConfig) -> FirstAcl:
    with ClusterClient(config, Principal.CONTROL) as control, ClusterClient(config, Principal.DATA) as data:
        return look(control, data, _acls(control))


def not_known_to_shut_out(found: Mapping[ClusterName, FirstAcl]) -> list[str]:
    return [f"cluster {name}: {one.words}" for name, one in found.items() if one.answer is ShutsOut.UNKNOWN]


def reach(name: str, properties: Mapping[str, str]) -> str:
    """Raises when none does."""
    config = ClusterConfig(ClusterName(name), properties, properties)
    with ClusterClient(config, timeout_s=LIMITS.answering_cluster_s) as client:
        view = client.metadata(())
    return f"cluster {view.cluster_id}, {len(view.brokers)} broker(s)"


def _right(
    config: ClusterConfig, need: Need, probed: Probe | str, acls: Acls | AuthorizerOff | str, *, marks: bool
) -> Right:
    user = principal_name(config, Principal(need.principal))
    foreign = config.ruling.foreign
    verdict, detail = _verdict(config, need, user, probed, acls, marks=marks)
    if verdict is Verdict.MISSING and need.without:
        verdict, detail = Verdict.SPARED, need.without
    grant = acl_command(need.acl(user), bootstrap=config.control["bootstrap.servers"])
    return Right(
        role=need.role,
        principal=need.principal,
        user=user,
        resource=need.resource,
        operation=need.operation,
        why=need.why,
        verdict=verdict,
        detail=detail,
        command="" if verdict is Verdict.OK or foreign else grant,
        permission=need.permission,
    )


def _verdict(
    config: ClusterConfig,
    need: Need,
    user: str,
    probed: Probe | str,
    acls: Acls | AuthorizerOff | str,
    *,
    marks: bool,
) -> tuple[Verdict, str]:
    foreign = config.ruling.foreign
    if isinstance(acls, AuthorizerOff):
        acls = NOT_KAFKAS if foreign else acls
    if isinstance(acls, AuthorizerOff):
        verdict, detail = Verdict.OK, "no authorizer: everybody may"
        if acls.said is Authorizer.NONE:
            detail = "not looked at: it gets no ACLs (`authorizer: none`)"
    elif isinstance(probed, str):
        verdict, detail = Verdict.UNKNOWN, "this principal got no answer"
    elif need.permission is Permission.DENY:
        verdict, detail = _denied(need, user, config, probed, acls)
    elif need.operation is Operation.CLUSTER_ACTION:
        verdict, detail = (Verdict.OK, "") if marks else (Verdict.SPARED, WITHOUT_MARKERS)
    elif need.prefix == HEARTBEATS:
        verdict, detail = _on_heartbeats(need, user, probed, acls)
    elif need.resource is Resource.TOPIC:
        verdict, detail = _on_topics(need, user, probed, acls)
    elif need.resource is Resource.GROUP and not need.prefix:
        verdict, detail = _said(need.operation in probed.group)
        if verdict is Verdict.MISSING and need.principal == "data":
            verdict, detail = Verdict.SPARED, WITHOUT_COMMITS
    elif need.resource is Resource.CLUSTER and probed.cluster is not None:
        verdict, detail = _said(need.operation in probed.cluster)
    else:
        verdict, detail = _by_acls(need, user, probed, acls)
    return verdict, detail


def _said(allowed: bool) -> tuple[Verdict, str]:
    return (Verdict.OK, "") if allowed else (Verdict.MISSING, "the broker says so")


def _denied(need: Need, user: str, config: ClusterConfig, probed: Probe, acls: Acls | str) -> tuple[Verdict, str]:
    if user == principal_name(config, Principal.CONTROL):
        return Verdict.OK, "is the control principal, too: nothing is denied"
    if _super(probed):
        return Verdict.SPARED, "a super user: nothing can be denied to it"
    if config.ruling.foreign:
        return Verdict.SPARED, f"not denied by Mirrorbook: {NOT_KAFKAS}"
    if isinstance(acls, str):
        return Verdict.UNKNOWN, "the ACLs cannot be read"
    if allows(acls.entries, user, need.resource, STATE, need.operation):
        return Verdict.SPARED, "the first sync of a mirror to this cluster denies it"
    return Verdict.OK, "by the ACLs"


def _on_topics(need: Need, user: str, probed: Probe, acls: Acls | AuthorizerOff | str) -> tuple[Verdict, str]:
    if need.operation is Operation.CREATE and probed.cluster and Operation.CREATE in probed.cluster:
        return Verdict.OK, "by CREATE on the cluster"
    probed_topics = {t: rights for t, rights in probed.topics.items() if need.principal == "control" or not _ours(t)}
    without = sorted(topic for topic, rights in probed_topics.items() if need.operation not in rights)
    if not probed_topics:
        verdict, detail = _by_acls(need, user, probed, acls)
        return verdict, "it may describe no topic, or there is none" + (f"; {detail}" if detail else "")
    if not without:
        return Verdict.OK, f"on all of {len(probed_topics)} topics"
    detail = f"not on {len(without)} of {len(probed_topics)} topics: {', '.join(without[:3])}"
    detail += "..." if len(without) > 3 else ""
    return (Verdict.MISSING if len(without) == len(probed_topics) else Verdict.PARTLY), detail


def _on_heartbeats(need: Need, user: str, probed: Probe, acls: Acls | str) -> tuple[Verdict, str]:
    there = {topic: rights for topic, rights in probed.topics.items() if topic.startswith(need.prefix)}
    if need.operation is Operation.WRITE and there:
        allowed = all(need.operation in rights for rights in there.values())
        verdict, detail = _said(allowed)
    elif need.operation is Operation.CREATE and probed.cluster and Operation.CREATE in probed.cluster:
        verdict, detail = Verdict.OK, "by CREATE on the cluster"
    else:
        verdict, detail = _by_acls(need, user, probed, acls)
    return (Verdict.SPARED, WITHOUT_HEARTBEATS) if verdict is Verdict.MISSING else (verdict, detail)


def _ours(topic: str) -> bool:
    return topic.startswith(OUR_TOPICS)


def _super(probed: Probe | str) -> bool:
    everything = {Operation.CLUSTER_ACTION, Operation.ALTER, Operation.CREATE}
    return isinstance(probed, Probe) and probed.cluster is not None and everything <= probed.cluster


def _by_acls(need: Need, user: str, probed: Probe, acls: Acls | AuthorizerOff | str) -> tuple[Verdict, str]:
    if _super(probed):
        return Verdict.OK, "may do everything on the cluster: a super user"
    if not isinstance(acls, Acls):
        why = acls if acls == NOT_KAFKAS else "the ACLs cannot be read"
        return Verdict.UNKNOWN, f"the brokers do not say, and {why}"
    wanted = need.acl(user)
    if allows(acls.entries, user, wanted.resource, wanted.name, wanted.operation):
        return Verdict.OK, "by the ACLs"
    return Verdict.MISSING, "by the ACLs"


def _probe(client: ClusterClient) -> Probe | str:
    try:
        return probe(client)
    except MirrorError as error:
        return f"as {client.principal} principal: {error}"


def _acls(client: ClusterClient) -> Acls | AuthorizerOff | str:
    try:
        return describe_acls(client)
    except RemoteFault as error:
        return f"not known: {error}"


def _broker_problems(client: ClusterClient, brokers: Sequence[int]) -> list[str]:
    problems = []
    for broker in brokers:
        try:
            spoken = api_versions(client, broker)
        except MirrorError as error:
            problems.append(f"broker {broker}: {error}")
            continue
        for key, name, version in NEEDED_APIS:
            if name in _ACL_APIS and client.config.ruling.authorizer is not Authorizer.KAFKA:
                continue
            oldest, newest = spoken.get(key, (0, -1))
            if not oldest <= version <= newest:
                problems.append(f"broker {broker} does not understand {name} v{version}: Kafka 3.1 or newer is needed")
    return problems
