"""`mirrorbook drill`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mirror_core.cli.common import (
    ConfigOption,
    JsonOption,
    NameArgument,
    configuration,
    mirror,
    print_facts,
    print_json,
    print_table,
)
from mirror_core.cli.conducting import EvidenceOption, evidence_folder, operator
from mirror_core.cli.runs import when
from mirror_core.cli.telling import tell, tell_on
from mirror_core.decide.drills import Drilled
from mirror_core.model.documents import Document, prints
from mirror_core.model.run import Mode
from mirror_core.runbook import drill as drills
from mirror_core.runbook import drill_clean
from mirror_core.runbook.services import Services, local_services

drill_app = typer.Typer(
    help="A failover that nobody notices: the same steps, on a topic of their own.", no_args_is_help=True
)


class DrillsDocument(Document, frozen=True, kw_only=True):
    """Drills of a mirror, newest first."""

    mirror: str
    drills: tuple[Drilled, ...]


@drill_app.command()
@prints(drills.Outcome)
def run(
    name: NameArgument,
    mode: Annotated[
        Mode, typer.Option("--mode", help="planned: to the last record. unplanned: the source is given up.")
    ] = Mode.PLANNED,
    evidence: EvidenceOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a mirror like NAME with a topic of its own, fail it over, look at what came of it, and take it all away."""
    link, _ = mirror(config, name)
    services = _services(link.config.path, evidence)
    say = (lambda line: None) if as_json else tell_on
    found = drills.drill(link.config, name, mode, services, started_by=operator(), say=say)
    if as_json:
        print_json(found)
        return
    one = found.drilled
    print_facts(
        {
            "run": one.run,
            "seconds without writes": _seconds(one.measured_s),
            "predicted": one.predicted,
            "written before": found.written,
            "lost": found.lost,
            "compared equal": found.compared,
            "read again by a group": found.group.untried
            or f"{found.group.repeated}, and {found.group.skipped} skipped",
            "predicted for the group": found.group.predicted,
        }
    )


@drill_app.command("list")
@prints(DrillsDocument)
def list_drills(name: NameArgument, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Earlier drills, the newest first: what was predicted, and what was measured."""
    _, state = mirror(config, name)
    found = drills.past(state, name)
    if as_json:
        print_json(DrillsDocument(mirror=name, drills=tuple(found)))
        return
    rows = [
        (
            one.run,
            one.mode,
            when(one.at_ms),
            one.words,
            one.predicted,
            "-" if one.measured_s is None else f"{one.measured_s:.1f}",
        )
        for one in found
    ]
    print_table("Drills", ("run", "mode", "begun", "outcome", "predicted", "seconds without writes"), rows)


@drill_app.command()
def clean(name: NameArgument, evidence: EvidenceOption = None, config: ConfigOption = None) -> None:
    """Take away what a drill that was killed has left, as the next one would. 4: not all was reached, call it again."""
    loaded = configuration(config)
    drill_clean.clean(loaded, name, _services(loaded.path, evidence), started_by=operator(), say=tell_on)
    tell(f"of drills of mirror {name} nothing is left")


def _services(path: Path, evidence: Path | None) -> Services:
    return local_services(path, evidence_dir=evidence_folder(path, evidence))


def _seconds(measured: float | None) -> str:
    return "not measured" if measured is None else f"{measured:.1f}"
