from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from mirror_core.cli.command_options import (
    ConfigOption,
    DryRunOption,
    EvidenceOption,
    JsonOption,
    NameArgument,
    SparkConfOption,
    YesOption,
    find_mirror,
    require_typed_name,
)
from mirror_core.cli.output import print_line, print_line_or_continue
from mirror_core.cli.run_commands import (
    CompareRunner,
    GateLimitOption,
    HashOption,
    MasterOption,
    NoPauseOption,
    RunnerByModeOption,
    RunOption,
    SetArgument,
    SetPlansDocument,
    SetRunsDocument,
    TakeOverOption,
    abort_run,
    begin_or_continue_set,
    begin_run,
    choose_runner,
    confirm_again,
    confirm_plan,
    confirm_set_move,
    find_run,
    format_move_question,
    make_conductor,
    make_set_conductors,
    print_decision,
    print_outcome,
    print_set_decision,
    print_set_outcome,
    prove_and_confirm,
    prove_and_confirm_set,
    refuse_if_conducted,
    set_status_on_failure,
    show_set,
    status_on_failure,
)
from mirror_core.cli.runs import (
    PlanDocument,
    RunDocument,
    print_newest_run,
)
from mirror_core.decide.approval_rules import count_failed, explain_living_source, must_confirm_before_fence
from mirror_core.decide.set_schedule import SetPlan
from mirror_core.model.errors import BadRequest, Refused, RemoteFault
from mirror_core.model.findings import Finding
from mirror_core.model.json_documents import prints_json
from mirror_core.model.run import Run, RunKind, RunMode
from mirror_core.runbook.failover_conductor import Failover, format_refused_losses, list_refused_losses
from mirror_core.runbook.set_failover import SetFailover
from mirror_core.state.mirror_link import is_source_answering
from mirror_core.state.state_topic import read_state

SetModeOption = Annotated[RunMode, typer.Option("--mode", help="planned: the sources live. unplanned: they are lost.")]
LeaveBehindOption = Annotated[
    bool,
    typer.Option(
        "--leave-behind",
        help="Move the mirror also where nobody leads a partition on the source, or, with --mode unplanned, where the "
        "destination never had a complete copy of it: each is promoted with what the destination has, and the rest "
        "stays on the source only. The plan names them.",
    ),
]
GiveUpSourceOption = Annotated[
    bool,
    typer.Option(
        "--give-up-source",
        help="With --mode unplanned, --plan-hash and --yes: also a source that still answers, such as a broker that "
        "serves nobody. What was not copied is given up.",
    ),
]


