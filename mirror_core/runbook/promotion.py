"""What every failover ends with: record the LMO, promote, switch, canary, report.

Nothing here needs the source. Each step may be repeated after a crash at any point.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Final

from mirror_core.decide.failover import bound_of, broken_since, changed_since
from mirror_core.decide.offsets import left_in_words
from mirror_core.decide.scope import Scope
from mirror_core.decide.steps import point_of_no_return
from mirror_core.decide.view import SourceView, Unseen, some
from mirror_core.evidence.run_report import write_run_report
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import Point, known_offsets, list_offsets
from mirror_core.model.drift import Action, DriftRow, Part
from mirror_core.model.errors import Indeterminate, MirrorError, Refused, Unreachable
from mirror_core.model.limits import LIMITS
from mirror_core.model.mirror import Desired, Lease, Mirror, PartitionStatus
from mirror_core.model.mirror import PartitionState as State
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import Evidence, Mode, RunKind, short_hash
from mirror_core.runbook import counting
from mirror_core.runbook.acts import Acts
from mirror_core.runbook.canary import run_canary
from mirror_core.runbook.checkpoints import LeftBehind, all_left, left_by
from mirror_core.runbook.last_look import EVIDENCE, Look
from mirror_core.runbook.observe import observe
from mirror_core.runbook.switch import switch
from mirror_core.state.lease import taken_for_run
from mirror_core.state.records import PartitionRecord, Record
from mirror_core.state.table import Event, after
from mirror_core.state.turning import LastLook, turned
from mirror_core.state.writer import StateWriter
from mirror_core.sync.access import apply_promotion
from mirror_core.sync.closing_commands import closable
from mirror_core.sync.closings import Opened
from mirror_core.sync.shutting import destination_opened_through

LOOKS: Final = 3


class Promotion(Acts):
    __slots__ = ()

    @property
    def scope(self) -> Scope:
        return left_by(self.journal, "begin", Scope)

    def leased(self, step: str) -> AbstractContextManager[tuple[StateWriter, Lease]]:
        begun = self.journal.record(step)
        assert begun is not None
        run = owner(self.journal.run_id)
        return taken_for_run(self.link.destination, self.link.mirror.name, run, self.writer, begun)

    @property
    @abstractmethod
    def positions(self) -> dict[Partition, Offset]:
        """Destination log ends (next offset) at which an earlier step saw partitions stable."""

    @property
    def left_behind(self) -> Mapping[Partition, LeftBehind]:
        return {}

    @abstractmethod
    def lost(self) -> tuple[int | None, str]:
        """(offsets acknowledged by the source and missing here, how known)"""

    def certify(self) -> Evidence:
        return {}

    @abstractmethod
    def check_before_promotion(self) -> Look:
        """Probe the source. Refused if it contradicts, while an abort is possible."""

    @abstractmethod
    def fenced_now(self) -> Evidence:
        """Apply a pending fence, or reapply a lifted one."""

    def act(self, name: str) -> Callable[[], Evidence]:
        """From promotion on, each step checks the fence first.

        A source that answers must not accept writes beside the destination.
        """
        action, steps, run = super().act(name), self.journal.steps, self.journal.run
        turning = point_of_no_return(RunKind.FAILOVER, run.plan.mode)
        if steps.index(name) < steps.index(turning):
            return action
        if name == turning and not turned(self.writer.state, run):
            return partial(self._promote_first, self._last_look())

        def behind_the_fence() -> Evidence:
            fenced = self.fenced_now()
            return {**action(), **fenced}

        return behind_the_fence

    def _last_look(self) -> Look:
        look = self.check_before_promotion()
        self.journal.keep("promote", LastLook(words=look.words))
        return look

    def _promote_first(self, look: Look) -> Evidence:
        """Repeats a probe older than `TIMEOUTS.promotion_probe_max_age_s`: it proves nothing any more."""
        fenced = self._fenced_by(look)

        def giving() -> None:
            nonlocal look, fenced
            for _ in range(LOOKS):
                if look.began.age_s > LIMITS.last_look_s:
                    look = self._last_look()
                    fenced |= self._fenced_by(look)
                self.journal.keep("promote", LastLook(words=look.words, given=True))
                if look.began.age_s <= LIMITS.last_look_s:
                    return
                self.journal.keep("promote", LastLook(words=look.words))
            raise MirrorError(
                f"run {self.journal.run_id}: {LOOKS} looks at {self.link.source.name} were older than "
                f"{LIMITS.last_look_s:.0f} s before the first right could be given: resume the run on a machine that "
                "does not sleep"
            )

        done = self._give(giving)
        return {**done, EVIDENCE: look.words, **fenced}

    def _fenced_by(self, look: Look) -> dict[str, str | int | float | bool | None]:
        return {} if look.fenced or not look.answers else {**self.fenced_now()}

    @abstractmethod
    def standing(self) -> Iterator[Record]: ...

    def check_approval(self, what: str, *, source_needed: bool) -> bool:
        """Refused if the approval no longer holds. Returns whether a planned run saw the source."""
        approved = self.journal.run.plan
        view = observe(self.link, self.writer.state, approved.mode, offsets=False, fences=source_needed)
        view = replace(view, left=frozenset(self.scope.left))
        seen = approved.mode is Mode.PLANNED and isinstance(view.source, SourceView)
        reasons = changed_since(approved.bound, bound_of(view), source_seen=seen)
        if source_needed and not reasons and isinstance(view.source, Unseen):
            name = self.link.source.name
            raise Unreachable(
                f"run {self.journal.run_id}: {what}: {view.source.reason}; resume the run when {name} answers. "
                f"If it is lost: `mirrorbook failover run {self.link.mirror.name} --mode unplanned` goes on from here"
            )
        reasons += broken_since(view, source_seen=seen or source_needed)
        if reasons:
            raise Refused(
                f"run {self.journal.run_id}: {what}, since the approved plan ({short_hash(approved.hash)}) is no "
                "longer valid; abort this run and plan again",
                reasons,
            )
        return seen

    def record_lmo(self) -> Evidence:
        """Stop all partitions atomically, with the destination's log end as LMO.

        An offline or deleted one gets no LMO; failback finds out what it holds. One left behind stops at its high
        watermark: its leader may lose what is beyond, and later writes there must not count as the source's.
        """
        statuses, positions, left = self.statuses(), self.positions, self.left_behind
        with ClusterClient(self.link.destination) as destination:
            ends = list_offsets(destination, positions, Point.LOG_END)
            moved = [f"{p} from {before} to {ends[p]}" for p, before in positions.items() if ends[p] != before]
            grown = known_offsets(destination, left, Point.LOG_END)
            moved += [
                f"{p} from {left[p].end} to {end}"
                for p, end in grown.items()
                if not (left[p].high or 0) <= end <= left[p].end
            ]
            if moved:
                raise MirrorError(
                    f"cluster {destination.name}: somebody has written mirror topics since they stood still: "
                    f"{some(moved)}. Find out who may, abort the run, and plan again"
                )
            ends |= known_offsets(destination, statuses.keys() - positions.keys() - left.keys(), Point.LOG_END)
            ends |= {p: one.high for p, one in left.items() if one.high is not None}
        mirror = self.writer.state.mirrors[self.link.mirror.name]
        self.writer.put(*stopped(mirror, statuses, ends), *self.standing())
        unknown = sorted(p for p, s in self.statuses().items() if s.lmo is None)
        return {
            "partitions": len(statuses) - len(unknown),
            **({"without_offset": f"{len(unknown)}: {some(unknown)}"} if unknown else {}),
        }

    def groups_left(self, rows: Collection[DriftRow]) -> Evidence:
        left = self.writer.state.groups_left.get(self.link.mirror.name)
        there = {row.subject for row in rows if row.part is Part.GROUPS and isinstance(row.offset, int)}
        found = (
            [u for u in left.uncommitted if u.stands is not None or f"{u.group} {u.partition}" not in there]
            if left
            else []
        )
        words, others = left_in_words(found), some(left.others) if left else ""
        return {
            **({"offsets_not_committed": words} if words else {}),
            **({"groups_not_synced": others} if others else {}),
        }

    def promote(self) -> Evidence:
        """The point of no return, repeated: some applications may write already."""
        return {**self._give(lambda: None), **self._looked_before()}

    def _looked_before(self) -> Evidence:
        try:
            look = self.journal.kept("promote", LastLook)
        except Indeterminate:
            return {}
        return {} if look is None else {EVIDENCE: look.words}

    def _give(self, before: Callable[[], None]) -> Evidence:
        lost = self.journal.run.plan.mode is Mode.UNPLANNED
        rows = apply_promotion(
            self.link, self.writer, self.scope.names, ask_source=not lost, before=before, open_to=self._open_to
        )
        return counted(rows)

    def _open_to(self, topics: Collection[str]) -> bool:

        def note() -> None:
            self.journal.keep("promote", Opened(cluster=self.link.destination.name))

        where = closable(self.link, self.link.destination.name, self.journal.run_id, topics)
        return destination_opened_through(self.link, where, note)

    def switch(self) -> Evidence:
        return switch(self.link, self.journal, by_airflow=self.services.by_airflow)

    def canary(self) -> Evidence:
        note = f"run {self.journal.run_id}"
        return run_canary(self.link.destination, self.link.mirror.name, note, self.scope.names)

    def report(self) -> Evidence:
        lost = self.lost()
        debt = self.writer.state.debts.get(self.link.mirror.name)
        ask = self.journal.run.plan.mode is Mode.PLANNED or (debt is not None and debt.paid_ms is not None)
        found = counting.counted(self.link, self.journal, lost, ask=ask)
        self.writer.put(replace(self.journal.run, counted=found))
        steps = [r for r in (self.journal.record(name) for name in self.journal.steps) if r and r.step != "report"]
        folder, left = self.services.run_dir(self.journal.run_id), all_left(self.journal)
        run, sides = self.journal.run, (self.link.source.name, self.link.destination.name)
        proof, told = self.certify(), self.writer.state.chronicle(run.id)
        page = write_run_report(folder, run, steps, self.statuses(), left, sides=sides, told=told, proof=proof)
        return {"report": str(page), **counting.in_words(found), **proof}


def owner(run_id: str) -> str:
    return f"run:{run_id}"


def stopped(
    mirror: Mirror, statuses: Mapping[Partition, PartitionStatus], ends: Mapping[Partition, Offset]
) -> Iterator[Record]:
    yield replace(mirror, desired=Desired.STOPPED)
    for partition, status in statuses.items():
        if status.state is State.STOPPED:
            continue
        begun = {State.UNKNOWN: (Event.START, Event.STOP), State.STOPPING: ()}.get(status.state, (Event.STOP,))
        state = after(status.state, *begun, Event.LMO_RECORDED)
        yield PartitionRecord(mirror.name, replace(status, state=state, lmo=ends.get(partition)))


def counted(rows: tuple[DriftRow, ...] | list[DriftRow]) -> Evidence:
    counts = {f"{action}": sum(r.action is action for r in rows) for action in Action}
    skipped = [f"{r.part} {r.subject}: {r.reason}" for r in rows if r.action in (Action.SKIP, Action.REFUSE)]
    return {**{k: v for k, v in counts.items() if v}, "not_done": some(skipped) or "none"}
