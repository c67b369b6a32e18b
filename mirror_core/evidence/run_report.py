"""Pages of a run, of a set's failover, and of a salvage."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from mirror_core.decide import certificate_coverage
from mirror_core.decide.audit_log_check import format_compared
from mirror_core.decide.forecast_accuracy import format_counted, format_error, format_forecast, list_forecast_rows
from mirror_core.decide.run_result import (
    decide_loss,
    find_saved,
    format_health,
    format_outage,
    format_outage_briefly,
    format_rto,
    format_run_loss,
    list_groups_left,
    measure_outage,
)
from mirror_core.decide.set_schedule import RunPhase, measure_set_standstill_s
from mirror_core.decide.steps import (
    RUN_STEPS,
    find_no_return_step,
    list_standstill_steps,
    measure_duration_s,
    measure_step_s,
)
from mirror_core.evidence.html_templates import load_template
from mirror_core.evidence.signed_bundle import write_notes
from mirror_core.evidence.timeline import TIMELINE_WIDTH, build_timeline, parse_entries
from mirror_core.model.config_sections import MirrorSet
from mirror_core.model.figures import UNKNOWN_TEXT, FigureKey, format_figures, list_figure_rows, list_values
from mirror_core.model.files import report_write_errors
from mirror_core.model.findings import Finding, format_remedy
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import ClusterName, Partition, format_reverse_name
from mirror_core.model.parity_verdict import ParityVerdict, SalvagedPartition, SalvageMatch
from mirror_core.model.run import Run, RunKind, RunMode, RunState, StepEvidence, StepRecord, StepState
from mirror_core.model.text import format_count, format_time


class Tone(StrEnum):
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeadline:
    verdict: str
    tone: Tone
    figures: tuple[tuple[str, str], ...]


def make_headline(
    run: Run, steps: Sequence[StepRecord], lost: str, proof: StepEvidence, unsaved: Finding | None = None
) -> RunHeadline:
    """`lost`: as the page answers it. `proof`: certificate coverage. `unsaved`: see `write_run_report`."""
    tone, verdict = _judge(run, steps)
    if unsaved is not None and tone is Tone.GOOD:
        tone, verdict = Tone.WARN, f"{verdict}. {unsaved}"
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


NO_PROOF: Final[StepEvidence] = MappingProxyType({})


_UNPROVED_KEYS: Final = (FigureKey.COMPARED_NOT_CONFIRMED, FigureKey.NEVER_COMPARED)
_CUT_KEYS: Final = (
    FigureKey.UNCOPIED_PARTITIONS,
    FigureKey.UNCOPIED_SIZES,
    FigureKey.COMPLETE_UP_TO_MS,
    FigureKey.CUT_TRANSACTIONS,
    FigureKey.DOUBTFUL_TRANSACTIONS,
)


class ReportQuestion(StrEnum):
    WHAT = "What"
    WHEN = "When"
    RTO = "RTO"
    APPLICATION = "Application"
    GROUPS_LEFT = "Groups not brought over"
    SAVED = "What was saved to files"
    UNSAVED = "What only the cluster that was left has"
    LOST = "What was lost"
    COUNTED_LATER = "Where a later count will stand"
    TAKEN_SINCE = "What only the old source has, and was not lost"
    BASIS = "How do we know"
    COMPARED_BEFORE = "What was compared with the source before"
    CERTIFICATES = "What certificates prove of it"
    TO_PROVE_MORE = "To prove more"
    TO_PROVE_MORE_FROM_SOURCE = "To prove more, when the source answers"


def find_loss_answer(run: Run, steps: Sequence[StepRecord]) -> str:
    return dict(answer_questions(run, steps, "the source", "")).get(ReportQuestion.LOST, UNKNOWN_TEXT)


def answer_questions(
    run: Run,
    steps: Sequence[StepRecord],
    source: str,
    destination: str,
    proof: StepEvidence = NO_PROOF,
    unsaved: Finding | None = None,
) -> Iterator[tuple[str, str]]:
    """`unsaved`: see `write_run_report`."""
    yield ReportQuestion.WHAT, _describe_outcome(run, steps, source, destination)
    if unsaved is not None:
        yield ReportQuestion.UNSAVED, f"{unsaved}: {format_remedy(unsaved)}"
    yield ReportQuestion.WHEN, _describe_times(run, steps, source)
    outage = None if run.plan.kind is RunKind.FAILBACK else measure_outage(run, steps)
    if outage is not None and (rto := format_rto(outage)):
        yield ReportQuestion.RTO, rto
    if outage is not None and outage.health is not None:
        yield ReportQuestion.APPLICATION, format_health(outage.health)
    if groups := list_groups_left(steps):
        yield ReportQuestion.GROUPS_LEFT, ", ".join(groups)
    if run.plan.kind is RunKind.FAILBACK:
        saved, folders = find_saved(steps)
        count_text = "an unknown number of records" if saved is None else format_count(saved, "record")
        records_text = f"{count_text} that only the old source had"
        replay_text = f": {Finding('saved_to_write_back', folders=folders)}" if saved != 0 and folders else ""
        yield ReportQuestion.SAVED, f"{records_text}{replay_text}"
        return
    yield from _describe_loss(run, steps, source)
    if run.plan.mode is RunMode.UNPLANNED:
        yield from _describe_cut(steps)
        yield ReportQuestion.COMPARED_BEFORE, _describe_earlier_comparison(steps)
        evidence = proof or certificate_coverage.read_coverage_evidence(steps)
        yield ReportQuestion.CERTIFICATES, certificate_coverage.format_coverage(evidence)
        if command := evidence.get(FigureKey.TO_PROVE_MORE):
            yield ReportQuestion.TO_PROVE_MORE, str(command)
        if command := evidence.get(FigureKey.TO_PROVE_MORE_FROM_SOURCE):
            yield ReportQuestion.TO_PROVE_MORE_FROM_SOURCE, str(command)


def _describe_loss(run: Run, steps: Sequence[StepRecord], source: str) -> Iterator[tuple[str, str]]:
    outcome, loss, is_planned = run.forecast_outcome, decide_loss(run), run.plan.mode is RunMode.PLANNED
    counted = outcome and (outcome.least_lost_offsets if outcome.lost_offsets is None else outcome.lost_offsets)
    is_known = loss.offsets is not None or loss.is_minimum
    yield ReportQuestion.LOST, format_run_loss(loss, ClusterName(source)) if is_known else UNKNOWN_TEXT
    if not is_planned and (loss.offsets is None or loss.is_minimum or loss.unseen_s is not None):
        yield ReportQuestion.COUNTED_LATER, str(Finding("counted_later", run.id))
    if loss.taken_since:
        yield ReportQuestion.TAKEN_SINCE, str(Finding("taken_since", offsets=loss.taken_since))
    basis = "" if outcome is None or (counted is None and not is_planned) else outcome.lost_basis
    gate = _describe_gate(steps) if is_planned else ""
    unknown = (
        "we don't: nothing was compared" if is_planned else "by what was last seen of the source before the approval"
    )
    yield ReportQuestion.BASIS, "; ".join(filter(None, (basis, gate))) or unknown


def _describe_gate(steps: Sequence[StepRecord]) -> str:
    evidence = next((s.evidence for s in steps if s.step == "parity" and s.state is StepState.DONE), {})
    if evidence.get(FigureKey.PARITY_VERDICT) != ParityVerdict.PASSED or not evidence.get("records_in_all"):
        return ""
    basis = (
        f"{evidence.get('records_in_all')} records of {evidence.get('partitions')} partitions compared equal, the last "
        f"{evidence.get('records_since_proof')} of them behind the fence"
    )
    if not_compared := list_values(evidence, FigureKey.NOT_COMPARED):
        basis += f"; promoted as they were, and not compared: {', '.join(not_compared)}"
    if heartbeats := list_values(evidence, FigureKey.HEARTBEATS_NOT_COMPARED):
        basis += f"; not compared: Mirrorbook's own heartbeats ({', '.join(heartbeats)})"
    return basis


def _describe_outcome(run: Run, steps: Sequence[StepRecord], source: str, destination: str) -> str:
    no_return_step = find_no_return_step(run.plan.kind, run.plan.mode)
    past_no_return = any(s.step == no_return_step and s.state is StepState.DONE for s in steps)
    if run.plan.kind is RunKind.FAILBACK:
        route = f"from {destination} home to {source}"
        is_done = all(s.state is StepState.DONE for s in steps) and len(steps) == len(run.plan.steps)
        return f"applications have come {route}" if is_done else f"on the way {route}"
    if not past_no_return:
        return f"nothing was moved from {source} to {destination}"
    without_source = f", without {source}" if run.plan.mode is RunMode.UNPLANNED else ""
    return f"applications were moved from {source} to {destination}{without_source}"


def _describe_times(run: Run, steps: Sequence[StepRecord], source: str) -> str:
    begun_text = format_time(run.started_ms)
    no_return_step = find_no_return_step(run.plan.kind, run.plan.mode)
    promoted_ms = next((s.ended_ms for s in steps if s.step == no_return_step and s.state is StepState.DONE), None)
    if run.plan.kind is RunKind.FAILBACK or promoted_ms is None:
        return f"begun {begun_text}"
    outage, mode = measure_outage(run, steps), run.plan.mode
    promoted = f"begun {begun_text}, promoted {format_time(promoted_ms)}"
    if mode is RunMode.PLANNED:
        return f"{promoted} after {format_outage_briefly(outage, mode)} without writes"
    return f"{promoted}. Without writes: {format_outage(outage, mode, source)}"


def _describe_cut(steps: Sequence[StepRecord]) -> Iterator[tuple[str, str]]:
    evidence = next((s.evidence for s in steps if s.step == "record_lmo" and s.state is StepState.DONE), {})
    for label, text in list_figure_rows({key: evidence[key] for key in _CUT_KEYS if key in evidence}):
        yield label.capitalize(), text


def _describe_earlier_comparison(steps: Sequence[StepRecord]) -> str:
    evidence = next((s.evidence for s in steps if s.step == "record_lmo" and s.state is StepState.DONE), {})
    if evidence.get(FigureKey.COMPARED_BEFORE_OFFSETS) is None:
        return UNKNOWN_TEXT
    rest = {key: evidence[key] for key in _UNPROVED_KEYS if list_values(evidence, key)}
    text = f"{format_compared(evidence)} were compared equal with the source while it answered"
    return f"{text}; {format_figures(rest)}" if rest else text


RUN_SCHEMA: Final = "mirrorbook/run/2"
MAX_TABLE_ROWS: Final = 1000


def write_run_report(
    folder: Path,
    run: Run,
    steps: Sequence[StepRecord],
    statuses: Mapping[Partition, PartitionStatus],
    step_outputs: Mapping[str, Mapping[str, object]],
    *,
    sides: tuple[str, str],
    chronicle: Sequence[str],
    proof: StepEvidence = NO_PROOF,
    unsaved: Finding | None = None,
) -> Path:
    """Returns the page. Both files are replaced atomically.

    `sides`: source and destination. `chronicle`: the audit log. `proof`: certificate coverage. `unsaved`: what only the
    destination has after a failback.
    """
    _replace_report(folder / "run.json", _write_document(run, steps, statuses, step_outputs))
    page = folder / "report.html"
    _replace_report(page, _render_page(run, steps, statuses, sides, chronicle, proof, unsaved))
    write_notes(folder, run, ())
    return page


def _write_document(
    run: Run,
    steps: Sequence[StepRecord],
    statuses: Mapping[Partition, PartitionStatus],
    step_outputs: Mapping[str, Mapping[str, object]],
) -> Iterator[bytes]:
    head = {
        "schema": RUN_SCHEMA,
        "run": run,
        "steps": list(steps),
        "clocks": compute_clocks(run, steps),
        "forecast": list_forecast_rows(run, steps),
    }
    for number, (key, value) in enumerate(head.items()):
        yield b'%s\n"%s": ' % (b"," if number else b"{", key.encode())
        yield msgspec.json.format(msgspec.json.encode(value), indent=2)
    yield b',\n"left": {'
    for number, (step, values) in enumerate(step_outputs.items()):
        yield b'%s\n"%s": ' % (b"," if number else b"", step.encode())
        yield msgspec.json.encode(values)
    yield b'},\n"partitions": ['
    for number, partition in enumerate(sorted(statuses)):
        yield b",\n" if number else b"\n"
        yield msgspec.json.encode(statuses[partition])
    yield b"]}\n"


def compute_clocks(run: Run, steps: Sequence[StepRecord]) -> dict[str, float | None]:
    """Seconds by the conductor's clock. None if a step is missing.

    `conductor`: run begun to promoted. `first_step_to_promotion`: of the steps without writes. `write_block_upper`: at
    most so long, see WriteOutage. `working`, `waiting`: inside and between its steps. A failback has none: applications
    are stopped in the reverse failover.
    """
    timed_steps = list_standstill_steps(run.plan.kind, run.plan.mode)
    inside = [s for s in steps if s.step in timed_steps]
    last_step = next((s for s in inside if s.step == timed_steps[-1]), None)
    if last_step is None or last_step.ended_ms is None:
        return dict.fromkeys(("conductor", "first_step_to_promotion", "write_block_upper", "working", "waiting"))
    outage = measure_outage(run, steps)
    block = None if outage is None else outage.promotion_s
    step_seconds = [measure_step_s(step) for step in inside]
    known_seconds = [seconds for seconds in step_seconds if seconds is not None]
    working = round(sum(known_seconds), 3) if len(known_seconds) == len(step_seconds) else None
    return {
        "conductor": measure_duration_s(run.started_ms, last_step.ended_ms),
        "first_step_to_promotion": block,
        "write_block_upper": None if outage is None else outage.at_most_s,
        "working": working,
        "waiting": None if block is None or working is None else round(max(0.0, block - working), 3),
    }


def _render_page(
    run: Run,
    steps: Sequence[StepRecord],
    statuses: Mapping[Partition, PartitionStatus],
    sides: tuple[str, str],
    chronicle: Sequence[str],
    proof: StepEvidence,
    unsaved: Finding | None,
) -> Iterator[bytes]:
    plan = run.plan
    approved = [
        *((fact.name, fact.value) for fact in plan.bound_facts),
        *list_figure_rows(plan.figures),
        *((name, format_figures(figures)) for part in (plan.partitions, plan.groups) for name, figures in part.items()),
        *(("right given at promotion", right) for right in plan.rights or ()),
        *((f"topic {topic}", f"strategy {strategy}") for topic, strategy in plan.strategies.items()),
    ]
    answers = dict(answer_questions(run, steps, *sides, proof, unsaved))
    stream = load_template("run.html.j2", when=_format_time_ms, figure_rows=list_figure_rows).stream(
        headline=make_headline(run, steps, answers.get(ReportQuestion.LOST, UNKNOWN_TEXT), proof, unsaved),
        run=run,
        plan=plan,
        steps=steps,
        statuses=[statuses[p] for p in sorted(statuses)[:MAX_TABLE_ROWS]],
        partitions=len(statuses),
        approved=approved[:MAX_TABLE_ROWS],
        approved_in_all=len(approved),
        clocks=compute_clocks(run, steps),
        back=format_reverse_name(plan.mirror),
        answers=list(answers.items()),
        forecast=[
            (row.label, row.item, format_forecast(row), format_counted(row), format_error(row), row.basis)
            for row in list_forecast_rows(run, steps)[:MAX_TABLE_ROWS]
        ],
        picture=build_timeline(run, parse_entries(chronicle)),
        width=TIMELINE_WIDTH,
        writes={step.name: step.writes for step in RUN_STEPS[plan.kind, plan.mode]},
    )
    return (part.encode() for part in stream)


def _format_time_ms(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", " UTC")


def _replace_report(path: Path, content: Iterable[bytes]) -> None:
    temporary = path.with_name("_" + path.name)
    with report_write_errors("report of a run", path, "make room and rights there, then resume the run"):
        with temporary.open("wb") as file:
            file.writelines(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


SET_PAGE: Final = "index.html"
_ORDER_TEXTS: Final = {"side_by_side": "side by side", "in_order": "in order"}


@dataclass(frozen=True, slots=True)
class SetPageMirror:
    run: Run
    steps: tuple[StepRecord, ...]
    place: RunPhase
    status: tuple[str, ...]
    """Where applications can write, and the next command."""
    home: tuple[Run, tuple[StepRecord, ...]] | None = None
    """The failover that leads a failback's applications home."""
    is_home_unknown: bool = False
    silence: str = ""
    """Why its destination was not read."""

    @property
    def moving_run(self) -> tuple[Run, tuple[StepRecord, ...]] | None:
        """The run that stops applications and moves them."""
        return self.home if self.run.plan.kind is RunKind.FAILBACK else (self.run, self.steps)

    @property
    def stood_still(self) -> str:
        if self.silence:
            return UNKNOWN_TEXT
        if self.moving_run is None:
            return UNKNOWN_TEXT if self.is_home_unknown else "not stopped"
        return format_outage_briefly(measure_outage(*self.moving_run), self.moving_run[0].plan.mode)

    @property
    def lost(self) -> str:
        if self.place not in (RunPhase.DONE, RunPhase.HOME):
            return ""
        return UNKNOWN_TEXT if self.moving_run is None else find_loss_answer(*self.moving_run)

    @property
    def saved(self) -> str:
        """A failback: records that only the old source had."""
        return dict(answer_questions(self.run, self.steps, "", "")).get(ReportQuestion.SAVED, "")

    @property
    def trouble(self) -> str:
        return self.silence or next(
            (s.error for s in reversed(self.steps) if s.state is StepState.FAILED), self.run.note
        )


