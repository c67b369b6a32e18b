"""Decoding records: against aiokafka's encoder, against our own bytes, and against garbage."""

from __future__ import annotations

import secrets
import struct
import subprocess
import sys
import threading
import zlib

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mirror_core.wire.batch import HEADER, HEADER_SIZE, LOG_APPEND_TIME, BatchHeader, MalformedBatch, split_batches
from mirror_core.wire.batch_encoder import compress
from mirror_core.wire.records import (
    DECOMPRESSION_BUDGET,
    MAX_HEADERS,
    UNDECODED_HEADERS,
    Codec,
    DecompressionBudget,
    Record,
    decode_placed_records,
    decode_records,
    decode_varint,
    decompress,
    find_record_spans,
    is_abort_marker,
    wrap_int64,
)
from mirror_core.wire.reencode import split_into_runs

GZIP = zlib.compress(b"plain" * 20, wbits=31)
Content = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]

CONTENTS = st.lists(
    st.tuples(
        st.integers(0, 2**45),
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=2000),
        st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20)), max_size=3),
    ),
    min_size=1,
    max_size=30,
)


def zigzag(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def raw_record(offset_delta: int, timestamp_delta: int, key: bytes | None, headers: list[tuple[bytes, bytes]]) -> bytes:
    body = b"\0" + zigzag(timestamp_delta) + zigzag(offset_delta)
    body += zigzag(-1) if key is None else zigzag(len(key)) + key
    body += zigzag(-1) + zigzag(len(headers))
    for name, value in headers:
        body += zigzag(len(name)) + name + zigzag(len(value)) + value
    return zigzag(len(body)) + body


def raw_batch(records: bytes, count: int, *, attributes: int = 0, base: int = 100) -> tuple[BatchHeader, bytes]:
    header = BatchHeader(
        base, HEADER_SIZE - 12 + len(records), 0, 2, 0, attributes, count - 1, 1000, 5000, 7, 0, 0, count
    )
    return header, HEADER.pack(*header) + records


@settings(max_examples=60)
@given(contents=CONTENTS, codec=st.sampled_from(Codec))
def test_what_another_encoder_wrote_is_read_back(contents: list[Content], codec: Codec) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec.value,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 24,
    )
    for offset, (timestamp, key, value, headers) in enumerate(contents):
        assert builder.append(offset, timestamp, key, value, headers) is not None
    ((header, batch),) = split_batches(memoryview(bytes(builder.build())))
    assert list(decode_records(header, batch)) == [
        Record(offset, timestamp, key, value, tuple((name.encode(), v) for name, v in headers))
        for offset, (timestamp, key, value, headers) in enumerate(contents)
    ]


def test_header_names_that_are_no_utf8_are_kept() -> None:
    header, batch = raw_batch(raw_record(0, -3, b"\xff", [(b"\xfe\xff", b"\x00")]), 1)
    assert list(decode_records(header, batch)) == [Record(100, 997, b"\xff", None, ((b"\xfe\xff", b"\x00"),))]


def test_broker_stamped_batches_give_every_record_the_batch_time() -> None:
    records = raw_record(0, 0, b"a", []) + raw_record(1, 17, b"b", [])
    header, batch = raw_batch(records, 2, attributes=0x08)
    assert [record.timestamp_ms for record in decode_records(header, batch)] == [5000, 5000]


def test_holes_that_compaction_left_keep_their_offsets() -> None:
    header, batch = raw_batch(raw_record(2, 0, b"a", []) + raw_record(9, 0, b"b", []), 2)
    assert [record.offset for record in decode_records(header, batch)] == [102, 109]


@pytest.mark.parametrize("framed", [False, True])
def test_snappy_in_java_framing_and_bare(framed: bool) -> None:
    plain = raw_record(0, 0, b"key", [])
    if framed:
        halves = [bytes(cramjam.snappy.compress_raw(part)) for part in (plain[:3], plain[3:])]
        body = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(h)) + h for h in halves)
    else:
        body = bytes(cramjam.snappy.compress_raw(plain))
    assert decompress(Codec.SNAPPY, body) == plain


@pytest.mark.parametrize("body", [GZIP[:-1], GZIP[:-9], GZIP + b"x", GZIP * 2, b""])
def test_gzip_that_is_not_one_whole_member_is_refused(body: bytes) -> None:
    assert decompress(Codec.GZIP, GZIP) == b"plain" * 20
    with pytest.raises(MalformedBatch, match="gzip"):
        decompress(Codec.GZIP, body)


