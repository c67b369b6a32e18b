from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
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
    explain_no_agreement,
    find_mirror,
    require_confirmation,
    require_typed_name,
)
from mirror_core.cli.output import format_block, print_line, print_line_or_continue
from mirror_core.cli.plan_costs import list_recreated, list_topics
from mirror_core.cli.run_commands import (
    CompareRunner,
    GateLimitOption,
    HashOption,
    MasterOption,
    NoPauseOption,
    RunnerOption,
    RunOption,
    SetArgument,
    SetPlansDocument,
    SetRunsDocument,
    TakeOverOption,
    abort_run,
    begin_or_continue_set,
    begin_run,
    confirm_again,
    confirm_moment_of_set,
    confirm_plan,
    confirm_set_move,
    confirm_set_plan,
    find_expired_approval,
    find_run,
    format_move_question,
    make_conductor,
    make_own_approval,
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
from mirror_core.cli.runs import PlanDocument, RunDocument, format_saved, print_newest_run, print_plan
from mirror_core.decide.approval_rules import must_confirm_before_fence
from mirror_core.decide.failover_plan import PlanDecision
from mirror_core.decide.mirror_snapshot import join_limited
from mirror_core.decide.run_result import find_saved
from mirror_core.decide.set_schedule import SetPlan
from mirror_core.decide.steps import find_no_return_step, list_step_names
from mirror_core.decide.truncation import AllowedStrategies
from mirror_core.model.errors import Refused, RemoteFault
from mirror_core.model.findings import Finding
from mirror_core.model.json_documents import prints_json
from mirror_core.model.mirror import Mirror
from mirror_core.model.run import FailbackStrategy, Plan, Run, RunKind, RunState
from mirror_core.model.text import format_count
from mirror_core.runbook.failback_conductor import Failback, SetFailback

failback_app = typer.Typer(help="Bring applications home after a failover.", no_args_is_help=True)

SetStrategyOption = Annotated[
    FailbackStrategy | None,
    typer.Option(
        "--strategy",
        help="What may be done with topics that have a divergent tail. Default: what copies least over the link and "
        "needs nobody at a broker.",
    ),
]
StrategyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--strategy",
        metavar="[TOPIC=]STRATEGY",
        help="What may be done with topics that have a divergent tail, all of them or one: none, recreate, handover, "
        "offline, replica. May be repeated. Default: what copies least over the link and needs nobody at a broker.",
    ),
]


