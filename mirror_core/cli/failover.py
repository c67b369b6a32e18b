"""`mirrorbook failover`: parse, call, print."""

from __future__ import annotations

from typing import Annotated

import typer

from mirror_core.cli.common import ConfigOption, DryRunOption, JsonOption, NameArgument, YesOption, find_mirror
from mirror_core.cli.conducting import (
    EvidenceOption,
    GateLimitOption,
    HashOption,
    MasterOption,
    NoPauseOption,
    RunnerByModeOption,
    RunOption,
    TakeOverOption,
    abort_run,
    begin_run,
    choose_runner,
    confirm_again,
    confirm_plan,
    find_run,
    make_conductor,
    print_decision,
    print_outcome,
    prove_and_confirm,
    refuse_if_conducted,
    status_on_failure,
)
from mirror_core.cli.documents import PlanDocument, RunDocument
from mirror_core.cli.runs import print_newest_run
from mirror_core.cli.sets import plan_set, run_set
from mirror_core.cli.spark_conf import SparkConfOption
from mirror_core.decide.approvals import explain_unseen_approval, must_confirm_before_fence
from mirror_core.model.documents import prints_json
from mirror_core.model.errors import BadRequest, Refused
from mirror_core.model.run import RunKind, RunMode
from mirror_core.runbook.failover import Failover

failover_app = typer.Typer(help="Move applications to a mirror's destination.", no_args_is_help=True)
failover_app.command("plan-set")(plan_set)
failover_app.command("run-set")(run_set)

ModeOption = Annotated[RunMode, typer.Option("--mode", help="planned: the source lives. unplanned: it is lost.")]
LeaveBehindOption = Annotated[
    bool,
    typer.Option(
        "--leave-behind",
        help="Move the mirror although nobody leads some of its partitions on the source: they are promoted with what "
        "the destination has, and the rest stays on the source only, fenced, until a failback. The plan names them.",
    ),
]


@failover_app.command()
@prints_json(PlanDocument)
def plan(
    name: NameArgument,
    mode: ModeOption = RunMode.PLANNED,
    leave_behind: LeaveBehindOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """What a failover would do now, within seconds even if the source is dead. Exit code 3 when it may not be run."""
    _refuse_leave_behind(mode, leave_behind=leave_behind)
    link, _ = find_mirror(config, name)
    failover = make_conductor(Failover, link, leave_behind=leave_behind)
    print_decision(f"{mode} failover of {name}", failover.decide(mode), as_json=as_json)


@failover_app.command()
@prints_json(RunDocument, PlanDocument)
def run(
    name: NameArgument,
    mode: ModeOption = RunMode.PLANNED,
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
    _refuse_leave_behind(mode, leave_behind=leave_behind)
    link, _ = find_mirror(config, name)
    chosen = choose_runner(mode, runner)
    failover = make_conductor(
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
    decision, silent = failover.decide_unplanned() if mode is RunMode.UNPLANNED else (failover.decide(mode), False)
    question = f"move applications from {link.source.name} to {link.destination.name}"
    title = f"{mode} failover of {name}"
    answering = [link.source.name] if mode is RunMode.UNPLANNED and not (silent or dry_run) else []
    if reasons := explain_unseen_approval(plan_hash, answering, yes=yes):
        raise Refused(title, reasons)
    if confirm_plan(title, decision, question, plan_hash=plan_hash, dry_run=dry_run, yes=yes, as_json=as_json):
        started = begin_run(failover, decision, mode, silent=silent, as_json=as_json)
        must_ask = must_confirm_before_fence(started, is_noticed=False) and not (no_pause or yes)
        with status_on_failure(failover, started):
            agreed_by = prove_and_confirm(failover, started, as_json=as_json) if must_ask else ""
            failover.drive(started.id, agreed_by=agreed_by)
        print_outcome(failover, started, as_json=as_json)


@failover_app.command()
@prints_json(RunDocument)
def status(
    name: NameArgument, run_id: RunOption = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """The run that holds the mirror, or its newest one."""
    link, state = find_mirror(config, name)
    print_newest_run(link, state, run_id, RunKind.FAILOVER, as_json=as_json)


@failover_app.command()
@prints_json(RunDocument)
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
    link, begun_before = find_run(Failover, config, name, run_id)
    chosen = choose_runner(begun_before.plan.mode, runner)
    failover = make_conductor(Failover, link, chosen, master, evidence, conf, quiet=as_json, gate_limit=gate_limit)
    if not take_over:
        refuse_if_conducted(failover, begun_before)
    agreed_by = confirm_again(failover, begun_before, yes=yes, as_json=as_json)
    with status_on_failure(failover, begun_before):
        if leave_behind:
            failover.confirm_leave_behind(begun_before.id)
        failover.drive(begun_before.id, agreed_by=agreed_by)
    print_outcome(failover, begun_before, as_json=as_json)


@failover_app.command()
@prints_json(RunDocument)
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
    link, begun_before = find_run(Failover, config, name, run_id)
    question = f"Abort run {begun_before.id} and let applications write on {link.source.name} again?"
    failover = make_conductor(Failover, link, quiet=as_json)
    abort_run(failover, begun_before, question, take_over=take_over, yes=yes, as_json=as_json)


def _refuse_leave_behind(mode: RunMode, *, leave_behind: bool) -> None:
    if leave_behind and mode is RunMode.UNPLANNED:
        raise BadRequest(
            "--leave-behind is for a planned failover: an unplanned one waits for no leader on the source, and leaves "
            "behind whatever was not copied"
        )
