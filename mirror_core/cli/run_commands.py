"""Options and actions that `failover` and `failback` share."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from mirror_core.cli.command_options import (
    check_plan_hash,
    complete_runs,
    complete_sets,
    explain_no_agreement,
    find_mirror,
    find_operator,
    load_configuration,
    parse_spark_conf,
    print_json,
    require_confirmation,
    require_typed_name,
)
from mirror_core.cli.output import print_line, print_line_or_continue
from mirror_core.cli.plan_costs import confirm_costs, print_run_costs, print_set_costs
from mirror_core.cli.runs import (
    PlanDocument,
    RunDocument,
    choose_evidence_folder,
    find_conductor,
    find_newest_run,
    find_report,
    print_newest_run,
    print_plan,
    print_run_result,
    print_status_lines,
    to_plan_document,
    to_run_document,
)
from mirror_core.decide.approval_rules import explain_outdated_plan, explain_stale_run_approval, make_approval
from mirror_core.decide.certificate_coverage import check_as_copied
from mirror_core.decide.failover_plan import PlanDecision
from mirror_core.decide.set_schedule import SetPlan
from mirror_core.decide.steps import list_undisturbed_steps
from mirror_core.kafka.config import Config
from mirror_core.mirrors.recovery_plan import find_unsaved
from mirror_core.model.config_sections import MirrorSet
from mirror_core.model.errors import Indeterminate, LostOwnership, MirrorError, Refused
from mirror_core.model.figures import format_figures
from mirror_core.model.findings import Finding
from mirror_core.model.json_documents import FindingDocument, JsonDocument, to_finding_documents
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import MirrorName
from mirror_core.model.run import Approval, Run, RunKind, RunMode, RunState, StepRecord, shorten_hash
from mirror_core.runbook.conductor import Conductor
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.runbook.run_outcome import read_run_outcome, read_run_result
from mirror_core.runbook.run_services import Services, local_services
from mirror_core.runbook.set_conductor import MemberRun, SetConductor
from mirror_core.runbook.set_failover import SetFailover, find_set
from mirror_core.state.mirror_link import MirrorLink, find_mirror_link, read_broker_time_ms
from mirror_core.state.state_topic import read_state


class CompareRunner(StrEnum):
    SPARK = "spark"
    LOCAL = "local"


RunnerOption = Annotated[
    CompareRunner,
    typer.Option("--runner", help="Where everything is compared and salvaged: on Spark, or in this process."),
]
RunnerByModeOption = Annotated[
    CompareRunner | None,
    typer.Option(
        "--runner",
        help=(
            "Where everything is compared: on Spark, or in this process. Default: spark, of a planned failover; "
            "local, of an unplanned one, which needs Spark only to read certificates at a URL."
        ),
    ),
]
MasterOption = Annotated[str, typer.Option("--master", help="Spark master.")]
HashOption = Annotated[
    str | None,
    typer.Option("--plan-hash", callback=check_plan_hash, help="Run only the plan with this hash, of 64 digits."),
]
NoPauseOption = Annotated[
    bool,
    typer.Option("--no-pause", help="Ask no second time: before the fence, and after a salvage."),
]
GateLimitOption = Annotated[
    float | None,
    typer.Option(
        "--gate-limit",
        min=0,
        help=(
            "Stop nobody where the comparison behind the fence would take more seconds than this. Default: however "
            "many."
        ),
    ),
]
TakeOverOption = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help=(
            "Also from a process that still conducts it, but hangs and cannot be ended: that one may finish the "
            "request that it is at, and stops at its next write to the state topic."
        ),
    ),
]
RunOption = Annotated[
    str | None,
    typer.Option("--run", help="Which run. Default: the one that holds the mirror.", autocompletion=complete_runs),
]

AnyConductor = TypeVar("AnyConductor", bound=Conductor[Any])
PlanChoice = TypeVar("PlanChoice")


def make_conductor(
    conductor_type: type[AnyConductor],
    link: MirrorLink,
    runner: CompareRunner = CompareRunner.LOCAL,
    master: str = "local[*]",
    evidence: Path | None = None,
    conf: list[str] | None = None,
    *,
    quiet: bool = False,
    gate_limit: float | None = None,
    leave_behind: bool = False,
    prefix: str = "",
) -> AnyConductor:
    """`quiet`: print to standard error. `prefix`: before each line, for sets."""
    line_prefix = f"{prefix}: " if prefix else ""

    def write_line(line: str) -> None:
        print_line_or_continue(line_prefix + line, err=quiet)

    services = make_services(link.config.path, runner, master, evidence, conf)
    return conductor_type(
        link,
        services,
        started_by=find_operator(),
        print_line=write_line,
        gate_limit_s=gate_limit,
        leave_behind=leave_behind,
    )


def choose_runner(mode: RunMode, chosen: CompareRunner | None) -> CompareRunner:
    """An unplanned failover must not fail for want of Spark."""
    return chosen or (CompareRunner.SPARK if mode is RunMode.PLANNED else CompareRunner.LOCAL)


def find_run(
    conductor_type: type[AnyConductor], config: Path | None, name: str, run_id: str | None
) -> tuple[MirrorLink, Run]:
    """By id, or the one that holds the mirror, or its newest of this kind."""
    link, state = find_mirror(config, name)
    return link, find_newest_run(link, state, run_id, conductor_type.KIND)


def print_decision(title: str, decision: PlanDecision, mirror: Mirror, *, as_json: bool) -> None:
    print_plan(decision.plan, mirror, decision.reasons, as_json=as_json)
    if decision.reasons:
        raise Refused(f"this plan cannot be run: {title}", decision.reasons)


def confirm_plan(
    title: str,
    decision: PlanDecision,
    mirror: Mirror,
    question: str,
    *,
    plan_hash: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> bool:
    """False after a dry run."""
    if not as_json or dry_run:
        print_plan(decision.plan, mirror, decision.reasons, as_json=as_json)
    reasons = (*decision.reasons, *explain_outdated_plan(decision.plan, plan_hash))
    if reasons:
        raise Refused(title, reasons, reason_code="plan_outdated")
    if not dry_run:
        question = f"Run plan {shorten_hash(decision.plan.hash)}: {question}?"
        confirm_costs(decision.plan, mirror, question, yes=yes, as_json=as_json)
    return not dry_run


def format_move_question(action: str, *, no_pause: bool) -> str:
    """A plan's hash does not tell whether its run asks again."""
    return f"{action}, without asking again before they are stopped" if no_pause else action


