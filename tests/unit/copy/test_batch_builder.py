"""From answers to batches and gaps: what is put into line, in which order, with which sequences."""

from __future__ import annotations

import time

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from fastcrc import crc32

from mirror_core.copy.batch_builder import MAX_MERGED_BYTES, merge_tiny_batches, rewrite_fetched_batches
from mirror_core.copy.messages import ClusterSide
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.partition_states import CopyState
from mirror_core.copy.response_errors import handle_produce_response
from mirror_core.copy.send_queue import Gap, HiddenGap, QueueBudget, ReadyBatch
from mirror_core.decide.gaps_and_resume import ResumePoint
from mirror_core.kafka.fetch_link import EmptyFetch
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import ClusterName
from mirror_core.model.task_messages import PartitionAssignment
from mirror_core.wire.batch import HEADER_SIZE, compute_batch_digest, crc_matches, split_batches
from mirror_core.wire.fetch import FetchedPartition
from mirror_core.wire.produce import ProducedPartition
from mirror_core.wire.records import decode_records
from tests.support.source_batches import PARTITION, batch, fetched

PRODUCER = 1 << 62
SOURCE = ClusterName("east")


def at(
    offset: int, sequence: int, *, unremembered: bool = False, waiting: QueueBudget | None = None
) -> PartitionReplicator:
    made = PartitionReplicator(
        PartitionAssignment(partition=PARTITION, source_topic_id="", destination_topic_id=""), budget=waiting
    )
    resume = ResumePoint(offset=offset, sequence=sequence, gap_end=offset, seed_end=offset, must_check_tail=False)
    made.resume_at(resume, is_producer_unknown=unremembered)
    return made


def taken(items: list[ReadyBatch]) -> list[tuple[int, int, int]]:
    """Base offset, sequence and number of records of each."""
    found = []
    for sent, view in items:
        ((header, _),) = split_batches(view)
        assert (header.base_offset, header.producer_id) == (0, PRODUCER)
        found.append((sent.base_offset, header.base_sequence, sent.records))
    return found


def enqueue(replicator: PartitionReplicator, answer: FetchedPartition) -> list[ReadyBatch]:
    copied = rewrite_fetched_batches(SOURCE, answer, replicator.progress.position)
    return merge_tiny_batches(replicator.enqueue_fetched(copied, PRODUCER), PRODUCER)


def queued(replicator: PartitionReplicator) -> list[tuple[int, int, int] | int]:
    """The same of what waits in line; a gap by its end."""
    return [item.end if isinstance(item, (Gap, HiddenGap)) else taken([item])[0] for item in replicator.queue.items]


def test_dense_batches_are_sent_at_once_and_in_place() -> None:
    replicator, answer = at(10, 7), fetched(batch(10, 3), batch(13, 2))
    ready = enqueue(replicator, answer)
    assert taken(ready) == [(10, 7, 3), (13, 10, 2)]
    assert all(view.obj is answer.records.obj for _, view in ready), "nothing was copied"
    assert (replicator.progress.position, queued(replicator)) == (15, [])


def test_from_the_first_gap_on_everything_waits_in_line() -> None:
    replicator = at(10, 10)
    ready = enqueue(replicator, fetched(batch(10, 1), batch(14, 2), batch(16, 1), batch(20, 1)))
    assert taken(ready) == [(10, 10, 1)]
    assert queued(replicator) == [14, (14, 11, 2), (16, 13, 1), 20, (20, 14, 1)]


def test_the_position_inside_a_batch() -> None:
    replicator = at(12, 12)
    ready = enqueue(replicator, fetched(batch(10, 5)))
    assert taken(ready) == [(12, 12, 3)]


def test_aborted_batches_become_a_gap_and_join_the_next_one() -> None:
    replicator = at(0, 0)
    answer = fetched(
        batch(0, 2, producer_id=5), batch(2, 2, producer_id=6), batch(4, 1, producer_id=5), aborted=((5, 0),)
    )
    assert taken(enqueue(replicator, answer)) == []
    assert queued(replicator) == [2, (2, 0, 2), 5]
    enqueue(replicator, fetched(batch(8, 1)))
    assert queued(replicator) == [2, (2, 0, 2), 8, (8, 2, 1)]


def test_a_gap_before_anything_that_the_leader_remembers_begins_with_sequence_0() -> None:
    replicator = at(50, 50, unremembered=True)
    enqueue(replicator, fetched(batch(60, 2)))
    assert queued(replicator) == [60, (60, 0, 2)]


