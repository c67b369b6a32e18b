"""Compares a plan's forecast with the outcome, without the source."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import islice

from mirror_core.decide import forecast_accuracy
from mirror_core.decide.fence_state import count_offsets
from mirror_core.decide.group_coverage import find_not_brought_over
from mirror_core.decide.mirror_snapshot import join_limited
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.consumer_groups import fetch_group_offsets, list_groups
from mirror_core.model.errors import Indeterminate, MirrorError
from mirror_core.model.forecast import ForecastOutcome
from mirror_core.model.names import Offset, Partition, select_application_partitions
from mirror_core.model.pending_fence import LateSplit
from mirror_core.model.run import Run, RunMode, StepEvidence
from mirror_core.model.run_checkpoints import RunNote
from mirror_core.model.timing import TIMEOUTS
from mirror_core.runbook.step_records import GroupResumeOffsets
from mirror_core.state.journal import Journal
from mirror_core.state.mirror_link import MirrorLink, check_source_id
from mirror_core.state.state_records import Tombstone
from mirror_core.state.writer import StateWriter


def count_outcome(
    link: MirrorLink,
    journal: Journal,
    lost: forecast_accuracy.LossCount,
    *,
    ask_source: bool,
    taken_since: int = 0,
) -> ForecastOutcome:
    state, name = journal.log.state, link.mirror.name
    ends = {p: status.lmo for p, status in state.partitions.get(name, {}).items()}
    recorded = state.uncommitted_groups.get(name)
    left_groups = find_not_brought_over(recorded.uncommitted if recorded else (), {p.topic for p in ends})
    group_offsets, counted_by = _read_group_offsets(journal, left_groups)
    reached = None
    if group_offsets and ask_source:
        reached, counted_by = _fetch_reached_offsets(link, group_offsets)
    return ForecastOutcome(
        lost_offsets=lost.offsets,
        lost_basis=lost.basis,
        least_lost_offsets=lost.least,
        uncopied=lost.uncopied_texts,
        reread_offsets={
            **dict.fromkeys(islice(left_groups, forecast_accuracy.MAX_FORECAST_GROUPS)),
            **forecast_accuracy.count_read_again(group_offsets, reached, ends),
        },
        reread_basis=counted_by,
        taken_since_offsets=taken_since,
    )


def count_outcome_later(
    link: MirrorLink,
    writer: StateWriter,
    tails: Mapping[Partition, tuple[Offset, Offset]],
    checked_partitions: Collection[Partition],
    beginnings: Mapping[Partition, tuple[Offset, Offset]],
) -> StepEvidence:
    """At failback, counts what the failover could not, or what has grown since. Idempotent."""
    name, state = link.mirror.name, writer.state
    run = next(
        (run for run in forecast_accuracy.list_past_failovers(state.runs.values(), name) if run.plan.mirror == name),
        None,
    )
    if run is None or run.forecast_outcome is None:
        return {}
    statuses = state.partitions.get(name, {})
    application_partitions = select_application_partitions(statuses.keys() | tails.keys())
    late_ranges = {p: tail for p, tail in tails.items() if p in application_partitions}
    pending_fence = state.pending_fences.get(name)
    fence = pending_fence if run.plan.mode is RunMode.UNPLANNED else None  # a planned run has drained all topics
    unparted = LateSplit(before={}, since={}, unknown=late_ranges)
    split = unparted if pending_fence is None else pending_fence.split_late_ranges(late_ranges)
    taken_since = 0 if pending_fence is None else forecast_accuracy.count_taken_since(pending_fence, late_ranges)
    count = count_offsets(late_ranges) - count_offsets(split.since) + count_offsets(beginnings)
    losses = forecast_accuracy.compute_last_losses(state.mirrors[name], statuses, state.find_observation(name), fence)
    lost = forecast_accuracy.add_uncopied(
        forecast_accuracy.LossCount(
            count, forecast_accuracy.format_loss_basis("by what only the old source had", split)
        ),
        {p: loss for p, loss in losses.items() if p not in checked_partitions},
        fence,
    )
    counted = count_outcome(link, Journal(writer, run.id, ()), lost, ask_source=True, taken_since=taken_since)
    outcome = _merge_outcomes(run.forecast_outcome, counted)
    if outcome != run.forecast_outcome:
        writer.put(
            replace(run, forecast_outcome=outcome),
            *(Tombstone(c) for c in state.checkpoints.values() if c.run == run.id and c.kind != RunNote.__name__),
        )
    return {"counted_of": run.id, **format_outcome(outcome)}


def _merge_outcomes(previous: ForecastOutcome, counted: ForecastOutcome) -> ForecastOutcome:
    """Keeps what was counted, unless more was found."""
    newly_known = {
        group: offsets
        for group, offsets in counted.reread_offsets.items()
        if offsets is not None and previous.reread_offsets.get(group) is None
    }
    keeps_reread_basis = not newly_known and (bool(previous.reread_offsets) or not counted.reread_offsets)
    merged = replace(
        counted,
        reread_offsets={**counted.reread_offsets, **previous.reread_offsets, **newly_known},
        reread_basis=previous.reread_basis if keeps_reread_basis else counted.reread_basis,
    )
    if previous.lost_offsets is None or _count_found(counted) > _count_found(previous):
        return merged
    return replace(
        merged,
        lost_offsets=previous.lost_offsets,
        least_lost_offsets=None,
        uncopied=previous.uncopied,
        lost_basis=previous.lost_basis,
        taken_since_offsets=previous.taken_since_offsets,
    )


def _count_found(outcome: ForecastOutcome) -> int:
    return (outcome.lost_offsets or outcome.least_lost_offsets or 0) + outcome.taken_since_offsets


def format_outcome(outcome: ForecastOutcome) -> StepEvidence:
    read_again = [f"{group} {'unknown' if n is None else n}" for group, n in outcome.reread_offsets.items()]
    return {
        "offsets_lost": _format_lost(outcome),
        "known_by": outcome.lost_basis,
        **({"offsets_taken_since": outcome.taken_since_offsets} if outcome.taken_since_offsets else {}),
        "offsets_read_again": join_limited(read_again) or "unknown",
        "counted_by": outcome.reread_basis,
    }


def _format_lost(outcome: ForecastOutcome) -> int | str:
    least = f"at least {outcome.least_lost_offsets:,}" if outcome.least_lost_offsets else "unknown"
    return least if outcome.lost_offsets is None else outcome.lost_offsets


def list_retained_checkpoints(run: Run) -> frozenset[str]:
    counts_later = (
        run.plan.mode is RunMode.UNPLANNED
        and run.forecast_outcome is not None
        and None in run.forecast_outcome.reread_offsets.values()
    )
    return frozenset({GroupResumeOffsets.__name__}) if counts_later else frozenset()


def _read_group_offsets(journal: Journal, left_groups: Collection[str]) -> tuple[forecast_accuracy.GroupPositions, str]:
    try:
        output = journal.load_checkpoint("promote", GroupResumeOffsets)
    except Indeterminate as error:  # a forecast never blocks a run
        return {}, str(error)
    if output is None:
        return {}, "where groups went on on the destination is not known"
    if not output.groups:
        return {}, "no group was brought over" if left_groups else "there were no groups"
    return output.by_group(), "the old source was not seen until the run ended"


def _fetch_reached_offsets(
    link: MirrorLink, groups: Collection[str]
) -> tuple[forecast_accuracy.GroupPositions | None, str]:
    try:
        with ClusterClient(link.source, timeout_s=TIMEOUTS.lost_source_s) as source:
            check_source_id(link, source)
            source_groups = [g for name, g in list_groups(source).items() if name in groups]
            fetched = fetch_group_offsets(source, source_groups)
    except MirrorError as error:
        return None, f"the source could not tell: {error}"
    reached_offsets = {
        name: {p: c.progress for p, c in group_offsets.committed.items()}
        for name, group_offsets in fetched.offsets.items()
        if all(c.acknowledged_ahead is not None for c in group_offsets.committed.values())
    }
    return reached_offsets, "by what they had committed on the source"
