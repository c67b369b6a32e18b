"""A copier of one partition without I/O: the product's own decisions, one question or request at a time.

What a task does in its loop, and in rounds of filling meanwhile, is done here a move at a time, so that another copier,
the broker and the clock come between: `rewrite_fetched_batches`, `PartitionReplicator`, `GapRound`, `ResumeDecider` and
`handle_produce_response` are the real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from mirror_core.copy.batch_builder import PRODUCER_EPOCH, merge_tiny_batches, rewrite_fetched_batches
from mirror_core.copy.gap_filler import GapRound, GapRoundResponse, LogEndQuery, MarkerWrite
from mirror_core.copy.gap_ownership import GapFillState
from mirror_core.copy.log_ends import explain_unstable_end
from mirror_core.copy.messages import ClusterSide
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.partition_states import CopyState
from mirror_core.copy.response_errors import handle_produce_response
from mirror_core.copy.send_queue import HiddenGap, ReadyBatch
from mirror_core.decide.gaps_and_resume import MAX_ATTEMPT, BothLogBounds, OwnProducerState
from mirror_core.kafka.error_mapping import ErrorCode
from mirror_core.model.names import Offset, Partition
from mirror_core.model.task_messages import PartitionAssignment
from mirror_core.wire.batch import readdress
from mirror_core.wire.batch_encoder import build_batch, encode_record, encode_varint
from mirror_core.wire.fetch import FetchedPartition
from mirror_core.wire.produce import ProducedPartition
from mirror_core.wire.records import Codec, Record
from tests.support.model_broker import Broker, Connection, LogEnd, Markers, Produce
from tests.support.resume_decisions import EAST, WEST, decide

PARTITION = Partition("orders", 0)
PRODUCER = 1 << 62
STALE_S = 0.1
LONG_S = 0.9
"""A little less than others wait before they take up a gap."""
MS = 1_000
"""Time of all records."""
_BATCHES = 3
"""Of one Fetch answer."""


@dataclass(frozen=True)
class Source:
    """A log: batches of records and stretches without any."""

    parts: tuple[tuple[bool, int], ...]
    """Whether it holds records, and how many offsets."""

    def expected(self) -> list[int | None]:
        """What the copy is to hold at each offset; None: a marker."""
        kinds = [full for full, length in self.parts for _ in range(length)]
        return [offset if full else None for offset, full in enumerate(kinds)]

    def batches(self, position: int, readable: int) -> bytes:
        """The next ones that reach beyond a position, of the first `readable` parts."""
        found, base = list[bytes](), 0
        for full, length in self.parts[:readable]:
            if base + length > position and len(found) < _BATCHES:
                found.append(_batch(base, length, full=full))
            base += length
        return b"".join(found)

    def end(self, readable: int) -> int:
        return sum(length for _, length in self.parts[:readable])


def _batch(base: int, length: int, *, full: bool) -> bytes:
    """A batch as a broker gives it; one that compaction has emptied, where it holds no records."""
    records = b"".join(encode_record(0, n, _content(base + n)) for n in range(length)) if full else b""
    made = build_batch(records, length, Codec.NONE, MS, MS)
    if not full:
        made[57:61] = bytes(4)
    readdress(memoryview(made), -1, -1, -1)
    made[:8] = base.to_bytes(8, "big")
    return bytes(made)


def _content(offset: int) -> bytes:
    key = b"%d" % offset
    return encode_varint(len(key)) + key + b"\x01\0"


def _record(offset: int, came_from: int | None) -> Record | None:
    return None if came_from is None else Record(offset, MS, b"%d" % came_from, None, ())


class ModelLogs:
    """Both logs, as `ResumeDecider` looks into them."""

    def __init__(self, broker: Broker, expected: list[int | None]) -> None:
        self._broker, self._expected = broker, expected

    def find_first_foreign(self, partition: Partition, filled: int, bounds: BothLogBounds) -> int | None:
        return None  # nobody else writes here

    def next_sequence_after_hole(self, partition: Partition, bounds: BothLogBounds) -> int | None:
        return None  # no cleaner works here

    def find_foreign_after_own(
        self, partition: Partition, bounds: BothLogBounds, search_from: int | None
    ) -> int | None:
        return None

    def read_last_record(self, partition: Partition, start: int, end: int) -> Record | None:
        found = [offset for offset in self._expected[:end] if offset is not None]
        return _record(found[-1], found[-1]) if found else None

    def read_record(self, partition: Partition, offset: int) -> Record | None:
        log = self._broker.log
        return _record(offset, log[offset]) if offset < len(log) else None

    def find_first_divergence(
        self, partition: Partition, position: int, agreed_end: int | None, doubted_from: int | None
    ) -> Offset | None:
        here, there = self._broker.log[:position], self._expected
        differs = (n for n in range(agreed_end or 0, len(here)) if here[n : n + 1] != there[n : n + 1])
        return next(map(Offset, differs), None)

    def has_broker_time(self, partition: Partition, offset: int) -> bool:
        return False

    def find_first_retimed(self, partition: Partition, start: int, bounds: BothLogBounds) -> int | None:
        return None  # the broker does not do that


Round = Generator[LogEndQuery | MarkerWrite, GapRoundResponse, None]


class ModelCopier:
    """One task. What it sends lies in its connections until the broker is made to carry it out."""

    def __init__(self, source: Source, broker: Broker, epoch: int, clock: Callable[[], float]) -> None:
        self.epoch = epoch
        self.source, self.broker, self.clock = source, broker, clock
        assigned = PartitionAssignment(partition=PARTITION, source_topic_id="", destination_topic_id="", source_epoch=1)
        self.replicator = PartitionReplicator(assigned, clock=clock)
        self.replicator.set_leaders(1, 1, 1)
        self.logs = ModelLogs(broker, source.expected())
        self.data, self.marks = Connection(), Connection()
        self.spoilt = ""
        """What becomes of its next batch or markers: refused, denied (for good), or unheard (appended all the same)."""
        self.round: Round | None = None
        self.case: GapFillState | None = None
        """What the round works on."""
        self.newcomer_looks = False
        """Between a newcomer's question where the log ends and what it does about the answer."""
        self.filled_at = 0.0
        """When its gap was looked after last."""
        self.slept = False
        """It took up a gap after not having looked after it for as long as others wait."""
        self.wrote = False
        """In this round of filling."""
        self.landed_elsewhere = False
        """It has been told so of one of its batches."""
        self._looks: list[int | OwnProducerState | None] = []
        """Of the alignment that is going on: the log end, what the leader remembers."""
        self._fetched: tuple[int, bytes, int] | None = None

    @property
    def asleep(self) -> bool:
        return self.clock() - self.filled_at > LONG_S

    @property
    def synchronous(self) -> bool:
        """It asks one question after the other: nothing else is done meanwhile."""
        return bool(self._looks)

    @property
    def owned(self) -> bool:
        """Whether the gap is its own, as far as it knows, and all that it has sent is answered."""
        return (self.case or self.replicator).gap_claim.is_owned

    # -- moves ---------------------------------------------------------------------------------------------------

    def align(self, readable: int) -> None:
        """The next question of finding the place, and the verdict after the last one."""
        if not self._looks:
            if self.replicator.is_due():
                self._looks = [len(self.broker.log)]
        elif len(self._looks) == 1:
            self._looks.append(self.broker.ours())
        else:
            (before, ours), after = self._looks, len(self.broker.log)
            self._looks = []
            assert isinstance(before, int)
            assert not isinstance(ours, int)
            why = explain_unstable_end(WEST, PARTITION, before, after, after)
            if why:
                self.replicator.mark_lost(why)
                return
            end = self.source.end(readable)
            seen = BothLogBounds(log_start=0, log_end=after, producer=ours, source_start=0, source_end=end)
            decide(self.logs, self.replicator, seen)

    def fetch(self, readable: int) -> None:
        """Ask the source; its answer may be taken in later."""
        if self._fetched is None and self.replicator.can_fetch:
            position = self.replicator.progress.position
            self.replicator.source.note_fetch(position)
            self._fetched = position, self.source.batches(position, readable), self.source.end(readable)

    def take(self) -> None:
        """Take in the answer to a Fetch, and send what may go at once."""
        if self._fetched is None:
            return
        (_, records, stable), self._fetched = self._fetched, None
        if not self.replicator.awaits_response:
            return
        self.replicator.source.note_end(stable)
        if self.replicator.end_unverified and stable > self.replicator.progress.position:
            self.replicator.mark_lost("there is something to copy")
            return
        answer = FetchedPartition(PARTITION, 0, stable, stable, 0, (), memoryview(bytearray(records)))
        copied = rewrite_fetched_batches(EAST, answer, self.replicator.progress.position)
        for ready in merge_tiny_batches(self.replicator.enqueue_fetched(copied, PRODUCER), PRODUCER):
            self._send(ready)

    def send(self) -> None:
        """Send the first batch in line."""
        if self.replicator.has_sendable_batch:
            item = self.replicator.pop()
            assert not isinstance(item, HiddenGap)
            self._send(item)

    def _send(self, ready: ReadyBatch) -> None:
        if not self.replicator.can_send:
            return
        sent, batch = ready
        self.replicator.progress.add_in_flight(self.clock())
        code = {"refused": ErrorCode.not_enough_replicas, "denied": ErrorCode.message_too_large}.get(self.spoilt)
        self.data.requests.append(Produce(sent, bytes(batch), refusal=code, unheard=self.spoilt == "unheard"))
        self.spoilt = ""

    def answers(self) -> None:
        """Take in the answers that have come for batches."""
        while self.data.answers:
            answer = self.data.answers.popleft()
            assert isinstance(answer, Produce)
            self.landed_elsewhere |= answer.code is ErrorCode.none and answer.base != answer.sent.base_offset
            time_ms = MS if answer.again else -1
            produced = ProducedPartition(PARTITION.topic, PARTITION.index, answer.code.value, answer.base, "", time_ms)
            handle_produce_response(self.replicator, answer.sent, produced, ClusterSide(WEST, "mirror"))
        self.replicator.finish_if_acknowledged()

    def fill(self) -> None:
        """Begin a round of filling, or take in the reply to what it has asked or sent."""
        if self.round is None:
            if self.replicator.due_gap is None:
                return
            self.case = self.replicator.start_gap_round()
            self.round = GapRound(
                destination=ClusterSide(WEST, "mirror"),
                producer_id=PRODUCER,
                producer_epoch=PRODUCER_EPOCH,
                epoch=self.epoch,
                until=float("inf"),
                is_stale=lambda age: age > STALE_S,
                round_trip_s=lambda: 0.0,
                monotonic=self.clock,
                wall=self.clock,
            ).run([self.case])
            self.wrote = False
            self._go_on(self.round, None)
        elif self.marks.answers:
            answer = self.marks.answers.popleft()
            if isinstance(answer, LogEnd):
                reply = GapRoundResponse(ends={PARTITION: (ErrorCode.none, answer.offset)})
            else:
                assert isinstance(answer, Markers)
                reply = GapRoundResponse(codes={(PARTITION.topic, PARTITION.index): answer.code.value})
            self._go_on(self.round, reply)

    def _go_on(self, filling: Round, reply: GapRoundResponse | None) -> None:
        assert self.case is not None
        owned, newest = self.owned, self.case.gap_claim.newest_epoch
        self.newcomer_looks = False
        self.slept |= self.asleep
        self.filled_at = self.clock()
        try:
            request = next(filling) if reply is None else filling.send(reply)
        except StopIteration:
            self.replicator.finish_gap_round(self.case)
            self.round = self.case = None
            return
        if isinstance(request, LogEndQuery):
            self.newcomer_looks = not owned
            self.marks.requests.append(LogEnd())
        else:
            self.slept, self.wrote = False, True
            entries = list(request.entries)
            unheard, self.spoilt = self.spoilt == "unheard", ""
            epoch = entries[0].coordinator_epoch
            owned = epoch == newest or not epoch & MAX_ATTEMPT
            self.marks.requests.append(Markers(epoch, len(entries), owned, unheard=unheard))

    def source_lost(self) -> None:
        """The source's broker hangs up, whatever else is going on."""
        if self.replicator.can_send:
            self._fetched = None
            self.replicator.source.handle_disconnect()
            self.replicator.mark_lost("the source has hung up")

    def disconnected(self) -> list[Connection]:
        """Its connections break; what lies in them is out of its hands."""
        if self.case is not None:
            self.replicator.abandon_gap_round(self.case)
            self.round = self.case = None
        self.newcomer_looks = False
        self._looks = []
        left, self.data, self.marks = [self.data, self.marks], Connection(), Connection()
        self.replicator.handle_disconnect("cut")
        return left

    def leaves(self) -> int | None:
        """The right to fill gaps that it hands on at its end, if it has any."""
        one = self.replicator
        at_rest = not one.progress.in_flight and not one.in_background
        return (
            one.gap_claim.newest_epoch
            if one.gap_claim.is_owned and at_rest and (one.can_send or one.state is CopyState.DONE)
            else None
        )
