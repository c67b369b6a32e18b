"""Rechecks the fence: nothing is promoted without it; after promotion a lifted one is reapplied."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from mirror_core.decide.last_look import contradicted, in_doubt
from mirror_core.decide.left_behind import ways_on
from mirror_core.decide.reckoning import not_copied
from mirror_core.decide.slipped import Ranges, count, shown_slip
from mirror_core.decide.standing import when
from mirror_core.decide.view import some
from mirror_core.kafka.acls import AuthorizerOff, describe_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import Point, known_offsets
from mirror_core.mirrors.old_source import keep_out, still
from mirror_core.model.acl import Acl, AclPurpose
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import LostOwnership, MirrorError, Refused
from mirror_core.model.limits import LIMITS
from mirror_core.model.names import Offset, Partition
from mirror_core.model.offsets import NO_OFFSETS, Offsets
from mirror_core.model.run import Evidence, Mode
from mirror_core.model.standing import Debt
from mirror_core.runbook.acts import Acts
from mirror_core.runbook.last_look import Look, look_again
from mirror_core.runbook.shutting import ByCommand
from mirror_core.runbook.unfencing import FILE, LiftFile, its_file
from mirror_core.state.turning import Returned, turned
from mirror_core.sync.closing_commands import CommandFailed
from mirror_core.sync.fence import denials_of, seen_still, undenied
from mirror_core.sync.identity import check_source
from mirror_core.sync.ledger import entered

SHOWN: Final = 20


def refuse_if_lifted(acts: Acts) -> bool:
    """Refused if the fence was lifted by its file. Returns whether the file is here."""
    file = its_file(acts.services, acts.journal.run_id)
    if file is not None and file.lifted_ms is not None:
        raise Refused(
            f"run {acts.journal.run_id}: promotion",
            [
                f"its fence on {acts.link.source.name} was lifted by its file at {when(file.lifted_ms)}, so "
                "applications may have written there since: abort this run, and plan again"
            ],
        )
    return file is not None


def refuse_if_unfenced(acts: Acts) -> None:
    refuse_if_lifted(acts)
    name, source = acts.link.mirror.name, acts.link.source.name
    denials = {e.acl for e in entered(acts.writer, name, source, AclPurpose.FENCE)}
    if not denials:
        return
    with ClusterClient(acts.link.source) as client:
        held = describe_acls(client)
    missing = frozenset[Acl]() if isinstance(held, AuthorizerOff) else denials - held.entries
    if missing:
        raise Refused(
            f"run {acts.journal.run_id}: behind its fence",
            [
                f"{len(missing)} denials of its fence on {source} are gone, such as {min(missing)}, so applications "
                "may have written there since: abort this run, and plan again"
            ],
        )


def uncontradicted(acts: Acts, denials: Collection[Acl], drained: Mapping[Partition, Offset]) -> tuple[Look, bool]:
    """Refused if the fence was lifted by its file, or the source was written after the drain."""
    name = acts.link.source.name
    look, file = look_again(acts.link, denials, drained), refuse_if_lifted(acts)
    if reasons := tuple(contradicted(look, name, drained)):
        raise Refused(
            f"run {acts.journal.run_id}: promotion, since {name} accepted writes behind the fence; abort this run, "
            "find who writes there, and plan again",
            reasons[:SHOWN],
        )
    return look, file


def shut_again(acts: Acts, step: str, names: Collection[str]) -> bool:
    """Call fence_command again: a copy of the file may have opened the source unseen."""
    return ByCommand(acts, step, LiftFile(acts, needed=False), once=True)(names)


def refuse_in_doubt(acts: Acts, look: Look, *, held: bool, file: bool) -> None:
    if why := in_doubt(look, acts.link.source.name, acts.link.mirror.name, held=held, file=file):
        raise Refused(f"run {acts.journal.run_id}: promotion", [why])


def paid(
    acts: Acts,
    debt: Debt,
    names: Collection[str],
    partitions: Collection[Partition],
    lift: LiftFile,
    before: Offsets = NO_OFFSETS,
) -> Evidence:
    cluster = debt.cluster
    try:
        with ClusterClient(acts.link.source, timeout_s=LIMITS.lost_source_s) as source:
            check_source(acts.link, source)
            denials = keep_out(acts.link, acts.writer, source, names, before=lift)
            shut = isinstance(denials, AuthorizerOff) and ByCommand(acts, "stand", lift, once=True)(names)
            ends = {**before.by_partition(), **(seen_still if shut else still)(source, partitions)}
    except LostOwnership:
        raise
    except MirrorError as error:
        acts.writer.put(replace(debt, trouble=str(error)))
        told = {FILE: lift.words} if lift.words else {}
        return {"fence": "pending: put up the moment it answers", "source": str(error), **told}
    lines = {FILE: lift.words} if lift.words else {}
    if isinstance(denials, AuthorizerOff) and not shut:
        trouble = f"cluster {cluster} {denials.words}: it cannot be kept from taking writes"
        acts.writer.put(replace(debt, trouble=trouble, ends=Offsets.of(ends)))
        return {"fence": f"impossible: the source {denials.words}; it is only watched"}
    acts.writer.put(replace(debt, paid_ms=now_ms(), ends=Offsets.of(ends), by_command=shut))
    if isinstance(denials, AuthorizerOff):
        return {"fence": "stands", "fence_command": "done", **lines}
    return {"fence": "stands", "denials": len(denials), **lines}


def paid_again(acts: Acts, names: Collection[str], partitions: Collection[Partition]) -> Evidence:
    """From promotion on: apply the pending fence, reapply a lifted one.

    Recorded first: after a crash the next conductor looks for what the source accepted meanwhile.
    """
    debt, cluster = acts.writer.state.debts[acts.link.mirror.name], acts.link.source.name
    ends, lifted = debt.ends, acts.journal.run.plan.mode is Mode.PLANNED
    if debt.paid_ms is not None:
        file = its_file(acts.services, acts.journal.run_id)
        try:
            if (file is None or file.lifted_ms is None) and _stands(acts, debt, names):
                return {}
        except LostOwnership:
            raise
        except MirrorError as error:  # a source that died since delays nobody
            return {"fence": f"{cluster} was not asked again for its fence: {error}"}
        debt, lifted = replace(debt, paid_ms=None, ends=NO_OFFSETS), True
        acts.writer.put(debt)
    again = paid(acts, debt, names, partitions, LiftFile(acts, needed=False), ends)
    if not lifted:  # unplanned: uncopied records are older
        return again
    written = [f"{p} [{start}, {end})" for p, (start, end) in slipped(acts).items()]
    return {**again, "written_meanwhile": some(written) or "nothing seen"}


def _closed(acts: Acts, debt: Debt, names: Collection[str]) -> bool:
    """Whether a command's fence stands, as far as known.

    Until promotion is done the command is called again, and log ends must not have moved. Later watchers do that.
    """
    run = acts.journal.run
    if acts.journal.done("promote") or (run.plan.mode is Mode.PLANNED and not turned(acts.writer.state, run)):
        return True
    recorded = debt.ends.by_partition()
    with ClusterClient(acts.link.source, timeout_s=LIMITS.lost_source_s) as source:
        check_source(acts.link, source)
        try:
            shut_again(acts, "promote", names)
        except CommandFailed:
            return False
        ends = known_offsets(source, recorded, Point.LOG_END)
    return all(end <= recorded[p] for p, end in ends.items())


def _stands(acts: Acts, debt: Debt, names: Collection[str]) -> bool:
    return _closed(acts, debt, names) if debt.by_command else not _gone(acts, names)


def _gone(acts: Acts, names: Collection[str]) -> bool:
    with ClusterClient(acts.link.source, timeout_s=LIMITS.lost_source_s) as source:
        check_source(acts.link, source)
        return bool(undenied(source, denials_of(names)))


def lost_while_lifted(acts: Acts, held: bool) -> tuple[int | None, str] | None:
    """(offsets accepted while the fence was lifted, how known). None: it never was."""
    debt, name, taken = acts.writer.state.debts.get(acts.link.mirror.name), acts.link.source.name, count(slipped(acts))
    if taken:
        return taken, f"by what {name} took while its fence was lifted"
    if held and debt is not None and debt.paid_ms is None:
        return None, f"the fence on {name} was lifted, and it was not seen since"
    return None


def refuse_what_it_took(acts: Acts, look: Look) -> None:
    """Refused if a returned source has uncopied records that nobody agreed to leave there."""
    returned, debt = acts.journal.kept("promote", Returned), acts.writer.state.debts[acts.link.mirror.name]
    if returned is None or debt.paid_ms is None:
        return
    debt = _with_ends(acts, debt, look)
    if not _told(returned, debt):
        returned = Returned(ends=debt.ends)
        acts.journal.keep("promote", returned)
    taken, blind = not_copied(debt, acts.statuses())
    if returned.left_behind or not (taken or blind):
        return
    name, mirror, there = acts.link.source.name, acts.link.mirror.name, acts.link.destination.name
    has = "it has records that were" if taken else "it may have records that were"
    reasons = [f"{name} answered again, and is fenced now; {has} not copied to {there}"]
    if taken:
        reasons.append(shown_slip(taken, acts.writer.state.sightings.get(mirror)))
    if blind:
        reasons.append(f"how much of {some(blind)} was not copied is not known")
    raise Refused(f"run {acts.journal.run_id}: promotion", [*reasons, ways_on(mirror, name)])


def _with_ends(acts: Acts, debt: Debt, look: Look) -> Debt:
    known = debt.ends.by_partition()
    if not look.ends.keys() - known.keys():
        return debt
    debt = replace(debt, ends=Offsets.of({**look.ends, **known}))
    acts.writer.put(debt)
    return debt


def _told(returned: Returned, debt: Debt) -> bool:
    """Whether people were told of these log ends, which a confirmation is about."""
    told, now = returned.ends.by_partition(), debt.ends.by_partition()
    covered = bool(told) and returned.left_behind and all(now.get(p) == end for p, end in told.items())
    return covered or returned.ends == debt.ends


def slipped(acts: Acts) -> Ranges:
    debt = acts.writer.state.debts.get(acts.link.mirror.name)
    return {} if debt is None else not_copied(debt, acts.statuses())[0]
