"""`mirrorbook failback`: parse, call, print."""

from __future__ import annotations

from typing import Annotated

import typer

from mirror_core.cli.common import ConfigOption, DryRunOption, JsonOption, NameArgument, YesOption, agree, mirror
from mirror_core.cli.conducting import (
    EvidenceOption,
    GateLimitOption,
    HashOption,
    MasterOption,
    NoPauseOption,
    Runner,
    RunnerOption,
    RunOption,
    TakeOverOption,
    approval_of,
    approved,
    approved_again,
    asked_again_since,
    begun,
    closed,
    conductor,
    found,
    give_up,
    prepare,
    refuse_conducted,
    show_decision,
    show_outcome,
)
from mirror_core.cli.documents import PlanDocument, RunDocument
from mirror_core.cli.runs import show_newest, show_plan
from mirror_core.cli.spark_conf import SparkConfOption
from mirror_core.cli.telling import tell
from mirror_core.decide.approvals import asks_before_it_stops
from mirror_core.decide.strategies import Allowed
from mirror_core.model.documents import prints
from mirror_core.model.run import Run, RunKind, RunState
from mirror_core.runbook.failback import Failback

failback_app = typer.Typer(help="Bring applications home after a failover.", no_args_is_help=True)

StrategyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--strategy",
        metavar="[TOPIC=]STRATEGY",
        help="What may be done with topics that have a divergent tail, all of them or one: none, recreate, offline, "
        "replica. May be repeated. Default: recreate, where there is a tail.",
    ),
]


@failback_app.command()
@prints(PlanDocument)
def plan(
    name: NameArgument, strategy: StrategyOption = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """What a failback would do now, and what would be discarded. Exit code 3 when it may not be run."""
    link, _ = mirror(config, name)
    show_decision(f"failback of {name}", conductor(Failback, link).decide(_allowed(strategy)), as_json=as_json)


@failback_app.command()
@prints(RunDocument, PlanDocument)
def run(
    name: NameArgument,
    strategy: StrategyOption = None,
    plan_hash: HashOption = None,
    runner: RunnerOption = Runner.SPARK,
    master: MasterOption = "local[*]",
    evidence: EvidenceOption = None,
    conf: SparkConfOption = None,
    no_pause: NoPauseOption = False,
    gate_limit: GateLimitOption = None,
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the plan, ask, run it; then show the plan of the failover that leads home, ask again, prove what is there,
    ask at that moment, and run it."""
    link, _ = mirror(config, name)
    failback = conductor(Failback, link, runner, master, evidence, conf, quiet=as_json, gate_limit=gate_limit)
    allowed = _allowed(strategy)
    decision = failback.decide(allowed)
    question = f"salvage and discard {decision.plan.discarded} offset(s) of {link.source.name}"
    title = f"failback of {name}"
    if approved(title, decision, question, plan_hash=plan_hash, dry_run=dry_run, yes=yes, as_json=as_json):
        started = begun(failback, decision, allowed, as_json=as_json)
        _go_on(failback, started, no_pause=no_pause, yes=yes, as_json=as_json)


@failback_app.command()
@prints(RunDocument)
def status(
    name: NameArgument, run_id: RunOption = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """The run that holds the mirror, or its newest one."""
    link, state = mirror(config, name)
    show_newest(link, state, run_id, RunKind.FAILBACK, as_json=as_json)


@failback_app.command()
@prints(RunDocument)
def resume(
    name: NameArgument,
    run_id: RunOption = None,
    runner: RunnerOption = Runner.SPARK,
    master: MasterOption = "local[*]",
    evidence: EvidenceOption = None,
    conf: SparkConfOption = None,
    no_pause: NoPauseOption = False,
    gate_limit: GateLimitOption = None,
    take_over: TakeOverOption = False,
    config: ConfigOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Go on with a run whose conductor died or failed, the failover that leads home included. Refused while it lives.

    A run that was approved more than an hour ago, and has changed nothing on the old source yet, is shown and asked for
    again. It asks before the failover that leads home fences, as `run` does.
    """
    link, begun_before = found(Failback, config, name, run_id)
    failback = conductor(Failback, link, runner, master, evidence, conf, quiet=as_json, gate_limit=gate_limit)
    if not take_over:
        _refuse_conducted(failback, begun_before)
    agreed_by = _approved_again(failback, begun_before, yes=yes, as_json=as_json)
    _go_on(
        failback, begun_before, agreed_by=agreed_by, take_over=take_over, no_pause=no_pause, yes=yes, as_json=as_json
    )


@failback_app.command()
@prints(RunDocument)
def abort(
    name: NameArgument,
    run_id: RunOption = None,
    take_over: TakeOverOption = False,
    config: ConfigOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Before anything on the old source is changed: give up, and leave applications where they are. Refused while
    somebody conducts the run."""
    link, begun_before = found(Failback, config, name, run_id)
    failback = conductor(Failback, link, quiet=as_json)
    question = f"Abort run {begun_before.id}?"
    give_up(failback, begun_before, question, take_over=take_over, yes=yes, as_json=as_json)


def _allowed(words: list[str] | None) -> Allowed:
    return Allowed.parse(tuple(words or ()))


def _approved_again(failback: Failback, run: Run, *, yes: bool, as_json: bool) -> str:
    """The steps check that the plan still holds."""
    since = asked_again_since(failback, run)
    if not since:
        return ""
    if not as_json:
        show_plan(run.plan, (), as_json=False)
    tell(since, err=as_json)
    agree(f"Go on with run {run.id}: salvage and discard {run.plan.discarded} offset(s)?", yes)
    return failback.started_by


def _refuse_conducted(failback: Failback, run: Run) -> None:
    """Also while the reverse failover is conducted, which the failback waits for."""
    refuse_conducted(failback, run)
    under_way = failback.way_home(run)
    if under_way is not None:
        refuse_conducted(failback.home(), under_way)


def _go_on(
    failback: Failback,
    started: Run,
    *,
    agreed_by: str = "",
    take_over: bool = False,
    no_pause: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """The failback's steps, the reverse failover with its own approval, the last step."""
    with closed(failback, started):
        driven = failback.drive(started.id, agreed_by=agreed_by)
    if driven.state is RunState.RUNNING:
        home = failback.home()
        under_way, said_by = home.active(), ""
        if under_way is not None:
            if not take_over:
                refuse_conducted(home, under_way)
            said_by = approved_again(home, under_way, yes=yes, as_json=as_json)
        else:
            decision = home.decide()
            title = f"failover of {home.link.mirror.name}, the way home"
            question = f"bring applications home to {failback.link.source.name}"
            approved(title, decision, question, plan_hash=None, dry_run=False, yes=yes, as_json=as_json)
            under_way = home.begin(decision.plan.hash, approved_by=(approval_of(home.started_by),))
        asked = not (no_pause or yes) and asks_before_it_stops(under_way, noticed=home.disturbs(under_way))
        with closed(home, under_way):
            if asked:
                said_by = prepare(home, under_way, take_over=take_over, as_json=as_json)
            home.drive(under_way.id, agreed_by=said_by)
        with closed(failback, started):
            failback.drive(started.id)
    show_outcome(failback, started, as_json=as_json)
