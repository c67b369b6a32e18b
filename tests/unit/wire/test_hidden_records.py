"""Hidden records: the bytes, and that nothing else is taken for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.wire.batch import HEADER, BatchHeader, MalformedBatch, crc_matches, readdress, split_batches
from mirror_core.wire.hidden_records import HIDDEN_DELTA, HIDDEN_RECORD, build_hidden_batch, is_hidden
from mirror_core.wire.records import decode_records
from mirror_core.wire.reencode import split_into_runs


def parsed(batch: bytearray) -> tuple[BatchHeader, memoryview]:
    ((header, view),) = split_batches(memoryview(batch))
    return header, view


def test_a_hidden_record_is_eleven_bytes_that_every_version_writes_alike() -> None:
    assert HIDDEN_RECORD.hex() == "14 00 00 ff ff ff ff 0f 01 01 00".replace(" ", "")


@given(count=st.integers(1, 3_000), time_ms=st.integers(-1, 2**62), offset=st.integers(0, 2**40))
def test_a_batch_of_them_takes_its_offsets_and_holds_records_far_below(count: int, time_ms: int, offset: int) -> None:
    batch = build_hidden_batch(count, time_ms)
    readdress(memoryview(batch), 7, 0, 11)
    batch[:8] = offset.to_bytes(8, "big")
    header, view = parsed(batch)
    assert crc_matches(header, view)
    assert is_hidden(header, view)
    assert (header.next_offset, header.record_count, header.max_timestamp) == (offset + count, count, time_ms)
    assert {record.offset for record in decode_records(header, view)} == {offset + HIDDEN_DELTA}


@given(place=st.integers(0, 61 + 3 * len(HIDDEN_RECORD) - 1), value=st.integers(0, 255))
def test_what_differs_in_a_record_or_in_what_counts_is_not_hidden(place: int, value: int) -> None:
    batch = build_hidden_batch(3, 5)
    if batch[place] == value or 17 <= place < 21:
        return
    changed = bytearray(batch)
    changed[place] = value
    view = memoryview(changed)
    header = BatchHeader._make(HEADER.unpack_from(view))
    codec_or_control = place == 22 and value & 0x27
    assert is_hidden(header, view) is not (
        place >= 57 or place in range(8, 12) or place == 16 or bool(codec_or_control)
    )


def test_another_negative_delta_is_damage() -> None:
    batch = build_hidden_batch(2, 5)
    batch[61 + 3] = 0xFD  # -2**31 + 1
    header, view = parsed(batch)
    assert not is_hidden(header, view)
    with pytest.raises(MalformedBatch, match="claims offset"):
        split_into_runs(header._replace(base_offset=10), view, 11)
