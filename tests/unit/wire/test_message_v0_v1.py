"""Messages of magic 0 and 1: bytes laid out by hand and by another client, read, verified and written anew."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import cramjam
import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_core.wire.batch import BatchHeader, MalformedBatch, split_batches
from mirror_core.wire.batch_encoder import compress
from mirror_core.wire.message_v0_v1 import decode_message, split_message_into_runs
from mirror_core.wire.records import Codec, Record
from tests.support.record_bytes import BASE_TIME, INT64, Row, message, seen, source, wrapper

CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
LAT = 0x08


def only(data: bytes) -> tuple[BatchHeader, memoryview]:
    [found] = split_batches(memoryview(bytearray(data)))
    return found


def records(rows: Sequence[Row], *, stamp: int | None = None) -> list[Record]:
    return [Record(row[0], row[1] if stamp is None else stamp, row[2], row[3], ()) for row in rows]


fields = st.none() | st.binary(max_size=50)


@st.composite
def sets(draw: st.DrawFn) -> tuple[int, list[Row]]:
    base = draw(st.integers(0, 2**40))
    offset = base + draw(st.integers(0, 2))
    rows = []
    for timestamp in draw(st.lists(st.just(-1) | st.integers(0, 2**45) | INT64, min_size=1, max_size=15)):
        rows.append((offset, timestamp, draw(fields), draw(fields)))
        offset += draw(st.sampled_from([1, 1, 1, 2, 50]))
    return base, rows


@settings(max_examples=80)
@given(sets(), st.sampled_from([0, 1]), st.sampled_from(CODECS[1:]), st.integers(-3, 40))
def test_a_compressed_set_becomes_runs_of_exactly_its_records(
    drawn: tuple[int, list[Row]], magic: int, codec: Codec, skip: int
) -> None:
    base, rows = drawn
    header, view = only(wrapper(rows, magic, codec, base=base))
    expected = records(rows, stamp=None if magic else -1)
    assert list(decode_message(header, view)) == expected
    assert header.last_offset == rows[-1][0], "what a reader must skip by"
    runs = split_message_into_runs(header, view, base + skip)
    assert seen(runs) == [record for record in expected if record.offset >= base + skip]
    assert all(run.batch[22] == codec for run in runs)


@settings(max_examples=60)
@given(sets(), st.sampled_from([0, 1]))
def test_single_messages_are_batches_of_one(drawn: tuple[int, list[Row]], magic: int) -> None:
    _, rows = drawn
    answer = memoryview(b"".join(message(row, magic) for row in rows))
    found = list(split_batches(answer))
    assert [header.base_offset for header, _ in found] == [header.last_offset for header, _ in found]
    runs = [run for header, view in found for run in split_message_into_runs(header, view, 0)]
    assert seen(runs) == records(rows, stamp=None if magic else -1)


def test_the_smallest_messages_are_found_at_the_end_of_an_answer() -> None:
    """A header of magic 2 would not fit in there; a message left out would be fetched again for ever."""
    small = [message((5, -1, None, None), 0), message((6, 77, None, None), 1)]
    answer = b"".join(small)
    assert [header.base_offset for header, _ in split_batches(memoryview(answer))] == [5, 6]
    for end in range(len(answer)):
        assert len(list(split_batches(memoryview(answer)[:end]))) == (end >= len(small[0]))


@pytest.mark.parametrize(("magic", "length"), [(0, -(2**31)), (0, -12), (0, 0), (0, 13), (1, -12), (1, 21)])
def test_an_impossible_length_is_refused(magic: int, length: int) -> None:
    """A length of -12 leads back to the message's own beginning, for ever."""
    data = bytearray(message(ROWS[0], magic))
    struct.pack_into(">i", data, 8, length)
    with pytest.raises(MalformedBatch, match="shorter"):
        list(split_batches(memoryview(data)))


def test_an_answer_may_hold_several_formats() -> None:
    new = bytes(source([Record(7, BASE_TIME, None, b"v2", ())])[1])
    answer = message((5, -1, None, b"v0"), 0) + message((6, 77, None, b"v1"), 1) + new + message((8, 1, None, b""), 1)
    assert [(header.base_offset, header.magic) for header, _ in split_batches(memoryview(answer))] == [
        (5, 0), (6, 1), (7, 2), (8, 1),
    ]  # fmt: skip


def test_times_of_the_broker_rule_over_those_inside() -> None:
    rows: list[Row] = [(10, 1, b"a", b"b"), (11, 2, None, b"c")]
    header, view = only(wrapper(rows, 1, Codec.GZIP, attributes=LAT, stamp=BASE_TIME))
    assert seen(split_message_into_runs(header, view, 0)) == records(rows, stamp=BASE_TIME)
    header, view = only(message(rows[0], 1, LAT))
    assert seen(split_message_into_runs(header, view, 0)) == records(rows[:1])
    header, view = only(wrapper(rows, 0, Codec.GZIP, attributes=LAT))
    assert seen(split_message_into_runs(header, view, 0)) == records(rows, stamp=-1), "there is no such bit in magic 0"


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 2**45), fields, fields), min_size=1, max_size=20),
    st.sampled_from([0, 1]),
    st.sampled_from(CODECS),
    st.integers(0, 2**40),
)
def test_what_another_client_wrote_is_read(
    rows: list[tuple[int, bytes | None, bytes | None]], magic: int, codec: Codec, base: int
) -> None:
    if not magic and codec is Codec.LZ4:
        codec = Codec.SNAPPY  # it does not write lz4's old framing
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=codec.value, batch_size=1 << 24)
    first = 0 if magic and codec else base  # brokers of magic 1 changed the outer offset only
    for number, (timestamp, key, value) in enumerate(rows):
        builder.append(first + number, timestamp, key, value)
    built = builder.build()
    if codec:
        struct.pack_into(">q", built, 0, base + len(rows) - 1)
    expected = [
        Record(base + number, timestamp if magic else -1, key, value, ())
        for number, (timestamp, key, value) in enumerate(rows)
    ]
    found = list(split_batches(memoryview(built)))
    assert seen([run for header, view in found for run in split_message_into_runs(header, view, 0)]) == expected


