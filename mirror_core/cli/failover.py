"""`mirrorbook failover`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mirror_core.cli.common import ConfigOption, DryRunOption, JsonOption, NameArgument, YesOption, agree, mirror
from mirror_core.cli.runs import (
    EvidenceOption,
    HashOption,
    MasterOption,
    Runner,
    RunnerOption,
    RunOption,
    newest,
    operator,
    services,
    show_newest,
    show_plan,
    show_run,
)
from mirror_core.model.errors import Refused
from mirror_core.model.run import Mode, RunKind
from mirror_core.runbook.failover import Failover
from mirror_core.state.link import Link

failover_app = typer.Typer(help="Move applications to a mirror's destination.", no_args_is_help=True)

ModeOption = Annotated[Mode, typer.Option("--mode", help="planned: the source lives. unplanned: it is lost.")]


@failover_app.command()
def plan(
    name: NameArgument, mode: ModeOption = Mode.PLANNED, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """What a failover would do now, within seconds even if the source is dead. Exit code 3 when it may not be run."""
    link, _ = mirror(config, name)
    decision = _failover(link).decide(mode)
    show_plan(decision.plan, decision.reasons, as_json=as_json)
    if decision.reasons:
        raise Refused(f"this plan cannot be run: {mode} failover of {name}", decision.reasons)


@failover_app.command()
def run(
    name: NameArgument,
    mode: ModeOption = Mode.PLANNED,
    plan_hash: HashOption = None,
    runner: RunnerOption = Runner.SPARK,
    master: MasterOption = "local[*]",
    evidence: EvidenceOption = None,
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the plan, ask, and run it. When this process dies, `resume` goes on."""
    link, _ = mirror(config, name)
    failover = _failover(link, runner, master, evidence, quiet=as_json)
    decision = failover.decide(mode)
    if not as_json or dry_run:
        show_plan(decision.plan, decision.reasons, as_json=as_json)
    if decision.reasons:
        raise Refused(f"{mode} failover of {name}", decision.reasons)
    if plan_hash not in (None, decision.plan.hash):
        raise Refused(
            f"failover of {name}",
            [f"the plan with hash {plan_hash} no longer holds: it is {decision.plan.hash} now; look at the new plan"],
        )
    if dry_run:
        return
    agree(f"Run plan {decision.plan.hash}: move applications from {link.source.name} to {link.destination.name}?", yes)
    started = failover.begin(decision.plan.hash, mode)
    if not as_json:
        typer.echo(f"run {started.id}; after a crash: mirrorbook failover resume {name}")
    failover.drive(started.id)
    _show(failover, started.id, as_json=as_json)


@failover_app.command()
def status(
    name: NameArgument, run_id: RunOption = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """The run that holds the mirror, or its newest one."""
    link, state = mirror(config, name)
    show_newest(link, state, run_id, RunKind.FAILOVER, as_json=as_json)


@failover_app.command()
def resume(
    name: NameArgument,
    run_id: RunOption = None,
    runner: RunnerOption = Runner.SPARK,
    master: MasterOption = "local[*]",
    evidence: EvidenceOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with a run whose conductor died or failed; ends where that one would have ended."""
    link, state = mirror(config, name)
    found = newest(link, state, run_id, RunKind.FAILOVER)
    failover = _failover(link, runner, master, evidence, quiet=as_json)
    failover.drive(found.id)
    _show(failover, found.id, as_json=as_json)


@failover_app.command()
def abort(
    name: NameArgument,
    run_id: RunOption = None,
    config: ConfigOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Before promotion: lift the fence and let the mirror go on. Afterwards only a failback leads back."""
    link, state = mirror(config, name)
    found = newest(link, state, run_id, RunKind.FAILOVER)
    failover = _failover(link, quiet=as_json)
    agree(f"Abort run {found.id} and let applications write on {link.source.name} again?", yes)
    failover.abort(found.id)
    _show(failover, found.id, as_json=as_json)


def _failover(
    link: Link,
    runner: Runner = Runner.LOCAL,
    master: str = "local[*]",
    evidence: Path | None = None,
    *,
    quiet: bool = False,
) -> Failover:
    given = services(link.config.path, runner, master, evidence)
    say = (lambda line: None) if quiet else typer.echo
    return Failover(link, given, started_by=operator(), say=say)


def _show(failover: Failover, run_id: str, *, as_json: bool) -> None:
    found, steps = failover.status(run_id)
    show_run(found, steps, as_json=as_json)