def begin_run(
    conductor: Conductor[PlanChoice],
    decision: PlanDecision,
    choice: PlanChoice | None,
    *,
    silent: bool = False,
    as_json: bool,
) -> Run:
    """`silent`: see `Conductor.begin`."""
    approval = make_own_approval(conductor.started_by, conductor.link)
    run = conductor.begin(decision.plan.hash, choice, approved_by=(approval,), silent=silent)
    if not as_json:
        print_line_or_continue(
            f"run {run.id}; after a crash: mirrorbook {conductor.KIND} resume {conductor.link.mirror.name}"
        )
    return run


def make_own_approval(person: str, link: MirrorLink) -> Approval:
    return make_approval(secrets.token_hex(8), person, person, read_broker_time_ms(link.destination))


def prove_and_confirm(conductor: Conductor[Any], run: Run, *, take_over: bool = False, as_json: bool) -> str:
    """Takes steps that applications do not notice, then asks to fence. Returns who agreed.

    Refused without a yes: the run waits, and mirroring continues.
    """
    mirror, undisturbed_steps = conductor.link.mirror, list_undisturbed_steps(run.plan.kind, run.plan.mode)
    title = f"{conductor.KIND} of {mirror.name}"
    for record in conductor.run_steps(run.id, undisturbed_steps):
        print_proof(record, err=as_json)
    try:
        require_confirmation(
            f"Fence now? Nobody can write any more on {mirror.source}, until {mirror.destination} is promoted", False
        )
    except Refused as error:
        command, now = f"mirrorbook {conductor.KIND}", conductor.read_status(run.id)[0]
        advice = (
            f"run {run.id} has gone on without this answer: `{command} status {mirror.name}`"
            if now.ended_ms is not None or conductor.has_disturbed(now)
            else f"run {run.id} waits: `{command} resume {mirror.name}` asks again, `{command} abort {mirror.name}`"
            " gives it up"
        )
        raise Refused(title, [f"{explain_no_agreement(error)}. {advice}"], reason_code="not_confirmed") from None
    if not take_over:  # steps that are done take the run from nobody
        conductor.refuse_conducted(run.id, title)
    return conductor.started_by


def print_proof(record: StepRecord, prefix: str = "", *, err: bool = False) -> None:
    print_line_or_continue(f"{prefix}{record.step}: {format_figures(record.evidence)}", err=err)
    if remaining := record.evidence.get("left_for_the_gate"):
        print_line_or_continue(f"{prefix}left to compare while nobody can write: {remaining}", err=err)


