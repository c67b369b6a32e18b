"""Compares a plan's forecast with the outcome, without ever waiting for the source."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from mirror_core.decide import reckoning
from mirror_core.decide.loss import uncopied
from mirror_core.decide.view import some
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.group_batches import fetch_all
from mirror_core.kafka.groups import OFFSET_KINDS, list_groups
from mirror_core.model.errors import Indeterminate, MirrorError
from mirror_core.model.limits import LIMITS
from mirror_core.model.names import Offset, Partition
from mirror_core.model.reckoning import Counted
from mirror_core.model.run import Evidence, Mode, Run
from mirror_core.runbook.checkpoints import Resumes
from mirror_core.state.journal import Journal
from mirror_core.state.link import Link
from mirror_core.state.records import Forget
from mirror_core.state.writer import StateWriter
from mirror_core.sync.identity import check_source


def counted(link: Link, journal: Journal, lost: tuple[int | None, str], *, ask: bool) -> Counted:
    ends = {p: status.lmo for p, status in journal.log.state.partitions.get(link.mirror.name, {}).items()}
    resumes, by = _resumes(journal)
    reached = None
    if resumes and ask:
        reached, by = _reached(link, resumes)
    return Counted(lost=lost[0], lost_by=lost[1], again=reckoning.read_again(resumes, reached, ends), again_by=by)


def counted_later(
    link: Link, writer: StateWriter, tails: Mapping[Partition, tuple[Offset, Offset]], seen: Collection[Partition]
) -> Evidence:
    """At failback, count what an unplanned failover could not. Idempotent."""
    name, state = link.mirror.name, writer.state
    run = next((run for run in reckoning.past(state.runs.values(), name) if run.plan.mirror == name), None)
    if run is None or run.counted is None or (run.plan.mode is not Mode.UNPLANNED and run.counted.lost is not None):
        return {}
    ours = found = run.counted
    if not reckoning.complete(ours):
        statuses = state.partitions.get(name, {})
        theirs = reckoning.of_applications(statuses.keys() | tails.keys())
        count = sum(end - start for p, (start, end) in tails.items() if p in theirs)
        without = uncopied(statuses, state.sightings.get(name)).keys() - set(seen)
        lost = reckoning.with_uncopied(count, "by what only the old source had", without)
        found = counted(link, Journal(writer, run.id, ()), lost, ask=True)
        if ours.lost is not None:
            found = replace(found, lost=ours.lost, lost_by=ours.lost_by)
        if not found.again:
            found = replace(found, again=ours.again, again_by=ours.again_by)
        writer.put(replace(run, counted=found), *(Forget(c) for c in state.checkpoints.values() if c.run == run.id))
    return {"counted_of": run.id, **in_words(found)}


def in_words(found: Counted) -> Evidence:
    again = [f"{group} {'unknown' if n is None else n}" for group, n in found.again.items()]
    return {
        "offsets_lost": "unknown" if found.lost is None else found.lost,
        "known_by": found.lost_by,
        "offsets_read_again": some(again) or "unknown",
        "counted_by": found.again_by,
    }


def stay(run: Run) -> frozenset[str]:
    later = run.plan.mode is Mode.UNPLANNED and run.counted is not None and None in run.counted.again.values()
    return frozenset({Resumes.__name__}) if later else frozenset()


def _resumes(journal: Journal) -> tuple[reckoning.Reached, str]:
    try:
        known = journal.kept("promote", Resumes)
    except Indeterminate as error:  # a forecast never blocks a run
        return {}, str(error)
    if known is None:
        return {}, "where groups went on on the destination is not known"
    return known.by_group(), "the old source was not seen since" if known.groups else "there were no groups"


def _reached(link: Link, groups: Collection[str]) -> tuple[reckoning.Reached | None, str]:
    try:
        with ClusterClient(link.source, timeout_s=LIMITS.lost_source_s) as source:
            check_source(link, source)
            there = [g for name, g in list_groups(source).items() if name in groups and g.kind in OFFSET_KINDS]
            fetched = fetch_all(source, there)
    except MirrorError as error:
        return None, f"the source could not tell: {error}"
    found = {name: {p: c.offset for p, c in one.committed.items()} for name, one in fetched.offsets.items()}
    return found, "by what they had committed on the source"
