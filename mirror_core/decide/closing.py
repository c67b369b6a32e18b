"""The status of a run: who can write where, what is pending, and the next command.

Made from the state topic only, never from what a conductor remembers: that process may have been paused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mirror_core.decide import vouching
from mirror_core.decide.conducting import NOT_KNOWN, Conducted, Sign
from mirror_core.decide.run_standing import standing_of
from mirror_core.decide.standing import Standing
from mirror_core.decide.standing import standing_of as debt_standing
from mirror_core.decide.steps import Writes, point_of_no_return
from mirror_core.model.mirror import Desired, Mirror, PartitionStatus
from mirror_core.model.names import MirrorName, base_name, reverse_name
from mirror_core.model.run import Mode, Run, RunKind, RunState, StepRecord, StepState
from mirror_core.model.standing import Debt


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    run: Run
    steps: Sequence[StepRecord]
    mirror: Mirror
    debt: Debt | None
    turned: bool
    copying: bool
    failed: Sequence[PartitionStatus] = ()
    conducted: Conducted = NOT_KNOWN
    returned: bool = False
    lifted_denials: int = 0
    """DENYs of this run's fence that the source no longer has: applications may write there."""


def overtaken(run: Run, runs: Iterable[Run]) -> tuple[str, ...]:
    newer = [r for r in runs if r.plan.mirror == run.plan.mirror and r.started_ms > run.started_ms]
    if run.ended_ms is None or not newer:
        return ()
    last = max(newer, key=lambda one: one.started_ms)
    return (
        f"{last.plan.kind.capitalize()} {last.id} came after this one: `mirrorbook {last.plan.kind} status "
        f"{last.plan.mirror}` says who can write where now.",
    )


def newest(mirror: MirrorName, runs: Iterable[Run]) -> Run | None:
    """The run that holds the mirror, whatever clocks say; else its newest."""
    own = [run for run in runs if run.plan.mirror == mirror]
    return max(own, key=lambda run: (run.ended_ms is None, run.started_ms), default=None)


def not_begun(mirror: Mirror, before: Run | None, words: Sequence[str]) -> tuple[str, ...]:
    if before is None and mirror.desired is Desired.STOPPED:
        return (f"Nothing was begun. Mirror {mirror.name} is stopped: who may write where is not recorded.",)
    if before is None:
        return (
            f"Nothing was begun: applications write on {mirror.source}, as before; {mirror.destination} stays a "
            "mirror.",
        )
    if before.ended_ms is None:
        return f"This task knows of no run that it began; {before.id} holds {mirror.name}:", *words
    return f"Nothing was begun. The newest run of {mirror.name} is {before.id}, {before.state}:", *words


def home_not_begun(mirror: Mirror) -> tuple[str, ...]:
    back = reverse_name(mirror.name)
    return (f"Failover {back} has not begun: applications write on {mirror.destination}.",)


def led_home(run: Run, steps: Iterable[StepRecord]) -> bool:
    is_open = run.plan.kind is RunKind.FAILBACK and run.ended_ms is None
    return is_open and any(step.step == "catch_up" for step in steps)


def closing(ended: Ended) -> tuple[str, ...]:
    match ended.run.state:
        case RunState.DONE:
            lines = _home(ended) if ended.run.plan.kind is RunKind.FAILBACK else _moved(ended)
        case RunState.ABORTED | RunState.SUPERSEDED:
            lines = _given_up(ended)
        case RunState.RUNNING | RunState.ABORTING:
            lines = _under_way(ended)
    return tuple(lines)


