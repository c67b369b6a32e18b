"""What `mirrorbook failover` and `mirrorbook failback` have in common: options, and how a run is begun and given up."""

from __future__ import annotations

import os
import pwd
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from mirror_core.cli import completing
from mirror_core.cli.common import agree, mirror
from mirror_core.cli.runs import conducted_now, newest, show_newest, show_plan, tell_all
from mirror_core.cli.spark_conf import spark_conf
from mirror_core.cli.telling import tell, tell_on
from mirror_core.decide.approvals import approved_long_ago, given, other_plan
from mirror_core.decide.failover import Decision
from mirror_core.decide.steps import undisturbed
from mirror_core.decide.vouching import refuse_other
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import LostOwnership, Refused
from mirror_core.model.run import Approval, Mode, Run, RunState, short_hash
from mirror_core.model.text import visible
from mirror_core.runbook.closing import last_words
from mirror_core.runbook.conductor import Conductor
from mirror_core.runbook.failover import Failover
from mirror_core.runbook.services import Services, local_services
from mirror_core.state.link import Link
from mirror_core.state.topic import read_state


class Runner(StrEnum):
    """Where the heavy comparison and the salvage are done."""

    SPARK = "spark"
    LOCAL = "local"


RunnerOption = Annotated[
    Runner, typer.Option("--runner", help="Where everything is compared and salvaged: on Spark, or in this process.")
]
RunnerByModeOption = Annotated[
    Runner | None,
    typer.Option(
        "--runner",
        help="Where everything is compared: on Spark, or in this process. Default: spark, of a planned failover; "
        "local, of an unplanned one, which needs Spark only to read certificates at a URL.",
    ),
]
MasterOption = Annotated[str, typer.Option("--master", help="Spark master.")]
EvidenceOption = Annotated[
    Path | None, typer.Option("--evidence", help="Folder for evidence. Default: `evidence` beside mirrorbook.yaml.")
]
HashOption = Annotated[str | None, typer.Option("--plan-hash", help="Run only the plan with this hash, of 64 digits.")]
NoPauseOption = Annotated[
    bool, typer.Option("--no-pause", help="Fence as soon as all is proved, without asking again.")
]
GateLimitOption = Annotated[
    float | None,
    typer.Option(
        "--gate-limit",
        min=0,
        help="Stop nobody where the comparison behind the fence would take more seconds than this. Default: however "
        "many.",
    ),
]
TakeOverOption = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Also from a process that still conducts it, but hangs and cannot be ended: that one may finish the "
        "request that it is at, and stops at its next write to the state topic.",
    ),
]
RunOption = Annotated[
    str | None,
    typer.Option("--run", help="Which run. Default: the one that holds the mirror.", autocompletion=completing.runs),
]

C = TypeVar("C", bound=Conductor[Any])
Choice = TypeVar("Choice")


def conductor(
    make: type[C],
    link: Link,
    runner: Runner = Runner.LOCAL,
    master: str = "local[*]",
    evidence: Path | None = None,
    conf: list[str] | None = None,
    *,
    quiet: bool = False,
    gate_limit: float | None = None,
    leave_behind: bool = False,
    prefix: str = "",
) -> C:
    """Somebody who takes the steps here, as the options say. Quiet for machines that read what is printed: what people
    are told, and may have to do, is on standard error then. `prefix`: before each line, where several are at work."""
    head = f"{prefix}: " if prefix else ""

    def say(line: str) -> None:
        tell_on(head + line, err=quiet)

    services = services_of(link.config.path, runner, master, evidence, conf)
    return make(link, services, started_by=operator(), say=say, gate_limit_s=gate_limit, leave_behind=leave_behind)


def runner_for(mode: Mode, chosen: Runner | None) -> Runner:
    """Where it is compared: an unplanned failover must not fail for want of Spark."""
    return chosen or (Runner.SPARK if mode is Mode.PLANNED else Runner.LOCAL)


def found(make: type[C], config: Path | None, name: str, run_id: str | None) -> tuple[Link, Run]:
    """The run of this id, the one that holds the mirror, or its newest of this kind."""
    link, state = mirror(config, name)
    return link, newest(link, state, run_id, make.KIND)


def show_decision(title: str, decision: Decision, *, as_json: bool) -> None:
    """The plan. Refused when it cannot be run."""
    show_plan(decision.plan, decision.reasons, as_json=as_json)
    if decision.reasons:
        raise Refused(f"this plan cannot be run: {title}", decision.reasons)


