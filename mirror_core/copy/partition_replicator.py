"""One partition's replicator. Each part writes only itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from mirror_core.copy.batch_builder import PRODUCER_EPOCH, CopyItem, RewrittenBatch
from mirror_core.copy.gap_ownership import GapClaim, GapFillState
from mirror_core.copy.partition_progress import PartitionProgress, ReceiptCounts
from mirror_core.copy.partition_states import ENDED_STATES, SENDING_STATES, CopyEvent, CopyState, next_state
from mirror_core.copy.send_queue import Gap, HiddenGap, QueueBudget, ReadyBatch, SendQueue, SentBatch
from mirror_core.copy.source_log import SourceLogState, TrimTracker
from mirror_core.decide.gaps_and_resume import ResumePoint
from mirror_core.model.logs import get_logger
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.model.task_messages import AlignedPartition, PartitionAssignment, PartitionFailure
from mirror_core.wire.batch import SEQUENCE_MASK, compute_batch_digest, read_max_timestamp, readdress
from mirror_core.wire.fields import TOPIC_ID_BYTES

_log = get_logger(__name__)

_RETRY_S: Final = 0.02
_MAX_RETRY_S: Final = 1.0


class PartitionReplicator:
    def __init__(
        self,
        assigned: PartitionAssignment,
        *,
        uses_hidden_records: bool = False,
        budget: QueueBudget | None = None,
        active: set[PartitionReplicator] | None = None,
        clock: Callable[[], float] = time.monotonic,
        has_driver: bool = False,
    ) -> None:
        """`uses_hidden_records`: for gaps, instead of markers. `budget`, `active`: shared by a task's partitions
        (`CopyTask`). `has_driver`: a driver responds.
        """
        self.assigned = assigned
        self.uses_hidden_records = uses_hidden_records
        self.partition: Final[Partition] = assigned.partition
        self.source_topic_id = _encode_topic_id(assigned.source_topic_id)
        self.destination_topic_id = _encode_topic_id(assigned.destination_topic_id)
        self.progress = PartitionProgress()
        self.queue = SendQueue(budget or QueueBudget())
        self.gap_claim = GapClaim()
        self.source = SourceLogState(is_interrupted=not assigned.all_answered)
        self.counts = ReceiptCounts()
        self.trims = TrimTracker(assigned.trim_recorded_until, clock, has_driver=has_driver)
        self.state = CopyState.LOST
        self.can_send = False
        self.in_background = False
        self.lost_reason = ""
        self.misleading_cluster: ClusterName | None = None
        """Its metadata named a broker that turned out not to lead the partition."""
        self.loss_count = 0
        self.next_attempt_at = 0.0
        self.source_broker = -1
        self.source_epoch = -1
        self.destination_broker = -1
        self.aligned: AlignedPartition | None = None
        self.end_unverified = False
        """Destination's log end; checked once there is something to copy."""
        self.doubted_from: int | None = None
        """From here on the destination may hold an older history of the source: an old request may have waited in a
        socket. NO_KNOWN_OFFSET: start unknown.
        """
        self.failure: PartitionFailure | None = None
        self._clock, self._active = clock, set() if active is None else active
        self._active.add(self)

    # -- queries -----------------------------------------------------------------------------------------

    @property
    def records(self) -> int:
        return (
            0
            if (first_offset := self.counts.first) is None
            else self.progress.acknowledged - first_offset - self.counts.gaps
        )

    @property
    def known_from(self) -> int | None:
        """From here to the acknowledged offset this task appended everything itself, or compared it."""
        first_offset, compared_from = self.counts.first, self.assigned.compare_from
        if first_offset is None or compared_from is None:
            return first_offset
        return min(first_offset, compared_from)

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED_STATES

    @property
    def is_finished(self) -> bool:
        until = self.assigned.stop_offset
        if self.state is CopyState.ENDING or until is None or self.progress.position < until:
            return self.state is CopyState.ENDING
        # The last gap's true end must be known before markers fill it, even beyond `until`.
        last = self.queue.items[-1] if self.queue.items else None
        return self.uses_hidden_records or not isinstance(last, Gap) or self.gap_claim.is_owned or self.is_gap_end_known

    @property
    def can_fetch(self) -> bool:
        progress = self.progress
        return (
            self.can_send
            and not self.is_finished
            and not (progress.is_seeding or progress.is_first_unanswered or self.queue.is_full)
        )

    @property
    def awaits_response(self) -> bool:
        return self.can_fetch and self.source.fetch_position == self.progress.position

    @property
    def due_gap(self) -> Gap | None:
        due = self.can_send and not self.progress.in_flight and not self.progress.is_seeding
        return self.queue.first_gap if due else None

    @property
    def is_gap_end_known(self) -> bool:
        """No writer can have filled further than the first gap's end."""
        readable = self.source.readable_end
        return len(self.queue.items) > 1 or (readable is not None and self.progress.position >= readable)

    @property
    def has_sendable_batch(self) -> bool:
        items = self.queue.items
        if not items or not self.can_send or isinstance(items[0], Gap):
            return False
        return self.progress.is_sequence_known or not self.progress.in_flight

    @property
    def agreed_epoch(self) -> int | None:
        return self.aligned.source_epoch if self.aligned else self.assigned.source_epoch

    @property
    def all_answered(self) -> bool:
        return not self.progress.in_flight and not self.in_background and self.state is not CopyState.LOST

    def is_due(self) -> bool:
        return (
            self.state is CopyState.LOST
            and not (self.progress.in_flight or self.in_background)
            and self._clock() >= self.next_attempt_at
        )

    # -- state -----------------------------------------------------------------------------------------------

    def mark_lost(self, reason: str, misleading_cluster: ClusterName | None = None) -> None:
        """To be aligned again; at once first, then with backoff while nothing is acknowledged."""
        self._apply_event(CopyEvent.LOST)
        _log.info("its place is looked for anew: %s", reason, partition=self.partition)
        self.lost_reason, self.misleading_cluster = reason, misleading_cluster
        self.next_attempt_at = self._clock() + min(_RETRY_S * (2.0**self.loss_count - 1), _MAX_RETRY_S)
        self.loss_count = min(self.loss_count + 1, 10)

    def set_in_background(self, *, in_background: bool) -> None:
        self.in_background = in_background

    def postpone(self, reason: str, *, in_background: bool = False) -> None:
        self.lost_reason, self.misleading_cluster, self.in_background = reason, None, in_background
        self.next_attempt_at = self._clock() + _RETRY_S

    def mark_unsent(self) -> None:
        self._apply_event(CopyEvent.LOST)

    def handle_disconnect(self, reason: str) -> None:
        self.progress.clear_in_flight()
        self.source.handle_disconnect()
        if self.can_send:  # backoff, as for a broker that refuses
            self.mark_lost(reason)
        elif not self.is_ended:
            self.lost_reason = reason

    def fail(self, reason: str, offset: int | None, kind: FailureKind, needs_bytes: int | None = None) -> None:
        self._apply_event(CopyEvent.FAIL)
        self.failure = self._make_failure(reason, offset, kind, needs_bytes)

    def fail_after(self, reason: str, offset: int, kind: FailureKind = FailureKind.OTHER) -> None:
        self._apply_event(CopyEvent.BAD)
        self.failure = self._make_failure(reason, offset, kind)

    def fail_shifted(self, reason: str, offset: int) -> None:
        self._apply_event(CopyEvent.SHIFTED)
        self.failure = self._make_failure(reason, offset, FailureKind.FOREIGN)

    def finish_if_acknowledged(self) -> None:
        until, acknowledged = self.assigned.stop_offset, self.progress.acknowledged
        if self.can_send and until is not None and acknowledged >= until:
            self.failure = None
            self._apply_event(CopyEvent.REACHED)
        elif self.state is CopyState.ENDING and acknowledged == self.progress.position:
            self._apply_event(CopyEvent.ACKNOWLEDGED)

    def _make_failure(
        self, reason: str, failed_at: int | None, kind: FailureKind, needs_bytes: int | None = None
    ) -> PartitionFailure:
        _log.info("cannot go on (%s): %s", kind, reason, partition=self.partition)
        offset = None if failed_at is None else Offset(failed_at)
        return PartitionFailure(
            partition=self.partition, reason=reason, offset=offset, kind=kind, needs_bytes=needs_bytes
        )

    def _apply_event(self, event: CopyEvent) -> None:
        self.state = next_state(self.state, event)
        self._active.add(self)
        self.can_send = self.state in SENDING_STATES
        if not self.can_send:
            self.queue.clear()
        if self.state is CopyState.LOST:
            self.failure = None

    def mark_doubtful(self, since: int) -> None:
        self.doubted_from = since if self.doubted_from is None else min(since, self.doubted_from)

    # -- position -----------------------------------------------------------------------------------------------

    def set_leaders(self, source_broker: int, source_epoch: int, destination_broker: int) -> None:
        self.source_broker, self.source_epoch = source_broker, source_epoch
        self.destination_broker = destination_broker

    def mark_agreed(self) -> None:
        self.doubted_from = None
        self.source.mark_agreed()
        self.aligned = AlignedPartition(partition=self.partition, source_epoch=self.source_epoch)

    def resume_at(
        self,
        resume: ResumePoint,
        *,
        is_producer_unknown: bool = False,
        end_unverified: bool = False,
        requested_at: float | None = None,
    ) -> None:
        """At the destination's log end.

        `is_producer_unknown`: its leader has no producer state of ours. `requested_at`: monotonic time before it was
        requested; None: now.
        """
        progress, self.end_unverified = self.progress, end_unverified
        records = (resume.sequence - progress.acknowledged_sequence) & SEQUENCE_MASK
        self.counts.resume_at(
            resume,
            acknowledged=progress.acknowledged,
            records=records,
            is_seeding=progress.is_seeding,
            hidden_in_flight=self.queue.hidden_in_flight,
        )
        progress.resume(
            resume, self._clock() if requested_at is None else requested_at, is_producer_unknown=is_producer_unknown
        )
        self.queue.restart(resume.newest_ms)
        self.source.reset()
        if resume.gap_end > resume.offset:
            self.skip_to(resume.gap_end)
        self._apply_event(CopyEvent.ALIGNED)
        _log.debug("agrees up to %d, epoch %s", resume.offset, self.source_epoch, partition=self.partition)
        self.lost_reason, self.misleading_cluster = "", None
        self.finish_if_acknowledged()

    # -- from the source -----------------------------------------------------------------------------------------

    def enqueue_fetched(self, copied: Iterable[Sequence[CopyItem]], producer_id: int) -> list[ReadyBatch]:
        """With our sequences; returns batches to be sent now, in place.

        From the first gap on all wait in the queue, as copies. A corrupt batch ends the partition, after everything
        before it. What follows a first batch that goes alone is fetched again later: queued, it would neither be merged
        nor let others pass.
        """
        ready, progress = list[ReadyBatch](), self.progress
        has_end = self.assigned.stop_offset is not None
        for items in copied:
            for item in items:
                if isinstance(item, RewrittenBatch):
                    batch = item.batch
                    readdress(batch, producer_id, PRODUCER_EPOCH, progress.sequence)
                    digest = compute_batch_digest(item.base_offset, batch)
                    sent = SentBatch(item.base_offset, item.records, len(batch), digest, read_max_timestamp(batch))
                    if self.enqueue(sent, batch):
                        ready.append((sent, batch))
                elif isinstance(item, Gap):
                    self.skip_to(item.end)
                else:
                    self.fail_after(item.reason, item.offset, FailureKind.CORRUPT)
            if progress.is_first_unanswered or (has_end and self.is_finished):
                break
        return ready

    def enqueue(self, sent: SentBatch, batch: memoryview) -> bool:
        """With our sequence. True when it is to be sent now, in place; otherwise it is copied."""
        progress, queue = self.progress, self.queue
        self._note_enqueue()
        send_now = not queue.items and (progress.is_sequence_known or progress.is_all_acknowledged)
        progress.add_queued(sent.records)
        queue.note_time(sent.newest_ms)
        if not send_now:
            queue.put(sent, batch)
        return send_now

    def skip_to(self, end: int) -> None:
        if self.uses_hidden_records:
            self._note_enqueue()
            self.queue.add_hidden_gap(self.progress.position, end, self.progress.sequence)
            self.progress.add_queued(end - self.progress.position)
        else:
            self.progress.skip_to(end)
            self.queue.add_marker_gap(end)

    def _note_enqueue(self) -> None:
        if self.progress.is_all_acknowledged and not self.queue.items:
            self.progress.expire_sequence(self._clock())

    # -- to the destination --------------------------------------------------------------------------------------

    def pop(self) -> HiddenGap | ReadyBatch:
        return self.queue.pop()

    def put_back(self, sent: SentBatch, batch: memoryview) -> None:
        self.queue.put_back(sent, batch)

    def acknowledge(self, sent: SentBatch) -> bool:
        """The batch is in the log at its offset. True when all seeds in flight have arrived and are to be deleted;
        the caller then calls `finish_if_acknowledged`.
        """
        self.loss_count = 0
        self.progress.acknowledge(sent.records)
        if sent.digest is not None:
            self.counts.add_batch(sent)
        else:
            self.counts.add_filled(sent.records)
            if self.progress.acknowledged <= self.progress.seed_end:
                return not self.progress.in_flight
            self.queue.acknowledge_hidden()
        if self.assigned.stop_offset is not None or self.state is CopyState.ENDING:
            self.finish_if_acknowledged()
        return False

    # -- gaps ----------------------------------------------------------------------------------------------------

    def start_gap_round(self) -> GapFillState:
        gap = self.due_gap
        assert gap is not None
        self.in_background = True
        return GapFillState(
            self.partition,
            self.progress,
            self.gap_claim,
            gap.end,
            is_end_final=self.is_gap_end_known,
            clock=self._clock,
        )

    def finish_gap_round(self, gap_fill: GapFillState) -> None:
        self.in_background = False
        self.gap_claim.merge(gap_fill.gap_claim, sent=gap_fill.has_sent)
        self.progress.confirm_end(gap_fill.end_confirmed_at)
        if gap_fill.filled_offsets:
            self.loss_count = 0
            self.progress.add_filled(gap_fill.filled_offsets, gap_fill.filled_at)
            self.counts.add_filled(gap_fill.filled_offsets)
            self.queue.drop_filled_gap(self.progress.acknowledged)
            self.finish_if_acknowledged()
        if gap_fill.refusal is not None and not self.is_ended:
            self.fail(*gap_fill.refusal)
        elif gap_fill.lost_reason and self.can_send:
            self.mark_lost(gap_fill.lost_reason)

    def abandon_gap_round(self, gap_fill: GapFillState) -> None:
        self.in_background = False
        if gap_fill.has_sent:
            self.gap_claim.mark_sending(gap_fill.gap_claim.newest_epoch)


def _encode_topic_id(topic_id: str) -> bytes:
    """Empty for a cluster without ids."""
    return bytes.fromhex(topic_id) if len(topic_id) == 2 * TOPIC_ID_BYTES and topic_id.strip("0") else b""
