from __future__ import annotations

from typing import Annotated

import typer

from mirror_core.cli.command_options import (
    ConfigOption,
    EvidenceOption,
    JsonOption,
    NameArgument,
    SparkConfOption,
    find_mirror,
    find_operator,
    load_configuration,
    print_facts,
    print_json,
)
from mirror_core.cli.output import format_block, print_line, print_line_or_continue
from mirror_core.cli.run_commands import (
    CompareRunner,
    MasterOption,
    RunnerOption,
    SetArgument,
    make_services,
)
from mirror_core.cli.runs import find_report, format_time
from mirror_core.cli.tables import print_table
from mirror_core.decide.drills import FORECAST_KEYS, DrillSummary
from mirror_core.model.figures import FIRST_STEP_TEXT, FigureKey, format_value
from mirror_core.model.json_documents import JsonDocument, prints_json
from mirror_core.model.run import RunMode
from mirror_core.model.text import format_count
from mirror_core.runbook import drill
from mirror_core.runbook import drill as drills
from mirror_core.runbook.set_failover import find_set

drill_app = typer.Typer(
    help="A failover that nobody notices: the same steps, on a topic of their own.", no_args_is_help=True
)

UnaskedYesOption = Annotated[
    bool, typer.Option("--yes", help="As in a failover's line. Nothing is asked: no application notices a drill.")
]


class DrillsDocument(JsonDocument, frozen=True, kw_only=True):
    """Drills of a mirror, newest first."""

    mirror: str
    drills: tuple[DrillSummary, ...]


@drill_app.command()
@prints_json(drills.DrillOutcome)
def run(
    name: NameArgument,
    mode: Annotated[
        RunMode, typer.Option("--mode", help="planned: to the last record. unplanned: the source is given up.")
    ] = RunMode.PLANNED,
    runner: RunnerOption = CompareRunner.LOCAL,
    master: MasterOption = "local[*]",
    evidence: EvidenceOption = None,
    conf: SparkConfOption = None,
    config: ConfigOption = None,
    yes: UnaskedYesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a mirror like NAME with a topic of its own, fail it over, look at what came of it, and take it all away."""
    link, _ = find_mirror(config, name)
    services = make_services(link.config.path, runner, master, evidence, conf)
    line_printer = (lambda line: None) if as_json else print_line_or_continue
    outcome = drills.run_drill(link.config, name, mode, services, started_by=find_operator(), print_line=line_printer)
    if as_json:
        print_json(outcome)
        return
    drilled = outcome.drilled
    seconds = "without writes" if drilled.mode is RunMode.PLANNED else FIRST_STEP_TEXT
    report = find_report(link.config.path, evidence, drilled.run)
    print_facts(
        {
            "run": drilled.run,
            "written before": outcome.written,
            "compared equal": outcome.compared,
            "read again by a group": outcome.group.untried
            or f"{outcome.group.repeated}, and {outcome.group.skipped} skipped",
            "predicted for the group, at most": format_value(FigureKey.READ_AGAIN_MOST, outcome.group.predicted_most),
        }
    )
    rows = (
        ("applications write on", f"{link.mirror.source}, as before: a drill moves nobody"),
        ("lost", format_count(outcome.lost, "offset") if outcome.lost else "nothing"),
        (
            seconds,
            f"{_format_seconds(drilled.measured_s)} (predicted: {_format_predicted(drilled)})",
        ),
        ("report", "not on this machine" if report is None else str(report)),
    )
    for line in ("", *format_block(rows, indent=0)):
        print_line(line)


@drill_app.command("run-set")
@prints_json(drills.SetDrillOutcome)
def run_set(
    name: SetArgument,
    mode: Annotated[
        RunMode, typer.Option("--mode", help="planned: to the last record. unplanned: the sources are given up.")
    ] = RunMode.PLANNED,
    runner: RunnerOption = CompareRunner.LOCAL,
    master: MasterOption = "local[*]",
    evidence: EvidenceOption = None,
    conf: SparkConfOption = None,
    config: ConfigOption = None,
    yes: UnaskedYesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Drill all mirrors of a set together: the drill mirrors fail over as the set would."""
    loaded = load_configuration(config)
    services = make_services(loaded.path, runner, master, evidence, conf)
    line_printer = (lambda line: None) if as_json else print_line_or_continue
    outcome = drills.run_set_drill(
        loaded, find_set(loaded, name), mode, services, started_by=find_operator(), print_line=line_printer
    )
    if as_json:
        print_json(outcome)
        return
    rows = [
        (
            drill.drilled.run,
            str(drill.written),
            str(drill.compared),
            format_count(drill.lost, "offset") if drill.lost else "nothing",
            _format_seconds(drill.drilled.measured_s),
        )
        for drill in outcome.drills
    ]
    print_table(f"Drill {outcome.set}", ("run", "written before", "compared equal", "lost", "measured"), rows)
    print_facts({"first standstill to last promotion": _format_seconds(outcome.standstill_s)})


@drill_app.command("list")
@prints_json(DrillsDocument)
def list_drills(name: NameArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Earlier drills, the newest first: what was predicted, and what was measured."""
    _, state = find_mirror(config, name)
    past_drills = drills.list_past_drills(state, name)
    if as_json:
        print_json(DrillsDocument(mirror=name, drills=tuple(past_drills)))
        return
    rows = [
        (
            drilled.run,
            drilled.mode,
            format_time(drilled.at_ms),
            drilled.text,
            _format_predicted(drilled),
            "-" if drilled.measured_s is None else f"{drilled.measured_s:.1f}",
        )
        for drilled in past_drills
    ]
    print_table("Drills", ("run", "mode", "begun", "outcome", "predicted", "seconds, measured"), rows)


class DrillCleanDocument(JsonDocument, frozen=True, kw_only=True):
    """What a drill had left is gone."""

    mirror: str
    lines: tuple[str, ...]
    """What was taken away, as people read it."""


@drill_app.command()
@prints_json(DrillCleanDocument)
def clean(
    name: NameArgument,
    evidence: EvidenceOption = None,
    config: ConfigOption = None,
    yes: UnaskedYesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Take away what a drill that was killed has left, as the next one would. 4: not all was reached, call it again."""
    loaded, lines = load_configuration(config), list[str]()
    drill.clean_drill(
        loaded,
        name,
        make_services(loaded.path, CompareRunner.LOCAL, "", evidence, None),
        started_by=find_operator(),
        print_line=lines.append if as_json else print_line_or_continue,
    )
    if as_json:
        print_json(DrillCleanDocument(mirror=name, lines=tuple(lines)))
        return
    print_line(f"of drills of mirror {name} nothing is left")


def _format_predicted(drilled: DrillSummary) -> str:
    return format_value(FORECAST_KEYS[drilled.mode], drilled.predicted_s)


def _format_seconds(measured: float | None) -> str:
    return "not measured" if measured is None else f"{measured:.1f} s"
