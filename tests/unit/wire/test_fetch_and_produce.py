"""Our Fetch v10 and v13, Produce v8 and v13 against kio's, in both directions, and against hostile bytes."""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v10 import request as fetch_request
from kio.schema.fetch.v13 import request as fetch_request_by_id
from kio.schema.produce.v8 import request as produce_request
from kio.schema.produce.v8 import response as produce_response
from kio.schema.produce.v13 import request as produce_request_by_id
from kio.schema.produce.v13 import response as produce_response_by_id
from kio.schema.types import BrokerId, TopicName
from kio.serial import entity_reader
from kio.static.primitive import TZAware, i32, i32Timedelta, i64

from mirror_core.model.names import Partition
from mirror_core.wire import fetch, produce
from mirror_core.wire.fields import MalformedResponse
from tests.support.fetch_responses import Rows, fetch_answer, fetch_answer_by_id, written

names = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=20)
offsets = st.integers(min_value=0, max_value=2**62)


def read(kind: Any, data: bytes) -> Any:
    header, header_size = entity_reader(kind.__header_schema__)(data, 0)
    entity, size = entity_reader(kind)(data, header_size)
    assert header_size + size == len(data), "bytes left over"
    assert (header.request_api_key, header.request_api_version) == (kind.__api_key__, kind.__version__)
    return header, entity


@given(st.dictionaries(st.builds(Partition, names, st.integers(0, 999)), st.tuples(offsets, st.integers(-1, 99))))
def test_kio_reads_our_fetch(wanted: dict[Partition, tuple[int, int]]) -> None:
    data = fetch.encode_request(
        [fetch.FetchPosition(p, offset, epoch) for p, (offset, epoch) in wanted.items()],
        77,
        "client",
        isolation=fetch.IsolationLevel.READ_COMMITTED,
        max_wait_ms=500,
        max_bytes=1 << 23,
        partition_max_bytes=1 << 20,
    )
    header, entity = read(fetch_request.FetchRequest, data)
    assert (header.correlation_id, header.client_id) == (77, "client")
    assert (entity.replica_id, entity.isolation_level, entity.min_bytes, entity.max_bytes) == (-1, 1, 1, 1 << 23)
    assert entity.max_wait == timedelta(milliseconds=500)
    assert (entity.session_id, entity.session_epoch) == (0, -1), "without a session"
    assert entity.forgotten_topics_data == ()
    assert len({topic.topic for topic in entity.topics}) == len(entity.topics), "a topic twice"
    rows = [p for topic in entity.topics for p in topic.partitions]
    assert {(p.log_start_offset, p.partition_max_bytes) for p in rows} <= {(-1, 1 << 20)}, "-1: not a follower"
    seen = {
        Partition(str(topic.topic), int(p.partition)): (int(p.fetch_offset), int(p.current_leader_epoch))
        for topic in entity.topics
        for p in topic.partitions
    }
    assert seen == wanted


def test_a_fetch_without_an_epoch_asks_for_no_check_of_it() -> None:
    data = fetch.encode_request(
        [fetch.FetchPosition(Partition("t", 1), 5)],
        1,
        "client",
        isolation=fetch.IsolationLevel.READ_UNCOMMITTED,
        max_wait_ms=0,
        max_bytes=9,
        partition_max_bytes=8,
    )
    _, entity = read(fetch_request.FetchRequest, data)
    assert entity.isolation_level == 0
    assert entity.topics[0].partitions[0].current_leader_epoch == -1


answers = st.dictionaries(
    st.builds(Partition, names, st.integers(0, 99)),
    st.tuples(offsets, offsets, st.lists(st.tuples(offsets, offsets), max_size=3), st.binary(max_size=200)),
    max_size=8,
)


@given(answers)
def test_we_read_kios_fetch_answer(rows: Rows) -> None:
    found = list(fetch.decode_response(memoryview(fetch_answer(rows)), {}))
    assert {
        f.partition: (f.high_watermark, f.last_stable_offset, list(f.aborted_transactions), bytes(f.records))
        for f in found
    } == rows
    assert all(f.error == 0 and f.log_start_offset == 3 for f in found)


ROW: Rows = {Partition("t", 4): (90, 80, [], b"batch"), Partition("t", 5): (9, 8, [(7, 3)], b"")}


