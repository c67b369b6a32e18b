"""`mirrorbook failover`: parse, call, print."""

from __future__ import annotations

from typing import Annotated

import typer

from mirror_core.cli.common import ConfigOption, DryRunOption, JsonOption, NameArgument, YesOption, mirror
from mirror_core.cli.conducting import (
    EvidenceOption,
    GateLimitOption,
    HashOption,
    MasterOption,
    NoPauseOption,
    RunnerByModeOption,
    RunOption,
    TakeOverOption,
    approved,
    approved_again,
    begun,
    closed,
    conductor,
    found,
    give_up,
    prepare,
    refuse_conducted,
    runner_for,
    show_decision,
    show_outcome,
)
from mirror_core.cli.documents import PlanDocument, RunDocument
from mirror_core.cli.runs import show_newest
from mirror_core.cli.sets import plan_set, run_set
from mirror_core.cli.spark_conf import SparkConfOption
from mirror_core.decide.approvals import approved_unseen, asks_before_it_stops
from mirror_core.model.documents import prints
from mirror_core.model.errors import BadRequest, Refused
from mirror_core.model.run import Mode, RunKind
from mirror_core.runbook.failover import Failover

failover_app = typer.Typer(help="Move applications to a mirror's destination.", no_args_is_help=True)
failover_app.command("plan-set")(plan_set)
failover_app.command("run-set")(run_set)

ModeOption = Annotated[Mode, typer.Option("--mode", help="planned: the source lives. unplanned: it is lost.")]
LeaveBehindOption = Annotated[
    bool,
    typer.Option(
        "--leave-behind",
        help="Move the mirror although nobody leads some of its partitions on the source: they are promoted with what "
        "the destination has, and the rest stays on the source only, fenced, until a failback. The plan names them.",
    ),
]


@failover_app.command()
@prints(PlanDocument)
def plan(
    name: NameArgument,
    mode: ModeOption = Mode.PLANNED,
    leave_behind: LeaveBehindOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """What a failover would do now, within seconds even if the source is dead. Exit code 3 when it may not be run."""
    _refuse_word(mode, leave_behind=leave_behind)
    link, _ = mirror(config, name)
    failover = conductor(Failover, link, leave_behind=leave_behind)
    show_decision(f"{mode} failover of {name}", failover.decide(mode), as_json=as_json)


@failover_app.command()
@prints(RunDocument, PlanDocument)
def run(
    name: NameArgument,
    mode: ModeOption = Mode.PLANNED,
    leave_behind: LeaveBehindOption = False,
    plan_hash: HashOption = None,
    runner: RunnerByModeOption = None,
    master: MasterOption = "local[*]",
    evidence: EvidenceOption = None,
    conf: SparkConfOption = None,
    config: ConfigOption = None,
    no_pause: NoPauseOption = False,
    gate_limit: GateLimitOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the plan, ask, prove what is mirrored, ask at that moment, and run it. When this process dies, `resume` goes
    on, and asks nothing more."""
    _refuse_word(mode, leave_behind=leave_behind)
    link, _ = mirror(config, name)
    chosen = runner_for(mode, runner)
    failover = conductor(
        Failover,
        link,
        chosen,
        master,
        evidence,
        conf,
        quiet=as_json,
        gate_limit=gate_limit,
        leave_behind=leave_behind,
    )
    decision, silent = failover.decide_lost() if mode is Mode.UNPLANNED else (failover.decide(mode), False)
    question = f"move applications from {link.source.name} to {link.destination.name}"
    title = f"{mode} failover of {name}"
    answering = [link.source.name] if mode is Mode.UNPLANNED and not (silent or dry_run) else []
    if reasons := approved_unseen(plan_hash, answering, yes=yes):
        raise Refused(title, reasons)
    if approved(title, decision, question, plan_hash=plan_hash, dry_run=dry_run, yes=yes, as_json=as_json):
        started = begun(failover, decision, mode, silent=silent, as_json=as_json)
        asked = asks_before_it_stops(started, noticed=False) and not (no_pause or yes)
        with closed(failover, started):
            agreed_by = prepare(failover, started, as_json=as_json) if asked else ""
            failover.drive(started.id, agreed_by=agreed_by)
        show_outcome(failover, started, as_json=as_json)


@failover_app.command()
@prints(RunDocument)
def status(
    name: NameArgument, run_id: RunOption = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """The run that holds the mirror, or its newest one."""
    link, state = mirror(config, name)
    show_newest(link, state, run_id, RunKind.FAILOVER, as_json=as_json)


@failover_app.command()
@prints(RunDocument)
def resume(
    name: NameArgument,
    run_id: RunOption = None,
    runner: RunnerByModeOption = None,
    master: MasterOption = "local[*]",
    evidence: EvidenceOption = None,
    conf: SparkConfOption = None,
    gate_limit: GateLimitOption = None,
    take_over: TakeOverOption = False,
    leave_behind: Annotated[
        bool,
        typer.Option(
            "--leave-behind",
            help="Go on with an unplanned run that has stopped and names this option: since its source answers again, "
            "and what was not copied stays there only, until a failback, also if it cannot be fenced; or since "
            "partitions have too few replicas in sync: they are promoted up to their high watermarks.",
        ),
    ] = False,
    config: ConfigOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Go on with a run whose conductor died or failed; ends where that one would have ended. Refused while it lives.

    A run that was approved more than an hour ago, and of which applications notice nothing yet, is shown and asked for
    again.
    """
    link, begun_before = found(Failover, config, name, run_id)
    chosen = runner_for(begun_before.plan.mode, runner)
    failover = conductor(Failover, link, chosen, master, evidence, conf, quiet=as_json, gate_limit=gate_limit)
    if not take_over:
        refuse_conducted(failover, begun_before)
    agreed_by = approved_again(failover, begun_before, yes=yes, as_json=as_json)
    with closed(failover, begun_before):
        if leave_behind:
            failover.leave_behind(begun_before.id)
        failover.drive(begun_before.id, agreed_by=agreed_by)
    show_outcome(failover, begun_before, as_json=as_json)


@failover_app.command()
@prints(RunDocument)
def abort(
    name: NameArgument,
    run_id: RunOption = None,
    take_over: TakeOverOption = False,
    config: ConfigOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Before promotion: lift the fence and let the mirror go on. Afterwards only a failback leads back. Refused while
    somebody conducts the run."""
    link, begun_before = found(Failover, config, name, run_id)
    question = f"Abort run {begun_before.id} and let applications write on {link.source.name} again?"
    failover = conductor(Failover, link, quiet=as_json)
    give_up(failover, begun_before, question, take_over=take_over, yes=yes, as_json=as_json)


def _refuse_word(mode: Mode, *, leave_behind: bool) -> None:
    if leave_behind and mode is Mode.UNPLANNED:
        raise BadRequest(
            "--leave-behind is for a planned failover: an unplanned one waits for no leader on the source, and leaves "
            "behind whatever was not copied"
        )
