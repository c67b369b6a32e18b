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
    configuration,
    mirror,
    print_facts,
    print_json,
    print_table,
    refuse_unknown,
)
from mirror_core.cli.documents import (
    ForecastDocument,
    RunDocument,
    RunsDocument,
    forecast_document,
    plan_document,
    run_document,
)
from mirror_core.cli.telling import tell
from mirror_core.decide import reckoning
from mirror_core.decide.conducting import Conducted
from mirror_core.model.clock import now_ms
from mirror_core.model.documents import prints
from mirror_core.model.errors import BadRequest, Indeterminate, MirrorError
from mirror_core.model.mirror_sections import OWNER
from mirror_core.model.run import Plan, Run, RunKind, StepRecord, StepState, short_hash
from mirror_core.runbook.closing import words_of
from mirror_core.state.link import Link, states
from mirror_core.state.pulse import conducted
from mirror_core.state.records import State

runs_app = typer.Typer(help="Runs of failover and failback: journal and evidence.", no_args_is_help=True)


@runs_app.command("list")
@prints(RunsDocument)
def list_runs(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """All runs that the clusters know, newest first. Exit code 4 when one did not answer."""
    found, silent = _all(config)
    known = ((state, run) for state in found.values() for run in state.runs.values())
    runs = sorted(known, key=lambda one: -one[1].started_ms)
    if as_json:
        documents = tuple(run_document(run, (), conducted_now(state, run)) for state, run in runs)
        print_json(RunsDocument(runs=documents, silent=silent))
    else:
        rows = [
            (r.id, r.plan.kind, r.plan.mirror, r.plan.mode, r.state, when(r.started_ms), r.started_by) for _, r in runs
        ]
        print_table("Runs", ("id", "kind", "mirror", "mode", "state", "begun", "by"), rows)
    refuse_unknown("runs", list(silent.values()))


@runs_app.command()
@prints(RunDocument)
def show(
    id: Annotated[str, typer.Argument(help="The run.", autocompletion=completing.runs)],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """One run: its steps, their evidence, what was approved."""
    found, silent = _all(config)
    for state in found.values():
        if id in state.runs:
            run = state.runs[id]
            show_run(run, state.steps_of(run), conducted_now(state, run), as_json=as_json, evidence=True)
            return
    if silent:
        raise Indeterminate(f"run {id} is not known to the clusters that answered; silent: {', '.join(silent)}")
    raise BadRequest(f"unknown run {id!r}; see `mirrorbook runs list`")


@runs_app.command()
@prints(ForecastDocument)
def forecast(name: NameArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """What the plans of a mirror's failovers and drills foretold, what was counted, and the error; the newest first."""
    link, state = mirror(config, name)
    found = [(run, reckoning.rows(run, state.steps_of(run))) for run in reckoning.past(state.runs.values(), name)]
    if as_json:
        past = tuple(forecast_document(run, rows) for run, rows in found)
        print_json(ForecastDocument(mirror=link.mirror.name, runs=past))
        return
    shown = [
        (
            run.id,
            run.plan.mode,
            f"{row.what} {row.of}".strip(),
            reckoning.foretold_in_words(row),
            reckoning.counted_in_words(row),
            reckoning.error_in_words(row),
        )
        for run, rows in found
        for row in rows
    ]
    print_table("Foretold and counted", ("run", "mode", "what", "foretold", "counted", "error"), shown)


def newest(link: Link, state: State, run_id: str | None, kind: RunKind) -> Run:
    """By id, or the one that holds the mirror, or the newest. Raises BadRequest if none."""
    name = link.mirror.name
    mine = [r for r in state.runs.values() if r.plan.mirror == name and r.plan.kind is kind]
    if run_id is not None:
        mine = [r for r in mine if r.id == run_id]
    if not mine:
        which = f"run {run_id!r}" if run_id else "run"
        raise BadRequest(f"mirror {name} has no {kind} {which}; see `mirrorbook runs list`")
    return max(mine, key=lambda r: (r.ended_ms is None, r.started_ms))


def show_newest(link: Link, state: State, run_id: str | None, kind: RunKind, *, as_json: bool) -> None:
    found = newest(link, state, run_id, kind)
    show_run(found, state.steps_of(found), conducted_now(state, found), as_json=as_json)
    if not as_json:
        tell_all(words_of(link, state, found.id))


def tell_all(lines: Iterable[str]) -> None:
    tell("")
    for line in lines:
        tell(line)


def conducted_now(state: State, run: Run) -> Conducted | None:
    return conducted(state, run) if run.ended_ms is None else None


def show_run(
    run: Run, steps: tuple[StepRecord, ...], now: Conducted | None, *, as_json: bool, evidence: bool = False
) -> None:
    if as_json:
        print_json(run_document(run, steps, now))
        return
    facts: dict[str, object] = {
        "run": run.id,
        "kind": f"{run.plan.kind} of mirror {run.plan.mirror}, {run.plan.mode}",
        "state": run.state,
        "plan hash": short_hash(run.plan_hash),
        "begun": f"{when(run.started_ms)} by {run.started_by}",
        "approved by": run.approved_by or "nobody",
        "conducted by": run.conducted_by,
        "ended": when(run.ended_ms) if run.ended_ms else "not yet",
        **({"now": str(now)} if now else {}),
    }
    print_facts(facts)
    rows = [(s.step, s.state, s.attempt, _seconds(s), s.error) for s in steps]
    print_table("Steps", ("step", "state", "attempts", "seconds", "error"), rows)
    if evidence:
        rows_ = [(s.step, key, value) for s in steps for key, value in s.evidence.items()]
        print_table("Evidence", ("step", "what", "value"), rows_)


def show_plan(plan: Plan, reasons: tuple[str, ...], *, as_json: bool) -> None:
    if as_json:
        print_json(plan_document(plan, reasons))
        return
    figures = dict(plan.figures)
    owner = {OWNER: figures.pop(OWNER)} if OWNER in figures else {}
    print_facts({"plan": f"{plan.kind} of mirror {plan.mirror}, {plan.mode}", "hash": plan.hash, **owner})
    rows = [(n, s.name, s.action, "yes" if s.reversible else "no") for n, s in enumerate(plan.steps, start=1)]
    print_table("Steps", ("", "step", "what is done", "abort possible"), rows)
    turning = next((s.name for s in plan.steps if not s.reversible), None)
    if turning:
        tell(f"point of no return: {turning}")
    print_table("What is known now", ("what", "value"), list(figures.items()))
    for title, by in (("partition", plan.partitions), ("consumer group", plan.groups)):
        if by:
            print_table(f"By {title}", (title, "now"), list(by.items()))
    if plan.rights:
        print_table("Rights given at promotion", ("right",), [(right,) for right in plan.rights])
    if plan.strategies:
        print_table("Strategies", ("topic", "strategy"), list(plan.strategies.items()))
    for title, lines in (("warning", plan.warnings), ("unknown", plan.unknown), ("refused", reasons)):
        for line in lines:
            tell(f"{title}: {line}")


def when(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _seconds(step: StepRecord) -> str:
    """Age alone does not tell whether a step still runs: its conductor may be dead."""
    if step.ended_ms is not None:
        return f"{(step.ended_ms - step.started_ms) / 1000:.1f}"
    return f"{max(0, now_ms() - step.started_ms) / 1000:.0f}, not ended" if step.state is StepState.STARTED else ""


def _all(config: Path | None) -> tuple[dict[str, State], dict[str, str]]:
    """(states of clusters that answered, errors of the others)"""
    found: dict[str, State] = {}
    silent: dict[str, str] = {}
    for cluster, answer in states(configuration(config)):
        if isinstance(answer, MirrorError):
            silent[cluster] = str(answer)
        else:
            found[cluster] = answer
    return found, silent
