"""One partition's replicator. Events happen to it; each part writes only itself. No I/O; the clock is
given.

    progress   next offset to enqueue, and to be acknowledged    partition_progress.py
    queue      batches and gaps to send                          send_queue.py
    gap_claim  the right to fill gaps                            gap_claim.py
    source     what the source reported                         source_log.py
    counts     counts for the receipt                            partition_progress.py
    trims      ranges trimmed before they were copied            source_log.py

Transitions are in `partition_states.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from mirror_core.copy.deletions import Deletions
from mirror_core.copy.gap_case import GapCase
from mirror_core.copy.outbox import Gap, Hidden, Outbox, Ready, Sent, Waiting
from mirror_core.copy.ownership import GapOwnership
from mirror_core.copy.place import Place
from mirror_core.copy.source import SourceProbe
from mirror_core.copy.states import ENDED, WORKING, Event, State, after
from mirror_core.copy.tally import Tally
from mirror_core.decide.position import Resume
from mirror_core.model.copying import Aligned, Assigned, Failure
from mirror_core.model.logs import logger
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.wire.batch import SEQUENCE_MASK

_log = logger(__name__)

_LOOK_AGAIN_S: Final = 0.02
_LOOK_AGAIN_AT_MOST_S: Final = 1.0


class PartitionReplicator:
    def __init__(
        self,
        assigned: Assigned,
        *,
        hides: bool = False,
        waiting: Waiting | None = None,
        awake: set[PartitionReplicator] | None = None,
        clock: Callable[[], float] = time.monotonic,
        told: bool = False,
    ) -> None:
        """`hides`: gaps are used up by hidden records instead of markers. `waiting`, `awake`: shared by a
        task's partitions (`CopyTask`). `told`: a driver responds."""
        self.assigned = assigned
        self.hides = hides
        self.partition: Final[Partition] = assigned.partition
        self.place = Place()
        self.outbox = Outbox(waiting or Waiting())
        self.gaps = GapOwnership()
        self.source = SourceProbe()
        self.tally = Tally()
        self.deletions = Deletions(assigned.counted, clock, told=told)
        self.state = State.LOST
        self.working = False
        self.beside = False
        self.lost_why = ""
        self.misled: ClusterName | None = None
        """The cluster whose metadata named a broker that turned out not to lead it."""
        self.losses = 0
        self.look_at = 0.0
        self.source_broker = -1
        self.source_epoch = -1
        self.destination_broker = -1
        self.aligned: Aligned | None = None
        self.end_unseen = False
        """The end of the destination's log is not confirmed; it is checked once there is something to copy."""
        self.doubted: int | None = None
        """From here on the destination may hold an older history of the source: an old request may have waited
        in a socket. ANYWHERE: start unknown."""
        self.failure: Failure | None = None
        self._clock, self._awake = clock, set() if awake is None else awake
        self._awake.add(self)

    # -- queries -----------------------------------------------------------------------------------------

    @property
    def records(self) -> int:
        return 0 if (first := self.tally.first) is None else self.place.acknowledged - first - self.tally.gaps

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def finished(self) -> bool:
        until = self.assigned.until
        if self.state is State.ENDING or until is None or self.place.position < until:
            return self.state is State.ENDING
        # The last gap's true end must be known before markers fill it, even beyond `until`.
        last = self.outbox.items[-1] if self.outbox.items else None
        return self.hides or not isinstance(last, Gap) or self.gaps.owned or self.gap_known

    @property
    def fetchable(self) -> bool:
        place = self.place
        return self.working and not self.finished and not (place.seeding or place.first_waits or self.outbox.full)

    @property
    def awaits(self) -> bool:
        return self.fetchable and self.source.asked == self.place.position

    @property
    def gap(self) -> Gap | None:
        due = self.working and not self.place.in_flight and not self.place.seeding
        return self.outbox.first_gap if due else None

    @property
    def gap_known(self) -> bool:
        """Whether nobody can have filled further than the first gap's end."""
        readable = self.source.readable_end
        return len(self.outbox.items) > 1 or (readable is not None and self.place.position >= readable)

    @property
    def sendable(self) -> bool:
        items = self.outbox.items
        if not items or not self.working or isinstance(items[0], Gap):
            return False
        return self.place.proven or not self.place.in_flight

    @property
    def vouched_epoch(self) -> int | None:
        return self.aligned.source_epoch if self.aligned else self.assigned.source_epoch

    @property
    def answered(self) -> bool:
        return not self.place.in_flight and not self.beside and self.state is not State.LOST

    def due(self) -> bool:
        return self.state is State.LOST and not (self.place.in_flight or self.beside) and self._clock() >= self.look_at

    # -- state -----------------------------------------------------------------------------------------------

    def lose(self, why: str, misled: ClusterName | None = None) -> None:
        """It must be aligned again; at once first, then with backoff while nothing is acknowledged."""
        self._enter(Event.LOST)
        _log.info("its place is looked for anew: %s", why, partition=self.partition)
        self.lost_why, self.misled = why, misled
        self.look_at = self._clock() + min(_LOOK_AGAIN_S * (2.0**self.losses - 1), _LOOK_AGAIN_AT_MOST_S)
        self.losses = min(self.losses + 1, 10)

    def sought(self, *, beside: bool) -> None:
        self.beside = beside

    def wait(self, why: str, *, beside: bool = False) -> None:
        self.lost_why, self.misled, self.beside = why, None, beside
        self.look_at = self._clock() + _LOOK_AGAIN_S

    def not_sent(self) -> None:
        self._enter(Event.LOST)

    def disconnected(self, why: str) -> None:
        self.place.disconnected()
        self.source.disconnected()
        if self.working:  # backoff, as for a broker that refuses
            self.lose(why)
        elif not self.ended:
            self.lost_why = why

    def fail(self, reason: str, offset: int | None, kind: FailureKind, needs_bytes: int | None = None) -> None:
        self._enter(Event.FAIL)
        self.failure = self._failure(reason, offset, kind, needs_bytes)

    def end(self, reason: str, offset: int, kind: FailureKind = FailureKind.OTHER) -> None:
        self._enter(Event.BAD)
        self.failure = self._failure(reason, offset, kind)

    def shifted(self, reason: str, offset: int) -> None:
        self._enter(Event.SHIFTED)
        self.failure = self._failure(reason, offset, FailureKind.FOREIGN)

    def settle(self) -> None:
        until, acknowledged = self.assigned.until, self.place.acknowledged
        if self.working and until is not None and acknowledged >= until:
            self.failure = None
            self._enter(Event.REACHED)
        elif self.state is State.ENDING and acknowledged == self.place.position:
            self._enter(Event.ACKNOWLEDGED)

    def _failure(self, reason: str, at: int | None, kind: FailureKind, needs_bytes: int | None = None) -> Failure:
        _log.info("cannot go on (%s): %s", kind, reason, partition=self.partition)
        offset = None if at is None else Offset(at)
        return Failure(partition=self.partition, reason=reason, offset=offset, kind=kind, needs_bytes=needs_bytes)

    def _enter(self, event: Event) -> None:
        self.state = after(self.state, event)
        self._awake.add(self)
        self.working = self.state in WORKING
        if not self.working:
            self.outbox.drop()
        if self.state is State.LOST:
            self.failure = None

    def doubt(self, since: int) -> None:
        self.doubted = since if self.doubted is None else min(since, self.doubted)

    # -- position -----------------------------------------------------------------------------------------------

    def route(self, source_broker: int, source_epoch: int, destination_broker: int) -> None:
        self.source_broker, self.source_epoch = source_broker, source_epoch
        self.destination_broker = destination_broker

    def agreed(self) -> None:
        self.doubted = None
        self.aligned = Aligned(partition=self.partition, source_epoch=self.source_epoch)

    def resume_at(
        self, resume: Resume, *, unremembered: bool = False, end_unseen: bool = False, asked: float | None = None
    ) -> None:
        """Resumes at the destination's log end.

        `unremembered`: its leader has no producer state of ours. `asked`: monotonic time before it was requested; None:
        now.
        """
        place, self.end_unseen = self.place, end_unseen
        records = (resume.sequence - place.acknowledged_sequence) & SEQUENCE_MASK
        self.tally.resume_at(
            resume, was=place.acknowledged, records=records, seeding=place.seeding, hiding=self.outbox.hiding
        )
        place.resume(resume, self._clock() if asked is None else asked, unremembered=unremembered)
        self.outbox.resume(resume.newest_ms)
        self.source.resume()
        if resume.gap_end > resume.offset:
            self.skip_to(resume.gap_end)
        self._enter(Event.ALIGNED)
        _log.debug("agrees up to %d, epoch %s", resume.offset, self.source_epoch, partition=self.partition)
        self.lost_why, self.misled = "", None
        self.settle()

    # -- from the source -----------------------------------------------------------------------------------------

    def put(self, sent: Sent, batch: memoryview) -> bool:
        """Enqueues a batch with our sequence. True when it is to be sent now, in place; otherwise it is
        copied."""
        place, outbox = self.place, self.outbox
        self._begins()
        at_once = not outbox.items and (place.proven or place.first_is_next)
        place.took(sent.records)
        outbox.saw(sent.newest_ms)
        if not at_once:
            outbox.put(sent, batch)
        return at_once

    def skip_to(self, end: int) -> None:
        if self.hides:
            self._begins()
            self.outbox.hide_to(self.place.position, end, self.place.sequence)
            self.place.took(end - self.place.position)
        else:
            self.place.skip_to(end)
            self.outbox.mark_to(end)

    def _begins(self) -> None:
        if self.place.first_is_next and not self.outbox.items:
            self.place.idle(self._clock())

    # -- to the destination --------------------------------------------------------------------------------------

    def take(self) -> Hidden | Ready:
        return self.outbox.take()

    def keep(self, sent: Sent, batch: memoryview) -> None:
        self.outbox.keep(sent, batch)

    def acknowledge(self, sent: Sent) -> bool:
        """The batch is in the log at its offset. True when all seeds in flight have arrived and are to be
        deleted; the caller then calls `finish_if_acknowledged`."""
        self.losses = 0
        self.place.acknowledge(sent.records)
        if sent.content is not None:
            self.tally.sent(sent)
        else:
            self.tally.filled(sent.records)
            if self.place.acknowledged <= self.place.seed_end:
                return not self.place.in_flight
            self.outbox.hid()
        if self.assigned.until is not None or self.state is State.ENDING:
            self.settle()
        return False

    # -- gaps ----------------------------------------------------------------------------------------------------

    def begin_round(self) -> GapCase:
        gap = self.gap
        assert gap is not None
        self.beside = True
        return GapCase(self.partition, self.place, self.gaps, gap.end, end_known=self.gap_known, clock=self._clock)

    def round_ended(self, case: GapCase) -> None:
        self.beside = False
        self.gaps.take_in(case.gaps, sent=case.sent)
        self.place.ends_there(case.known_at)
        if case.filled:
            self.losses = 0
            self.place.filled(case.filled, case.filled_at)
            self.tally.filled(case.filled)
            self.outbox.filled_to(self.place.acknowledged)
            self.settle()
        if case.refusal is not None and not self.ended:
            self.fail(*case.refusal)
        elif case.lost_why and self.working:
            self.lose(case.lost_why)

    def round_left(self, case: GapCase) -> None:
        self.beside = False
        if case.sent:
            self.gaps.sending(case.gaps.newest)