def test_a_partitions_error_is_its_own() -> None:
    found = list(fetch.decode_response(memoryview(fetch_answer(ROW, code=ErrorCode.not_leader_or_follower)), {}))
    assert [(f.partition.index, f.error, f.high_watermark) for f in found] == [(4, 6, 90), (5, 6, 9)]


def test_an_error_of_the_whole_answer_reaches_every_partition_that_was_asked_for() -> None:
    known = {("t", 4): Partition("t", 4), ("u", 0): Partition("u", 0)}
    found = list(fetch.decode_response(memoryview(fetch_answer({}, ErrorCode.fetch_session_id_not_found)), known))
    assert [(f.partition, f.error, bytes(f.records), f.aborted_transactions) for f in found] == [
        (Partition("t", 4), 70, b"", ()),
        (Partition("u", 0), 70, b"", ()),
    ]
    assert {(f.high_watermark, f.last_stable_offset, f.log_start_offset) for f in found} == {(-1, -1, -1)}, (
        "nothing is known"
    )


def test_the_requests_own_partitions_come_back() -> None:
    known = {("t", 4): Partition("t", 4)}
    first, second = fetch.decode_response(memoryview(fetch_answer(ROW)), known)
    assert first.partition is known["t", 4]
    assert second.partition == Partition("t", 5)


def test_records_are_the_answers_own_bytes_and_none_for_null() -> None:
    data = bytearray(fetch_answer({Partition("t", 0): (9, 9, [], b"abc")}))
    (fetched,) = fetch.decode_response(memoryview(data), {})
    data[-1] = 0x7A
    assert bytes(fetched.records) == b"abz", "a copy"
    null = data[:-7] + b"\xff\xff\xff\xff"
    (fetched,) = fetch.decode_response(memoryview(null), {})
    assert bytes(fetched.records) == b""


@given(answers, st.integers(0, 400), st.integers(0, 255))
def test_a_damaged_fetch_answer_is_a_named_error_or_other_rows(rows: Any, position: int, byte: int) -> None:
    data = bytearray(fetch_answer(rows))
    data[position % len(data)] = byte
    for damaged in (data, data[: position % len(data)]):
        try:
            for fetched in fetch.decode_response(memoryview(damaged), {}):
                assert len(fetched.records) <= len(damaged)
        except MalformedResponse:
            pass


@given(st.binary(max_size=400))
def test_garbage_is_never_more_than_a_named_error(data: bytes) -> None:
    for decode in (
        lambda: list(fetch.decode_response(memoryview(data), {})),
        lambda: list(fetch.decode_response_by_id(memoryview(data), KNOWN)),
        lambda: list(produce.decode_response(memoryview(data))),
        lambda: list(produce.decode_response_by_id(memoryview(data), NAMES)[0]),
    ):
        with contextlib.suppress(MalformedResponse):
            decode()