@prints_json(SetPlansDocument)
def plan_set(
    name: SetArgument,
    mode: SetModeOption = RunMode.PLANNED,
    leave_behind: LeaveBehindOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """What a failover of all mirrors of the set would do now. Exit code 3 when it may not be run."""
    print_set_decision(_make_set_failover(name, config, mode, leave_behind=leave_behind), as_json=as_json)


@prints_json(SetRunsDocument, SetPlansDocument)
def run_set(
    name: SetArgument,
    mode: SetModeOption = RunMode.PLANNED,
    leave_behind: LeaveBehindOption = False,
    plan_hash: HashOption = None,
    runner: RunnerByModeOption = None,
    master: MasterOption = "local[*]",
    evidence: EvidenceOption = None,
    conf: SparkConfOption = None,
    config: ConfigOption = None,
    no_pause: NoPauseOption = False,
    gate_limit: GateLimitOption = None,
    take_over: TakeOverOption = False,
    give_up_source: GiveUpSourceOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show all plans, ask once, prove, ask at that moment, and move all mirrors of the set. One that was begun before
    and has not ended is gone on with, unless somebody conducts it."""
    _check_given_up(mode, plan_hash, give_up_source=give_up_source)
    options: dict[str, Any] = {
        "evidence": evidence,
        "conf": conf,
        "gate_limit": gate_limit,
        "leave_behind": leave_behind,
    }
    set_failover = _make_set_failover(name, config, mode, choose_runner(mode, runner), master, quiet=as_json, **options)

    def confirm(set_plan: SetPlan) -> None:
        _refuse_living_sources(set_failover, set_plan, plan_hash, yes=yes and not give_up_source, take_over=take_over)
        action = format_move_question(f"move applications of {', '.join(set_plan.decisions)}", no_pause=no_pause)
        confirm_set_move(name, set_failover, set_plan, action, yes=yes, as_json=as_json)

    if dry_run:
        show_set(set_failover, plan_hash, as_json=as_json)
        return
    attempt = begin_or_continue_set(
        set_failover, confirm, plan_hash=plan_hash, take_over=take_over, yes=yes, as_json=as_json
    )
    with set_status_on_failure(set_failover, attempt):
        agreed_by = "" if no_pause or yes else prove_and_confirm_set(set_failover, attempt)
        members = set_failover.finish(attempt, agreed_by=agreed_by)
    print_set_outcome(set_failover, attempt, members, evidence, as_json=as_json)


def _refuse_living_sources(
    set_failover: SetFailover, set_plan: SetPlan, plan_hash: str | None, *, yes: bool, take_over: bool
) -> None:
    given_up = set_plan.decisions if set_failover.mode is RunMode.UNPLANNED else ()
    living = [name for name in given_up if name not in set_plan.silent]
    if yes and living:
        failed = Counter[str]()
        for name in living:
            warnings = set_plan.decisions[name].plan.warnings
            failed[set_failover.get_link(name).source.name] += count_failed(warnings)
        raise Refused(
            set_failover.title, [explain_living_source(source, plan_hash, failed[source]) for source in sorted(failed)]
        )
    if not take_over:
        set_failover.refuse_conducted_planned_runs(living)


def _make_set_failover(
    name: str,
    config: Path | None,
    mode: RunMode,
    runner: CompareRunner = CompareRunner.LOCAL,
    master: str = "local[*]",
    *,
    quiet: bool = False,
    **options: Any,
) -> SetFailover:
    mirror_set, conductors = make_set_conductors(Failover, name, config, runner, master, quiet=quiet, **options)
    return SetFailover(
        mirror_set, conductors, mode, print_line=(lambda line: None) if quiet else print_line_or_continue
    )


failover_app = typer.Typer(help="Move applications to a mirror's destination.", no_args_is_help=True)


failover_app.command("plan-set")(plan_set)


failover_app.command("run-set")(run_set)


ModeOption = Annotated[RunMode, typer.Option("--mode", help="planned: the source lives. unplanned: it is lost.")]


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
    link, _ = find_mirror(config, name)
    failover = make_conductor(Failover, link, leave_behind=leave_behind)
    print_decision(f"{mode} failover of {name}", failover.decide(mode), link.mirror, as_json=as_json)


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
    take_over: TakeOverOption = False,
    give_up_source: GiveUpSourceOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the plan, ask, prove what is mirrored, ask at that moment, and run it. When this process dies, `resume` goes
    on."""
    _check_given_up(mode, plan_hash, give_up_source=give_up_source)
    if take_over and mode is RunMode.PLANNED:
        raise BadRequest("--take-over is for --mode unplanned: a planned run is taken over by `failover resume`")
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
    action = f"move applications from {link.source.name} to {link.destination.name}"
    question = format_move_question(action, no_pause=no_pause)
    title = f"{mode} failover of {name}"
    if mode is RunMode.UNPLANNED and not (silent or dry_run):
        if yes and not give_up_source:
            failed = count_failed(decision.plan.warnings)
            raise Refused(title, [explain_living_source(link.source.name, plan_hash, failed)])
        if not take_over:
            failover.refuse_conducted_planned_run()
    if confirm_plan(
        title, decision, link.mirror, question, plan_hash=plan_hash, dry_run=dry_run, yes=yes, as_json=as_json
    ):
        started = begin_run(failover, decision, mode, silent=silent, as_json=as_json)
        must_ask = must_confirm_before_fence(started, is_noticed=False) and not (no_pause or yes)
        with status_on_failure(failover, started):
            agreed_by = prove_and_confirm(failover, started, as_json=as_json) if must_ask else ""
            failover.drive(started.id, agreed_by=agreed_by)
        print_outcome(failover, started, as_json=as_json)


@failover_app.command()
@prints_json(RunDocument)
def status(
    name: NameArgument,
    run_id: RunOption = None,
    evidence: EvidenceOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """The run that holds the mirror, or its newest one."""
    link, state = find_mirror(config, name)
    print_newest_run(link, state, run_id, RunKind.FAILOVER, evidence, as_json=as_json)


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
    """Go on with a run whose conductor died or failed. Refused while it lives.

    While applications notice nothing yet it asks on a terminal before it fences, and shows a plan anew that was
    approved more than an hour ago.
    """
    link, begun_before = find_run(Failover, config, name, run_id)
    chosen = choose_runner(begun_before.plan.mode, runner)
    failover = make_conductor(Failover, link, chosen, master, evidence, conf, quiet=as_json, gate_limit=gate_limit)
    with status_on_failure(failover, begun_before, RemoteFault):
        if not take_over:
            refuse_if_conducted(failover, begun_before)
        agreed_by = confirm_again(failover, begun_before, yes=yes, as_json=as_json)
        shown_losses = _confirm_losses(failover, begun_before, yes=yes, as_json=as_json) if leave_behind else ()
        is_noticed = failover.has_disturbed(begun_before)
    must_ask = must_confirm_before_fence(begun_before, is_noticed=is_noticed) and sys.stdin.isatty() and not yes
    with status_on_failure(failover, begun_before):
        if leave_behind:
            failover.confirm_leave_behind(begun_before.id, shown_losses)
        if must_ask:
            agreed_by = prove_and_confirm(failover, begun_before, take_over=take_over, as_json=as_json)
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
    failover, source = make_conductor(Failover, link, quiet=as_json), link.source.name
    effect = (
        f" and let applications write on {source} again?"
        if failover.has_disturbed(begun_before)
        else f"? Applications go on writing on {source}"
    )
    question = f"Abort run {begun_before.id}{effect}"

    def list_effects() -> Iterator[Finding]:
        if failover.has_disturbed(begun_before) and not is_source_answering(link):
            yield Finding("abort_awaits_source", source, mirror=name, mode=begun_before.plan.mode)

    abort_run(failover, begun_before, question, list_effects(), take_over=take_over, yes=yes, as_json=as_json)


def _confirm_losses(failover: Failover, run: Run, *, yes: bool, as_json: bool) -> tuple[str, ...]:
    """Empty: the run has not stopped for records."""
    state = read_state(failover.link.destination)
    losses = list_refused_losses(state, run)
    if losses:
        for line in format_refused_losses(state, run):
            print_line(line, err=as_json)
        warning = f"This leaves behind what run {run.id} has stopped for, and promotes {failover.link.destination.name}"
        require_typed_name(run.plan.mirror, yes, warning)
    return losses


def _check_given_up(mode: RunMode, plan_hash: str | None, *, give_up_source: bool) -> None:
    if give_up_source and mode is RunMode.PLANNED:
        raise BadRequest("--give-up-source is for --mode unplanned: a planned failover gives up nothing")
    if give_up_source and plan_hash is None:
        raise BadRequest("--give-up-source wants --plan-hash: the plan, with its loss, that somebody has read")
