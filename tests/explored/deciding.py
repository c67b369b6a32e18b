"""What the product decides in this world: its own decisions, asked with views of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

from mirror_core.decide import acl_plan, command_rules, failover_plan, fence_state
from mirror_core.decide.filters import EVERY_NAME, AclFilter, NameFilter
from mirror_core.decide.mirror_snapshot import (
    ClusterTopic,
    DestinationSnapshot,
    MirrorSnapshot,
    SourceSnapshot,
    UnseenCluster,
)
from mirror_core.decide.steps import HoldingRun
from mirror_core.kafka.config import Principal
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Operation, Resource
from mirror_core.model.mirror import DesiredState, PartitionState
from mirror_core.model.run import RunMode
from mirror_core.rights import acl_rules, required_acls
from mirror_core.state.state_records import State
from mirror_core.sync import acl_ledger
from mirror_core.sync.fence_acls import find_stray_denials_on
from tests.explored.world import (
    ACLS,
    CLUSTERS,
    LEDGER,
    NOW,
    OWN,
    PLANS,
    Rec,
    Run,
    World,
    cached,
    debt_of,
    destination,
    mirror_of,
    name_of,
    offset,
    partition_of,
    run_of,
    source,
    state_on,
    status_of,
    topic_of,
)

_USERS: Final = dict(zip(Principal, (name.removeprefix("User:") for name in sorted(OWN)), strict=True))


def link_of(link: int, desired: DesiredState = DesiredState.STARTED) -> Any:
    """As much of a link as decisions read."""
    ends = {
        end: SimpleNamespace(name=CLUSTERS[at], user=_USERS.get)
        for end, at in (("source", source(link)), ("destination", destination(link)))
    }
    return SimpleNamespace(mirror=mirror_of(link, desired), **ends)


def active(rec: Rec) -> Run | None:
    """The run that holds a mirror."""
    return next((run for run in rec.runs if run.state in ("RUNNING", "ABORTING")), None)


# -- failover ---------------------------------------------------------------------------------------------------------


@cached
def _failover_view(
    link: int, rec: Rec, mode: RunMode, up: tuple[bool, bool], extra: tuple[int, int], entries: int, anew: bool
) -> MirrorSnapshot:
    held, part, run = ACLS.values(entries), partition_of(link), active(rec)
    src, dst = source(link), destination(link)
    staged = (e for e in LEDGER.values(rec.ledger) if e.purpose is AclPurpose.STAGED)
    granted = (
        tuple(sorted(str(a) for a in held if acl_rules.can_change_topic(a)))
        if up[src] and mode is RunMode.PLANNED
        else ()
    )
    status = status_of(link, rec.state, rec.lmo, rec.failed)
    desired = rec.desired or DesiredState.STOPPED
    view = MirrorSnapshot(
        mirror=mirror_of(link, desired, rec.homecoming, rec.begins),
        mode=mode,
        statuses={part: status} if rec.desired else {},
        source=SourceSnapshot(
            cluster_id=f"id-{src}",
            topics={topic_of(link): ClusterTopic(id=status.source_topic_id, partitions=1)},
            stable_ends={part: offset(extra[src])},
            authorizer=True,
            transactions=(),
        )
        if up[src]
        else UnseenCluster("silent"),
        destination=DestinationSnapshot(
            cluster_id=f"id-{dst}",
            topics={topic_of(link): ClusterTopic(id=status.destination_topic_id, partitions=1)},
            positions={part: offset(extra[dst])},
            authorizer=True,
        )
        if up[dst]
        else UnseenCluster("silent"),
        lease=None,
        active_run=HoldingRun.from_run(run_of(link, run), is_past_no_return=False) if run else None,
        grants=granted or tuple(sorted(str(e.acl) for e in staged)),
        forecast=None,
        now_ms=NOW,
        pending_fence=debt_of(link, rec.debt) if rec.debt else None,
    )
    if not anew or run is None:
        return view
    before = replace(view.mirror, desired=DesiredState.STARTED)
    continues = run_of(link, run).id if run.mode is not mode else None
    return replace(view, mirror=before, active_run=None, continues_run=continues)


def _key(world: World, link: int, mode: RunMode, anew: bool) -> tuple[Any, ...]:
    """What a failover's plan is made from, and no more: plans are remembered by it."""
    rec, run = world.recs[link], active(world.recs[link])
    runs = (
        (run._replace(done=0, begun=False, fresh=True, by="", plan=0, silent=False, word=None, given=False),)
        if run
        else ()
    )
    seen = rec._replace(owner=0, homecoming=0, debt=None, runs=runs)
    topic = ACLS.mask(a for a in ACLS.values(world.acls[source(link)]) if a.name == topic_of(link))
    return link, seen, mode, world.up, world.extra[link // 2], topic, anew


def plan_failover(world: World, link: int, mode: RunMode, *, anew: bool = False) -> tuple[int, bool]:
    """The plan's number, and whether it may be run. `anew`: as if no run held the mirror, for one that goes on."""
    return _planned(*_key(world, link, mode, anew))


@cached
def _planned(*key: Any) -> tuple[int, bool]:
    return numbered(failover_plan.decide_failover(_failover_view(*key)))


def numbered(decision: failover_plan.PlanDecision) -> tuple[int, bool]:
    if decision.plan not in PLANS:
        PLANS.append(decision.plan)
    return PLANS.index(decision.plan), not decision.reasons


def void(world: World, link: int, run: Run, *, seen: bool) -> bool:
    """Whether what was approved holds no more."""
    return _void(run.plan, seen, *_key(world, link, run.mode, True))


@cached
def _void(plan: int, seen: bool, *key: Any) -> bool:
    now = failover_plan.list_bound_facts(_failover_view(*key))
    return bool(failover_plan.list_changed_facts(PLANS[plan].bound_facts, now, source_seen=seen))


def broken(world: World, link: int) -> bool:
    """Whether one of the clusters forbids a planned run to go on."""
    return _broken(*_key(world, link, RunMode.PLANNED, True))


@cached
def _broken(*key: Any) -> bool:
    view = _failover_view(*key)
    return isinstance(view.source, UnseenCluster) or bool(failover_plan.list_new_reasons(view, source_seen=True))


# -- rights -----------------------------------------------------------------------------------------------------------


def writers(world: World, cluster: int, link: int, principals: tuple[str, ...]) -> tuple[str, ...]:
    """Who of these may write the mirror's topic on a cluster, by the rights there."""
    return _writers(world.acls[cluster], link // 2, principals)


@cached
def _writers(mask: int, topic: int, principals: tuple[str, ...]) -> tuple[str, ...]:
    held, name = ACLS.values(mask), topic_of(2 * topic)
    return tuple(p for p in principals if required_acls.is_allowed(held, p, Resource.TOPIC, name, Operation.WRITE))


def entered(world: World, link: int, cluster: int, purpose: AclPurpose) -> tuple[LedgerEntry, ...]:
    log: Any = SimpleNamespace(state=state_on(world, destination(link)))
    return acl_ledger.list_entries(log, name_of(link), CLUSTERS[cluster], purpose)


def demoted(state: State, link: int, cluster: int) -> list[LedgerEntry]:
    return acl_ledger.list_demotions(state, name_of(link), CLUSTERS[cluster], [topic_of(link)])


def wanted(state: State, cluster: int, without: tuple[LedgerEntry, ...] = ()) -> set[Acl]:
    return acl_ledger.list_wanted_acls(state, CLUSTERS[cluster], without)


def given(world: World, link: int) -> set[Acl]:
    mine = [e for e in LEDGER.values(world.recs[link].ledger) if e.cluster == CLUSTERS[destination(link)]]
    there = {topic_of(2 * n) for n in range(len(world.extra))}
    return set(acl_plan.plan_promotion_grants(mine, [topic_of(link)], there, OWN).grants)


def demotions(world: World, link: int, cluster: int) -> set[Acl]:
    return acl_rules.build_demotions(set(ACLS.values(world.acls[cluster])), [topic_of(link)], OWN)


def remembered(world: World, cluster: int) -> frozenset[Acl]:
    """What some ledger has of a cluster, for whatever purpose."""
    return _remembered(cluster, tuple(rec.ledger for rec in world.recs))


@cached
def _remembered(cluster: int, ledgers: tuple[int, ...]) -> frozenset[Acl]:
    return frozenset(e.acl for mask in ledgers for e in LEDGER.values(mask) if e.cluster == CLUSTERS[cluster])


def primary(world: World, topic: int) -> int:
    """Where applications write, as people are told: not on a cluster that was failed away from."""
    debt = world.recs[2 * topic].debt
    return (
        destination(2 * topic) if fence_state.has_failed_over(debt and debt_of(2 * topic, debt)) else source(2 * topic)
    )


def named(world: World, link: int, cluster: int) -> frozenset[Acl]:
    """Denials that `mirror describe` says were lifted and stand again."""
    rec = world.recs[link]
    if not (rec.lifted and rec.desired and world.up[cluster] and world.up[destination(link)]):
        return frozenset()
    state, held = state_on(world, destination(link)), ACLS.values(world.acls[cluster])
    found = find_stray_denials_on(link_of(link, rec.desired), state, CLUSTERS[cluster], held)
    return frozenset(one.entry.acl for one in found)


def synced(world: World, link: int) -> int:
    """The mirror's ledger after a sync of rights; none of those here is given before promotion."""
    return _synced(link, world.acls, world.recs[link].ledger, _own(world, source(link)))


def _own(world: World, cluster: int) -> int:
    entries = (e for side in (0, 1) for e in state_on(world, side).ledger.values())
    ours = (AclPurpose.FENCE, AclPurpose.DEMOTED)
    return ACLS.mask(e.acl for e in entries if e.purpose in ours and e.cluster == CLUSTERS[cluster])


@cached
def _synced(link: int, held: tuple[int, int], mask: int, own: int) -> int:
    mine = LEDGER.values(mask)
    scope = acl_plan.AclScope(
        topics=[topic_of(link)],
        groups=[],
        group_filter=NameFilter((), ()),
        acl_filter=AclFilter(EVERY_NAME),
        own_principals=OWN,
        own_acls=ACLS.values(own),
    )
    there = [e for e in mine if e.cluster == CLUSTERS[destination(link)]]
    theirs, ours = (set(ACLS.values(held[side])) for side in (source(link), destination(link)))
    plan = acl_plan.plan_acls(theirs, ours, scope, there, ())
    staged = (
        LedgerEntry(mirror=name_of(link), cluster=CLUSTERS[destination(link)], acl=acl, purpose=AclPurpose.STAGED)
        for acl in plan.stage
    )
    return LEDGER.mask(replaced(mine - set(plan.forget) - set(plan.remove), (*staged, *plan.repurposed)))


def replaced(before: frozenset[LedgerEntry], news: tuple[LedgerEntry, ...]) -> Iterator[LedgerEntry]:
    """A ledger after these entries were written: one of the same right is replaced."""
    keys = {(e.cluster, e.acl) for e in news}
    yield from (e for e in before if (e.cluster, e.acl) not in keys)
    yield from news


# -- watching, verbs --------------------------------------------------------------------------------------------------


def held_home(world: World, link: int) -> bool:
    """Whether a watcher leaves this mirror to the failback that it belongs to."""
    rec = world.recs[link]
    if not fence_state.is_waiting_for_failback(name_of(link), debt_of(link, rec.debt) if rec.debt else None):
        return False
    src = source(link)
    return world.up[src] and any(command_rules.explain_failback_hold(name_of(link), state_on(world, src).runs.values()))


def refused(world: World, link: int, verb: command_rules.MirrorCommand) -> bool:
    """Whether a verb may not act now, by what the mirror's own state tells."""
    rec = world.recs[link]
    run = active(rec)
    seen = command_rules.CommandContext(
        mirror=mirror_of(link, rec.desired, rec.homecoming) if rec.desired else None,
        run=run_of(link, run) if run else None,
        statuses=(status_of(link, rec.state, rec.lmo, rec.failed),),
        copier=None,
        tasks_may_write_s=0,
        has_failed_over=fence_state.has_failed_over(debt_of(link, rec.debt) if rec.debt else None),
    )
    return any(command_rules.explain_refusals(verb, seen))


def strayed(world: World, link: int) -> bool:
    """Whether a stopped mirror cannot go on where it ended."""
    rec, dst = world.recs[link], destination(link)
    if rec.state is not PartitionState.STOPPED:
        return False
    ends = {partition_of(link): offset(world.extra[link // 2][dst])}
    return any(
        command_rules.find_moved_log_ends([status_of(link, rec.state, rec.lmo, rec.failed)], ends, CLUSTERS[dst])
    )
