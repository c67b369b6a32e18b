"""`mirrorbook runs`, and how plans and runs are shown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec import UNSET

from mirror_core.cli.command_options import (
    ConfigOption,
    EvidenceOption,
    JsonOption,
    NameArgument,
    complete_runs,
    find_mirror,
    find_operator,
    load_configuration,
    print_facts,
    print_json,
    refuse_incomplete_list,
)
from mirror_core.cli.mirror_headline import list_attention
from mirror_core.cli.output import format_block, print_line
from mirror_core.cli.plan_costs import print_costs
from mirror_core.cli.tables import print_table
from mirror_core.decide import forecast_accuracy
from mirror_core.decide.forecast_accuracy import ForecastComparison
from mirror_core.decide.process_liveness import ConductorState, ConductorStatus
from mirror_core.decide.run_result import RunLoss, RunResult, format_health, format_outage, format_rto, format_run_loss
from mirror_core.decide.steps import measure_step_s
from mirror_core.kafka.config import ClusterConfig
from mirror_core.mirrors.old_source_fence import find_returned_source
from mirror_core.mirrors.recovery_plan import find_unsaved
from mirror_core.model.errors import BadRequest, Indeterminate, MirrorError
from mirror_core.model.figures import Figure, FigureKey, format_figures, list_figure_rows, to_figure_documents
from mirror_core.model.findings import Finding, format_remedy
from mirror_core.model.forecast import PlanForecast
from mirror_core.model.json_documents import FindingDocument, JsonDocument, prints_json, to_finding_documents
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import ClusterName
from mirror_core.model.run import (
    FailbackStrategy,
    Plan,
    PlanStep,
    Run,
    RunKind,
    RunMode,
    RunState,
    StepEvidence,
    StepRecord,
    StepState,
    list_newest_first,
    shorten_hash,
)
from mirror_core.model.run_checkpoints import RunNote
from mirror_core.model.text import format_count
from mirror_core.runbook import evidence_bundle
from mirror_core.runbook.run_outcome import (
    count_lost_behind_fence,
    format_run_outcome,
    is_run_superseded,
    read_run_result,
)
from mirror_core.runbook.run_services import local_services
from mirror_core.state.journal import list_notes
from mirror_core.state.mirror_link import MirrorLink, make_mirror_link, read_both_states, read_states
from mirror_core.state.run_heartbeat import observe_conductor
from mirror_core.state.state_records import State


class PlanDocument(JsonDocument, frozen=True, kw_only=True):
    """What a run would do. Approvals are bound to the hash."""

    kind: RunKind
    mirror: str
    mode: RunMode
    hash: str
    """Twelve hexadecimal digits."""
    steps: tuple[PlanStep, ...]
    figures: Mapping[FigureKey, Figure]
    """Lag, loss, predicted seconds..."""
    partitions: Mapping[str, Mapping[FigureKey, Figure]]
    """Figures by partition, the most important first; not all of many."""
    groups: Mapping[str, Mapping[FigureKey, Figure]]
    """Figures by consumer group."""
    rights: tuple[str, ...] | None
    """What promotion would grant, the first of many; null: unknown."""
    bound: Mapping[str, str]
    """What the approval is bound to: states, ids, groups, grants."""
    strategies: Mapping[str, FailbackStrategy]
    """Failback: by topic."""
    discarded: int | None
    """Failback: offsets to be salvaged and discarded; null: unknown."""
    forecast: PlanForecast | None
    """What it costs, in numbers; null: a failback."""
    warnings: tuple[FindingDocument, ...]
    unknown: tuple[FindingDocument, ...]
    """What could not be read, and why."""
    refused: tuple[FindingDocument, ...]
    """Why it may not run. Empty for a run's own plan."""


class ConductorDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A run's conductor, as last seen, by that host's clock; null: unknown."""

    state: ConductorState
    by: str | None
    host: str | None
    pid: int | None
    seen_ms: int | None
    text: str
    """As text."""


class StepDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The newest attempt at a step."""

    step: str
    state: StepState
    attempt: int
    started_ms: int
    ended_ms: int | None
    evidence: StepEvidence
    """Counts, verdicts, examples."""
    error: str


class NoteDocument(JsonDocument, frozen=True, kw_only=True):
    """An observation that a person added after a run had ended."""

    run: str
    at_ms: int
    by: str
    text: str
    key: str | None
    """Key that signed it; null: unsigned."""


class RunDocument(JsonDocument, frozen=True, kw_only=True):
    """A run of a failover or a failback."""

    id: str
    number: int
    """Higher than that of every earlier run which the same cluster records."""
    state: RunState
    plan: PlanDocument
    plan_hash: str
    started_by: str
    approved_by: str
    """Empty: nobody was asked."""
    conducted_by: str
    """The last conductor."""
    conducted: ConductorDocument | None
    """Null: ended."""
    started_ms: int
    ended_ms: int | None
    note: str
    result: RunResult | None
    """What it did to applications; null: it is not done, or not asked for, as in `runs list`."""
    attention: tuple[FindingDocument, ...]
    """As `returned` and `unsaved` of `mirror describe`; none in `runs`, which does not ask."""
    steps: tuple[StepDocument, ...]
    """Begun ones; none in `runs list`."""
    notes: tuple[NoteDocument, ...]
    """Observations added after its end, oldest first; none in `runs list`."""


class RunsDocument(JsonDocument, frozen=True, kw_only=True):
    """Runs known to the configured clusters: by cluster, newest first."""

    runs: tuple[RunDocument, ...]
    silent: Mapping[str, str]
    """Clusters that did not answer, and why."""


class ForecastRun(msgspec.Struct, frozen=True, kw_only=True):
    """A plan's forecast and the outcome."""

    run: str
    mirror: str
    """A drill has its own."""
    mode: RunMode
    started_ms: int
    rows: tuple[ForecastComparison, ...]


class ForecastDocument(JsonDocument, frozen=True, kw_only=True):
    """Finished failovers and drills, newest first."""

    mirror: str
    runs: tuple[ForecastRun, ...]


def to_plan_document(plan: Plan, reasons: Iterable[Finding]) -> PlanDocument:
    return PlanDocument(
        kind=plan.kind,
        mirror=plan.mirror,
        mode=plan.mode,
        hash=plan.hash,
        steps=plan.steps,
        figures=to_figure_documents(plan.figures),
        partitions={name: to_figure_documents(figures) for name, figures in plan.partitions.items()},
        groups={name: to_figure_documents(figures) for name, figures in plan.groups.items()},
        rights=None if plan.rights is UNSET else plan.rights,
        bound={fact.name: fact.value for fact in plan.bound_facts},
        strategies=plan.strategies,
        discarded=plan.discarded,
        forecast=plan.forecast if isinstance(plan.forecast, PlanForecast) else None,
        warnings=to_finding_documents(plan.warnings),
        unknown=to_finding_documents(plan.unknown),
        refused=to_finding_documents(reasons),
    )


def to_run_document(
    run: Run,
    steps: tuple[StepRecord, ...],
    conductor_status: ConductorStatus | None,
    result: RunResult | None = None,
    notes: Iterable[RunNote] = (),
    attention: Iterable[Finding] = (),
) -> RunDocument:
    return RunDocument(
        id=run.id,
        number=run.number,
        state=run.state,
        plan=to_plan_document(run.plan, ()),
        plan_hash=run.plan_hash,
        started_by=run.started_by,
        approved_by=run.approved_by,
        conducted_by=run.conducted_by,
        conducted=None if conductor_status is None else _to_conductor_document(conductor_status),
        started_ms=run.started_ms,
        ended_ms=run.ended_ms,
        note=run.note,
        result=result,
        attention=to_finding_documents(attention),
        steps=tuple(
            StepDocument(
                step=s.step,
                state=s.state,
                attempt=s.attempt,
                started_ms=s.started_ms,
                ended_ms=s.ended_ms,
                evidence=s.evidence,
                error=s.error,
            )
            for s in steps
        ),
        notes=tuple(map(to_note_document, notes)),
    )


