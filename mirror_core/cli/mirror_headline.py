"""The first lines of `mirror describe`, and of each screen of a mirror while its old source is not fenced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from mirror_core.cli.output import wrap_text
from mirror_core.decide.process_liveness import ConductorState
from mirror_core.decide.run_status import OpenRunFence
from mirror_core.decide.steps import WriteLocation
from mirror_core.decide.write_access import OpenRun, OperatorAction, WriteAccess
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import MirrorName, format_reverse_name, get_base_name, is_reverse_mirror
from mirror_core.model.run import RunKind, StepState

_CONDUCTOR_TEXTS = {
    ConductorState.ALIVE: "A process conducts it.",
    ConductorState.RELEASED: "No process is at it now.",
    ConductorState.SILENT: "Nobody conducts it.",
    ConductorState.UNKNOWN: "Whether anybody conducts it is not known.",
}
_ANSWER_TEXT: Final = "Its process may wait for an answer on a terminal of this machine."


def list_headline(
    access: WriteAccess,
    mirror: Mirror,
    returned: Finding | None = None,
    unsaved: Finding | None = None,
    *,
    is_home_unseen: bool = False,
) -> Iterator[str]:
    """Wrapped at words. Each command is on a line of its own, whole. See `list_attention`.

    `is_home_unseen`: the mirror that this one led home is recorded on its source, which does not answer.
    """
    attention = tuple(list_attention(returned, unsaved))
    yield from attention
    yield from wrap_text(_format_writers(access, mirror)).split("\n")
    is_answered = (returned is not None and access.run is None) or access.action in _ANSWERED_BY_ATTENTION
    if not (attention and is_answered):
        verb = "Then" if attention else f"When {mirror.source} answers" if is_home_unseen else "Do"
        yield from _list_advice(verb, *_find_advice(access, mirror))


_ANSWERED_BY_ATTENTION: Final = frozenset({OperatorAction.NOTHING, OperatorAction.RECOVER})


def list_attention(returned: Finding | None, unsaved: Finding | None = None) -> Iterator[str]:
    """What comes before all else, with its commands: `returned`, of an unfenced old source; `unsaved`, what only a
    destination has.
    """
    if returned is not None:
        yield from wrap_text(f"{returned}.").split("\n")
        yield from _list_advice("Do", *_find_returned_advice(returned))
    if unsaved is not None:
        yield from wrap_text(f"{unsaved}.").split("\n")
        name, run_kind = unsaved.values["mirror"], unsaved.values["run_kind"]
        after_run = f"after the open {run_kind} of {name}, " if run_kind else ""
        when_idle = f"when nothing copies it (`mirrorbook mirror pause {name}`)"
        text = f"{after_run}{when_idle}, this saves them, then has their topics copied anew:"
        yield from _list_advice("Do", text, [f"mirrorbook mirror recover {name} --action recopy --salvage FOLDER"])


def _list_advice(verb: str, text: str, commands: Sequence[str]) -> Iterator[str]:
    if text:
        yield wrap_text(f"{verb}: {text}", indent="    ")
    labels = ("    " if text else f"{verb}: ", *("or: " for _ in commands))
    for label, command in zip(labels, commands, strict=False):
        yield f"{label}{command}"


def _format_writers(access: WriteAccess, mirror: Mirror) -> str:
    run = access.run
    if run is not None and run.fence is not None:
        return f"{_format_fenced(run, run.fence, mirror)} {_format_run(run)}"
    if run is not None and access.cluster is not None:
        return f"Applications write {mirror.name} on {access.cluster}. {_format_run(run)}"
    if run is not None and run.kind is RunKind.FAILBACK and access.writes is WriteLocation.NOWHERE:
        home = format_reverse_name(mirror.name)
        return (
            f"NOBODY CAN WRITE {mirror.name}: failover {home} has fenced {mirror.destination}, and {mirror.source} is"
            f" not promoted. {_format_run(run)}"
        )
    if run is not None and run.kind is RunKind.FAILBACK:
        return f"Applications of {mirror.name} are on their way home to {mirror.source}. {_format_run(run)}"
    if run is not None:
        return (
            f"Some applications may write {mirror.name} on {mirror.destination} already, others nowhere."
            f" {_format_run(run)}"
        )
    if access.writes is None and access.action is OperatorAction.SHOW_HOME_MIRROR:
        home = get_base_name(mirror.name)
        return f"{mirror.name} has led applications home to {mirror.destination}; {home} tells where they write since."
    match access.writes:
        case WriteLocation.SOURCE:
            return _format_source_writers(access, mirror)
        case WriteLocation.DESTINATION:
            return f"Applications write {mirror.name} on {mirror.destination}: it was moved from {mirror.source}."
        case WriteLocation.NOWHERE if access.action is OperatorAction.LIFT_FENCE:
            return (
                f"NOBODY CAN WRITE {mirror.name}: {mirror.source} answers, and the fence of an aborted failover still"
                " stands there."
            )
        case WriteLocation.NOWHERE:
            return (
                f"Perhaps NOBODY CAN WRITE {mirror.name}: {mirror.source} was silent when a failover was aborted, and"
                " its fence may still be there."
            )
        case None:
            return f"{mirror.name} is STOPPED, and no failover of it is recorded: nothing is copied."


def _format_source_writers(access: WriteAccess, mirror: Mirror) -> str:
    text = f"Applications write {mirror.name} on {mirror.source}"
    if access.action is OperatorAction.PLAN_UNPLANNED_FAILOVER:
        return f"{text}, which does not answer; {mirror.destination} is its mirror."
    if access.action is OperatorAction.START:
        return f"{text}. {mirror.name} is STOPPED: nothing is copied."
    return f"{text}; {mirror.destination} is its mirror."


def _format_fenced(run: OpenRun, fence: OpenRunFence, mirror: Mirror) -> str:
    source, destination = mirror.source, mirror.destination
    match fence:
        case OpenRunFence.SEEN | OpenRunFence.UNSEEN:
            known = "is" if fence is OpenRunFence.SEEN else "may be"
            return f"NOBODY CAN WRITE {mirror.name}: {source} {known} fenced, and {destination} is not promoted."
        case OpenRunFence.LIFTED:
            return (
                f"Applications can write {mirror.name} on {source}: the fence of the open run was lifted there."
                f" {destination} is not promoted."
            )
        case OpenRunFence.NO_AUTHORIZER:
            return (
                f"Nothing keeps applications from writing {mirror.name} on {source}: it has no authorizer. What they"
                f" write there now is not copied, and {destination} is not promoted: keep them stopped."
            )
        case OpenRunFence.SOURCE_GIVEN_UP:
            return (
                f"NOBODY CAN WRITE {mirror.name} on {destination}: it is not promoted. {source} is given up: what it"
                " still takes is lost."
            )
        case OpenRunFence.SOURCE_RETURNED:
            return (
                f"NOBODY CAN WRITE {mirror.name} on {destination}: it is not promoted, since {source} answered again"
                " and may have records that were not copied."
            )


def _format_run(run: OpenRun) -> str:
    place = "is being aborted" if run.is_aborting else _format_place(run)
    conductor_text = _ANSWER_TEXT if run.may_await_answer else _CONDUCTOR_TEXTS[run.conductor]
    return f"Run {run.id} {place}. {conductor_text}"


def _format_place(run: OpenRun) -> str:
    match run.step_state:
        case None:
            return "is before its first step"
        case StepState.DONE:
            return f"has done step {run.step}"
        case StepState.FAILED:
            return f"failed in step {run.step}"
        case StepState.STARTED:
            return f"is in step {run.step}"


def _find_advice(access: WriteAccess, mirror: Mirror) -> tuple[str, tuple[str, ...]]:
    """Text, if needed, and commands: the first is the one to take."""
    name, source = mirror.name, mirror.source
    if access.run is not None:
        return _find_run_advice(access.run, access, mirror)
    match access.action:
        case OperatorAction.PLAN_UNPLANNED_FAILOVER:
            command = f"mirrorbook failover plan {name} --mode unplanned"
            return f"wait for {source}, or see what giving it up would cost:", (command,)
        case OperatorAction.START:
            return "", (f"mirrorbook mirror start {name}",)
        case OperatorAction.NOTHING if mirror.paused_topics:
            return "topics are paused. When they may go on:", (f"mirrorbook mirror resume {name} --topics '.*'",)
        case OperatorAction.RESUME_MIRROR:
            return "nothing is copied while it is PAUSED.", (f"mirrorbook mirror resume {name}",)
        case OperatorAction.SUPERVISE:
            return f"nobody copies {name} now.", (f"mirrorbook supervise {name}",)
        case OperatorAction.RECOVER:
            return "a partition FAILED. What would copy it again:", (f"mirrorbook mirror recover {name} --dry-run",)
        case OperatorAction.SHOW_FAILBACK:
            home = get_base_name(name)
            return f"it is for the way home of {home}, which has not ended:", (f"mirrorbook failback status {home}",)
        case OperatorAction.WATCH | OperatorAction.KEEP_WATCHER | OperatorAction.LIFT_FENCE:
            return _find_watcher_advice(access, mirror)
        case OperatorAction.PLAN_FAILBACK:
            return f"when {source} is well again:", (f"mirrorbook failback plan {name}",)
        case OperatorAction.SHOW_HOME_MIRROR:
            return "", (f"mirrorbook mirror describe {get_base_name(name)}",)
        case _:
            return "nothing.", ()


def _find_watcher_advice(access: WriteAccess, mirror: Mirror) -> tuple[str, tuple[str, ...]]:
    source, is_moved = mirror.source, access.writes is WriteLocation.DESTINATION
    if access.action is OperatorAction.LIFT_FENCE:
        return f"this opens {source} to applications now:", (f"mirrorbook mirror watch {mirror.name} --once",)
    if access.action is OperatorAction.WATCH:
        text = f"{source} is NOT fenced yet: start a watcher." if is_moved else f"start a watcher: it opens {source}."
        return text, _list_watcher_commands(mirror.name)
    if is_moved:
        return f"{source} is NOT fenced yet: leave its watcher running, which fences it when it answers.", ()
    return f"leave the watcher of {source} running: it opens {source} when it answers.", ()


def _find_returned_advice(returned: Finding) -> tuple[str, tuple[str, ...]]:
    name, run_kind = MirrorName(str(returned.values["mirror"])), returned.values["run_kind"]
    stop, home = f"stop the applications that write on {returned.subject}.", get_base_name(name)
    if run_kind:
        return f"{stop} An open {run_kind} of {name} decides what becomes of it:", (
            f"mirrorbook {run_kind} status {name}",
        )
    resume = f"mirrorbook failback resume {home}"
    saves = "a failback saves what it took"
    if is_reverse_mirror(name):
        saves = f"`{resume}` keeps what it took, and says how to save it"
    if not returned.values["can_fence"]:
        command = resume if is_reverse_mirror(name) else f"mirrorbook failback plan {name}"
        return f"{stop} Nothing of ours can fence it; {saves}:", (command,)
    watch = f"mirrorbook mirror watch {name}"
    return f"{stop} This fences it now; {saves}:", (f"{watch} --once", watch)


def _list_watcher_commands(name: MirrorName) -> tuple[str, ...]:
    """A supervisor runs a watcher by itself, but some seconds after the failover."""
    return f"mirrorbook mirror watch {name}", f"mirrorbook supervise {name}"


def _find_run_advice(run: OpenRun, access: WriteAccess, mirror: Mirror) -> tuple[str, tuple[str, ...]]:
    name, verb = mirror.name, f"mirrorbook {run.kind}"
    abort = (f"{verb} abort {name}",) if run.can_abort else ()
    home = (
        (f"mirrorbook failover status {format_reverse_name(name)}",)
        if run.kind is RunKind.FAILBACK and access.cluster is None
        else ()
    )
    match access.action:
        case OperatorAction.SHOW_WAY_HOME:
            way_home = format_reverse_name(name)
            return "the failover that leads home cannot go on:", (f"mirrorbook mirror describe {way_home}",)
        case OperatorAction.WAIT:
            return "wait, and see how far it is:", (f"{verb} status {name}", *home)
        case OperatorAction.ABORT_RUN if run.fence is OpenRunFence.LIFTED:
            return "abort it, then plan again: it cannot go on without its fence.", abort
        case OperatorAction.ABORT_RUN:
            return "abort it, then recover what has FAILED, or plan again: it cannot go on with that.", abort
        case OperatorAction.LEAVE_BEHIND:
            return (
                f"resume leaves on {mirror.source} what was not copied; abort loses nothing.",
                (*abort, f"{verb} resume {name} --leave-behind"),
            )
        case _ if run.can_go_on_unplanned:
            unplanned = f"mirrorbook failover run {name} --mode unplanned"
            return (
                f"{mirror.source} does not answer. If it is lost, the unplanned failover goes on from here.",
                (f"{verb} resume {name}", unplanned, *abort),
            )
        case _:
            return "", (*home, f"{verb} resume {name}", *abort)