def test_a_set_whose_first_records_compaction_took_keeps_its_offsets() -> None:
    rows: list[Row] = [(103, 1, b"a", None), (107, 2, b"b", b"")]
    runs = split_message_into_runs(*only(wrapper(rows, 1, Codec.SNAPPY, base=100)), 0)
    assert [run.base_offset for run in runs] == [103, 107]
    assert seen(runs) == records(rows)


ROWS: list[Row] = [(10, 1, b"a", b"b"), (11, 2, None, b"c")]


def inside(data: bytes, *, magic: int = 1) -> bytes:
    return message((11, 5, None, compress(Codec.GZIP, data)), magic, Codec.GZIP)


def with_a_byte_more(data: bytes) -> bytes:
    """Inside the message's length, under a right checksum."""
    body = data[16:] + b"x"
    return data[:8] + struct.pack(">iI", len(body) + 4, zlib.crc32(body)) + body


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(inside(b""), id="an empty set"),
        pytest.param(message((11, 5, None, None), 1, Codec.GZIP), id="a compressed null"),
        pytest.param(message((11, 5, None, b"xyz"), 1, Codec.GZIP), id="not gzip"),
        pytest.param(message((11, 5, None, b"xyz"), 1, Codec.ZSTD), id="a codec that the format does not have"),
        pytest.param(inside(message((0, 1, b"a", b"b"), 0)), id="another magic inside"),
        pytest.param(inside(wrapper(ROWS, 1, Codec.GZIP)), id="compressed twice"),
        pytest.param(inside(message((0, 1, b"", b""), 1)[:-1]), id="cut off inside"),
        pytest.param(inside(message((0, 1, b"", b""), 1)[:5]), id="cut off inside its length"),
        pytest.param(inside(b"".join(message((n, 1, b"", b""), 1) for n in (5, 3, 6))), id="offsets fall"),
        pytest.param(inside(b"".join(message((n, 1, b"", b""), 1) for n in (3, 3, 6))), id="an offset twice"),
        pytest.param(with_a_byte_more(message(ROWS[1], 1)), id="a byte behind the value"),
        pytest.param(message(ROWS[1], 1) + b"x", id="a byte behind the message"),
        pytest.param(inside(message((5, 1, b"", b""), 0), magic=0)[:8] + bytes(8), id="too short"),
        pytest.param(inside(message((12, 1, b"", b""), 0), magic=0), id="an offset behind the outer one"),
        pytest.param(inside(message((99, 1, b"", b""), 1)), id="a relative offset beyond the outer one"),
    ],
)
def test_contradictions_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedBatch):
        split_message_into_runs(
            BatchHeader(11, len(data) - 12, -1, 1, 0, 1, 0, -1, -1, -1, -1, -1, -1), memoryview(data), 0
        )


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", CODECS)
def test_a_changed_byte_is_found_by_the_checksum(magic: int, codec: Codec) -> None:
    whole = wrapper(ROWS, magic, codec) if codec else message(ROWS[0], magic)
    for position in range(16, len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 0x21
        with pytest.raises(MalformedBatch, match=r"CRC-32|announced"):
            split_message_into_runs(only(whole)[0], memoryview(changed), 0)


def test_a_changed_byte_inside_is_found_too() -> None:
    inner = bytearray(message((0, 1, b"key", b"value"), 1))
    inner[-1] ^= 1
    with pytest.raises(MalformedBatch, match="inside: its CRC-32"):
        split_message_into_runs(*only(inside(bytes(inner))), 0)


def test_lz4_of_magic_0_is_read_with_the_right_header_checksum_as_well() -> None:
    """KAFKA-3160: some clients wrote it right from the beginning."""
    body = compress(Codec.LZ4, b"".join(message(row, 0) for row in ROWS))
    header, view = only(message((11, -1, None, body), 0, Codec.LZ4))
    assert seen(split_message_into_runs(header, view, 0)) == records(ROWS, stamp=-1)


def test_a_set_of_too_many_plain_bytes_is_refused() -> None:
    body = bytes(cramjam.gzip.compress(message((0, 1, None, bytes(1_000_000)), 1)))
    found = only(message((11, 5, None, body), 1, Codec.GZIP))
    assert len(split_message_into_runs(*found, 0)) == 1
    with pytest.raises(MalformedBatch, match="more than 100000"):
        split_message_into_runs(*found, 0, limit=100_000)