def test_an_array_length_beyond_the_answer_is_refused_before_anything_is_built() -> None:
    data = bytes(10) + (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(MalformedResponse, match="array of 2147483647"):
        list(fetch.decode_response(memoryview(data), {}))


@given(
    st.dictionaries(
        st.builds(Partition, names, st.integers(0, 999)), st.tuples(offsets, st.integers(0, 99)), min_size=1
    )
)
def test_kio_reads_our_fetch_by_id(wanted: dict[Partition, tuple[int, int]]) -> None:
    positions = [fetch.FetchPosition(p, offset, epoch, id_of(p.topic)) for p, (offset, epoch) in wanted.items()]
    assert fetch.can_use_ids(positions)
    data = fetch.encode_request(
        positions,
        77,
        "client",
        isolation=fetch.IsolationLevel.READ_COMMITTED,
        max_wait_ms=500,
        max_bytes=1 << 23,
        partition_max_bytes=1 << 20,
        by_id=True,
    )
    header, entity = read(fetch_request_by_id.FetchRequest, data)
    assert (header.correlation_id, header.client_id) == (77, "client")
    assert (entity.replica_id, entity.isolation_level, entity.min_bytes, entity.max_bytes) == (-1, 1, 1, 1 << 23)
    assert (entity.max_wait, entity.cluster_id, entity.rack_id) == (timedelta(milliseconds=500), None, "")
    assert (entity.session_id, entity.session_epoch, entity.forgotten_topics_data) == (0, -1, ())
    assert len({topic.topic_id for topic in entity.topics}) == len(entity.topics), "a topic twice"
    rows = [p for topic in entity.topics for p in topic.partitions]
    assert {(p.log_start_offset, p.last_fetched_epoch, p.partition_max_bytes) for p in rows} == {(-1, -1, 1 << 20)}
    seen = {
        (topic.topic_id.bytes, int(p.partition)): (int(p.fetch_offset), int(p.current_leader_epoch))
        for topic in entity.topics
        for p in topic.partitions
    }
    assert seen == {(id_of(p.topic), p.index): position for p, position in wanted.items()}


@pytest.mark.parametrize(
    "other", [fetch.FetchPosition(Partition("u", 0), 5, 7), fetch.FetchPosition(Partition("u", 0), 5, -1, b"i" * 16)]
)
def test_a_position_without_an_id_or_an_epoch_is_fetched_by_name(other: fetch.FetchPosition) -> None:
    """Without an epoch a follower would respond to v13."""
    whole = fetch.FetchPosition(Partition("t", 1), 5, 7, b"t" * 16)
    assert fetch.can_use_ids([whole])
    assert not fetch.can_use_ids([whole, other])
    assert not fetch.can_use_ids([])


def id_of(topic: str) -> bytes:
    return hashlib.md5(topic.encode(), usedforsecurity=False).digest()


def by_ids(rows: Rows) -> dict[tuple[bytes, int], Partition]:
    return {(id_of(p.topic), p.index): p for p in rows}


def answer_by_id(rows: Rows, *codes: ErrorCode, replica: int = -1) -> bytes:
    return fetch_answer_by_id(rows, {p.topic: id_of(p.topic) for p in rows}, *codes, replica=replica)


@given(answers)
def test_we_read_kios_fetch_answer_by_id(rows: Rows) -> None:
    found = list(fetch.decode_response_by_id(memoryview(answer_by_id(rows)), by_ids(rows)))
    assert {
        f.partition: (f.high_watermark, f.last_stable_offset, list(f.aborted_transactions), bytes(f.records))
        for f in found
    } == rows
    assert all((f.error, f.log_start_offset, f.preferred_replica) == (0, 3, -1) for f in found)


def test_errors_and_replicas_are_read_by_id_too() -> None:
    answer = answer_by_id(ROW, ErrorCode.none, ErrorCode.inconsistent_topic_id)
    found = list(fetch.decode_response_by_id(memoryview(answer), by_ids(ROW)))
    assert [(f.partition.index, f.error, f.high_watermark) for f in found] == [(4, 103, 90), (5, 103, 9)]
    whole = answer_by_id({}, ErrorCode.unknown_topic_id)
    assert [f.error for f in fetch.decode_response_by_id(memoryview(whole), by_ids(ROW))] == [100, 100]
    elsewhere = answer_by_id(ROW, replica=3)
    assert {f.preferred_replica for f in fetch.decode_response_by_id(memoryview(elsewhere), by_ids(ROW))} == {3}
    with pytest.raises(MalformedResponse, match="partition 4 of topic id"):
        list(fetch.decode_response_by_id(memoryview(elsewhere), {}))


@given(answers, st.integers(0, 400), st.integers(0, 255))
def test_a_damaged_fetch_answer_by_id_is_a_named_error_or_other_rows(rows: Any, position: int, byte: int) -> None:
    data = bytearray(answer_by_id(rows))
    data[position % len(data)] = byte
    for damaged in (data, data[: position % len(data)]):
        try:
            for fetched in fetch.decode_response_by_id(memoryview(damaged), by_ids(rows)):
                assert len(fetched.records) <= len(damaged)
        except MalformedResponse:
            pass


KNOWN = {(bytes(16), 0): Partition("t", 0)}
NAMES = {bytes(16): "t"}


@given(
    st.dictionaries(st.builds(Partition, names, st.integers(0, 99)), st.binary(min_size=61, max_size=300), max_size=8)
)
def test_kio_reads_our_produce_by_id(batches: dict[Partition, bytes]) -> None:
    rows = [(id_of(p.topic), p.index, memoryview(batch)) for p, batch in sorted(batches.items())]
    data = b"".join(bytes(part) for part in produce.encode_request_by_id(rows, 5, "client", timeout_ms=30_000))
    header, entity = read(produce_request_by_id.ProduceRequest, data)
    assert (header.correlation_id, header.client_id) == (5, "client")
    assert (entity.acks, entity.transactional_id, entity.timeout) == (-1, None, timedelta(seconds=30))
    assert len({topic.topic_id for topic in entity.topic_data}) == len(entity.topic_data), "a topic twice"
    seen = {
        (topic.topic_id.bytes, int(p.index)): bytes(p.records)
        for topic in entity.topic_data
        for p in topic.partition_data
    }
    assert seen == {(id_of(p.topic), p.index): batch for p, batch in batches.items()}


def test_we_read_kios_produce_answer_by_id() -> None:
    """A broker that leads no more names the leader and its address in tagged fields, also behind the throttle time."""

    def row(index: int, error: ErrorCode, base: int, message: str | None = None, **more: Any) -> Any:
        settings: dict[str, Any] = {"log_append_time": None, "record_errors": (), **more}
        return produce_response_by_id.PartitionProduceResponse(
            index=i32(index), error_code=error, base_offset=i64(base), error_message=message, **settings
        )

    moved = produce_response_by_id.LeaderIdAndEpoch(leader_id=BrokerId(7), leader_epoch=i32(8))
    bad = tuple(
        produce_response_by_id.BatchIndexAndErrorMessage(batch_index=i32(n), batch_index_error_message=text)
        for n, text in ((0, "null key"), (3, None))
    )
    timed = TZAware.parse(datetime.fromtimestamp(1_700_000_000, UTC))
    topics = {
        "t": (row(0, ErrorCode.none, 7), row(1, ErrorCode.invalid_record, -1, "rejected", record_errors=bad)),
        "u": (
            row(2, ErrorCode.not_leader_or_follower, -1, current_leader=moved),
            row(3, ErrorCode.none, 2**40, log_append_time=timed),
        ),
    }
    answer = produce_response_by_id.ProduceResponse(
        responses=tuple(
            produce_response_by_id.TopicProduceResponse(topic_id=uuid.UUID(bytes=id_of(t)), partition_responses=rows)
            for t, rows in topics.items()
        ),
        throttle_time=i32Timedelta.parse(timedelta(milliseconds=20_000)),
        node_endpoints=(
            produce_response_by_id.NodeEndpoint(node_id=BrokerId(7), host="b7", port=i32(9092), rack=None),
        ),
    )
    data = written(answer)
    assert produce.decode_response_by_id(memoryview(data), {id_of(t): t for t in topics}) == (
        [
            produce.ProducedPartition("t", 0, 0, 7, ""),
            produce.ProducedPartition("t", 1, 87, -1, "null key; rejected"),
            produce.ProducedPartition("u", 2, 6, -1, ""),
            produce.ProducedPartition("u", 3, 0, 2**40, "", 1_700_000_000_000),
        ],
        20_000,
    )
    with pytest.raises(MalformedResponse, match="was not in the request"):
        produce.decode_response_by_id(memoryview(data), {id_of("t"): "t"})
    for end in range(len(data)):
        with pytest.raises(MalformedResponse):
            produce.decode_response_by_id(memoryview(data[:end]), {id_of(t): t for t in topics})


@given(
    st.dictionaries(st.builds(Partition, names, st.integers(0, 99)), st.binary(min_size=61, max_size=100), max_size=8)
)
def test_kio_reads_our_produce(batches: dict[Partition, bytes]) -> None:
    rows = [(p.topic, p.index, memoryview(batch)) for p, batch in sorted(batches.items())]
    data = b"".join(bytes(part) for part in produce.encode_request(rows, 5, "client", timeout_ms=30_000))
    header, entity = read(produce_request.ProduceRequest, data)
    assert (header.correlation_id, header.client_id) == (5, "client")
    assert (entity.acks, entity.transactional_id, entity.timeout) == (-1, None, timedelta(seconds=30))
    assert len({topic.name for topic in entity.topic_data}) == len(entity.topic_data), "a topic twice"
    seen = {
        Partition(str(topic.name), int(p.index)): bytes(p.records)
        for topic in entity.topic_data
        for p in topic.partition_data
    }
    assert seen == batches


Errors = tuple[tuple[int, str | None], ...]


def produce_answer(
    topics: dict[str, list[tuple[int, ErrorCode, int, Errors, str | None]]],
    append_time_ms: int | None = None,
    throttle_ms: int = 0,
) -> memoryview:
    """As kio writes it, from (partition, error, base offset, (record, message) of each bad record, message)."""
    given = None if append_time_ms is None else TZAware.parse(datetime.fromtimestamp(append_time_ms / 1000, UTC))
    entity = produce_response.ProduceResponse(
        responses=tuple(
            produce_response.TopicProduceResponse(
                name=TopicName(topic),
                partition_responses=tuple(
                    produce_response.PartitionProduceResponse(
                        index=i32(index),
                        error_code=error,
                        base_offset=i64(base),
                        log_append_time=given,
                        log_start_offset=i64(0),
                        record_errors=tuple(
                            produce_response.BatchIndexAndErrorMessage(
                                batch_index=i32(record), batch_index_error_message=text
                            )
                            for record, text in errors
                        ),
                        error_message=message,
                    )
                    for index, error, base, errors, message in rows
                ),
            )
            for topic, rows in topics.items()
        ),
        throttle_time=i32Timedelta.parse(timedelta(milliseconds=throttle_ms)),
    )
    return memoryview(written(entity))


def test_we_read_kios_produce_answer() -> None:
    refused = (4, ErrorCode.invalid_record, -1, ((0, "null key"),), "one or more records were rejected")
    answer = produce_answer({"t": [refused, (5, ErrorCode.none, 900, (), None)]})
    assert list(produce.decode_response(answer)) == [
        produce.ProducedPartition("t", 4, 87, -1, "null key; one or more records were rejected"),
        produce.ProducedPartition("t", 5, 0, 900, ""),
    ]


def test_we_read_the_time_that_a_broker_gave_to_records() -> None:
    answer = produce_answer({"t": [(5, ErrorCode.none, 900, (), None)]}, 1_700_000_000_000)
    assert list(produce.decode_response(answer)) == [produce.ProducedPartition("t", 5, 0, 900, "", 1_700_000_000_000)]


def test_we_read_how_long_a_quota_keeps_the_broker_from_reading_on() -> None:
    answer = produce_answer({"t": [(4, ErrorCode.invalid_record, -1, ((0, "null key"),), "rejected")]}, None, 20_000)
    assert produce.read_throttle_ms(answer) == 20_000
    with pytest.raises(MalformedResponse):
        produce.read_throttle_ms(answer[:3])


def test_every_row_is_read_whatever_words_stand_in_the_rows_before_it() -> None:
    answer = produce_answer(
        {
            "t": [
                (0, ErrorCode.message_too_large, -1, (), "too large"),
                (1, ErrorCode.invalid_record, -1, ((0, "null key"), (3, None), (7, "bad time")), None),
                (2, ErrorCode.none, 7, (), ""),
            ],
            "u": [(9, ErrorCode.out_of_order_sequence_number, -1, (), None), (8, ErrorCode.none, 2**40, (), None)],
        }
    )
    assert list(produce.decode_response(answer)) == [
        produce.ProducedPartition("t", 0, 10, -1, "too large"),
        produce.ProducedPartition("t", 1, 87, -1, "null key; bad time"),
        produce.ProducedPartition("t", 2, 0, 7, ""),
        produce.ProducedPartition("u", 9, 45, -1, ""),
        produce.ProducedPartition("u", 8, 0, 2**40, ""),
    ]


def test_more_record_errors_than_the_answer_has_room_for_are_refused() -> None:
    answer = bytearray(produce_answer({"t": [(4, ErrorCode.invalid_record, -1, ((0, "null key"),), None)]}))
    at = answer.index(b"\0\0\0\x01\0\0\0\0\0\x08null key")
    answer[at : at + 4] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(MalformedResponse, match="array of 2147483647"):
        list(produce.decode_response(memoryview(answer)))