def to_note_document(note: RunNote) -> NoteDocument:
    return NoteDocument(run=note.run, at_ms=note.at_ms, by=note.by, text=note.text, key=note.key)


def to_forecast_run(run: Run, rows: tuple[ForecastComparison, ...]) -> ForecastRun:
    return ForecastRun(run=run.id, mirror=run.plan.mirror, mode=run.plan.mode, started_ms=run.started_ms, rows=rows)


def _to_conductor_document(conductor_status: ConductorStatus) -> ConductorDocument:
    return ConductorDocument(
        state=conductor_status.state,
        by=conductor_status.by or None,
        host=conductor_status.host or None,
        pid=conductor_status.pid,
        seen_ms=conductor_status.last_seen_ms,
        text=str(conductor_status),
    )


runs_app = typer.Typer(help="Runs of failover and failback: journal and evidence.", no_args_is_help=True)


@runs_app.command("list")
@prints_json(RunsDocument)
def list_runs(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """All runs that the clusters know: by cluster, newest first. Exit code 4 when one did not answer."""
    answered, silent = _read_all_states(config)
    runs = [(cluster, state, run) for cluster, state in answered for run in list_newest_first(state.runs.values())]
    if as_json:
        documents = tuple(to_run_document(run, (), find_conductor(cluster, state, run)) for cluster, state, run in runs)
        print_json(RunsDocument(runs=documents, silent=silent))
    else:
        rows = [
            (r.id, r.plan.kind, r.plan.mirror, r.plan.mode, r.state, format_time(r.started_ms), r.started_by)
            for _, _, r in runs
        ]
        print_table("Runs", ("id", "kind", "mirror", "mode", "state", "begun", "by"), rows, silent)
    refuse_incomplete_list("runs", list(silent.values()))


@runs_app.command()
@prints_json(RunDocument)
def show(
    id: Annotated[str, typer.Argument(help="The run.", autocompletion=complete_runs)],
    evidence: EvidenceOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """One run: its steps, their evidence, what was approved."""
    cluster, state, run = _find_run(config, id)
    loaded, mirror = load_configuration(config), state.mirrors.get(run.plan.mirror)
    link = None if mirror is None else make_mirror_link(loaded, mirror)
    result = None if link is None else read_run_result(link, state, run)
    conductor, notes = find_conductor(cluster, state, run), list_notes(state, run.id)
    print_run(run, state.steps_of(run), conductor, result, notes, as_json=as_json, evidence=True)
    if link is not None and not as_json:
        _print_end(link, state, run, result, find_unsaved(link, {cluster.name: state}), evidence)


def _find_run(config: Path | None, id: str) -> tuple[ClusterConfig, State, Run]:
    answered, silent = _read_all_states(config)
    for cluster, state in answered:
        if id in state.runs:
            return cluster, state, state.runs[id]
    if silent:
        raise Indeterminate(f"run {id} is not known to the clusters that answered; silent: {', '.join(silent)}")
    raise BadRequest(f"unknown run {id!r}; see `mirrorbook runs list`")


@runs_app.command("note")
@prints_json(NoteDocument)
def add_run_note(
    id: Annotated[str, typer.Argument(help="The run, which has ended.", autocompletion=complete_runs)],
    text: Annotated[str, typer.Argument(help="What you observed.")],
    evidence: EvidenceOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add an observation to a run that has ended, under your name; signed apart from the run's own evidence."""
    loaded = load_configuration(config)
    cluster, state, run = _find_run(config, id)
    mirror = state.mirrors.get(run.plan.mirror)
    if mirror is None:
        raise BadRequest(
            f"run {id}: its mirror {run.plan.mirror} was deleted from {cluster.name}: nothing was recorded"
        )
    services = local_services(loaded.path, evidence_dir=choose_evidence_folder(loaded.path, evidence))
    note = evidence_bundle.add_note(services, make_mirror_link(loaded, mirror), state, run, text, find_operator())
    document = to_note_document(note)
    if as_json:
        print_json(document)
    else:
        signed = f"signed by key {note.key}" if note.signature else "unsigned"
        print_line(f"run {id}: noted by {note.by}, {format_time(note.at_ms)}, {signed}")


@runs_app.command()
@prints_json(ForecastDocument)
def forecast(name: NameArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """What the plans of a mirror's failovers and drills foretold, what was counted, and the error; the newest first."""
    link, state = find_mirror(config, name)
    forecasts = [
        (run, forecast_accuracy.list_forecast_rows(count_lost_behind_fence(state, run), state.steps_of(run)))
        for run in forecast_accuracy.list_past_failovers(state.runs.values(), name)
    ]
    if as_json:
        past = tuple(to_forecast_run(run, rows) for run, rows in forecasts)
        print_json(ForecastDocument(mirror=link.mirror.name, runs=past))
        return
    table_rows = [
        (
            run.id,
            run.plan.mode,
            f"{row.label} {row.item}".strip(),
            forecast_accuracy.format_forecast(row),
            forecast_accuracy.format_counted(row),
            forecast_accuracy.format_error(row),
        )
        for run, rows in forecasts
        for row in rows
    ]
    print_table("Foretold and counted", ("run", "mode", "what", "foretold", "counted", "error"), table_rows)


def find_newest_run(link: MirrorLink, state: State, run_id: str | None, kind: RunKind) -> Run:
    """By id, or the one that holds the mirror, or the newest. BadRequest if none."""
    name = link.mirror.name
    matching_runs = [run for run in state.runs.values() if run.plan.mirror == name and run.plan.kind is kind]
    if run_id is not None:
        matching_runs = [run for run in matching_runs if run.id == run_id]
    if not matching_runs:
        which = f"run {run_id!r}" if run_id else "run"
        raise BadRequest(f"mirror {name} has no {kind} {which}; see `mirrorbook runs list`")
    return max(matching_runs, key=lambda run: run.number)


def print_newest_run(
    link: MirrorLink, state: State, run_id: str | None, kind: RunKind, evidence: Path | None = None, *, as_json: bool
) -> None:
    run = find_newest_run(link, state, run_id, kind)
    result, states = read_run_result(link, state, run), read_both_states(link, state)
    returned, unsaved = find_returned_source(link, states), find_unsaved(link, states)
    for line in () if as_json else list_attention(returned, unsaved if result is None else None):
        print_line(line)
    conductor, attention = find_conductor(link.destination, state, run), filter(None, (returned, unsaved))
    print_run(run, state.steps_of(run), conductor, result, attention=attention, as_json=as_json)
    if not as_json:
        print_status_lines(format_run_outcome(link, state, run.id))
        _print_end(link, state, run, result, unsaved, evidence)


def _print_end(
    link: MirrorLink, state: State, run: Run, result: RunResult | None, unsaved: Finding | None, evidence: Path | None
) -> None:
    report = find_report(link.config.path, evidence, run.id)
    print_run_result(result, report, unsaved=unsaved, is_superseded=is_run_superseded(link, state, run))


def choose_evidence_folder(config_path: Path, chosen: Path | None) -> Path:
    return chosen or config_path.parent / "evidence"


def find_report(config_path: Path, evidence: Path | None, run_id: str) -> Path | None:
    page = choose_evidence_folder(config_path, evidence) / f"run-{run_id}" / "report.html"
    return page if page.is_file() else None


def print_status_lines(lines: Iterable[str]) -> None:
    print_line("")
    for line in lines:
        print_line(line)


def find_conductor(cluster: ClusterConfig, state: State, run: Run) -> ConductorStatus | None:
    return observe_conductor(cluster, state, run) if run.ended_ms is None else None


def print_run(
    run: Run,
    steps: tuple[StepRecord, ...],
    conductor_status: ConductorStatus | None,
    result: RunResult | None = None,
    notes: Collection[RunNote] = (),
    *,
    attention: Iterable[Finding] = (),
    as_json: bool,
    evidence: bool = False,
) -> None:
    if as_json:
        print_json(to_run_document(run, steps, conductor_status, result, notes, attention))
        return
    facts: dict[str, object] = {
        "run": run.id,
        "kind": f"{run.plan.kind} of mirror {run.plan.mirror}, {run.plan.mode}",
        "state": _format_run_state(run, conductor_status),
        "plan hash": shorten_hash(run.plan_hash),
        "begun": f"{format_time(run.started_ms)} by {run.started_by}",
        "approved by": run.approved_by or "nobody",
        "conducted by": run.conducted_by,
        "ended": format_time(run.ended_ms) if run.ended_ms else "not yet",
        **({"now": str(conductor_status)} if conductor_status else {}),
    }
    print_facts(facts)
    rows = [(s.step, s.state, s.attempt, _format_step_seconds(s), s.error) for s in steps]
    print_table("Steps", ("step", "state", "attempts", "seconds", "error"), rows)
    if evidence:
        evidence_rows = [(s.step, *row) for s in steps for row in list_figure_rows(s.evidence)]
        print_table("Evidence", ("step", "what", "value"), evidence_rows)
    if notes:
        note_rows = [(format_time(n.at_ms), n.by, n.text, n.key or "unsigned") for n in notes]
        print_table("Notes added later", ("at", "by", "note", "key"), note_rows)


def _format_run_state(run: Run, conductor_status: ConductorStatus | None) -> str:
    if conductor_status and conductor_status.may_await_answer:
        return f"{run.state}, but waiting, perhaps for an answer"
    is_left = conductor_status and conductor_status.state in (ConductorState.RELEASED, ConductorState.SILENT)
    return f"{run.state}, but waiting: no process is at it now" if is_left else run.state


def print_plan(plan: Plan, mirror: Mirror, reasons: Collection[Finding], *, as_json: bool) -> None:
    """A refused plan is only named here: its reasons are the error that the command ends with."""
    if as_json:
        print_json(to_plan_document(plan, reasons))
        return
    figures = dict(plan.figures)
    owner = {"owner": figures.pop(FigureKey.OWNER)} if FigureKey.OWNER in figures else {}
    print_facts({"plan": f"{plan.kind} of mirror {plan.mirror}, {plan.mode}", "hash": plan.hash, **owner})
    if reasons:
        return
    print_costs(plan, mirror)
    for title, lines in (("unknown", plan.unknown), ("warning", plan.warnings)):
        for line in lines:
            print_line(f"{title}: {line}", indent="  ")
    print_table("What is known now", ("what", "value"), list(list_figure_rows(figures)))
    for title, figures_by_name in (("partition", plan.partitions), ("consumer group", plan.groups)):
        if figures_by_name:
            print_table(f"By {title}", (title, "now"), [(n, format_figures(f)) for n, f in figures_by_name.items()])
    if plan.rights:
        print_table("Rights given at promotion", ("right",), [(right,) for right in plan.rights])
    if plan.strategies:
        print_table("Strategies", ("topic", "strategy"), list(plan.strategies.items()))
    rows = [(f"{n}. {s.name}", s.action, "yes" if s.reversible else "no") for n, s in enumerate(plan.steps, start=1)]
    print_table("Steps", ("step", "what is done", "abort possible"), rows)
    no_return_step = next((s.name for s in plan.steps if not s.reversible), None)
    if no_return_step:
        print_line(f"point of no return: {no_return_step}")


def format_time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _format_step_seconds(step: StepRecord) -> str:
    """Its age does not tell whether a step still runs: its conductor may be dead."""
    if step.ended_ms is not None:
        seconds = measure_step_s(step)
        return "unknown (a clock was set back)" if seconds is None else f"{seconds:.1f}"
    return f"not ended, begun {format_time(step.started_ms)}" if step.state is StepState.STARTED else ""


def _read_all_states(config: Path | None) -> tuple[list[tuple[ClusterConfig, State]], dict[str, str]]:
    answered: list[tuple[ClusterConfig, State]] = []
    silent: dict[str, str] = {}
    loaded = load_configuration(config)
    for cluster, state_or_error in read_states(loaded):
        if isinstance(state_or_error, MirrorError):
            silent[cluster] = str(state_or_error)
        else:
            answered.append((loaded.clusters[cluster], state_or_error))
    return answered, silent


def print_run_result(
    result: RunResult | None, report: Path | None, *, unsaved: Finding | None = None, is_superseded: bool = False
) -> None:
    """Nothing of a run that is not done. `is_superseded`: a later run may have moved applications elsewhere."""
    if result is None:
        return
    print_line("")
    rows = list_result(result, report, unsaved=unsaved, is_superseded=is_superseded)
    for line in format_block(rows, indent=0):
        print_line(line)


def list_result(
    result: RunResult, report: Path | None, *, unsaved: Finding | None = None, is_superseded: bool = False
) -> Iterator[tuple[str, str]]:
    yield "applications moved to" if is_superseded else "applications write on", result.applications
    if result.loss is None:
        yield "saved", format_saved(result.saved, result.saved_to, result.old_source)
        if result.saved != 0 and result.saved_to:
            yield "to write back", str(Finding("saved_to_write_back", folders=result.saved_to))
    else:
        yield "lost", format_run_loss(result.loss, result.old_source)
        yield from _list_only_on_old_source(result.loss, result.old_source)
    if unsaved is not None:
        yield f"only on {unsaved.subject}", f"{unsaved}: {format_remedy(unsaved)}"
    if result.heartbeats_not_compared:
        yield "not compared", f"Mirrorbook's own heartbeats ({', '.join(result.heartbeats_not_compared)})"
    if result.groups_left:
        yield "groups not brought over", ", ".join(result.groups_left)
    if result.loss is None and result.mode is RunMode.UNPLANNED:
        yield "moved home by", str(Finding("moved_home_unplanned", result.moved_by))
    yield "without writes", format_outage(result.outage, result.mode, result.left)
    if result.outage is not None and (rto := format_rto(result.outage)):
        yield "RTO", rto
    if result.outage is not None and result.outage.health is not None:
        yield "application", format_health(result.outage.health)
    yield "report", "not on this machine" if report is None else str(report)


def _list_only_on_old_source(loss: RunLoss, old_source: ClusterName) -> Iterator[tuple[str, str]]:
    if loss.saved_to and loss.saved != 0 and (loss.offsets != 0 or loss.taken_since):
        uncounted = loss.uncounted
        finding = Finding(
            "loss_saved",
            old_source,
            records=loss.saved,
            folders=loss.saved_to,
            taken=loss.taken_since,
            lost=loss.offsets != 0,
            others=bool(uncounted.uncopied or uncounted.counted_topics or uncounted.unknown_topics),
        )
        yield "saved since", str(finding)
    elif loss.taken_since:
        yield f"only on {old_source}", str(Finding("taken_since", offsets=loss.taken_since))


def format_saved(count: int | None, folders: Collection[str], old_source: ClusterName) -> str:
    if count == 0:
        return f"nothing: {old_source} had no records of its own"
    records = "an unknown number of records" if count is None else format_count(count, "record")
    return f"{records} that only {old_source} had" + (f", in {', '.join(folders)}" if folders else "")