def approved(
    title: str,
    decision: Decision,
    question: str,
    *,
    plan_hash: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> bool:
    """Show the plan and ask. False when it was only shown; Refused when it may not be run, or a person says no."""
    if not as_json or dry_run:
        show_plan(decision.plan, decision.reasons, as_json=as_json)
    reasons = (*decision.reasons, *other_plan(decision.plan, plan_hash))
    if reasons:
        raise Refused(title, reasons)
    if not dry_run:
        agree(f"Run plan {short_hash(decision.plan.hash)}: {question}?", yes)
    return not dry_run


def begun(
    by: Conductor[Choice], decision: Decision, choice: Choice | None, *, silent: bool = False, as_json: bool
) -> Run:
    """A run of the plan that was approved, and what to type when this process dies. `silent`: see `Conductor.begin`."""
    run = by.begin(decision.plan.hash, choice, approved_by=(approval_of(by.started_by),), silent=silent)
    if not as_json:
        tell_on(f"run {run.id}; after a crash: mirrorbook {by.KIND} resume {by.link.mirror.name}")
    return run


def approval_of(person: str) -> Approval:
    """What somebody gives who has just agreed to a plan, here."""
    return given(secrets.token_hex(8), person, person, now_ms())


def prepare(by: Conductor[Any], run: Run, *, take_over: bool = False, as_json: bool) -> str:
    """Take the steps that applications don't notice, and ask whether they may be stopped now; who has agreed. Refused
    when a person says no, or nobody is there to say yes: the run waits, and mirroring goes on."""
    mirror, ahead = by.link.mirror, undisturbed(run.plan.kind, run.plan.mode)
    title = f"{by.KIND} of {mirror.name}"
    for record in by.take(run.id, ahead):
        found = ", ".join(f"{name} {value}" for name, value in record.evidence.items())
        tell_on(f"{record.step}: {found}", err=as_json)
    try:
        agree(f"Fence now? Nobody can write any more on {mirror.source}, until {mirror.destination} is promoted", False)
    except Refused as error:
        wait = f"run {run.id} waits: `mirrorbook {by.KIND} resume {mirror.name}` fences, `... abort ...` gives it up"
        raise Refused(title, [f"{'; '.join(error.reasons)}. {wait}"]) from None
    if not take_over:  # what is proved already is not taken again: that takes the run from nobody
        by.refuse_conducted(run.id, title)
    return by.started_by


def asked_again_since(by: Conductor[Any], run: Run) -> str:
    """Why a run that was approved too long ago is asked for again; empty where its approval still holds, or where it
    has begun to do what it was approved for."""
    since = approved_long_ago(run, now_ms())
    return since if since and run.state is RunState.RUNNING and not by.disturbs(run) else ""


def approved_again(by: Failover, run: Run, *, yes: bool, as_json: bool) -> str:
    """Who agreed to a run that was approved too long ago, shown its plan as it is now; nobody where applications notice
    it already, or its approval still holds. Refused when the plan may not be run any more, or a person says no."""
    since = asked_again_since(by, run)
    if not since:
        return ""
    found = by.anew(run)
    if not as_json:
        show_plan(found.plan, found.reasons, as_json=False)
    if found.reasons:
        raise Refused(f"run {run.id}: resume; abort it and plan again", (since, *found.reasons))
    tell(since, err=as_json)
    mirror = by.link.mirror
    agree(f"Go on with run {run.id}: move applications from {mirror.source} to {mirror.destination}?", yes)
    return by.started_by


def refuse_conducted(by: Conductor[Any], run: Run, what: str = "resume") -> None:
    """While somebody else conducts the run. One that has ended is conducted by nobody."""
    if run.ended_ms is None:
        by.refuse_conducted(run.id, f"run {run.id}: {what}", take_over=True)


def give_up(by: Conductor[Any], run: Run, question: str, *, take_over: bool, yes: bool, as_json: bool) -> None:
    """Ask, abort, show how it ended. Refused while somebody conducts it, unless it is taken over: then he is named."""
    if not take_over:
        refuse_conducted(by, run, "abort")
    elif now := conducted_now(read_state(by.link.destination), run):
        tell(f"run {run.id}: {now}", err=as_json)
    agree(question, yes)
    with closed(by, run):
        by.abort(run.id)
    show_outcome(by, run, as_json=as_json)


def show_outcome(by: Conductor[Any], run: Run, *, as_json: bool) -> None:
    """The run and its steps, as they are now. NotAsCopied when what it promoted is not what its certificates say."""
    state = read_state(by.link.destination)
    show_newest(by.link, state, run.id, by.KIND, as_json=as_json)
    refuse_other((run.id, state.steps_of(run)))


@contextmanager
def closed(by: Conductor[Any], run: Run) -> Iterator[None]:
    """Whatever stops the run in between, the terminal says who can write where by then, and what to do. Who has lost
    the run to another conductor is told nothing: it goes on."""
    try:
        yield
    except LostOwnership:
        raise
    except KeyboardInterrupt:
        tell_all(last_words(by.link, run))
        raise
    except Exception as error:
        for line in last_words(by.link, run):
            error.add_note(line)
        raise


def services_of(
    config_path: Path, runner: Runner, master: str, evidence: Path | None, conf: list[str] | None
) -> Services:
    """What the options ask for."""
    folder = evidence_folder(config_path, evidence)
    if runner is Runner.LOCAL:
        return local_services(config_path, evidence_dir=folder)
    from mirror_core.spark.services import spark_services  # Spark is an extra, and slow to import

    return spark_services(config_path, evidence_dir=folder, master=master, conf=spark_conf(conf))


def evidence_folder(config_path: Path, chosen: Path | None) -> Path:
    """Where each run has a folder."""
    return chosen or config_path.parent / "evidence"


def operator() -> str:
    """Who asks, for the journal: the user that runs this process, and behind root whoever has called sudo. $LOGNAME and
    $USER are whatever their owner likes."""
    user, sudo = _user_name(os.getuid()), os.environ.get("SUDO_USER", "")
    behind = f" (sudo by {visible(sudo)})" if sudo and os.getuid() == 0 else ""
    return f"{user}@{socket.gethostname()}{behind}"


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a container's user is often in no list
        return f"uid {uid}"
