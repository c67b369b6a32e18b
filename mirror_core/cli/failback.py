"""`mirrorbook failback`: parse, call, print."""

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
from mirror_core.decide.failback import Strategy
from mirror_core.model.errors import Refused
from mirror_core.model.run import Mode, RunKind, RunState
from mirror_core.runbook.failback import Failback
from mirror_core.state.link import Link

failback_app = typer.Typer(help="Bring applications home after a failover.", no_args_is_help=True)

StrategyOption = Annotated[
    Strategy | None,
    typer.Option(
        "--strategy",
        help="What may be done with topics that have a divergent tail. Default: the cheapest that is possible.",
    ),
]


@failback_app.command()
def plan(
    name: NameArgument, strategy: StrategyOption = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """What a failback would do now, and what would be discarded. Exit code 3 when it may not be run."""
    link, _ = mirror(config, name)
    decision = _failback(link).decide(strategy)
    show_plan(decision.plan, decision.reasons, as_json=as_json)
    if decision.reasons:
        raise Refused(f"this plan cannot be run: failback of {name}", decision.reasons)


@failback_app.command()
def run(
    name: NameArgument,
    strategy: StrategyOption = None,
    plan_hash: HashOption = None,
    runner: RunnerOption = Runner.SPARK,
    master: MasterOption = "local[*]",
    evidence: EvidenceOption = None,
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the plan, ask, run it; then show the plan of the failover that leads home, ask again, and run that."""
    link, _ = mirror(config, name)
    failback = _failback(link, runner, master, evidence, quiet=as_json)
    decision = failback.decide(strategy)
    if not as_json or dry_run:
        show_plan(decision.plan, decision.reasons, as_json=as_json)
    reasons = list(decision.reasons)
    if plan_hash not in (None, decision.plan.hash):
        reasons.append(f"the plan with hash {plan_hash} no longer holds: it is {decision.plan.hash} now")
    if reasons:
        raise Refused(f"failback of {name}", reasons)
    if dry_run:
        return
    discarded = decision.plan.figures["offsets to discard"]
    agree(f"Run plan {decision.plan.hash}: salvage and discard {discarded} offset(s) of {link.source.name}?", yes)
    started = failback.begin(decision.plan.hash, strategy)
    if not as_json:
        typer.echo(f"run {started.id}; after a crash: mirrorbook failback resume {name}")
    _go_on(failback, started.id, yes=yes, as_json=as_json)


@failback_app.command()
def status(
    name: NameArgument, run_id: RunOption = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """The run that holds the mirror, or its newest one."""
    link, state = mirror(config, name)
    show_newest(link, state, run_id, RunKind.FAILBACK, as_json=as_json)


@failback_app.command()
def resume(
    name: NameArgument,
    run_id: RunOption = None,
    runner: RunnerOption = Runner.SPARK,
    master: MasterOption = "local[*]",
    evidence: EvidenceOption = None,
    config: ConfigOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Go on with a run whose conductor died or failed, the failover that leads home included."""
    link, state = mirror(config, name)
    found = newest(link, state, run_id, RunKind.FAILBACK)
    _go_on(_failback(link, runner, master, evidence, quiet=as_json), found.id, yes=yes, as_json=as_json)


@failback_app.command()
def abort(
    name: NameArgument,
    run_id: RunOption = None,
    config: ConfigOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Before anything on the old source is changed: give up, and leave applications where they are."""
    link, state = mirror(config, name)
    found = newest(link, state, run_id, RunKind.FAILBACK)
    failback = _failback(link, quiet=as_json)
    agree(f"Abort run {found.id}?", yes)
    failback.abort(found.id)
    ended, steps = failback.status(found.id)
    show_run(ended, steps, as_json=as_json)


def _go_on(failback: Failback, run_id: str, *, yes: bool, as_json: bool) -> None:
    """To the end: the failback's steps, the failover home with its own approval, the last step."""
    run = failback.drive(run_id)
    if run.state is RunState.RUNNING:
        home = failback.home()
        under_way = home.active()
        if under_way is None:
            decision = home.decide(Mode.PLANNED)
            if not as_json:
                show_plan(decision.plan, decision.reasons, as_json=False)
            if decision.reasons:
                raise Refused(f"failover of {home.link.mirror.name}, the way home", decision.reasons)
            agree(f"Run plan {decision.plan.hash}: bring applications home to {failback.link.source.name}?", yes)
            under_way = home.begin(decision.plan.hash)
        home.drive(under_way.id)
        failback.drive(run_id)
    found, steps = failback.status(run_id)
    show_run(found, steps, as_json=as_json)


def _failback(
    link: Link,
    runner: Runner = Runner.LOCAL,
    master: str = "local[*]",
    evidence: Path | None = None,
    *,
    quiet: bool = False,
) -> Failback:
    given = services(link.config.path, runner, master, evidence)
    say = (lambda line: None) if quiet else typer.echo
    return Failback(link, given, started_by=operator(), say=say)