def write_set_page(
    page: Path, kind: RunKind, mirror_set: MirrorSet, attempt: str, mirrors: Sequence[SetPageMirror]
) -> None:
    moving_runs = [mirror.moving_run for mirror in mirrors if mirror.moving_run is not None]
    text = load_template("set.html.j2", when=_format_time).render(
        kind=kind,
        chosen=mirror_set,
        how=_ORDER_TEXTS[mirror_set.order],
        attempt=attempt,
        moved=mirrors,
        done=sum(mirror.place is RunPhase.DONE for mirror in mirrors),
        stood_still=_format_seconds(measure_set_standstill_s(moving_runs)) if moving_runs else "nobody was stopped",
    )
    with report_write_errors("report on a set of mirrors", page, "make room and rights there"):
        page.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        page.write_text(text, encoding="utf-8")


def _format_seconds(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f} s"


def _format_time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


SALVAGE_PAGE: Final = "_report.html"
"""The underscore hides it from Parquet readers."""
MAX_FATE_ROWS: Final = 1000
_MATCH_MEANINGS: Final[Mapping[SalvageMatch, str]] = MappingProxyType(
    {
        SalvageMatch.MISSING: (
            "the new primary has no record of this key since the logs parted: without it something is lost"
        ),
        SalvageMatch.SAME_VALUE: "the new primary has a record of this key with this value: nothing to do",
        SalvageMatch.CONFLICTING: "the new primary has gone on with other values of this key: decide which one holds",
        SalvageMatch.UNKEYED: "there is no key to look for: only what it says can tell",
    }
)


def write_salvage_report(folder: Path, saved: Sequence[SalvagedPartition], *, run: str, old: str, new: str) -> Path:
    totals = {match: sum(s.matches.get(match, 0) for s in saved) for match in SalvageMatch}
    rows = [(s, match) for s in saved for match in SalvageMatch if s.matches.get(match)]
    page = folder / SALVAGE_PAGE
    with report_write_errors("report of a salvage", page, "make room and rights there, then resume the run"):
        page.write_text(
            load_template("salvage.html.j2").render(
                run=run,
                old=old,
                new=new,
                records=sum(s.records for s in saved),
                partitions=len(saved),
                totals=totals,
                means=_MATCH_MEANINGS,
                rows=rows[:MAX_FATE_ROWS],
                rows_in_all=len(rows),
            ),
            encoding="utf-8",
        )
    return page