def test_bare_snappy_is_bounded_by_what_it_announces() -> None:
    body = bytes(cramjam.snappy.compress_raw(bytes(1000)))
    assert decompress(Codec.SNAPPY, body, 1000) == bytes(1000)
    with pytest.raises(MalformedBatch, match="more than 999"):
        decompress(Codec.SNAPPY, body, 999)


@pytest.mark.parametrize(("kind", "aborted"), [(0, True), (1, False)])
def test_abort_and_commit_markers_are_told_apart(kind: int, aborted: bool) -> None:
    header, batch = raw_batch(raw_record(0, 0, struct.pack(">hh", 0, kind), []), 1, attributes=0x30)
    assert is_abort_marker(header, batch) is aborted


@given(value=st.integers(-(2**63), 2**63 - 1))
def test_varints_of_all_64_bit_numbers(value: int) -> None:
    encoded = zigzag(value)
    assert decode_varint(encoded + b"\x55", 0) == (value, len(encoded))


@pytest.mark.parametrize("data", [b"\xff" * 9 + b"\x02", b"\xff" * 9 + b"\x7f", b"\xff" * 10 + b"\x01"])
def test_varints_of_more_than_64_bits_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedBatch, match="a varint of more"):
        decode_varint(data, 0)


def test_bytes_behind_the_last_record_are_refused() -> None:
    header, batch = raw_batch(raw_record(0, 0, b"a", []) + b"\0", 1)
    with pytest.raises(MalformedBatch, match="offset 100: 1 bytes left after its 1 records"):
        list(decode_records(header, batch))
    with pytest.raises(MalformedBatch, match="offset 100: 1 bytes left after its 1 records"):
        list(find_record_spans(header, batch[HEADER_SIZE:]))
    two = raw_record(0, 0, b"a", []) + raw_record(1, 0, b"b", [])
    header, batch = raw_batch(two, 1)
    with pytest.raises(MalformedBatch, match=f"{len(two) // 2} bytes left after its 1 records"):
        list(decode_records(header, batch))
    header, batch = raw_batch(two, 3)
    with pytest.raises(MalformedBatch, match="offset 100: a record ends behind the batch"):
        list(decode_records(header, batch))


@pytest.mark.parametrize("lie", [-2, -1, 1, 2])
def test_a_record_that_is_longer_or_shorter_than_it_says_is_refused(lie: int) -> None:
    """Its neighbour's bytes, or padding, stand where the lie points to: only the length itself can tell."""
    honest = raw_record(0, 0, b"key", [(b"h", b"v")])
    liar = bytes([honest[0] + 2 * lie]) + honest[1:] + bytes(max(lie, 0))
    header, batch = raw_batch(liar + raw_record(1, 0, b"b", []), 2)
    with pytest.raises(MalformedBatch):
        list(decode_records(header, batch))
    with pytest.raises(MalformedBatch, match="a record is not as long as it says"):
        list(find_record_spans(header, batch[HEADER_SIZE:]))


@pytest.mark.parametrize("count", [-1, -2])
def test_a_record_with_less_than_no_headers_is_refused(count: int) -> None:
    body = b"\0\0\0" + zigzag(-1) + zigzag(-1) + zigzag(count)
    header, batch = raw_batch(zigzag(len(body)) + body, 1)
    with pytest.raises(MalformedBatch, match="not as long as it says"):
        list(decode_records(header, batch))
    with pytest.raises(MalformedBatch, match="not as long as it says"):
        list(find_record_spans(header, batch[HEADER_SIZE:]))


def test_a_header_without_a_name_is_refused() -> None:
    body = b"\0\0\0" + zigzag(-1) + zigzag(-1) + zigzag(1) + zigzag(-1) + zigzag(-1)
    header, batch = raw_batch(zigzag(len(body)) + body, 1)
    with pytest.raises(MalformedBatch, match="a header without a name"):
        list(decode_records(header, batch))


