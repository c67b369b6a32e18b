"""Our WriteTxnMarkers v1 against kio's, in both directions, and against hostile bytes."""

from __future__ import annotations

import contextlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.types import ProducerId, TopicName
from kio.schema.write_txn_markers.v1 import request, response
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32

from mirror_core.model.names import Partition
from mirror_core.wire import txn_markers
from mirror_core.wire.fields import MalformedResponse
from mirror_core.wire.txn_markers import MarkerEntry, MarkerResult

names = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=20)
topics = st.sampled_from("ab") | names
partitions = st.lists(st.builds(Partition, topics, st.integers(0, 999)), unique=True, max_size=6).map(tuple)
entries = st.builds(
    MarkerEntry, st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(-1, 2**31 - 1), partitions
)


def written(rows: list[MarkerResult]) -> bytes:
    """An answer as kio writes it, behind a response header without tags; each row as a marker of its own."""
    entity = response.WriteTxnMarkersResponse(
        markers=tuple(
            response.WritableTxnMarkerResult(
                producer_id=ProducerId(row.producer_id),
                topics=(
                    response.WritableTxnMarkerTopicResult(
                        name=TopicName(row.topic),
                        partitions=(
                            response.WritableTxnMarkerPartitionResult(
                                partition_index=i32(row.partition), error_code=ErrorCode(row.error)
                            ),
                        ),
                    ),
                ),
            )
            for row in rows
        )
    )
    buffer = io.BytesIO(b"\0")
    buffer.seek(1)
    entity_writer(response.WriteTxnMarkersResponse)(buffer, entity)
    return buffer.getvalue()


def decoded(data: bytes) -> list[MarkerResult]:
    return list(txn_markers.decode_response(memoryview(data)))


@given(st.lists(entries, max_size=5), st.integers(1, 3))
def test_kio_reads_our_request(wanted: list[MarkerEntry], times: int) -> None:
    sent = [entry for entry in wanted for _ in range(times)]
    data = txn_markers.encode_request(sent, 77, "client")
    header, size = entity_reader(RequestHeader)(data, 0)
    assert (header.request_api_key, header.request_api_version) == (27, 1)
    assert (header.correlation_id, header.client_id) == (77, "client")
    entity, end = entity_reader(request.WriteTxnMarkersRequest)(data, size)
    assert end == len(data) - size, "bytes left over"
    assert not any(marker.transaction_result for marker in entity.markers), "never a commit"
    for marker in entity.markers:
        assert len({topic.name for topic in marker.topics}) == len(marker.topics), "a topic twice"
    seen = [
        (
            (int(marker.producer_id), int(marker.producer_epoch), int(marker.coordinator_epoch)),
            {Partition(str(topic.name), int(index)) for topic in marker.topics for index in topic.partition_indexes},
        )
        for marker in entity.markers
    ]
    assert seen == [
        ((entry.producer_id, entry.producer_epoch, entry.coordinator_epoch), set(entry.partitions)) for entry in sent
    ]


def test_a_partition_twice_in_an_entry_is_never_sent() -> None:
    twice = MarkerEntry(1, 0, 0, (Partition("t", 0), Partition("u", 0), Partition("t", 0)))
    with pytest.raises(ValueError, match="twice"):
        txn_markers.encode_request([twice], 1, "client")


rows = st.lists(
    st.builds(
        MarkerResult, st.integers(0, 2**62), names, st.integers(0, 999), st.sampled_from([0, 3, 6, 31, 47, 52]),
    ),
    max_size=6,
)  # fmt: skip


@given(rows)
def test_we_read_kios_answer(expected: list[MarkerResult]) -> None:
    assert decoded(written(expected)) == expected


def test_tagged_fields_of_a_newer_broker_are_passed_over() -> None:
    data = written([MarkerResult(5, "t", 3, 52)])
    tag = b"\x01\x07\x02hi"
    assert data.endswith(b"\0\0\0\0")
    with_tags = tag + data[1:-4] + tag * 4
    assert decoded(with_tags) == [MarkerResult(5, "t", 3, 52)]


@given(rows, st.integers(0, 400), st.integers(0, 255))
def test_a_damaged_answer_is_a_named_error_or_other_rows(
    expected: list[MarkerResult], position: int, byte: int
) -> None:
    data = bytearray(written(expected))
    data[position % len(data)] = byte
    for damaged in (data, data[: position % len(data)]):
        with contextlib.suppress(MalformedResponse):
            decoded(bytes(damaged))


@given(st.binary(max_size=300))
def test_garbage_is_never_more_than_a_named_error(data: bytes) -> None:
    with contextlib.suppress(MalformedResponse):
        decoded(data)


@pytest.mark.parametrize("data", [b"\0\xff\xff\xff\xff\x0f", b"\0\xff\xff\xff\xff\xff\x01", b"\xff\xff\xff\xff\x0f"])
def test_an_array_length_beyond_the_answer_is_refused_before_anything_is_built(data: bytes) -> None:
    with pytest.raises(MalformedResponse, match=r"array of|varint"):
        decoded(data)