def _moved(ended: Ended) -> Iterator[str]:
    mirror, name = ended.mirror, ended.mirror.name
    yield f"Applications write on {mirror.destination}: point those there that don't follow by themselves."
    if seen := vouching.of_run(ended.steps):
        yield f"Certificates of what {mirror.destination} holds: {vouching.sentence(seen)}."
        if command := seen.get(vouching.AGAIN):
            yield f"To prove more: `{command}`."
    yield from _old_source(ended)
    if hooks := _evidence(ended, "switch", "hooks that failed"):
        yield f"Hooks that failed: {hooks}. `mirrorbook runs show {ended.run.id}` says how to call them by hand."
    if mirror.homecoming:
        yield f"Next: `mirrorbook failback resume {base_name(name)}` protects {mirror.destination} again."
    else:
        yield f"Next, when {mirror.source} is well again: `mirrorbook failback plan {name}`."


def _old_source(ended: Ended) -> Iterator[str]:
    source, watch = ended.mirror.source, f"`mirrorbook mirror watch {ended.mirror.name}`"
    match debt_standing(ended.debt):
        case Standing.OWED:
            yield (
                f"{source} is NOT fenced yet: if it comes back, it takes writes until it is. Keep {watch} running, or "
                "DAG mirror_watch unpaused."
            )
        case Standing.WATCHED:
            yield f"{source} cannot be fenced by Mirrorbook: keep its applications stopped. {watch} looks."
        case Standing.STANDS if ended.debt is not None and ended.debt.by_command:
            yield f"{source} is closed to applications by its fence_command. Keep {watch} running: it looks for writes."
        case Standing.STANDS:
            yield f"{source} is fenced: nobody but a super user can write these topics there."
        case Standing.NOTHING | Standing.LIFTING:
            yield f"Whether {source} is fenced is not recorded: `mirrorbook mirror describe {ended.mirror.name}`."


def _home(ended: Ended) -> Iterator[str]:
    mirror = ended.mirror
    yield f"Applications write on {mirror.source} again, and {mirror.destination} mirrors it."
    if not ended.copying:
        yield f"Next: `mirrorbook supervise {mirror.name}`, or DAG mirror_replicate: nobody copies {mirror.name} now."
    if ended.failed:
        yield f"{len(ended.failed)} partition(s) FAILED: `mirrorbook mirror describe {mirror.name}` names them."


def _given_up(ended: Ended) -> Iterator[str]:
    run, mirror = ended.run, ended.mirror
    if run.state is RunState.SUPERSEDED:
        yield f"This run has ended: {run.note or 'another one goes on from where it was'}."
        return
    if run.plan.kind is RunKind.FAILBACK:
        yield f"Nothing was changed on {mirror.source}: applications go on writing on {mirror.destination}."
        yield f"Next: `mirrorbook failback plan {mirror.name}`."
        return
    if debt_standing(ended.debt) is Standing.LIFTING:
        yield (
            f"{mirror.source} was silent, so the fence may still stand there, and nobody can write. Keep `mirrorbook "
            f"mirror watch {mirror.name}` running: it takes the fence down when {mirror.source} answers."
        )
    else:
        yield f"Applications write on {mirror.source}, as before; {mirror.destination} stays a mirror."
    if mirror.desired is Desired.STARTED and not ended.copying:
        yield f"Nobody copies {mirror.name} now: `mirrorbook supervise {mirror.name}`, or DAG mirror_replicate."


