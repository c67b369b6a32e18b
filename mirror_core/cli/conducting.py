"""What `failover` and `failback` share: options; begin, approve, resume and abort a run."""

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
    """`quiet`: print to standard error. `prefix`: before each line, for sets."""
    head = f"{prefix}: " if prefix else ""

    def say(line: str) -> None:
        tell_on(head + line, err=quiet)

    services = services_of(link.config.path, runner, master, evidence, conf)
    return make(link, services, started_by=operator(), say=say, gate_limit_s=gate_limit, leave_behind=leave_behind)


def runner_for(mode: Mode, chosen: Runner | None) -> Runner:
    """An unplanned failover must not fail for want of Spark."""
    return chosen or (Runner.SPARK if mode is Mode.PLANNED else Runner.LOCAL)


def found(make: type[C], config: Path | None, name: str, run_id: str | None) -> tuple[Link, Run]:
    """By id, or the one that holds the mirror, or its newest of this kind."""
    link, state = mirror(config, name)
    return link, newest(link, state, run_id, make.KIND)


def show_decision(title: str, decision: Decision, *, as_json: bool) -> None:
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
    """Print the plan and ask. False after a dry run."""
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
    """`silent`: see `Conductor.begin`."""
    run = by.begin(decision.plan.hash, choice, approved_by=(approval_of(by.started_by),), silent=silent)
    if not as_json:
        tell_on(f"run {run.id}; after a crash: mirrorbook {by.KIND} resume {by.link.mirror.name}")
    return run


def approval_of(person: str) -> Approval:
    return given(secrets.token_hex(8), person, person, now_ms())


def prepare(by: Conductor[Any], run: Run, *, take_over: bool = False, as_json: bool) -> str:
    """Take steps that applications do not notice, then ask to fence. Returns who agreed.

    Refused without a yes: the run waits, and mirroring continues.
    """
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
    if not take_over:  # steps that are done take the run from nobody
        by.refuse_conducted(run.id, title)
    return by.started_by


def asked_again_since(by: Conductor[Any], run: Run) -> str:
    """Why an old approval must be renewed. Empty: still valid, or the run already disturbs."""
    since = approved_long_ago(run, now_ms())
    return since if since and run.state is RunState.RUNNING and not by.disturbs(run) else ""


def approved_again(by: Failover, run: Run, *, yes: bool, as_json: bool) -> str:
    """Print the current plan and ask again. Returns who agreed, or nobody if not needed."""
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
    """A run that has ended is conducted by nobody."""
    if run.ended_ms is None:
        by.refuse_conducted(run.id, f"run {run.id}: {what}", take_over=True)


def give_up(by: Conductor[Any], run: Run, question: str, *, take_over: bool, yes: bool, as_json: bool) -> None:
    """Refused while it is conducted, unless taken over."""
    if not take_over:
        refuse_conducted(by, run, "abort")
    elif now := conducted_now(read_state(by.link.destination), run):
        tell(f"run {run.id}: {now}", err=as_json)
    agree(question, yes)
    with closed(by, run):
        by.abort(run.id)
    show_outcome(by, run, as_json=as_json)


def show_outcome(by: Conductor[Any], run: Run, *, as_json: bool) -> None:
    """Raises NotAsCopied if the promoted copy contradicts its certificates."""
    state = read_state(by.link.destination)
    show_newest(by.link, state, run.id, by.KIND, as_json=as_json)
    refuse_other((run.id, state.steps_of(run)))


@contextmanager
def closed(by: Conductor[Any], run: Run) -> Iterator[None]:
    """On failure, print who can write where and what to do.

    Not after LostOwnership: the run continues elsewhere.
    """
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
    folder = evidence_folder(config_path, evidence)
    if runner is Runner.LOCAL:
        return local_services(config_path, evidence_dir=folder)
    from mirror_core.spark.services import spark_services  # Spark is an extra, and slow to import

    return spark_services(config_path, evidence_dir=folder, master=master, conf=spark_conf(conf))


def evidence_folder(config_path: Path, chosen: Path | None) -> Path:
    return chosen or config_path.parent / "evidence"


def operator() -> str:
    """The user of this process, and behind root the sudo caller. $LOGNAME and $USER can be forged."""
    user, sudo = _user_name(os.getuid()), os.environ.get("SUDO_USER", "")
    behind = f" (sudo by {visible(sudo)})" if sudo and os.getuid() == 0 else ""
    return f"{user}@{socket.gethostname()}{behind}"


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # common in containers
        return f"uid {uid}"
