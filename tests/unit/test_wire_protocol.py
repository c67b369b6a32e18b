"""Our Fetch v11 and Produce v8 against kio's, in both directions, and against hostile bytes."""

from __future__ import annotations

import contextlib
import io
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v11 import request as fetch_request
from kio.schema.fetch.v11 import response as fetch_response
from kio.schema.produce.v8 import request as produce_request
from kio.schema.produce.v8 import response as produce_response
from kio.schema.request_header.v1.header import RequestHeader
from kio.schema.types import BrokerId, ProducerId, TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import Records, i32, i32Timedelta, i64

from mirror_core.model.names import Partition
from mirror_core.wire import fetch, produce
from mirror_core.wire.fields import MalformedAnswer

names = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=20)
offsets = st.integers(min_value=0, max_value=2**62)


def written(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def read(kind: Any, data: bytes) -> Any:
    header, size = entity_reader(RequestHeader)(data, 0)
    entity, end = entity_reader(kind)(data, size)
    assert size + end == len(data) or end == len(data), "bytes left over"
    return header, entity


@given(st.dictionaries(st.builds(Partition, names, st.integers(0, 999)), st.tuples(offsets, st.integers(-1, 99))))
def test_kio_reads_our_fetch(wanted: dict[Partition, tuple[int, int]]) -> None:
    data = fetch.encode(
        [fetch.Wanted(p, offset, epoch) for p, (offset, epoch) in wanted.items()],
        77,
        "client",
        isolation=fetch.Isolation.READ_COMMITTED,
        max_wait_ms=500,
        max_bytes=1 << 23,
        partition_max_bytes=1 << 20,
    )
    header, entity = read(fetch_request.FetchRequest, data)
    assert (header.correlation_id, header.client_id) == (77, "client")
    assert (entity.replica_id, entity.isolation_level, entity.min_bytes, entity.max_bytes) == (-1, 1, 1, 1 << 23)
    assert entity.max_wait == timedelta(milliseconds=500)
    seen = {
        Partition(str(topic.topic), int(p.partition)): (int(p.fetch_offset), int(p.current_leader_epoch))
        for topic in entity.topics
        for p in topic.partitions
    }
    assert seen == wanted


answers = st.dictionaries(
    st.builds(Partition, names, st.integers(0, 99)),
    st.tuples(offsets, offsets, st.lists(st.tuples(offsets, offsets), max_size=3), st.binary(max_size=200)),
    max_size=8,
)


def fetch_answer(rows: dict[Partition, tuple[int, int, list[tuple[int, int]], bytes]]) -> bytes:
    topics: dict[str, list[Any]] = {}
    for partition, (high, stable, aborted, records) in rows.items():
        topics.setdefault(partition.topic, []).append(
            fetch_response.PartitionData(
                partition_index=i32(partition.index),
                error_code=ErrorCode.none,
                high_watermark=i64(high),
                last_stable_offset=i64(stable),
                log_start_offset=i64(3),
                aborted_transactions=tuple(
                    fetch_response.AbortedTransaction(producer_id=ProducerId(p), first_offset=i64(o))
                    for p, o in aborted
                ),
                preferred_read_replica=BrokerId(-1),
                records=Records(records),
            )
        )
    return written(
        fetch_response.FetchResponse(
            throttle_time=i32Timedelta.parse(timedelta(0)),
            error_code=ErrorCode.none,
            session_id=i32(0),
            responses=tuple(
                fetch_response.FetchableTopicResponse(topic=TopicName(t), partitions=tuple(p))
                for t, p in topics.items()
            ),
        )
    )


@given(answers)
def test_we_read_kios_fetch_answer(rows: dict[Partition, tuple[int, int, list[tuple[int, int]], bytes]]) -> None:
    found = list(fetch.decode(memoryview(fetch_answer(rows)), {}))
    assert {f.partition: (f.high_watermark, f.last_stable, list(f.aborted), bytes(f.records)) for f in found} == rows
    assert all(f.error == 0 and f.log_start == 3 for f in found)


@given(answers, st.integers(0, 400), st.integers(0, 255))
def test_a_damaged_fetch_answer_is_a_named_error_or_other_rows(rows: Any, position: int, byte: int) -> None:
    data = bytearray(fetch_answer(rows))
    data[position % len(data)] = byte
    for damaged in (data, data[: position % len(data)]):
        try:
            for fetched in fetch.decode(memoryview(damaged), {}):
                assert len(fetched.records) <= len(damaged)
        except MalformedAnswer:
            pass


@given(st.binary(max_size=400))
def test_garbage_is_never_more_than_a_named_error(data: bytes) -> None:
    for decode in (lambda: list(fetch.decode(memoryview(data), {})), lambda: list(produce.decode(memoryview(data)))):
        with contextlib.suppress(MalformedAnswer):
            decode()


def test_an_array_length_beyond_the_answer_is_refused_before_anything_is_built() -> None:
    data = bytes(10) + (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(MalformedAnswer, match="array of 2147483647"):
        list(fetch.decode(memoryview(data), {}))


@given(
    st.dictionaries(st.builds(Partition, names, st.integers(0, 99)), st.binary(min_size=61, max_size=100), max_size=8)
)
def test_kio_reads_our_produce(batches: dict[Partition, bytes]) -> None:
    rows = [(p.topic, p.index, memoryview(batch)) for p, batch in sorted(batches.items())]
    data = b"".join(bytes(part) for part in produce.encode(rows, 5, "client", timeout_ms=30_000))
    header, entity = read(produce_request.ProduceRequest, data)
    assert (header.correlation_id, entity.acks, entity.transactional_id) == (5, -1, None)
    seen = {
        Partition(str(topic.name), int(p.index)): bytes(p.records)
        for topic in entity.topic_data
        for p in topic.partition_data
    }
    assert seen == batches


def test_we_read_kios_produce_answer() -> None:
    row = produce_response.PartitionProduceResponse(
        index=i32(4),
        error_code=ErrorCode.invalid_record,
        base_offset=i64(-1),
        log_append_time=None,
        log_start_offset=i64(0),
        record_errors=(
            produce_response.BatchIndexAndErrorMessage(batch_index=i32(0), batch_index_error_message="null key"),
        ),
        error_message="one or more records were rejected",
    )
    fine = produce_response.PartitionProduceResponse(
        index=i32(5), error_code=ErrorCode.none, base_offset=i64(900), log_append_time=None, log_start_offset=i64(0),
        record_errors=(), error_message=None,
    )  # fmt: skip
    answer = produce_response.ProduceResponse(
        responses=(produce_response.TopicProduceResponse(name=TopicName("t"), partition_responses=(row, fine)),),
        throttle_time=i32Timedelta.parse(timedelta(0)),
    )
    assert list(produce.decode(memoryview(written(answer)))) == [
        produce.Produced("t", 4, 87, -1, "null key; one or more records were rejected"),
        produce.Produced("t", 5, 0, 900, ""),
    ]