def find_expired_approval(conductor: Conductor[Any], run: Run) -> str:
    """Why an old approval must be renewed. Empty: still valid, or the run already disturbs."""
    reason = explain_stale_run_approval(run, read_broker_time_ms(conductor.link.destination))
    return reason if reason and run.state is RunState.RUNNING and not conductor.has_disturbed(run) else ""


def confirm_again(failover: Failover, run: Run, *, yes: bool, as_json: bool) -> str:
    """With the current plan. Returns who agreed, or nobody if not needed."""
    reason = find_expired_approval(failover, run)
    if not reason:
        return ""
    decision, mirror = failover.decide_again(run), failover.link.mirror
    if not as_json:
        print_plan(decision.plan, mirror, decision.reasons, as_json=False)
    if decision.reasons:
        raise Refused(
            f"run {run.id}: resume; abort it and plan again",
            (reason, *decision.reasons),
            reason_code="approval_expired",
        )
    print_line(reason, err=as_json)
    question = f"Go on with run {run.id}: move applications from {mirror.source} to {mirror.destination}?"
    confirm_costs(decision.plan, mirror, question, yes=yes, as_json=as_json)
    return failover.started_by


def refuse_if_conducted(conductor: Conductor[Any], run: Run, command_name: str = "resume") -> None:
    if run.ended_ms is None:
        conductor.refuse_conducted(run.id, f"run {run.id}: {command_name}", take_over=True)


