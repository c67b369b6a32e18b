"""Keeps the old source fenced while its failover is still open.

Its run may stand for hours after the point of no return. Taking the control id would end a conductor at work, so
nothing is written to the state here: a later step or watcher records what is seen.
"""

from __future__ import annotations

from dataclasses import replace

from mirror_core.decide.reckoning import of_applications
from mirror_core.decide.slipped import slipped_in
from mirror_core.decide.standing import Action, Judgement, Standing, failed_over, judge, pending, took_meanwhile
from mirror_core.decide.view import Unseen
from mirror_core.kafka.acls import AuthorizerOff, create_acls, delete_acls, describe_acls, present_on_every_broker
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import Point, known_offsets
from mirror_core.mirrors.old_source import entered_denials, shown
from mirror_core.model.acl import Acl, AclPurpose
from mirror_core.model.errors import MirrorError
from mirror_core.model.limits import LIMITS
from mirror_core.model.logs import logger
from mirror_core.model.offsets import Offsets
from mirror_core.model.ruling import Barred
from mirror_core.model.run import Run, RunKind, RunState
from mirror_core.model.standing import Debt
from mirror_core.state.link import Link
from mirror_core.state.records import State
from mirror_core.state.topic import read_whole
from mirror_core.sync.closing_commands import CommandFailed, closable, shut
from mirror_core.sync.identity import check_source
from mirror_core.sync.shutting import put_right

_log = logger(__name__)


def look_beside(link: Link, state: State, run: Run, debt: Debt) -> Judgement:
    """Observe the cluster once, and create missing denials."""
    up = answers = False
    try:
        with ClusterClient(link.source, timeout_s=LIMITS.old_source_s) as source:
            check_source(link, source)
            answers = True
            if debt.paid_ms is None:  # first: any other request gives writers time
                up = raise_again(link, state, source, debt)
            seen = shown(link, state, source, debt)
            if seen.bare or (seen.barred is Barred.BY_COMMAND and seen.written):
                up = raise_again(link, state, source, debt)
    except MirrorError as error:
        found = judge(debt, run, Unseen(str(error)), beside=True)
        alarms = () if error.retryable else (str(error),)
        if answers and found.standing is Standing.OWED:
            return replace(found, alarms=(*pending(debt, (run.id,)), *alarms), silent=False, exposed=True)
        return replace(found, alarms=alarms, silent=found.silent and error.retryable)
    found = judge(debt, run, seen, beside=True)
    if not up:
        return found
    seen_up = "fence_command has closed it" if seen.barred is Barred.BY_COMMAND else "the fence is seen on every broker"
    line = f"{debt.cluster}: {seen_up}; {run.plan.kind} {run.id} records it when it goes on"
    return replace(found, action=Action.FENCE, lines=(*found.lines, line))


def look_at_returned(link: Link, state: State, run: Run, debt: Debt) -> Judgement:
    """The source may be back before an unplanned failover has promoted. Changes nothing.

    Without recorded LMOs the destination's log ends stand for them: nobody copies.
    """
    statuses = state.partitions.get(link.mirror.name, {})
    try:
        if unrecorded := [p for p, s in statuses.items() if s.lmo is None]:
            with ClusterClient(link.destination, timeout_s=LIMITS.old_source_s) as destination:
                held = known_offsets(destination, unrecorded, Point.LOG_END)
            statuses = {p: replace(s, lmo=held.get(p, s.lmo)) for p, s in statuses.items()}
        with ClusterClient(link.source, timeout_s=LIMITS.old_source_s) as source:
            check_source(link, source)
            ends = known_offsets(source, of_applications(statuses), Point.LOG_END)
    except MirrorError as error:
        return judge(debt, run, Unseen(str(error)), beside=True)
    taken = slipped_in(replace(debt, ends=Offsets.of(ends)), statuses)
    return took_meanwhile(debt, run, taken, state.sightings.get(link.mirror.name))


def raise_again(link: Link, state: State, source: ClusterClient, debt: Debt) -> bool:
    """Returns False when there is no way to fence, or the fence is not wanted any more."""
    held = describe_acls(source)
    if isinstance(held, AuthorizerOff):
        topics = {p.topic for p in state.partitions.get(link.mirror.name, {})}
        where = closable(link, link.source.name, debt.run, topics)
        try:
            closed = shut(where, once=True)
        except CommandFailed:
            put_right(link, where, done=True)  # it may have closed it nevertheless, and too late
            raise
        return closed and put_right(link, where, done=True)
    wanted = frozenset(entered_denials(link, state))
    missing = wanted - held.entries
    if missing:
        _log.info("puts up %d denials beside a run", len(missing), cluster=source.name, mirror=link.mirror.name)
        create_acls(source, missing)
        if not _settled(link, source, missing):
            return False
    present_on_every_broker(source, wanted)
    return True


def _settled(link: Link, source: ClusterClient, ours: frozenset[Acl]) -> bool:
    """Delete those of our denials that are not wanted any more.

    Whoever lifts a fence forgets the pending fence first. If that is there after we have created, the deletion is yet
    to come and takes ours along.
    """
    gone = frozenset[Acl]()
    while (unwanted := ours - _wanted(link, read_whole(link.destination))) != gone:
        _log.info("%d denials are not wanted any more", len(unwanted), cluster=source.name, mirror=link.mirror.name)
        create_acls(source, ours - unwanted)
        delete_acls(source, unwanted)
        gone = unwanted
    return not gone


def _wanted(link: Link, state: State) -> set[Acl]:
    """ACLs that ledgers want on the source, without a fence being lifted."""
    name, run = link.mirror.name, state.active_run(link.mirror.name)
    raising = run is not None and run.plan.kind is RunKind.FAILOVER and run.state is RunState.RUNNING
    stands = raising or failed_over(state.debts.get(name))
    return {
        entry.acl
        for entry in state.ledger.values()
        if entry.cluster == link.source.name
        and (stands or entry.mirror != name or entry.purpose is not AclPurpose.FENCE)
    }