def test_messages_of_magic_1_cross_as_batches() -> None:
    builder = LegacyRecordBatchBuilder(magic=1, compression_type=1, batch_size=1 << 20)
    for number in range(4):
        builder.append(number, timestamp=1_000 + number, key=b"k%d" % number, value=None)
    message = bytes(builder.build())
    replicator = at(1, 1)
    ready = enqueue(replicator, fetched((3).to_bytes(8, "big") + message[8:]))
    assert taken(ready) == [(1, 1, 3)]
    ((header, view),) = split_batches(ready[0][1])
    assert [(r.timestamp_ms, r.key, r.value) for r in decode_records(header, view)] == [
        (1_000 + number, b"k%d" % number, None) for number in (1, 2, 3)
    ]
    assert replicator.progress.position == 4


def test_a_damaged_batch_ends_the_partition_behind_what_was_good() -> None:
    replicator, bad = at(0, 0), bytearray(batch(2, 2))
    bad[-1] ^= 1
    assert taken(enqueue(replicator, fetched(batch(0, 2), bytes(bad)))) == [(0, 0, 2)]
    assert replicator.state is CopyState.ENDING
    assert replicator.failure is not None
    assert "batch at offset 2 is corrupt" in replicator.failure.reason


def test_only_two_honest_answers_make_the_end_of_a_log_a_gap() -> None:
    source, empty = at(10, 10).source, fetched(stable=25)
    for honest, expected in (
        (False, EmptyFetch.INCONCLUSIVE),
        (True, EmptyFetch.RETRY),
        (False, EmptyFetch.INCONCLUSIVE),
        (True, EmptyFetch.CHECK_LOCAL_START),
    ):
        assert source.judge_empty_fetch(10, empty, is_conclusive=honest) is expected
        assert source.is_suspect is (expected is not EmptyFetch.CHECK_LOCAL_START)
    assert source.judge_with_local_start(10, 11, 25) is EmptyFetch.REMOTE_STORAGE
    assert source.judge_empty_fetch(10, empty, is_conclusive=True) is EmptyFetch.REMOTE_STORAGE, (
        "who was not believed is not heard again"
    )
    assert not source.is_suspect
    assert source.judge_with_local_start(10, 10, 25) is EmptyFetch.GAP
    assert source.judge_empty_fetch(10, fetched(stable=10), is_conclusive=False) is EmptyFetch.END
    assert (source.is_suspect, source.empty_fetches) == (False, 0), "nothing is missing"


def test_bytes_without_a_whole_batch_prove_damage_only_where_an_answer_had_room_for_more() -> None:
    source, torn = at(10, 10).source, fetched(batch(10, 1)[:30], stable=25)
    assert source.judge_empty_fetch(10, torn, is_conclusive=False) is EmptyFetch.INCONCLUSIVE
    assert source.judge_empty_fetch(10, torn, is_conclusive=True) is EmptyFetch.MALFORMED


def test_the_first_batch_that_a_leader_without_memory_is_sent_goes_alone() -> None:
    replicator, more = at(10, 10, unremembered=True), [batch(n, 1) for n in range(50, 60)]
    ready = enqueue(replicator, fetched(batch(10, 40), *more))
    assert taken(ready) == [(10, 10, 40)], "if it is refused, the next one would be taken in its place"
    assert (replicator.progress.position, queued(replicator)) == (50, [])
    assert not replicator.can_fetch, "in line what follows would neither be merged nor ever be all"
    replicator.progress.add_in_flight(time.monotonic())
    replicator.progress.remove_in_flight()
    assert not replicator.acknowledge(ready[0][0])
    assert replicator.can_fetch
    ready = enqueue(replicator, fetched(batch(10, 40), *more))
    assert taken(ready) == [(50, 50, 10)], "now the sequences tell"


def test_what_waits_in_all_lines_of_a_task_is_limited_and_given_back() -> None:
    waiting = QueueBudget(1_000)
    one, two, none = (at(0, 0, waiting=waiting) for _ in range(3))
    for replicator in (one, two):
        replicator.skip_to(10)
        assert replicator.can_fetch
        assert enqueue(replicator, fetched(batch(10, 30))) == []
    assert 500 <= waiting.bytes < 1_000
    assert [r.can_fetch for r in (one, two, none)] == [False, False, True], "what holds nothing up goes on"
    enqueue(two, fetched(batch(40, 30)))
    assert waiting.bytes >= 1_000
    assert not none.can_fetch
    one.mark_lost("its leader is gone")
    assert waiting.bytes == two.queue.bytes, "what is lost is not sent from the line any more"
    assert none.can_fetch
    two.fail("it cannot go on", 10, FailureKind.OTHER)
    assert waiting.bytes == 0