def _under_way(ended: Ended) -> Iterator[str]:
    run, mirror = ended.run, ended.mirror
    verb = f"mirrorbook {run.plan.kind}"
    at = standing_of(run, ended.steps)
    newest = max(ended.steps, key=lambda one: one.started_ms, default=None)
    failed = newest is not None and newest.state is StepState.FAILED
    where = f"step {at.step}" if at.step else "its first step"
    yield f"Run {run.id} has not ended: {where} {'failed' if failed else 'is its place now'}."
    yield _writers(ended, at.writes)
    heard = ended.conducted.sign is Sign.HEARD
    if heard:
        yield f"It is {ended.conducted}."
    if run.state is RunState.ABORTING:
        yield f"Next: {'wait' if heard else f'`{verb} resume {mirror.name}` finishes the abort'}."
        return
    if ended.lifted_denials:
        yield f"Next: `{verb} abort {mirror.name}`, then plan again: this run cannot go on."
        return
    goes_on = f"`{verb} resume {mirror.name}` goes on"
    if ended.returned:
        goes_on = (
            f"`{verb} resume {mirror.name} --leave-behind` goes on, and what was not copied stays on {mirror.source}"
        )
    ways = ["wait" if heard else goes_on]
    if not ended.turned:
        ways.append(f"`{verb} abort {mirror.name}` {_undoes(ended, at.writes)}")
    yield f"Next: {'; '.join(ways)}."
    if run.plan.kind is RunKind.FAILOVER and run.plan.mode is Mode.PLANNED and not ended.turned:
        yield f"If {mirror.source} is lost: `{verb} run {mirror.name} --mode unplanned` goes on from here."
    if ended.turned:
        yield f"There is no abort: {point_of_no_return(run.plan.kind, run.plan.mode)} has begun."


def _writers(ended: Ended, writes: Writes) -> str:
    mirror, run = ended.mirror, ended.run
    if writes is not Writes.NOWHERE:
        cluster = mirror.source if writes is Writes.SOURCE else mirror.destination
        if led_home(run, ended.steps):
            back = reverse_name(mirror.name)
            return (
                f"Failover {back} moves applications home: `mirrorbook failover status {back}` says where they write."
            )
        return f"Applications write on {cluster}."
    if ended.turned:
        return f"Some applications may write on {mirror.destination} already, others nowhere: rights may be half given."
    if ended.returned:
        fenced = debt_standing(ended.debt) is Standing.STANDS
        return (
            f"NOBODY CAN WRITE these topics on {mirror.destination}: it is not promoted yet, since {mirror.source} "
            f"answered again and may have records that were not copied. {mirror.source} {'is' if fenced else 'is NOT'} "
            "fenced."
        )
    if run.plan.mode is Mode.UNPLANNED:
        return (
            f"NOBODY CAN WRITE these topics on {mirror.destination}: it is not promoted yet. {mirror.source} is given "
            "up: what it still takes is lost."
        )
    if ended.lifted_denials:
        return (
            f"Applications can write on {mirror.source}: {ended.lifted_denials} denials of this run's fence are gone "
            f"there. {mirror.destination} is not promoted."
        )
    fence = next((step for step in ended.steps if step.step == "fence" and step.state is StepState.DONE), None)
    if fence is not None and fence.evidence.get("authorizer") is False and "fence_command" not in fence.evidence:
        return (
            f"Nothing keeps applications from writing: {mirror.source} has no authorizer. Keep them stopped: what they "
            f"write there now is not copied, and {mirror.destination} is not promoted yet."
        )
    fenced = fence is not None
    return (
        f"NOBODY CAN WRITE these topics: {mirror.source} {'is' if fenced else 'may be'} fenced, and "
        f"{mirror.destination} is not promoted yet."
    )


def _undoes(ended: Ended, writes: Writes) -> str:
    if ended.run.plan.kind is RunKind.FAILOVER and writes is Writes.NOWHERE:
        return f"lets applications write on {ended.mirror.source} again"
    return "gives it up, and nothing changes"


def _evidence(ended: Ended, step: str, what: str) -> str:
    found = next((s.evidence.get(what) for s in ended.steps if s.step == step), None)
    return "" if found in (None, "none") else str(found)


def unknown(mirror: Mirror) -> tuple[str, ...]:
    return (
        f"{mirror.destination} does not answer, so how far the run came is not known here: `mirrorbook failover status "
        f"{mirror.name}` tells when it does.",
        f"If {mirror.source} was fenced, nobody can write now. If {mirror.destination} is lost, `mirrorbook cluster "
        f"unfence {mirror.source} --from FILE` opens {mirror.source} again; step fence has printed FILE.",
    )