def abort_run(
    conductor: Conductor[Any],
    run: Run,
    question: str,
    effects: Iterable[Finding] = (),
    *,
    take_over: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Refused while it is conducted, unless taken over, and where it is too late; before asking."""
    if not take_over:
        refuse_if_conducted(conductor, run, "abort")
    elif conductor_status := find_conductor(conductor.link.destination, read_state(conductor.link.destination), run):
        print_line(f"run {run.id}: {conductor_status}", err=as_json)
    conductor.check_abort(run.id)
    for effect in effects:
        print_line(f"{effect}.", err=as_json)
    require_confirmation(question, yes)
    with status_on_failure(conductor, run):
        conductor.abort(run.id)
    print_outcome(conductor, run, as_json=as_json)


def print_outcome(conductor: Conductor[Any], run: Run, *, as_json: bool) -> None:
    """Raises CopyMismatch if the promoted copy contradicts its certificates."""
    state = read_state(conductor.link.destination)
    print_newest_run(conductor.link, state, run.id, conductor.KIND, conductor.services.evidence_dir, as_json=as_json)
    check_as_copied((run.id, state.steps_of(run)))


@contextmanager
def status_on_failure(conductor: Conductor[Any], run: Run, failures: type[Exception] = Exception) -> Iterator[None]:
    """Says, once, who can write where and what to do, except after LostOwnership."""
    try:
        yield
    except LostOwnership:
        raise
    except KeyboardInterrupt as interrupt:
        if not hasattr(interrupt, "__notes__"):
            print_status_lines(read_run_outcome(conductor.link, run))
            interrupt.add_note(f"interrupted: run {run.id} is saved; above is how to go on")
        raise
    except failures as error:
        for line in read_run_outcome(conductor.link, run):
            if line not in getattr(error, "__notes__", ()):
                error.add_note(line)
        raise


def make_services(
    config_path: Path, runner: CompareRunner, master: str, evidence: Path | None, conf: list[str] | None
) -> Services:
    folder = choose_evidence_folder(config_path, evidence)
    if runner is CompareRunner.LOCAL:
        return local_services(config_path, evidence_dir=folder)
    from mirror_core.spark.services import make_spark_services  # Spark is an extra, and slow to import

    return make_spark_services(config_path, evidence_dir=folder, master=master, conf=parse_spark_conf(conf))


SetArgument = Annotated[
    str,
    typer.Argument(
        metavar="SET",
        help="A set of mirrors, from section `sets:`; or all-from-CLUSTER: all mirrors from that cluster.",
        autocompletion=complete_sets,
    ),
]


class SetPlansDocument(JsonDocument, frozen=True, kw_only=True):
    """A failover or a failback of a set now."""

    set: str
    hash: str
    """Hash of all plans."""
    plans: tuple[PlanDocument, ...]
    refused: tuple[str, ...]
    """Why they may not run."""
    left_out: tuple[FindingDocument, ...]
    """What is no part of it, and why, where the set is all mirrors from a cluster."""


class SetRunsDocument(JsonDocument, frozen=True, kw_only=True):
    """The runs of a set's failover or failback, one per mirror."""

    set: str
    """Their common id."""
    runs: tuple[RunDocument, ...]


def make_set_conductors(
    conductor_type: type[AnyConductor],
    name: str,
    config: Path | None,
    runner: CompareRunner,
    master: str,
    *,
    quiet: bool,
    **options: Any,
) -> tuple[MirrorSet, dict[MirrorName, AnyConductor]]:
    loaded = load_configuration(config)
    mirror_set = find_set(loaded, name, conductor_type.KIND)
    conductors = {
        mirror: make_conductor(conductor_type, link, runner, master, quiet=quiet, prefix=mirror, **options)
        for mirror, link in _find_set_links(loaded, mirror_set, conductor_type.KIND).items()
    }
    return mirror_set, conductors


def _find_set_links(config: Config, mirror_set: MirrorSet, kind: RunKind) -> dict[MirrorName, MirrorLink]:
    """A set moves as a whole: refused if one destination does not answer."""
    links, errors = dict[MirrorName, MirrorLink](), dict[MirrorName, Indeterminate]()
    for mirror in mirror_set.mirrors:
        try:
            links[mirror] = find_mirror_link(config, mirror)[0]
        except Indeterminate as error:
            errors[mirror] = error
    if errors:
        reasons = [Finding("set_member_not_found", mirror, reason=error) for mirror, error in errors.items()]
        members_found = Finding("set_members_found", mirror_set.name, mirrors=links, run_kind=kind)
        raise Refused(f"{kind} of set {mirror_set.name}", [*reasons, members_found])
    return links


def confirm_set_plan(set_plan: SetPlan, question: str, *, yes: bool) -> None:
    require_confirmation(f"Run plans {shorten_hash(set_plan.hash)}: {question}?", yes)


def confirm_set_move(
    name: str, conductor: SetConductor[Any], set_plan: SetPlan, action: str, *, yes: bool, as_json: bool
) -> None:
    """`name`: to be typed where a source is given up."""
    plans = [(d.plan, conductor.get_link(mirror).mirror) for mirror, d in set_plan.decisions.items()]
    if not yes:
        print_run_costs(plans, as_json=as_json)
        if len(plans) > 1:
            print_set_costs([plan for plan, _ in plans], name, as_json=as_json)
    if any(plan.mode is RunMode.UNPLANNED for plan, _ in plans):
        require_typed_name(name, yes)
    else:
        confirm_set_plan(set_plan, action, yes=yes)


def print_set_decision(conductor: SetConductor[Any], *, as_json: bool) -> None:
    set_plan = conductor.decide()
    print_set_plan(conductor, set_plan, as_json=as_json)
    if set_plan.reasons:
        raise Refused(f"these plans cannot be run: {conductor.title}", set_plan.reasons, reason_code="set_plan_refused")


def show_set(conductor: SetConductor[Any], plan_hash: str | None, *, as_json: bool) -> None:
    """A dry run: how its open runs stand, or what new ones would do."""
    attempt = conductor.find_active_attempt()
    if attempt is None:
        _plan_set(conductor, plan_hash, is_shown=True, as_json=as_json)
    elif not as_json:
        _print_phases(conductor, attempt)


def begin_or_continue_set(
    conductor: SetConductor[Any],
    confirm: Callable[[SetPlan], None],
    *,
    plan_hash: str | None,
    take_over: bool,
    yes: bool,
    as_json: bool,
) -> str:
    """The common id of open runs, or of new ones, if a person confirms their plans."""
    attempt = conductor.find_active_attempt()
    if attempt is not None:
        if not as_json:
            _print_phases(conductor, attempt)
        _refuse_conducted_set(conductor, attempt, take_over=take_over)
        require_confirmation(
            f"Go on with {attempt}? A process that waits with it, for an answer or another mirror, loses it", yes
        )
        return attempt
    if unbegun_attempt := conductor.find_unbegun_attempt():
        _refuse_conducted_set(conductor, unbegun_attempt, take_over=take_over)
        require_confirmation(f"{unbegun_attempt} was cut off while it began, and nothing was done: give it up?", yes)
        conductor.abort(unbegun_attempt, only_mine=False)
    set_plan = _plan_set(conductor, plan_hash, is_shown=not as_json, as_json=False)
    confirm(set_plan)
    approval = make_own_approval(conductor.started_by, conductor.get_link(conductor.mirror_set.mirrors[0]))
    return conductor.begin(set_plan.hash, approved_by=(approval,), silent=set_plan.silent)


def _plan_set(conductor: SetConductor[Any], plan_hash: str | None, *, is_shown: bool, as_json: bool) -> SetPlan:
    set_plan = conductor.decide()
    if is_shown:
        print_set_plan(conductor, set_plan, as_json=as_json)
    if reasons := (*set_plan.reasons, *set_plan.find_hash_mismatch(plan_hash)):
        raise Refused(conductor.title, reasons, reason_code="set_plan_refused")
    return set_plan


def _print_phases(conductor: SetConductor[Any], attempt: str) -> None:
    print_line(f"{attempt} has not ended: " + "; ".join(conductor.format_phases(attempt)))


def _refuse_conducted_set(conductor: SetConductor[Any], attempt: str, *, take_over: bool) -> None:
    if not take_over:
        conductor.refuse_conducted(attempt, take_over=True)


def prove_and_confirm_set(failover: SetFailover, attempt: str, kind: RunKind = RunKind.FAILOVER) -> str:
    """If nobody was stopped yet. Returns who agreed. After a no the runs wait."""
    if failover.mode is RunMode.UNPLANNED or not failover.is_undisturbed(attempt):
        return ""
    for mirror, member in failover.prove(attempt).items():
        for record in member.steps:
            print_proof(record, f"{mirror}: ")
    question = f"Fence now? Applications of {', '.join(failover.mirror_set.mirrors)} can't write until they are moved"
    confirm_moment_of_set(failover, attempt, lambda: require_confirmation(question, False), kind)
    return failover.started_by


def confirm_moment_of_set(conductor: SetConductor[Any], attempt: str, ask: Callable[[], None], kind: RunKind) -> None:
    """`kind`: of the command that asks again."""
    try:
        ask()
    except Refused as error:
        retry_command = f"mirrorbook {kind} run-set {conductor.mirror_set.name}"
        advice = f"{attempt} waits: `{retry_command}` asks again, `{conductor.KIND} abort` of each gives it up"
        raise Refused(
            conductor.title, [f"{explain_no_agreement(error)}. {advice}"], reason_code="not_confirmed"
        ) from None
    conductor.refuse_conducted(attempt, quietly=True)


def print_set_outcome(
    conductor: SetConductor[Any],
    attempt: str,
    members: Mapping[MirrorName, MemberRun],
    evidence: Path | None,
    *,
    as_json: bool,
) -> None:
    """Raises CopyMismatch if a promoted copy contradicts its certificates."""
    links = {mirror: conductor.get_link(mirror) for mirror in members}
    states = {mirror: read_state(link.destination) for mirror, link in links.items()}
    results = {mirror: read_run_result(links[mirror], states[mirror], member.run) for mirror, member in members.items()}
    if as_json:
        runs = tuple(to_run_document(s.run, s.steps, None, results[mirror]) for mirror, s in members.items())
        print_json(SetRunsDocument(set=attempt, runs=runs))
    else:
        print_line(f"{attempt}: " + "; ".join(conductor.format_phases(attempt)))
        for mirror, member in members.items():
            for line in read_run_outcome(links[mirror], member.run):
                print_line(f"{mirror}: {line}")
            report = find_report(links[mirror].config.path, evidence, member.run.id)
            unsaved = find_unsaved(links[mirror], {links[mirror].destination.name: states[mirror]})
            print_run_result(results[mirror], report, unsaved=unsaved)
    check_as_copied(*((member.run.id, member.steps) for member in members.values()))


@contextmanager
def set_status_on_failure(conductor: SetConductor[Any], attempt: str) -> Iterator[None]:
    try:
        yield
    except LostOwnership:
        raise
    except MirrorError as error:
        for mirror, lines in conductor.read_statuses(attempt).items():
            for line in lines:
                error.add_note(f"{mirror}: {line}")
        raise


def print_set_plan(conductor: SetConductor[Any], set_plan: SetPlan, *, as_json: bool) -> None:
    name, left_out = conductor.mirror_set.name, conductor.mirror_set.left_out
    if as_json:
        plans = tuple(to_plan_document(decision.plan, decision.reasons) for decision in set_plan.decisions.values())
        documents, reasons = to_finding_documents(left_out), tuple(map(str, set_plan.reasons))
        print_json(SetPlansDocument(set=name, hash=set_plan.hash, plans=plans, refused=reasons, left_out=documents))
        return
    for mirror, decision in set_plan.decisions.items():
        print_plan(decision.plan, conductor.get_link(mirror).mirror, decision.reasons, as_json=False)
    for finding in left_out:
        print_line(f"warning: {finding}")
    print_line(f"hash of all plans of set {name}: {set_plan.hash}")