def test_what_is_left_of_a_batch_whose_first_part_goes_alone_waits_in_line() -> None:
    replicator = PartitionReplicator(
        PartitionAssignment(partition=PARTITION, source_topic_id="", destination_topic_id=""), uses_hidden_records=True
    )
    resume = ResumePoint(offset=10, sequence=10, gap_end=10, seed_end=10, must_check_tail=False)
    replicator.resume_at(resume, is_producer_unknown=True)
    sparse = bytearray(batch(10, 5))
    sparse[23:27] = (9).to_bytes(4, "big")  # its last five offsets are gone
    sparse[17:21] = crc32.iscsi(bytes(sparse[21:])).to_bytes(4, "big")
    ready = enqueue(replicator, fetched(bytes(sparse), batch(20, 2)))
    assert taken(ready) == [(10, 10, 5)]
    assert queued(replicator) == [20]
    replicator.progress.add_in_flight(0.0)
    assert not replicator.has_sendable_batch
    replicator.progress.remove_in_flight()
    replicator.acknowledge(ready[0][0])
    assert replicator.has_sendable_batch


def test_tiny_batches_in_a_row_become_one() -> None:
    replicator = at(10, 7)
    tiny = [batch(10 + number, 1) for number in range(6)]
    ready = enqueue(replicator, fetched(*tiny, batch(16, 40), batch(56, 2), batch(58, 2)))
    assert taken(ready) == [(10, 7, 6), (16, 13, 40), (56, 53, 2), (58, 55, 2)]
    ((header, merged),) = split_batches(ready[0][1])
    assert crc_matches(header, merged)
    records = [(record.offset, record.key) for record in decode_records(header, merged)]
    assert records == [(number, b"k0") for number in range(6)]
    assert ready[0][0].size == len(merged)
    assert ready[0][0].digest == compute_batch_digest(10, merged)
    assert replicator.progress.position == 60


def test_merged_batches_stay_small_and_a_gap_between_them_stays_a_gap() -> None:
    replicator, size = at(0, 0), len(batch(0, 8))
    many = [batch(8 * number, 8) for number in range(400)]
    ready = enqueue(replicator, fetched(*many, batch(3_201, 1), batch(3_202, 1), stable=9_000))
    assert [sent.base_offset for sent, _ in ready[1:]] == [sent.base_offset + sent.records for sent, _ in ready[:-1]]
    assert sum(sent.records for sent, _ in ready) == 3_200
    assert all(sent.size <= MAX_MERGED_BYTES for sent, _ in ready)
    assert len(ready) < 400 * size / MAX_MERGED_BYTES + 2
    assert queued(replicator) == [3_201, (3_201, 3_200, 1), (3_202, 3_201, 1)]


def test_a_batch_whose_records_contradict_its_header_crosses_as_it_was_produced() -> None:
    replicator = at(0, 0)
    bad = bytearray(batch(2, 1))
    bad[57:61] = (1).to_bytes(4, "big")
    bad[HEADER_SIZE + 3] = 8  # the record's offset delta says 4
    bad[17:21] = crc32.iscsi(bytes(bad[21:])).to_bytes(4, "big")
    ready = enqueue(replicator, fetched(batch(0, 1), batch(1, 1), bytes(bad), batch(3, 1)))
    assert taken(ready) == [(0, 0, 1), (1, 1, 1), (2, 2, 1), (3, 3, 1)]


@pytest.mark.parametrize(("append_time", "copied"), [(-1, True), (1_000, False), (1_001, False), (0, False)])
def test_a_batch_that_is_there_already_or_got_another_time_is_compared(append_time: int, copied: bool) -> None:
    """Of a batch that it has already, a broker answers with the time of the earlier one, whatever that holds."""
    replicator = at(10, 10)
    ((sent, _),) = enqueue(replicator, fetched(batch(10, 2)))
    replicator.progress.add_in_flight(0.0)
    handle_produce_response(
        replicator,
        sent,
        ProducedPartition("orders", 0, 0, 10, "", append_time),
        ClusterSide(ClusterName("west"), "mirror"),
    )
    assert (replicator.progress.acknowledged == 12) is copied
    assert (replicator.state, replicator.doubted_from) == ((CopyState.READY, None) if copied else (CopyState.LOST, 10))
