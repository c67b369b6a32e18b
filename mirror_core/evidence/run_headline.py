"""The first screen of a run's page: what it reached, and four figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from mirror_core.decide import certificate_coverage
from mirror_core.decide.run_result import find_saved, format_outage_briefly, measure_outage
from mirror_core.decide.steps import find_no_return_step
from mirror_core.model.figures import UNKNOWN_TEXT, FigureKey
from mirror_core.model.names import format_reverse_name
from mirror_core.model.parity_verdict import ParityVerdict
from mirror_core.model.run import Run, RunKind, RunMode, RunState, StepEvidence, StepRecord, StepState


class Tone(StrEnum):
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeadline:
    verdict: str
    tone: Tone
    figures: tuple[tuple[str, str], ...]


def make_headline(run: Run, steps: Sequence[StepRecord], lost: str, proof: StepEvidence) -> RunHeadline:
    """`lost`: as the page answers it. `proof`: certificate coverage."""
    tone, verdict = _judge(run, steps)
    return RunHeadline(verdict=verdict, tone=tone, figures=tuple(_list_figures(run, steps, lost, proof)))


def _judge(run: Run, steps: Sequence[StepRecord]) -> tuple[Tone, str]:
    name = f"{run.plan.kind.capitalize()} of {run.plan.mirror}, {run.plan.mode}"
    if run.state in (RunState.ABORTED, RunState.SUPERSEDED):
        return Tone.WARN, f"{name}: {run.state}"
    failed = next((s.step for s in steps if s.state is StepState.FAILED), None)
    if failed is not None:
        return Tone.BAD, f"{name}: step {failed} FAILED"
    # The page is written by the last step of the run.
    no_return_step = find_no_return_step(run.plan.kind, run.plan.mode)
    if not any(s.step == no_return_step and s.state is StepState.DONE for s in steps):
        return Tone.WARN, f"{name}: not ended"
    is_loss_free = run.plan.kind is RunKind.FAILBACK or run.plan.mode is RunMode.PLANNED
    return Tone.GOOD if is_loss_free else Tone.WARN, f"{name}: done"


def _list_figures(run: Run, steps: Sequence[StepRecord], lost: str, proof: StepEvidence) -> Iterator[tuple[str, str]]:
    if run.plan.kind is RunKind.FAILBACK:
        saved, _ = find_saved(steps)
        back = f"see failover {format_reverse_name(run.plan.mirror)}"
        yield "Saved to files, in no topic", UNKNOWN_TEXT if saved is None else f"{saved:,} records"
        yield from ((label, back) for label in ("Without writes", "Read again", "Proved equal"))
        return
    yield "Lost", lost
    yield "Without writes", format_outage_briefly(measure_outage(run, steps), run.plan.mode)
    yield "Read again", _format_read_again(run)
    yield "Proved equal", _format_proved(run, steps, proof)


def _format_read_again(run: Run) -> str:
    outcome = run.forecast_outcome
    if outcome is None:
        return UNKNOWN_TEXT
    if any(offsets is None for offsets in outcome.reread_offsets.values()):
        most = [run.plan.predict_read_again(g) if n is None else n for g, n in outcome.reread_offsets.items()]
        if any(offsets is None for offsets in most):
            return UNKNOWN_TEXT
        return f"at most {sum(n or 0 for n in most):,} offsets by the plan; not counted yet"
    return f"{sum(offsets or 0 for offsets in outcome.reread_offsets.values()):,} offsets by consumer groups"


def _format_proved(run: Run, steps: Sequence[StepRecord], proof: StepEvidence) -> str:
    if run.plan.mode is RunMode.UNPLANNED:
        evidence = proof or certificate_coverage.read_coverage_evidence(steps)
        is_known = evidence.get(FigureKey.CERTIFIED_OFFSETS) is not None
        return f"by certificates: {certificate_coverage.format_certified(evidence)}" if is_known else UNKNOWN_TEXT
    gate = next((s.evidence for s in steps if s.step == "parity" and s.state is StepState.DONE), {})
    records = gate.get("records_in_all")
    is_passed = gate.get(FigureKey.PARITY_VERDICT) == ParityVerdict.PASSED and isinstance(records, int)
    return f"{records:,} records" if is_passed else UNKNOWN_TEXT
