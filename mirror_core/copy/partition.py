"""One partition's replicator: its state, and the parts that it is made of.

What happens to it are events; each part writes only itself, and nobody else writes any of them:

    place      next offset to put into line, and to be acknowledged    place.py
    outbox     batches, gaps and hidden records that wait in line      outbox.py
    gaps       whose right it is to fill gaps                          ownership.py
    source     what the source has said, or keeps silent about         source.py
    tally      counts for the receipt                                  tally.py
    deletions  what the source deleted before it was copied            deletions.py

No I/O; the clock is given. Which state follows which is in `states.py`.
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
    """A partition being copied."""

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
        """`hides`: gaps are used up by hidden records, which go the way of data, and not by markers. `waiting`: of all
        partitions of a task together, as is `awake` (`CopyTask`). `told`: a driver hears of deletions, and answers."""
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
        """Something may be sent: it is READY or ENDING."""
        self.beside = False
        """Beside the loop its gap is being filled (`gap_case.py`) or its logs are looked into, or were (`align.py`)."""
        self.lost_why = ""
        """For people: what made it lose its place, or keeps it from finding it."""
        self.misled: ClusterName | None = None
        """The cluster whose brokers call one its leader that did not turn out to be it; None: that is not why."""
        self.losses = 0
        """Since something was acknowledged."""
        self.look_at = 0.0
        """Monotonic time before which it is not looked at again."""
        self.source_broker = -1
        self.source_epoch = -1
        self.destination_broker = -1
        self.aligned: Aligned | None = None
        """Under which leader of the source the copy was last seen to agree with it."""
        self.end_unseen = False
        """Nothing vouches for the end of the destination's log: it is looked at once there is something to copy."""
        self.doubted: int | None = None
        """From this offset on the destination may hold what an older history of the source had there: a request of that
        time may have waited in a socket. ANYWHERE: nobody knows since where."""
        self.failure: Failure | None = None
        """Why it has failed; in state ENDING, why it will."""
        self._clock, self._awake = clock, set() if awake is None else awake
        self._awake.add(self)

    # -- what others ask -----------------------------------------------------------------------------------------

    @property
    def records(self) -> int:
        """Copied since the first place that was taken up."""
        return 0 if (first := self.tally.first) is None else self.place.acknowledged - first - self.tally.gaps

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def finished(self) -> bool:
        """Nothing more is to be put into line."""
        until = self.assigned.until
        if self.state is State.ENDING or until is None or self.place.position < until:
            return self.state is State.ENDING
        # Before markers fill the last gap, its true end must be known, also where that is further than `until`.
        last = self.outbox.items[-1] if self.outbox.items else None
        return self.hides or not isinstance(last, Gap) or self.gaps.owned or self.gap_known

    @property
    def fetchable(self) -> bool:
        """More may be asked of the source."""
        place = self.place
        return self.working and not self.finished and not (place.seeding or place.first_waits or self.outbox.full)

    @property
    def awaits(self) -> bool:
        """Whether the newest Fetch's answer is still of use."""
        return self.fetchable and self.source.asked == self.place.position

    @property
    def gap(self) -> Gap | None:
        """The gap that is to be filled now: all before it is acknowledged."""
        due = self.working and not self.place.in_flight and not self.place.seeding
        return self.outbox.first_gap if due else None

    @property
    def gap_known(self) -> bool:
        """Whether the first gap's end is its true end, further than which nobody can have begun to fill it."""
        readable = self.source.readable_end
        return len(self.outbox.items) > 1 or (readable is not None and self.place.position >= readable)

    @property
    def sendable(self) -> bool:
        """Whether the first thing in line is a batch that may be sent."""
        items = self.outbox.items
        if not items or not self.working or isinstance(items[0], Gap):
            return False
        return self.place.proven or not self.place.in_flight

    @property
    def vouched_epoch(self) -> int | None:
        """Leader epoch of the source under which the copy was last known to agree with it."""
        return self.aligned.source_epoch if self.aligned else self.assigned.source_epoch

    @property
    def answered(self) -> bool:
        """Whether it has heard the answers to all that it has sent."""
        return not self.place.in_flight and not self.beside and self.state is not State.LOST

    def due(self) -> bool:
        """Whether its place is to be looked for now."""
        return self.state is State.LOST and not (self.place.in_flight or self.beside) and self._clock() >= self.look_at

    # -- its state -----------------------------------------------------------------------------------------------

    def lose(self, why: str, misled: ClusterName | None = None) -> None:
        """Its place must be found anew; at once at first, then less often, while nothing comes through."""
        self._enter(Event.LOST)
        _log.info("its place is looked for anew: %s", why, partition=self.partition)
        self.lost_why, self.misled = why, misled
        self.look_at = self._clock() + min(_LOOK_AGAIN_S * (2.0**self.losses - 1), _LOOK_AGAIN_AT_MOST_S)
        self.losses = min(self.losses + 1, 10)

    def sought(self, *, beside: bool) -> None:
        """Its leaders are being asked, `beside` the loop; or have been."""
        self.beside = beside

    def wait(self, why: str, *, beside: bool = False) -> None:
        """Its place is not to be taken up yet; or looked for, while its logs are looked into `beside` the loop."""
        self.lost_why, self.misled, self.beside = why, None, beside
        self.look_at = self._clock() + _LOOK_AGAIN_S

    def not_sent(self) -> None:
        """Something was taken out of line and not sent after all."""
        self._enter(Event.LOST)

    def disconnected(self, why: str) -> None:
        """The outcome of what was in flight is unknown, and will not be told."""
        self.place.disconnected()
        self.source.disconnected()
        if self.working:  # a broker that hangs up on all that it is sent is tried less often, as one that refuses it
            self.lose(why)
        elif not self.ended:
            self.lost_why = why

    def fail(self, reason: str, offset: int | None, kind: FailureKind, needs_bytes: int | None = None) -> None:
        """Stop at once."""
        self._enter(Event.FAIL)
        self.failure = self._failure(reason, offset, kind, needs_bytes)

    def end(self, reason: str, offset: int, kind: FailureKind = FailureKind.OTHER) -> None:
        """Fail at this offset, after all before it has been acknowledged."""
        self._enter(Event.BAD)
        self.failure = self._failure(reason, offset, kind)

    def shifted(self, reason: str, offset: int) -> None:
        """Offsets on the destination are not the source's any more, whatever else went wrong before."""
        self._enter(Event.SHIFTED)
        self.failure = self._failure(reason, offset, FailureKind.FOREIGN)

    def settle(self) -> None:
        """Take in that everything put into line may have been acknowledged."""
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
        """What is on the destination from there on is compared before its place is taken up again."""
        self.doubted = since if self.doubted is None else min(since, self.doubted)

    # -- its place -----------------------------------------------------------------------------------------------

    def route(self, source_broker: int, source_epoch: int, destination_broker: int) -> None:
        """Take in who leads it, on both sides."""
        self.source_broker, self.source_epoch = source_broker, source_epoch
        self.destination_broker = destination_broker

    def agreed(self) -> None:
        """The source, under its present leader, holds what was copied."""
        self.doubted = None
        self.aligned = Aligned(partition=self.partition, source_epoch=self.source_epoch)

    def resume_at(
        self, resume: Resume, *, unremembered: bool = False, end_unseen: bool = False, asked: float | None = None
    ) -> None:
        """Take up copying where the destination's log ends. `unremembered`: its leader knows nothing of us. `asked`: it
        was asked after this monotonic time; None: just now."""
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
        """Put a batch into line, readdressed with the place's sequence. True when it is to be sent at once, where it
        is; what waits is copied."""
        place, outbox = self.place, self.outbox
        self._begins()
        at_once = not outbox.items and (place.proven or place.first_is_next)
        place.took(sent.records)
        outbox.saw(sent.newest_ms)
        if not at_once:
            outbox.put(sent, batch)
        return at_once

    def skip_to(self, end: int) -> None:
        """Put [position, end) into line as a gap, one with the gap before it."""
        if self.hides:
            self._begins()
            self.outbox.hide_to(self.place.position, end, self.place.sequence)
            self.place.took(end - self.place.position)
        else:
            self.place.skip_to(end)
            self.outbox.mark_to(end)

    def _begins(self) -> None:
        """Something is about to be put into line that counts in the sequence."""
        if self.place.first_is_next and not self.outbox.items:
            self.place.idle(self._clock())

    # -- to the destination --------------------------------------------------------------------------------------

    def take(self) -> Hidden | Ready:
        """Take the first thing out of line, which is not a gap for markers."""
        return self.outbox.take()

    def keep(self, sent: Sent, batch: memoryview) -> None:
        """It cannot be sent now: it waits in line again, and goes out before what is behind it."""
        self.outbox.keep(sent, batch)

    def acknowledge(self, sent: Sent) -> bool:
        """A batch is in the log, at its own offset. True when seeds have landed, none is in flight any more, and they
        are to be deleted; `settle` is for the caller then."""
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
        """A round of filling begins, about the gap that is to be filled now."""
        gap = self.gap
        assert gap is not None
        self.beside = True
        return GapCase(self.partition, self.place, self.gaps, gap.end, end_known=self.gap_known, clock=self._clock)

    def round_ended(self, case: GapCase) -> None:
        """Take in what has come of it. Meanwhile its place may have been lost by what the source said."""
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
        """Its end is not waited for: what it has sent may be in the log, now or later."""
        self.beside = False
        if case.sent:
            self.gaps.sending(case.gaps.newest)