@failback_app.command()
@prints_json(PlanDocument)
def plan(
    name: NameArgument, strategy: StrategyOption = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """What a failback would do now, and what would be discarded. Exit code 3 when it may not be run."""
    link, _ = find_mirror(config, name)
    decision = make_conductor(Failback, link).decide(_parse_strategies(strategy))
    print_decision(f"failback of {name}", decision, link.mirror, as_json=as_json)


@failback_app.command()
@prints_json(RunDocument, PlanDocument)
def run(
    name: NameArgument,
    strategy: StrategyOption = None,
    plan_hash: HashOption = None,
    runner: RunnerOption = CompareRunner.SPARK,
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
    link, _ = find_mirror(config, name)
    failback = make_conductor(Failback, link, runner, master, evidence, conf, quiet=as_json, gate_limit=gate_limit)
    allowed = _parse_strategies(strategy)
    decision = failback.decide(allowed)
    question = format_discard_question(decision.plan.discarded, link.source.name)
    title = f"failback of {name}"
    if confirm_plan(
        title, decision, link.mirror, question, plan_hash=plan_hash, dry_run=dry_run, yes=yes, as_json=as_json
    ):
        started = begin_run(failback, decision, allowed, as_json=as_json)
        _run_to_end(failback, started, no_pause=no_pause, yes=yes, as_json=as_json)


@failback_app.command("plan-set")
@prints_json(SetPlansDocument)
def plan_set(
    name: SetArgument, strategy: SetStrategyOption = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """What a failback of all mirrors of the set would do now. Exit code 3 when it may not be run."""
    print_set_decision(_make_set_failback(name, config, strategy, quiet=as_json), as_json=as_json)


@failback_app.command("run-set")
@prints_json(SetRunsDocument, SetPlansDocument)
def run_set(
    name: SetArgument,
    strategy: SetStrategyOption = None,
    plan_hash: HashOption = None,
    runner: RunnerOption = CompareRunner.SPARK,
    master: MasterOption = "local[*]",
    evidence: EvidenceOption = None,
    conf: SparkConfOption = None,
    no_pause: NoPauseOption = False,
    gate_limit: GateLimitOption = None,
    take_over: TakeOverOption = False,
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show all plans, ask once, and copy all mirrors of the set back; then show all plans of the failover that leads
    home, ask again, and move them together. One that was begun before and has not ended is gone on with, unless
    somebody conducts it."""
    options: dict[str, Any] = {"evidence": evidence, "conf": conf, "gate_limit": gate_limit}
    set_failback = _make_set_failback(name, config, strategy, runner, master, quiet=as_json, **options)

    def confirm(set_plan: SetPlan) -> None:
        discarded = [decision.plan.discarded for decision in set_plan.decisions.values()]
        count = None if None in discarded else sum(number or 0 for number in discarded)
        confirm_set_plan(set_plan, format_discard_question(count, _list_old_sources(set_failback)), yes=yes)

    if dry_run:
        show_set(set_failback, plan_hash, as_json=as_json)
        return
    choices: dict[str, Any] = {"take_over": take_over, "yes": yes, "as_json": as_json}
    attempt = begin_or_continue_set(set_failback, confirm, plan_hash=plan_hash, **choices)
    must_ask = not (no_pause or yes) and sys.stdin.isatty()
    with set_status_on_failure(set_failback, attempt):
        agreed_by = _confirm_saved_of_set(set_failback, attempt, as_json=as_json) if must_ask else ""
        members = set_failback.bring_close(attempt, agreed_by=agreed_by)
        way_home = set_failback.make_way_home(attempt)
        if way_home is not None:
            homes = " and ".join(sorted({way_home.get_link(m).destination.name for m in way_home.mirror_set.mirrors}))
            question = format_move_question(f"bring applications home to {homes}", no_pause=no_pause)
            home_attempt = begin_or_continue_set(
                way_home,
                lambda set_plan: confirm_set_move(name, way_home, set_plan, question, yes=yes, as_json=as_json),
                plan_hash=None,
                **choices,
            )
            home_agreed_by = "" if no_pause or yes else prove_and_confirm_set(way_home, home_attempt, RunKind.FAILBACK)
            members = set_failback.bring_home(attempt, way_home, home_attempt, agreed_by=home_agreed_by)
    print_set_outcome(set_failback, attempt, members, evidence, as_json=as_json)


@failback_app.command()
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
    print_newest_run(link, state, run_id, RunKind.FAILBACK, evidence, as_json=as_json)


@failback_app.command()
@prints_json(RunDocument)
def resume(
    name: NameArgument,
    run_id: RunOption = None,
    runner: RunnerOption = CompareRunner.SPARK,
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
    link, begun_before = find_run(Failback, config, name, run_id)
    failback = make_conductor(Failback, link, runner, master, evidence, conf, quiet=as_json, gate_limit=gate_limit)
    with status_on_failure(failback, begun_before, RemoteFault):
        if not take_over:
            _refuse_if_conducted(failback, begun_before)
        agreed_by = _confirm_again(failback, begun_before, yes=yes, as_json=as_json)
        _run_to_end(
            failback,
            begun_before,
            agreed_by=agreed_by,
            take_over=take_over,
            no_pause=no_pause,
            yes=yes,
            as_json=as_json,
        )


@failback_app.command()
@prints_json(RunDocument)
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
    link, begun_before = find_run(Failback, config, name, run_id)
    failback = make_conductor(Failback, link, quiet=as_json)
    question = f"Abort run {begun_before.id}?"
    abort_run(failback, begun_before, question, take_over=take_over, yes=yes, as_json=as_json)


def format_discard_question(discarded: int | None, old_source: str) -> str:
    if discarded == 0:
        return f"fail back; nothing of {old_source} has to be discarded"
    count = "an unknown number of offsets" if discarded is None else format_count(discarded, "offset")
    return f"save the records of {count} that only {old_source} has, then discard them there"


def _make_set_failback(
    name: str,
    config: Path | None,
    strategy: FailbackStrategy | None,
    runner: CompareRunner = CompareRunner.LOCAL,
    master: str = "local[*]",
    *,
    quiet: bool,
    **options: Any,
) -> SetFailback:
    mirror_set, conductors = make_set_conductors(Failback, name, config, runner, master, quiet=quiet, **options)
    print_progress = (lambda line: None) if quiet else print_line_or_continue
    return SetFailback(mirror_set, conductors, AllowedStrategies(strategy), print_line=print_progress)


def _list_old_sources(set_failback: SetFailback) -> str:
    return " and ".join(sorted({set_failback.get_link(name).source.name for name in set_failback.mirror_set.mirrors}))


def _confirm_saved_of_set(set_failback: SetFailback, attempt: str, *, as_json: bool) -> str:
    if not set_failback.is_undisturbed(attempt):
        return ""
    rows, deleted = list[tuple[str, str]](), list[str]()
    for mirror, member in set_failback.prove(attempt).items():
        saved, folders = find_saved(member.steps)
        if saved != 0:
            link = set_failback.get_link(mirror)
            shown = _list_saved(member.run.plan, link.mirror, saved, folders)
            rows += [(f"{mirror}: {label}", text) for label, text in shown]
            deleted += list_topics(member.run.plan, FailbackStrategy.RECREATE)
    if not rows:
        return ""
    old_sources = _list_old_sources(set_failback)
    for line in ("", *format_block([*rows, ("not changed yet", old_sources)], indent=0)):
        print_line_or_continue(line, err=as_json)
    warning = str(Finding("records_to_discard", old_sources, deleted=deleted))
    set_name = set_failback.mirror_set.name
    confirm_moment_of_set(set_failback, attempt, lambda: require_typed_name(set_name, False, warning), RunKind.FAILBACK)
    return set_failback.started_by


def _parse_strategies(options: list[str] | None) -> AllowedStrategies:
    return AllowedStrategies.parse(tuple(options or ()))


def _confirm_again(failback: Failback, run: Run, *, yes: bool, as_json: bool) -> str:
    reason = find_expired_approval(failback, run)
    if not reason:
        return ""
    if not as_json:
        print_plan(run.plan, failback.link.mirror, (), as_json=False)
    print_line(reason, err=as_json)
    question = format_discard_question(run.plan.discarded, failback.link.source.name)
    require_confirmation(f"Go on with run {run.id}: {question}?", yes)
    return failback.started_by


def _refuse_if_conducted(failback: Failback, run: Run) -> None:
    refuse_if_conducted(failback, run)
    under_way = failback.find_active_reverse_run(run)
    if under_way is not None:
        refuse_if_conducted(failback.make_reverse_failover(), under_way)


def _confirm_saved(failback: Failback, run: Run, *, agreed_by: str, take_over: bool, as_json: bool) -> str:
    name, source = failback.link.mirror.name, failback.link.source.name
    step_names = list_step_names(run.plan.kind)
    steps = failback.run_steps(
        run.id, step_names[: step_names.index(find_no_return_step(run.plan.kind))], agreed_by=agreed_by
    )
    saved, folders = find_saved(steps)
    if saved == 0:
        return ""
    print_line_or_continue("", err=as_json)
    rows = _list_saved(run.plan, failback.link.mirror, saved, folders)
    for line in format_block([*rows, ("not changed yet", source)], indent=0):
        print_line_or_continue(line, err=as_json)
    deleted = list_topics(run.plan, FailbackStrategy.RECREATE)
    try:
        require_typed_name(name, False, str(Finding("records_to_discard", source, deleted=deleted)))
    except Refused as error:
        advice = (
            f"run {run.id} waits: `mirrorbook failback resume {name}` asks again, `mirrorbook failback abort {name}`"
            " gives it up"
        )
        raise Refused(
            f"failback of {name}", [f"{explain_no_agreement(error)}. {advice}"], reason_code="not_confirmed"
        ) from None
    if not take_over:
        failback.refuse_conducted(run.id, f"failback of {name}")
    return failback.started_by


def _list_saved(plan: Plan, mirror: Mirror, saved: int | None, folders: Collection[str]) -> Iterator[tuple[str, str]]:
    yield "saved", format_saved(saved, folders, mirror.source)
    if saved is not None and saved < (plan.discarded or 0):
        yield "of", str(Finding("offsets_without_record", mirror.source, offsets=plan.discarded))
    yield from list_recreated(plan, mirror)
    if truncated := list_topics(plan, FailbackStrategy.HANDOVER, FailbackStrategy.OFFLINE, FailbackStrategy.REPLICA):
        yield f"truncated on {mirror.source}", join_limited(truncated)


def _confirm_way_home(
    failback: Failback, run: Run, decision: PlanDecision, *, no_pause: bool, yes: bool, as_json: bool
) -> None:
    name, home = failback.link.mirror.name, failback.make_reverse_failover().link.mirror
    title = f"failover of {home.name}, the way home"
    question = format_move_question(f"bring applications home to {home.destination}", no_pause=no_pause)
    try:
        confirm_plan(title, decision, home, question, plan_hash=None, dry_run=False, yes=yes, as_json=as_json)
    except Refused as error:
        if error.summary == title:  # for reasons of the plan
            raise
        advice = f"run {run.id} waits: `mirrorbook failback resume {name}` shows this plan anew, and asks again"
        raise Refused(title, [f"{explain_no_agreement(error)}. {advice}"], reason_code="not_confirmed") from None


def _run_to_end(
    failback: Failback,
    started: Run,
    *,
    agreed_by: str = "",
    take_over: bool = False,
    no_pause: bool,
    yes: bool,
    as_json: bool,
) -> None:
    must_ask = not (no_pause or yes) and sys.stdin.isatty()
    with status_on_failure(failback, started):
        if must_ask and started.state is RunState.RUNNING and not failback.has_disturbed(started):
            agreed_by = _confirm_saved(failback, started, agreed_by=agreed_by, take_over=take_over, as_json=as_json)
        driven = failback.drive(started.id, agreed_by=agreed_by)
    if driven.state is RunState.RUNNING:
        failover = failback.make_reverse_failover()
        under_way, reverse_agreed_by = failover.find_active_run(), ""
        if under_way is not None:
            if not take_over:
                refuse_if_conducted(failover, under_way)
            reverse_agreed_by = confirm_again(failover, under_way, yes=yes, as_json=as_json)
        else:
            decision = failover.decide()
            with status_on_failure(failback, started):
                _confirm_way_home(failback, started, decision, no_pause=no_pause, yes=yes, as_json=as_json)
            approval = make_own_approval(failover.started_by, failover.link)
            under_way = failover.begin(decision.plan.hash, approved_by=(approval,))
        must_ask = not (no_pause or yes) and must_confirm_before_fence(
            under_way, is_noticed=failover.has_disturbed(under_way)
        )
        with status_on_failure(failover, under_way):
            if must_ask:
                reverse_agreed_by = prove_and_confirm(failover, under_way, take_over=take_over, as_json=as_json)
            failover.drive(under_way.id, agreed_by=reverse_agreed_by)
        with status_on_failure(failback, started):
            failback.drive(started.id)
    print_outcome(failback, started, as_json=as_json)