def test_a_control_batch_without_a_marker_is_refused() -> None:
    for records, count in ((b"", 0), (raw_record(0, 0, None, []), 1), (raw_record(0, 0, b"\0\0\0", []), 1)):
        header, batch = raw_batch(records, count, attributes=0x30)
        with pytest.raises(MalformedBatch, match="offset 100 without a marker"):
            is_abort_marker(header, batch)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_codecs_that_do_not_exist_are_refused_by_number(codec: int) -> None:
    with pytest.raises(MalformedBatch, match=f"codec {codec} does not exist"):
        decompress(codec, b"")


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("size", [100, 4000])
def test_no_codec_gives_more_than_the_limit_and_all_give_as_much(codec: Codec, size: int) -> None:
    """Also of bytes that compress so well that nobody would guess their size."""
    plain = bytes(size) + bytes(range(50))
    body = compress(codec, plain)
    assert decompress(codec, body, len(plain)) == plain
    with pytest.raises(MalformedBatch, match=codec.name.lower()):
        decompress(codec, body, len(plain) - 1)


def test_the_blocks_of_framed_snappy_share_one_limit() -> None:
    blocks = [bytes(cramjam.snappy.compress_raw(bytes(100))) for _ in range(3)]
    body = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(b)) + b for b in blocks)
    assert decompress(Codec.SNAPPY, body, 300) == bytes(300)
    with pytest.raises(MalformedBatch, match="more than 99 bytes"):
        decompress(Codec.SNAPPY, body, 299)
    with pytest.raises(MalformedBatch, match="ends behind the batch"):
        decompress(Codec.SNAPPY, body[:-1], 300)


LARGE = secrets.token_bytes(60_000) + bytes(17 << 20)
"""Plain bytes beyond what counts in no budget, which an honest producer could compress so well."""


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_large_batches_count_in_the_budget_while_they_are_held(codec: Codec) -> None:
    body = compress(codec, LARGE)
    plain = decompress(codec, body)
    assert (len(plain), plain[:]) == (len(LARGE), LARGE)
    assert DECOMPRESSION_BUDGET.used_bytes == len(LARGE)
    del plain
    assert DECOMPRESSION_BUDGET.used_bytes == 0
    with pytest.raises(MalformedBatch, match=codec.name.lower()):
        decompress(codec, body, len(LARGE) - 1)
    with pytest.raises(MalformedBatch, match=codec.name.lower()):
        decompress(codec, body[:-1000])
    assert DECOMPRESSION_BUDGET.used_bytes == 0


def test_records_of_a_large_batch_are_read_and_written_anew() -> None:
    values = [secrets.token_bytes(3_000) + bytes(1 << 20) for _ in range(18)]
    plain = b"".join(raw_record(offset, 0, value, []) for offset, value in enumerate(values))
    header, batch = raw_batch(compress(Codec.ZSTD, plain), len(values), attributes=Codec.ZSTD | LOG_APPEND_TIME)
    assert [record.key for record in decode_records(header, batch)] == values
    runs = split_into_runs(header, memoryview(batch), 0)
    assert [run.base_offset for run in runs] == [100, 108, 116], "no second copy of all is made"
    assert [
        one.key for run in runs for one in decode_records(next(split_batches(memoryview(run.batch)))[0], run.batch)
    ] == values
    assert DECOMPRESSION_BUDGET.used_bytes == 0


