"""ACLs on mirror topics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from mirror_core.decide.acl_plan import (
    AclPlan,
    AclScope,
    PromotionGrants,
    explain_forged_entry,
    explain_narrowed_grant,
    plan_acls,
    plan_promotion_grants,
    warn_promotion_grants,
)
from mirror_core.decide.filters import build_acl_filter, build_group_filter, build_promotion_filter
from mirror_core.kafka.acl_requests import (
    AuthorizerOff,
    BrokerAcls,
    create_acls,
    describe_acls,
    wait_until_acls_present,
)
from mirror_core.kafka.authorization_probe import probe_cluster_rights
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.model.acl import LIFTABLE_PURPOSES, Acl, AclPurpose, Operation, Permission, Resource
from mirror_core.model.config_sections import AuthorizerKind
from mirror_core.model.errors import MirrorError, MissingPermission, Refused, Unreachable
from mirror_core.model.findings import Finding
from mirror_core.model.names import DRILL_PREFIX, ClusterName, get_both_directions
from mirror_core.model.sync_state import DriftRow, SyncAction
from mirror_core.rights.acl_rules import (
    build_demotions,
    can_change_topic,
    find_undemotable_grants,
    format_acl_command,
    is_wildcard_grant,
)
from mirror_core.rights.ledger_rules import split_forged_entries
from mirror_core.state.journal import JournalLog
from mirror_core.state.mirror_link import MirrorLink, read_other_states
from mirror_core.state.state_records import State, Tombstone
from mirror_core.state.state_topic import read_state
from mirror_core.sync.acl_ledger import (
    delete_entries,
    delete_unshared_entries,
    forget_pending_fence,
    list_entries,
    record_and_create,
    record_entries,
    restage_grants,
)
from mirror_core.sync.acl_rows import to_acl_row, to_forgery_row, to_no_authorizer_row, to_plan_rows, to_unknown_rows
from mirror_core.sync.principals import build_guards, list_own_principals, list_uncertain_principals
from mirror_core.sync.promotion_acls import fence_old_tasks, lift_demotions, list_remaining_denials
from mirror_core.sync.promotion_configs import PromotionConfigs

_FENCED: Final = frozenset({Resource.TOPIC, Resource.TRANSACTIONAL_ID})


@dataclass(frozen=True, slots=True)
class SiblingDenials:
    own: frozenset[Acl] = frozenset()
    uncertain: frozenset[Acl] = frozenset()
    """Not every cluster has answered."""
    unanswered: tuple[ClusterName, ...] = ()

    def rows(self) -> list[DriftRow]:
        reason = (
            f"{', '.join(self.unanswered)}: no answer, so a mirror towards it may have put this up to fence the source."
            " Not copied now: a later sync finds out"
        )
        return [to_acl_row(acl, SyncAction.SKIP, reason) for acl in sorted(self.uncertain)]


def find_sibling_denials(link: MirrorLink, new: Set[Acl]) -> SiblingDenials:
    """Queries third clusters about denials to be copied for the first time."""
    new_denials = frozenset(a for a in new if a.permission is Permission.DENY and a.resource in _FENCED)
    if not new_denials:
        return SiblingDenials()
    sibling_acls, unanswered = set[Acl](), list[ClusterName]()
    for cluster, state_or_error in read_other_states(link):
        if isinstance(state_or_error, MirrorError):
            unanswered.append(cluster)
            continue
        sibling_acls |= {
            e.acl
            for e in state_or_error.ledger.values()
            if e.purpose in LIFTABLE_PURPOSES and e.cluster == link.source.name
        }
    sibling_owned = new_denials & sibling_acls
    return SiblingDenials(
        sibling_owned, new_denials - sibling_owned if unanswered else frozenset(), tuple(sorted(unanswered))
    )


def sync_acls(
    link: MirrorLink,
    state: State,
    log: JournalLog | None,
    source: ClusterClient,
    destination: ClusterClient,
    topics: Collection[str],
    groups: Collection[str],
) -> list[DriftRow]:
    """Without a journal nothing is changed."""
    source_acls, destination_acls = describe_acls(source), describe_acls(destination)
    if isinstance(source_acls, AuthorizerOff) or isinstance(destination_acls, AuthorizerOff):
        return [
            to_no_authorizer_row(side) for side in (source_acls, destination_acls) if isinstance(side, AuthorizerOff)
        ]
    own_denials, forgeries = _list_own_denials(link, state)
    scope = AclScope(
        topics=topics,
        groups=groups,
        group_filter=build_group_filter(link.mirror),
        acl_filter=build_acl_filter(link.mirror, topics, groups),
        own_principals=list_own_principals(link),
        own_acls=own_denials,
        required_denials=build_guards(link.destination),
    )
    destination_entries = [e for e in state.ledger.values() if e.cluster == link.destination.name]
    own_entries, other_entries = (
        [e for e in destination_entries if (e.mirror == link.mirror.name) is own_denials]
        for own_denials in (True, False)
    )
    plan_for = partial(
        plan_acls, source_acls.entries, destination_acls.entries, ledger=own_entries, other_ledgers=other_entries
    )
    plan = plan_for(scope)
    sibling_denials = find_sibling_denials(link, source_acls.entries & {*plan.create, *plan.share, *plan.stage})
    if sibling_denials.own or sibling_denials.uncertain:
        plan = plan_for(replace(scope, own_acls=scope.own_acls | sibling_denials.own | sibling_denials.uncertain))
    if log is not None:
        plan = _apply_plan(link, log, destination, plan)
    rows = to_plan_rows(plan, done=log is not None) + sibling_denials.rows() + forgeries
    return rows + to_unknown_rows(source.name, source_acls) + to_unknown_rows(destination.name, destination_acls)


def apply_promotion(
    link: MirrorLink,
    log: JournalLog,
    topics: Collection[str],
    *,
    ask_source: bool = True,
    with_rights: bool = True,
    before_change: Callable[[], None] = lambda: None,
    open_cluster: Callable[[Collection[str]], bool] = lambda topics: False,
) -> tuple[DriftRow, ...]:
    """Grants applications these mirror topics, whose partitions must have stopped. May be repeated.

    Order: settings for the first record; grants (PROMOTED) and FENCE denials for old tasks; removal of demotions, seen
    on every broker; other settings, which keep more until then. A broker that shows a grant knows earlier settings.

    `ask_source`: False when the source is lost. `with_rights`: False only removes denials. `before_change` runs when
    grants are allowed. `open_cluster` replaces grants where ACLs do not rule.
    """
    with ClusterClient(link.destination) as client:
        _check_may_grant(client)
        settings = PromotionConfigs(link, log.state, client, topics)
        before_change()
        rows = settings.apply_before_first_record()
        destination_acls = describe_acls(client)
        if isinstance(destination_acls, AuthorizerOff):
            rows += settings.wait_for_brokers()
            command_result = "its unfence_command has let applications write" if open_cluster(topics) else ""
            rows.append(to_no_authorizer_row(destination_acls, command_result))
        else:
            rows += _promote_access(
                link, log, client, destination_acls, topics, ask_source=ask_source, with_rights=with_rights
            )
        return (*rows, *settings.apply_remaining())


def _check_may_grant(client: ClusterClient) -> None:
    if isinstance(describe_acls(client), AuthorizerOff):
        return
    rights = probe_cluster_rights(client)
    if rights is not None and Operation.ALTER not in rights:
        user = client.config.user(client.principal) or "the control principal"
        raise MissingPermission(f"cluster {client.name}: {user} needs ALTER on the cluster to let applications write")


def demote_topics(
    link: MirrorLink,
    log: JournalLog,
    topics: Collection[str],
    cluster: ClusterName,
    close_cluster: Callable[[Collection[str]], bool] = lambda topics: False,
) -> tuple[DriftRow, ...]:
    """Denies applications these topics on a cluster that is to become a destination. May be repeated.

    Denials (DEMOTED) are seen on every broker first. Then the pending fence is forgotten, so that no watcher applies it
    again, and FENCE entries go, which would stop the mirror. Refused for grants to everybody.
    """
    config = link.source if cluster == link.source.name else link.destination
    with ClusterClient(config) as client:
        cluster_acls = describe_acls(client)
        if isinstance(cluster_acls, AuthorizerOff):
            command_result = "its fence_command keeps applications out" if close_cluster(topics) else ""
            if (
                cluster_acls.configured is not AuthorizerKind.KAFKA
            ):  # its fence may stem from when the file said otherwise
                delete_unshared_entries(log, client, list_entries(log, link.mirror.name, client.name, AclPurpose.FENCE))
            forget_pending_fence(log, link.mirror.name)
            return (to_no_authorizer_row(cluster_acls, command_result),)
        reasons = list_undemotable_rights(link, config, cluster_acls, topics)
        if reasons:
            raise Refused(f"cluster {client.name}: applications cannot be kept from writing mirror topics", reasons)
        denials = build_demotions(cluster_acls.entries, topics, list_own_principals(link))
        recorded = {e.acl for e in list_entries(log, link.mirror.name, client.name, AclPurpose.DEMOTED)}
        foreign_denials = (denials & cluster_acls.entries) - recorded
        record_and_create(log, link.mirror.name, client, denials - foreign_denials, AclPurpose.DEMOTED)
        wait_until_acls_present(client, denials)
        fence_entries = list_entries(log, link.mirror.name, client.name, AclPurpose.FENCE)
        forget_pending_fence(log, link.mirror.name)
        delete_unshared_entries(log, client, fence_entries)
        rows = [to_acl_row(acl, SyncAction.CREATE, "keeps it a mirror topic") for acl in denials - cluster_acls.entries]
        rows += [
            to_acl_row(acl, SyncAction.KEEP, "denied already, by somebody else's hand", done=False)
            for acl in foreign_denials
        ]
        rows += [to_acl_row(e.acl, SyncAction.REMOVE, "the fence is not needed any more") for e in fence_entries]
        return tuple(sorted(rows, key=lambda row: row.subject))


def close_released_topics(link: MirrorLink, log: JournalLog, topics: Collection[str]) -> tuple[str, ...]:
    """Makes them mirror topics again: applications denied, seen on every broker. May be repeated.

    Returns what nothing keeps out. Refused for grants to everybody.
    """
    with ClusterClient(link.destination) as client:
        cluster_acls = describe_acls(client)
        if isinstance(cluster_acls, AuthorizerOff):
            return (to_no_authorizer_row(cluster_acls).reason,)
        own_principals = list_own_principals(link)
        if reasons := list_undemotable_rights(link, link.destination, cluster_acls, topics):
            raise Refused(f"cluster {client.name}: applications cannot be kept from writing mirror topics", reasons)
        denials = build_demotions(cluster_acls.entries, topics, own_principals)
        recorded = {e.acl for e in list_entries(log, link.mirror.name, client.name, AclPurpose.DEMOTED)}
        record_and_create(
            log, link.mirror.name, client, denials - (cluster_acls.entries - recorded), AclPurpose.DEMOTED
        )
        wait_until_acls_present(client, denials)
        restage_grants(log, link.mirror.name, client, own_principals, topics)
        fence_entries = list_entries(log, link.mirror.name, client.name, AclPurpose.FENCE)
        delete_unshared_entries(log, client, [e for e in fence_entries if e.acl.name in topics])
    return ()


def list_undemotable_rights(
    link: MirrorLink, config: ClusterConfig, cluster_acls: BrokerAcls | AuthorizerOff, topics: Collection[str]
) -> tuple[Finding, ...]:
    if isinstance(cluster_acls, AuthorizerOff):
        return ()
    reasons = (
        Finding(
            "grant_undeniable",
            acl,
            cluster=config.name,
            command=format_acl_command(acl, bootstrap=_get_bootstrap_servers(config), remove=True),
        )
        for acl in sorted(find_undemotable_grants(cluster_acls.entries, topics, list_own_principals(link)))
    )
    return (*reasons, *list_uncertain_principals(config, cluster_acls))


def list_promotion_warnings(
    link: MirrorLink, state: State, destination_acls: BrokerAcls | AuthorizerOff, destination_topics: Collection[str]
) -> tuple[Finding, ...]:
    if isinstance(destination_acls, AuthorizerOff):
        return tuple(_warn_unlifted_denials(link, state, destination_acls))
    topics = {p.topic for p in state.partitions.get(link.mirror.name, {})}
    planned = _plan_promotion(link, state, topics, destination_topics)
    name = link.destination.name
    uncertain = list_uncertain_principals(link.destination, destination_acls)
    denied = (why for _, why in list_remaining_denials(link, state, destination_acls.entries, planned.grants, topics))
    return (*warn_promotion_grants(planned, name), *denied, *uncertain)


def _warn_unlifted_denials(link: MirrorLink, state: State, no_authorizer: AuthorizerOff) -> Iterator[Finding]:
    """Denials from when ACLs ruled the cluster: promotion does not lift them."""
    mirror_names, purposes = get_both_directions(link.mirror.name), {*LIFTABLE_PURPOSES, AclPurpose.WITHDRAWN}
    entries = (e for e in state.ledger.values() if e.cluster == no_authorizer.cluster and e.mirror in mirror_names)
    denials = [e.acl for e in entries if e.purpose in purposes]
    if denials and no_authorizer.configured is not AuthorizerKind.KAFKA:
        yield Finding(
            "denials_unlifted",
            no_authorizer.cluster,
            count=len(denials),
            denial=min(denials),
            authorizer=no_authorizer.configured,
        )


def _plan_promotion(
    link: MirrorLink, state: State, topics: Collection[str], destination_topics: Collection[str]
) -> PromotionGrants:
    groups = state.group_offsets.get(link.mirror.name, {})
    carried = build_promotion_filter(link.mirror, topics, groups)
    entries = [e for e in state.ledger_entries(link.mirror.name) if e.cluster == link.destination.name]
    # Also before a sync has followed a changed filter.
    entries = [e for e in entries if e.acl in carried]
    if link.mirror.name.startswith(DRILL_PREFIX):  # no application moves: no groups and transactional ids
        entries = [e for e in entries if e.acl.resource is Resource.TOPIC]
    existing_topics = list_copied_topics(state).union(destination_topics)
    return plan_promotion_grants(entries, topics, existing_topics, list_own_principals(link))


def list_copied_topics(state: State) -> frozenset[str]:
    """By any mirror to this destination, also departed ones: closed though a listing may leave one out."""
    statuses = (s for by_partition in state.partitions.values() for s in by_partition.values())
    return frozenset(s.partition.topic for s in statuses if s.destination_topic_id).union(*state.departures.values())


def _promote_access(
    link: MirrorLink,
    log: JournalLog,
    client: ClusterClient,
    destination_acls: BrokerAcls,
    topics: Collection[str],
    *,
    ask_source: bool,
    with_rights: bool,
) -> list[DriftRow]:
    planned = _plan_promotion(link, log.state, topics if with_rights else (), client.metadata().topics)
    if not with_rights:  # those that name no topic, too
        planned = replace(planned, grants=())
    grants = set(planned.grants)
    # Grants that others had made are not ours to remove at a failback.
    own_grants = grants - (destination_acls.entries - _list_promoted_acls(log.state, client.name))
    # A sync grants read rights on mirror topics, too: they stay after a failback.
    topic_grants = {a for a in own_grants if a.resource is Resource.TOPIC and a.permission is Permission.ALLOW}
    read_grants = {a for a in topic_grants if not (is_wildcard_grant(a) or can_change_topic(a))}
    newer_grants = {acl for acl in grants if _needs_newer_brokers(acl)}
    record_and_create(log, link.mirror.name, client, read_grants - newer_grants, AclPurpose.COPIED)
    record_and_create(log, link.mirror.name, client, own_grants - read_grants - newer_grants, AclPurpose.PROMOTED)
    wait_until_acls_present(client, grants - newer_grants)
    record_entries(log, link.mirror.name, client.name, own_grants & newer_grants, AclPurpose.PROMOTED)
    refused = _create_newer_acls(client, sorted(newer_grants))
    record_entries(log, link.mirror.name, client.name, own_grants & refused.keys(), AclPurpose.STAGED)
    fenced_tasks = fence_old_tasks(link, log, client, topics)
    removed, rows = lift_demotions(link, log, client, topics, ask_source=ask_source)
    lifted_denials = removed & destination_acls.entries
    remaining = list_remaining_denials(link, log.state, destination_acls.entries - removed, planned.grants, topics)
    rows += [to_acl_row(acl, SyncAction.KEEP, str(why), done=False) for acl, why in remaining]
    rows += [
        to_acl_row(acl, SyncAction.REFUSE, str(forgery), done=False, code=forgery.code)
        for acl, forgery in ((acl, explain_forged_entry(acl, flaw)) for acl, flaw in planned.refused.items())
    ]
    rows += [
        to_acl_row(a, SyncAction.KEEP, str(explain_narrowed_grant(a, excluded, client.name)), done=False)
        for a, excluded in planned.narrowed.items()
    ]
    rows += [
        to_acl_row(acl, SyncAction.CREATE, "staged until promotion")
        for acl in sorted(grants - destination_acls.entries - refused.keys())
    ]
    rows += [to_acl_row(acl, SyncAction.SKIP, why, done=False) for acl, why in sorted(refused.items())]
    old_tasks = "earlier copying tasks"
    task_text = (
        f"may stop {old_tasks}: {fenced_tasks.uncertainty}" if fenced_tasks.uncertainty else f"stops {old_tasks}"
    )
    rows += [
        to_acl_row(acl, SyncAction.CREATE, task_text) for acl in sorted(fenced_tasks.denials - destination_acls.entries)
    ]
    return rows + [to_acl_row(acl, SyncAction.REMOVE, "kept it a mirror topic") for acl in sorted(lifted_denials)]


def _list_promoted_acls(state: State, cluster: ClusterName) -> set[Acl]:
    entries = (e for e in state.ledger.values() if e.cluster == cluster)
    return {e.acl for e in entries if e.purpose is AclPurpose.PROMOTED}


def _apply_plan(link: MirrorLink, log: JournalLog, client: ClusterClient, plan: AclPlan) -> AclPlan:
    """Returns the plan without entries that brokers do not support."""
    record_entries(log, link.mirror.name, client.name, {*plan.create, *plan.share}, AclPurpose.COPIED)
    supported = [acl for acl in plan.create if not _needs_newer_brokers(acl)]
    create_acls(client, supported)
    wait_until_acls_present(client, supported)
    refused = _create_newer_acls(client, [acl for acl in plan.create if _needs_newer_brokers(acl)])
    if plan.repurposed or plan.forget:
        log.put(*plan.repurposed, *(Tombstone(entry) for entry in plan.forget))
    # Denials first: a promotion after a killed sync must not grant what the source denies.
    record_entries(log, link.mirror.name, client.name, plan.stage, AclPurpose.STAGED)
    delete_entries(log, client, plan.remove)
    created = tuple(acl for acl in plan.create if acl not in refused)
    return replace(plan, create=created, left_out=(*plan.left_out, *refused.items()))


def _needs_newer_brokers(acl: Acl) -> bool:
    """Older brokers refuse the whole request: such entries must not hold up others."""
    return acl.resource is Resource.USER or acl.operation is Operation.TWO_PHASE_COMMIT


def _create_newer_acls(client: ClusterClient, acls: Collection[Acl]) -> dict[Acl, str]:
    try:
        create_acls(client, acls)
        wait_until_acls_present(client, acls)
    except (Unreachable, MissingPermission):
        raise
    except MirrorError as error:
        return {acl: f"the brokers of {client.name} may be too old for it: {error}" for acl in acls}
    return {}


def _list_own_denials(link: MirrorLink, state: State) -> tuple[frozenset[Acl], list[DriftRow]]:
    """They are not the source's own rules. Forged entries hide nothing."""
    name = link.source.name
    recorded_here, recorded_on_source = (
        [e for e in ledger_state.ledger.values() if e.purpose in LIFTABLE_PURPOSES and e.cluster == name]
        for ledger_state in (state, read_state(link.source))
    )
    trusted, untrusted = split_forged_entries(recorded_on_source)
    return trusted | {e.acl for e in recorded_here}, [
        to_forgery_row(name, acl, flaw) for acl, flaw in sorted(untrusted.items())
    ]


def _get_bootstrap_servers(config: ClusterConfig) -> str:
    return config.control["bootstrap.servers"]
