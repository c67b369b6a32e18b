"""`mirrorbook runs`, and how plans and runs are shown: parse, call, print."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from mirror_core.cli import completing
from mirror_core.cli.common import (
    ConfigOption,
    JsonOption,
    NameArgument,
    find_mirror,
    load_configuration,
    print_facts,
    print_json,
    print_table,
    refuse_incomplete_list,
)
from mirror_core.cli.documents import (
    ForecastDocument,
    RunDocument,
    RunsDocument,
    to_forecast_run,
    to_plan_document,
    to_run_document,
)
from mirror_core.cli.telling import print_line
from mirror_core.decide import reckoning
from mirror_core.decide.conducting import ConductorStatus
from mirror_core.model.clock import now_ms
from mirror_core.model.documents import prints_json
from mirror_core.model.errors import BadRequest, Indeterminate, MirrorError
from mirror_core.model.mirror_sections import OWNER_KEY
from mirror_core.model.run import Plan, Run, RunKind, StepRecord, StepState, shorten_hash
from mirror_core.runbook.closing import format_run_outcome
from mirror_core.state.link import MirrorLink, read_states
from mirror_core.state.pulse import find_conductor_status
from mirror_core.state.records import State

runs_app = typer.Typer(help="Runs of failover and failback: journal and evidence.", no_args_is_help=True)


@runs_app.command("list")
@prints_json(RunsDocument)
def list_runs(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """All runs that the clusters know, newest first. Exit code 4 when one did not answer."""
    states_by_cluster, silent = _read_all_states(config)
    known_runs = ((state, run) for state in states_by_cluster.values() for run in state.runs.values())
    runs = sorted(known_runs, key=lambda state_and_run: -state_and_run[1].started_ms)
    if as_json:
        documents = tuple(to_run_document(run, (), find_conductor(state, run)) for state, run in runs)
        print_json(RunsDocument(runs=documents, silent=silent))
    else:
        rows = [
            (r.id, r.plan.kind, r.plan.mirror, r.plan.mode, r.state, format_time(r.started_ms), r.started_by)
            for _, r in runs
        ]
        print_table("Runs", ("id", "kind", "mirror", "mode", "state", "begun", "by"), rows)
    refuse_incomplete_list("runs", list(silent.values()))


@runs_app.command()
@prints_json(RunDocument)
def show(
    id: Annotated[str, typer.Argument(help="The run.", autocompletion=completing.complete_runs)],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """One run: its steps, their evidence, what was approved."""
    states_by_cluster, silent = _read_all_states(config)
    for state in states_by_cluster.values():
        if id in state.runs:
            run = state.runs[id]
            print_run(run, state.steps_of(run), find_conductor(state, run), as_json=as_json, evidence=True)
            return
    if silent:
        raise Indeterminate(f"run {id} is not known to the clusters that answered; silent: {', '.join(silent)}")
    raise BadRequest(f"unknown run {id!r}; see `mirrorbook runs list`")


@runs_app.command()
@prints_json(ForecastDocument)
def forecast(name: NameArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """What the plans of a mirror's failovers and drills foretold, what was counted, and the error; the newest first."""
    link, state = find_mirror(config, name)
    forecasts = [
        (run, reckoning.list_forecast_rows(run, state.steps_of(run)))
        for run in reckoning.list_past_failovers(state.runs.values(), name)
    ]
    if as_json:
        past = tuple(to_forecast_run(run, rows) for run, rows in forecasts)
        print_json(ForecastDocument(mirror=link.mirror.name, runs=past))
        return
    table_rows = [
        (
            run.id,
            run.plan.mode,
            f"{row.subject} {row.item}".strip(),
            reckoning.format_forecast(row),
            reckoning.format_counted(row),
            reckoning.format_error(row),
        )
        for run, rows in forecasts
        for row in rows
    ]
    print_table("Foretold and counted", ("run", "mode", "what", "foretold", "counted", "error"), table_rows)