PEAK = """
import resource, sys
from mirror_core.wire.batch import HEADER, BatchHeader, MalformedBatch
from mirror_core.wire.records import decode_records
from mirror_core.wire.reencode import split_into_runs

batch = sys.stdin.buffer.read()
header = BatchHeader(*HEADER.unpack_from(batch))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for read in (lambda: list(decode_records(header, batch)), lambda: split_into_runs(header, memoryview(batch), 0)):
    try:
        read()
    except MalformedBatch:
        print("refused", end=" ")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_ten_kilobytes_do_not_cost_hundreds_of_megabytes() -> None:
    """Any producer can send them; the batch is refused, and what else this process does goes on."""
    plain = b"".join(raw_record(offset, 0, bytes(1 << 20), []) for offset in range(240))
    _, batch = raw_batch(compress(Codec.ZSTD, plain), 240, attributes=Codec.ZSTD | LOG_APPEND_TIME)
    assert len(batch) < 20_000
    said = subprocess.run([sys.executable, "-c", PEAK], input=batch, capture_output=True, check=True).stdout.split()
    assert said[:2] == [b"refused", b"refused"]
    assert int(said[2]) < 64 << 10, f"{int(said[2]) >> 10} MiB more"


def test_millions_of_empty_headers_do_not_cost_gigabytes() -> None:
    """Copying never decodes them, and readers get them as one header: a single record ends no salvage."""
    count = 8_000_000
    body = b"\0\0\0" + zigzag(-1) + zigzag(-1) + zigzag(count) + b"\0\1" * count
    _, batch = raw_batch(compress(Codec.ZSTD, zigzag(len(body)) + body), 1, attributes=Codec.ZSTD)
    assert len(batch) < 20_000
    said = subprocess.run([sys.executable, "-c", PEAK], input=batch, capture_output=True, check=True).stdout.split()
    assert said[0] != b"refused"
    assert int(said[-1]) < 64 << 10, f"{int(said[-1]) >> 10} MiB more"


def test_more_headers_than_are_decoded_are_kept_as_they_are_stored() -> None:
    stored = zigzag(MAX_HEADERS + 1) + b"\2k\2v" * (MAX_HEADERS + 1)
    body = b"\0\0\0" + b"\2K" + b"\2V" + stored
    next_body = b"\0\0\2" + zigzag(-1) + zigzag(-1) + zigzag(1) + b"\2k\2v"
    plain = zigzag(len(body)) + body + zigzag(len(next_body)) + next_body
    header, batch = raw_batch(plain, 2)
    first, second = decode_records(header, batch)
    assert first[2:] == (b"K", b"V", ((UNDECODED_HEADERS, stored),))
    assert second.headers == ((b"k", b"v"),)


def test_a_record_that_claims_more_headers_than_it_has_bytes_is_malformed() -> None:
    body = b"\0\0\0" + zigzag(-1) + zigzag(-1) + zigzag(1 << 40) + b"\0\1"
    header, batch = raw_batch(zigzag(len(body)) + body, 1)
    with pytest.raises(MalformedBatch, match="not as long as it says"):
        list(decode_records(header, batch))


def test_who_needs_more_than_is_left_waits_for_another_thread_and_not_for_itself() -> None:
    memory = DecompressionBudget(100, wait_timeout_s=60.0)
    first, second = memory.allocate(80, lambda room: 80), memory.allocate(80, lambda room: 10)
    assert memory.used_bytes == 90, "this thread holds both sides of a comparison"
    began, held = threading.Event(), list[int]()

    def write(room: object) -> int:
        held.append(memory.used_bytes)
        return 50

    def fill() -> None:
        began.set()
        memory.allocate(50, write)

    other = threading.Thread(target=fill)
    other.start()
    assert began.wait(30)
    del second, first  # the small one first: without the big one there is room beside it
    other.join(30)
    assert held == [50], "and nothing else with it"
    assert memory.used_bytes == 0
    with pytest.raises(ValueError, match="too much"):
        memory.allocate(50, fail)
    assert memory.used_bytes == 0


def test_nobody_waits_for_ever_for_memory_that_is_not_given_back() -> None:
    memory = DecompressionBudget(100, wait_timeout_s=0.0)
    held = memory.allocate(100, lambda room: 100)
    other = threading.Thread(target=lambda: memory.allocate(100, lambda room: 100))
    other.start()
    other.join(30)
    assert not other.is_alive()
    assert memory.used_bytes == len(held) == 100


def fail(room: object) -> int:
    raise ValueError("too much")


@pytest.mark.parametrize(("offsets", "last"), [([0, 0], 1), ([1, 0], 1), ([0, 2], 1), ([-1, 0], 1)])
def test_spans_that_do_not_rise_or_leave_the_batch_are_refused(offsets: list[int], last: int) -> None:
    header, batch = raw_batch(b"".join(raw_record(o, 0, b"k", []) for o in offsets), 2)
    assert header.last_offset_delta == last
    with pytest.raises(MalformedBatch, match="a record claims offset"):
        list(find_record_spans(header, batch[HEADER_SIZE:]))


@pytest.mark.parametrize("offsets", [[0, 0], [1, 0], [0, 2], [-1, 0], [0, 1000], [0, -(1 << 31)]])
def test_records_that_do_not_rise_or_leave_the_batch_are_not_placed(offsets: list[int]) -> None:
    header, batch = raw_batch(b"".join(raw_record(o, 0, b"k", []) for o in offsets), 2)
    with pytest.raises(MalformedBatch, match="batch at offset 100: a record claims offset"):
        list(decode_placed_records(header, batch))


def test_an_offset_that_java_reads_in_32_bits_is_not_placed() -> None:
    """Its fifth byte holds bits that Java drops: Java's consumers see the record at the batch's offset."""
    body = b"\0\0" + b"\x80\x80\x80\x80\x10" + zigzag(1) + b"k" + zigzag(-1) + zigzag(0)
    header, batch = raw_batch(zigzag(len(body)) + body, 1)
    with pytest.raises(MalformedBatch, match="a record claims offset 2147483748, outside of 100 to 100"):
        list(decode_placed_records(header, batch))


def test_records_between_holes_are_placed() -> None:
    header, batch = raw_batch(b"".join(raw_record(o, 0, b"k", []) for o in (2, 9)), 2)
    header = header._replace(last_offset_delta=11)
    assert [record.offset for record in decode_placed_records(header, batch)] == [102, 109]


def test_spans_lie_side_by_side_whatever_headers_they_hold() -> None:
    one, two = raw_record(0, 5, b"k", [(b"name", b"value"), (b"", b"")]), raw_record(1, -7, None, [])
    header, batch = raw_batch(one + two, 2)
    first, second = find_record_spans(header, batch[HEADER_SIZE:])
    assert (first.start, first.end, second.start, second.end) == (0, len(one), len(one), len(one + two))
    assert (first.timestamp_delta, second.timestamp_delta) == (5, -7)
    assert one[first.content :].startswith(zigzag(1) + b"k")
    assert (one + two)[second.content :] == zigzag(-1) + zigzag(-1) + zigzag(0)


@pytest.mark.parametrize("name", [zigzag(-1), zigzag(200)])
def test_a_header_whose_name_is_missing_or_leaves_the_record_is_refused(name: bytes) -> None:
    body = b"\0\0\0" + zigzag(-1) + zigzag(-1) + zigzag(1) + name + zigzag(-1)
    header, batch = raw_batch(zigzag(len(body)) + body, 1)
    with pytest.raises(MalformedBatch):
        list(decode_records(header, batch))
    with pytest.raises(MalformedBatch, match="not as long as it says"):
        list(find_record_spans(header, batch[HEADER_SIZE:]))


def test_a_time_that_overflows_wraps_as_in_java() -> None:
    assert wrap_int64(2**63 - 1) == 2**63 - 1
    assert wrap_int64(2**63) == -(2**63)
    assert wrap_int64(-(2**63)) == -(2**63)
    assert wrap_int64(-(2**63) - 1) == 2**63 - 1


@settings(max_examples=300)
@given(body=st.binary(max_size=300), count=st.integers(-2, 50), codec=st.integers(0, 7))
def test_garbage_gives_records_or_a_malformed_batch(body: bytes, count: int, codec: int) -> None:
    header, batch = raw_batch(body, count, attributes=codec)
    try:
        found = list(decode_records(header, batch))
    except MalformedBatch:
        return
    assert len(found) == max(count, 0)
    plain = decompress(codec, body)
    assert sum(len(r.key or b"") + len(r.value or b"") + 7 for r in found) <= len(plain), "more than there was"
    assert found or not plain, "bytes that nobody read"


RECORDS = [(n, b"key", (b"h", b"v")) for n in range(20)]


@settings(max_examples=300)
@given(position=st.integers(0, 10_000), byte=st.integers(0, 255))
@example(position=0, byte=raw_record(0, 0, b"key", [(b"h", b"v")])[0])
def test_one_damaged_byte_gives_a_malformed_batch_or_one_record_that_differs(position: int, byte: int) -> None:
    """Lengths and counts must add up: a damage never moves the limits of records, nor takes or adds one."""
    records = b"".join(raw_record(n, n, key, [header]) for n, key, header in RECORDS)
    damaged = bytearray(records)
    damaged[position % len(damaged)] = byte
    header, batch = raw_batch(bytes(damaged), 20)
    try:
        found = list(decode_records(header, batch))
    except MalformedBatch:
        assert damaged != records
        return
    honest = [Record(100 + n, 1000 + n, key, None, (name_value,)) for n, key, name_value in RECORDS]
    assert len(found) == 20
    assert sum(one != other for one, other in zip(found, honest, strict=True)) <= (damaged != records)
