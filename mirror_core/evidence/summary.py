"""A run's JSON and HTML reports, and the page of a set's failover."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Final

from mirror_core.decide import vouching
from mirror_core.decide.evidence import BOTH_EMPTY, NONE, NOT_COMPARED
from mirror_core.decide.loss_figures import CUT, IN_DOUBT, NOT_MIRRORED
from mirror_core.decide.standing import when
from mirror_core.decide.steps import point_of_no_return, stood_still_s
from mirror_core.decide.together import COMPLETE
from mirror_core.model.parity import Verdict
from mirror_core.model.run import Evidence, Mode, Run, RunKind, StepRecord, StepState

UNKNOWN: Final = "unknown"
UNASKED: Final[Evidence] = MappingProxyType({})


def lost(run: Run, steps: Sequence[StepRecord]) -> str:
    return dict(answers(run, steps, "", "")).get("What was lost", UNKNOWN)  # the answer names no cluster


def answers(
    run: Run, steps: Sequence[StepRecord], source: str, destination: str, proof: Evidence = UNASKED
) -> Iterator[tuple[str, str]]:
    yield "What", _what(run, steps, source, destination)
    yield "When", _when(run, steps)
    if run.plan.kind is RunKind.FAILBACK:
        kept = next((s for s in steps if s.step == "salvage" and s.state is StepState.DONE), None)
        saved = kept.evidence.get("records") if kept else None
        yield "What was taken back", f"{UNKNOWN if saved is None else saved} record(s) that only the old source had"
        return
    if run.plan.mode is Mode.UNPLANNED:
        counted = run.counted
        if counted is not None and counted.lost is not None:
            yield "What was lost", f"{counted.lost:,} offset(s)"
            yield "How do we know", counted.lost_by
        else:
            yield "What was lost", run.plan.figures.get("loss", UNKNOWN)
            yield "How do we know", "by what was last seen of the source before the approval"
        yield from _at_the_cut(steps)
        yield "What was compared with the source before", _proved_before(steps)
        seen = proof or vouching.of_run(steps)
        yield "What certificates prove of it", vouching.sentence(seen)
        if command := seen.get(vouching.AGAIN):
            yield "To prove more", str(command)
        return
    gate = next((s for s in steps if s.step == "parity" and s.state is StepState.DONE), None)
    seen = gate.evidence if gate else {}
    if seen.get("verdict") == BOTH_EMPTY and seen.get(NOT_COMPARED, NONE) == NONE:
        yield "What was lost", "nothing"
        yield "How do we know", "neither side held a record, and their logs began and ended at the same offsets"
        return
    if seen.get("verdict") != Verdict.PASSED or not seen.get("records_in_all"):
        yield "What was lost", UNKNOWN
        yield "How do we know", "we don't: nothing was compared"
        return
    as_it_was = seen.get(NOT_COMPARED, NONE)
    yield "What was lost", "nothing" if as_it_was == NONE else f"{UNKNOWN}; nothing of what was compared"
    known = (
        f"{seen.get('records_in_all')} records of {seen.get('partitions')} partitions compared equal, the last "
        f"{seen.get('records_since_proof')} of them behind the fence"
    )
    yield (
        "How do we know",
        known if as_it_was == NONE else f"{known}; promoted as they were, and not compared: {as_it_was}",
    )


def _what(run: Run, steps: Sequence[StepRecord], source: str, destination: str) -> str:
    """What was reached, not what was planned."""
    turning = point_of_no_return(run.plan.kind, run.plan.mode)
    turned = any(s.step == turning and s.state is StepState.DONE for s in steps)
    if run.plan.kind is RunKind.FAILBACK:
        home = f"from {destination} home to {source}"
        done = all(s.state is StepState.DONE for s in steps) and len(steps) == len(run.plan.steps)
        return f"applications and records have come {home}" if done else f"on the way {home}"
    if not turned:
        return f"nothing was moved from {source} to {destination}"
    how = f", without {source}" if run.plan.mode is Mode.UNPLANNED else ""
    return f"applications were moved from {source} to {destination}{how}"


def _when(run: Run, steps: Sequence[StepRecord]) -> str:
    begun = when(run.started_ms)
    turning = point_of_no_return(run.plan.kind, run.plan.mode)
    at = next((s.ended_ms for s in steps if s.step == turning and s.state is StepState.DONE), None)
    if run.plan.kind is RunKind.FAILBACK or at is None:
        return f"begun {begun}"
    still = stood_still_s(run, steps)
    seconds = UNKNOWN if still is None else f"{still:.1f} s"
    return f"begun {begun}, promoted {when(at)} after {seconds} without writes"


def _at_the_cut(steps: Sequence[StepRecord]) -> Iterator[tuple[str, str]]:
    seen = next((s.evidence for s in steps if s.step == "record_lmo" and s.state is StepState.DONE), {})
    for key, value in seen.items():
        if key.startswith(COMPLETE) or key in (NOT_MIRRORED, CUT, IN_DOUBT):
            yield key.capitalize(), str(value)


def _proved_before(steps: Sequence[StepRecord]) -> str:
    seen = next((s.evidence for s in steps if s.step == "record_lmo" and s.state is StepState.DONE), {})
    compared = seen.get("compared_before")
    if compared is None:
        return UNKNOWN
    known = f"{compared} were compared equal with the source while it answered"
    unsaid, rest = (seen.get(key, "none") for key in ("compared_and_not_confirmed", "never_compared"))
    if unsaid != "none":
        known += f"; compared, and nobody says now whether it still holds: {unsaid}"
    return known if rest == "none" else f"{known}; never compared: {rest}"
