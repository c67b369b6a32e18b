"""A run's JSON and HTML reports, and the page of a set's failover."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Final

from mirror_core.decide import vouching
from mirror_core.decide.evidence import BOTH_EMPTY_VERDICT, NONE_TEXT, NOT_COMPARED_KEY
from mirror_core.decide.loss_figures import CUT_FIGURE, IN_DOUBT_FIGURE, NOT_MIRRORED_FIGURE
from mirror_core.decide.standing import format_time
from mirror_core.decide.steps import find_no_return_step, measure_standstill_s
from mirror_core.decide.together import COMPLETE_FIGURE
from mirror_core.model.parity import ParityVerdict
from mirror_core.model.run import Run, RunKind, RunMode, StepEvidence, StepRecord, StepState

UNKNOWN_TEXT: Final = "unknown"
NO_PROOF: Final[StepEvidence] = MappingProxyType({})


def find_loss_answer(run: Run, steps: Sequence[StepRecord]) -> str:
    return dict(answer_questions(run, steps, "", "")).get("What was lost", UNKNOWN_TEXT)  # the answer names no cluster


def answer_questions(
    run: Run, steps: Sequence[StepRecord], source: str, destination: str, proof: StepEvidence = NO_PROOF
) -> Iterator[tuple[str, str]]:
    yield "What", _describe_outcome(run, steps, source, destination)
    yield "When", _describe_times(run, steps)
    if run.plan.kind is RunKind.FAILBACK:
        salvage_step = next((s for s in steps if s.step == "salvage" and s.state is StepState.DONE), None)
        saved = salvage_step.evidence.get("records") if salvage_step else None
        yield (
            "What was taken back",
            f"{UNKNOWN_TEXT if saved is None else saved} record(s) that only the old source had",
        )
        return
    if run.plan.mode is RunMode.UNPLANNED:
        outcome = run.forecast_outcome
        if outcome is not None and outcome.lost_offsets is not None:
            yield "What was lost", f"{outcome.lost_offsets:,} offset(s)"
            yield "How do we know", outcome.lost_basis
        else:
            yield "What was lost", run.plan.figures.get("loss", UNKNOWN_TEXT)
            yield "How do we know", "by what was last seen of the source before the approval"
        yield from _describe_cut(steps)
        yield "What was compared with the source before", _describe_earlier_comparison(steps)
        evidence = proof or vouching.read_coverage_evidence(steps)
        yield "What certificates prove of it", vouching.format_coverage(evidence)
        if command := evidence.get(vouching.COMMAND_KEY):
            yield "To prove more", str(command)
        return
    gate = next((s for s in steps if s.step == "parity" and s.state is StepState.DONE), None)
    evidence = gate.evidence if gate else {}
    if evidence.get("verdict") == BOTH_EMPTY_VERDICT and evidence.get(NOT_COMPARED_KEY, NONE_TEXT) == NONE_TEXT:
        yield "What was lost", "nothing"
        yield "How do we know", "neither side held a record, and their logs began and ended at the same offsets"
        return
    if evidence.get("verdict") != ParityVerdict.PASSED or not evidence.get("records_in_all"):
        yield "What was lost", UNKNOWN_TEXT
        yield "How do we know", "we don't: nothing was compared"
        return
    not_compared = evidence.get(NOT_COMPARED_KEY, NONE_TEXT)
    yield "What was lost", "nothing" if not_compared == NONE_TEXT else f"{UNKNOWN_TEXT}; nothing of what was compared"
    basis = (
        f"{evidence.get('records_in_all')} records of {evidence.get('partitions')} partitions compared equal, the last "
        f"{evidence.get('records_since_proof')} of them behind the fence"
    )
    yield (
        "How do we know",
        basis if not_compared == NONE_TEXT else f"{basis}; promoted as they were, and not compared: {not_compared}",
    )


def _describe_outcome(run: Run, steps: Sequence[StepRecord], source: str, destination: str) -> str:
    """What was reached, not what was planned."""
    no_return_step = find_no_return_step(run.plan.kind, run.plan.mode)
    past_no_return = any(s.step == no_return_step and s.state is StepState.DONE for s in steps)
    if run.plan.kind is RunKind.FAILBACK:
        route = f"from {destination} home to {source}"
        is_done = all(s.state is StepState.DONE for s in steps) and len(steps) == len(run.plan.steps)
        return f"applications and records have come {route}" if is_done else f"on the way {route}"
    if not past_no_return:
        return f"nothing was moved from {source} to {destination}"
    without_source = f", without {source}" if run.plan.mode is RunMode.UNPLANNED else ""
    return f"applications were moved from {source} to {destination}{without_source}"


def _describe_times(run: Run, steps: Sequence[StepRecord]) -> str:
    begun_text = format_time(run.started_ms)
    no_return_step = find_no_return_step(run.plan.kind, run.plan.mode)
    promoted_ms = next((s.ended_ms for s in steps if s.step == no_return_step and s.state is StepState.DONE), None)
    if run.plan.kind is RunKind.FAILBACK or promoted_ms is None:
        return f"begun {begun_text}"
    block_s = measure_standstill_s(run, steps)
    seconds = UNKNOWN_TEXT if block_s is None else f"{block_s:.1f} s"
    return f"begun {begun_text}, promoted {format_time(promoted_ms)} after {seconds} without writes"


def _describe_cut(steps: Sequence[StepRecord]) -> Iterator[tuple[str, str]]:
    evidence = next((s.evidence for s in steps if s.step == "record_lmo" and s.state is StepState.DONE), {})
    for key, value in evidence.items():
        if key.startswith(COMPLETE_FIGURE) or key in (NOT_MIRRORED_FIGURE, CUT_FIGURE, IN_DOUBT_FIGURE):
            yield key.capitalize(), str(value)


def _describe_earlier_comparison(steps: Sequence[StepRecord]) -> str:
    evidence = next((s.evidence for s in steps if s.step == "record_lmo" and s.state is StepState.DONE), {})
    compared = evidence.get("compared_before")
    if compared is None:
        return UNKNOWN_TEXT
    text = f"{compared} were compared equal with the source while it answered"
    unconfirmed, never_compared = (
        evidence.get(key, "none") for key in ("compared_and_not_confirmed", "never_compared")
    )
    if unconfirmed != "none":
        text += f"; compared, and nobody says now whether it still holds: {unconfirmed}"
    return text if never_compared == "none" else f"{text}; never compared: {never_compared}"
