"""Batch headers: what other encoders make is read right, and a re-addressed batch is the same batch elsewhere."""

from __future__ import annotations

import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.wire.batch import (
    HEADER_SIZE,
    MalformedBatch,
    crc_matches,
    readdress,
    split_batches,
)

CODECS = [0, 1, 2, 3, 4]


def encoded(base: int, values: list[bytes], codec: int = 0) -> bytearray:
    """A batch as aiokafka makes it, with a base offset as a broker would give it."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=7,
        producer_epoch=3,
        base_sequence=11,
        batch_size=1 << 24,
    )
    for offset, value in enumerate(values):
        builder.append(offset, timestamp=1_700_000_000_123 + offset, key=b"k", value=value, headers=[("h", b"\xff")])
    batch = bytearray(builder.build())
    struct.pack_into(">q", batch, 0, base)
    return batch


@pytest.mark.parametrize("codec", CODECS)
def test_header_of_another_encoder_is_read_as_it_means_it(codec: int) -> None:
    batch = encoded(1_000, [b"a", b"bb", b"ccc"], codec)
    [(header, view)] = list(split_batches(memoryview(batch)))
    assert (header.base_offset, header.last_offset, header.next_offset) == (1_000, 1_002, 1_003)
    assert (header.record_count, header.magic, header.attributes & 7) == (3, 2, codec)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 11)
    assert (header.base_timestamp, header.max_timestamp) == (1_700_000_000_123, 1_700_000_000_125)
    assert crc_matches(header, view)


@pytest.mark.parametrize("codec", CODECS)
def test_readdressed_batch_passes_another_decoders_crc_and_keeps_every_record_byte(codec: int) -> None:
    batch = encoded(5_000, [b"x" * 100, b"", b"y"], codec)
    before = bytes(batch)
    readdress(memoryview(batch), (1 << 62) + 5, 0, 5_000)
    decoded = DefaultRecordBatch(bytes(batch))
    assert decoded.validate_crc()
    assert decoded.base_offset == 0
    assert (decoded.producer_id, decoded.base_sequence) == ((1 << 62) + 5, 5_000)
    assert bytes(batch[HEADER_SIZE:]) == before[HEADER_SIZE:]
    assert bytes(batch[21:43]) == before[21:43], "attributes, deltas and timestamps stay"
    assert bytes(batch[57:61]) == before[57:61], "the count stays"


@given(position=st.integers(min_value=21), flip=st.integers(min_value=1, max_value=255))
def test_any_changed_byte_under_the_crc_is_found(position: int, flip: int) -> None:
    batch = encoded(0, [b"value", b"other"])
    batch[21 + (position - 21) % (len(batch) - 21)] ^= flip
    ((header, view),) = split_batches(memoryview(batch))
    assert not crc_matches(header, view)


@given(st.lists(st.integers(min_value=1, max_value=5), max_size=6), st.integers(min_value=0, max_value=200))
def test_a_batch_cut_off_at_the_end_is_left_out_and_the_whole_ones_are_found(sizes: list[int], cut: int) -> None:
    whole, offset = bytearray(), 0
    ends = []
    for size in sizes:
        whole += encoded(offset, [b"v"] * size)
        offset += size
        ends.append(len(whole))
    kept = max(0, len(whole) - cut)
    found = [header.next_offset for header, _ in split_batches(memoryview(whole)[:kept])]
    assert found == [sum(sizes[: number + 1]) for number, end in enumerate(ends) if end <= kept]


@given(st.binary(max_size=300))
def test_garbage_is_a_named_error_or_nothing(data: bytes) -> None:
    try:
        for header, view in split_batches(memoryview(bytearray(data))):
            assert len(view) == header.length + 12 <= len(data)
    except MalformedBatch:
        pass


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
def test_an_impossible_length_is_refused(length: int) -> None:
    batch = encoded(0, [b"v"])
    struct.pack_into(">i", batch, 8, length)
    with pytest.raises(MalformedBatch):
        list(split_batches(memoryview(batch)))