def find_newest_run(link: MirrorLink, state: State, run_id: str | None, kind: RunKind) -> Run:
    """By id, or the one that holds the mirror, or the newest. Raises BadRequest if none."""
    name = link.mirror.name
    matching_runs = [run for run in state.runs.values() if run.plan.mirror == name and run.plan.kind is kind]
    if run_id is not None:
        matching_runs = [run for run in matching_runs if run.id == run_id]
    if not matching_runs:
        which = f"run {run_id!r}" if run_id else "run"
        raise BadRequest(f"mirror {name} has no {kind} {which}; see `mirrorbook runs list`")
    return max(matching_runs, key=lambda run: (run.ended_ms is None, run.started_ms))


def print_newest_run(link: MirrorLink, state: State, run_id: str | None, kind: RunKind, *, as_json: bool) -> None:
    run = find_newest_run(link, state, run_id, kind)
    print_run(run, state.steps_of(run), find_conductor(state, run), as_json=as_json)
    if not as_json:
        print_status_lines(format_run_outcome(link, state, run.id))


def print_status_lines(lines: Iterable[str]) -> None:
    print_line("")
    for line in lines:
        print_line(line)


def find_conductor(state: State, run: Run) -> ConductorStatus | None:
    return find_conductor_status(state, run) if run.ended_ms is None else None


def print_run(
    run: Run,
    steps: tuple[StepRecord, ...],
    conductor_status: ConductorStatus | None,
    *,
    as_json: bool,
    evidence: bool = False,
) -> None:
    if as_json:
        print_json(to_run_document(run, steps, conductor_status))
        return
    facts: dict[str, object] = {
        "run": run.id,
        "kind": f"{run.plan.kind} of mirror {run.plan.mirror}, {run.plan.mode}",
        "state": run.state,
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
        evidence_rows = [(s.step, key, value) for s in steps for key, value in s.evidence.items()]
        print_table("Evidence", ("step", "what", "value"), evidence_rows)


def print_plan(plan: Plan, reasons: tuple[str, ...], *, as_json: bool) -> None:
    if as_json:
        print_json(to_plan_document(plan, reasons))
        return
    figures = dict(plan.figures)
    owner = {OWNER_KEY: figures.pop(OWNER_KEY)} if OWNER_KEY in figures else {}
    print_facts({"plan": f"{plan.kind} of mirror {plan.mirror}, {plan.mode}", "hash": plan.hash, **owner})
    rows = [(n, s.name, s.action, "yes" if s.reversible else "no") for n, s in enumerate(plan.steps, start=1)]
    print_table("Steps", ("", "step", "what is done", "abort possible"), rows)
    no_return_step = next((s.name for s in plan.steps if not s.reversible), None)
    if no_return_step:
        print_line(f"point of no return: {no_return_step}")
    print_table("What is known now", ("what", "value"), list(figures.items()))
    for title, figures_by_name in (("partition", plan.partitions), ("consumer group", plan.groups)):
        if figures_by_name:
            print_table(f"By {title}", (title, "now"), list(figures_by_name.items()))
    if plan.rights:
        print_table("Rights given at promotion", ("right",), [(right,) for right in plan.rights])
    if plan.strategies:
        print_table("Strategies", ("topic", "strategy"), list(plan.strategies.items()))
    for title, lines in (("warning", plan.warnings), ("unknown", plan.unknown), ("refused", reasons)):
        for line in lines:
            print_line(f"{title}: {line}")


def format_time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _format_step_seconds(step: StepRecord) -> str:
    """Age alone does not tell whether a step still runs: its conductor may be dead."""
    if step.ended_ms is not None:
        return f"{(step.ended_ms - step.started_ms) / 1000:.1f}"
    return f"{max(0, now_ms() - step.started_ms) / 1000:.0f}, not ended" if step.state is StepState.STARTED else ""


def _read_all_states(config: Path | None) -> tuple[dict[str, State], dict[str, str]]:
    """(states of clusters that answered, errors of the others)"""
    states_by_cluster: dict[str, State] = {}
    silent: dict[str, str] = {}
    for cluster, state_or_error in read_states(load_configuration(config)):
        if isinstance(state_or_error, MirrorError):
            silent[cluster] = str(state_or_error)
        else:
            states_by_cluster[cluster] = state_or_error
    return states_by_cluster, silent
