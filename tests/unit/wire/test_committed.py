"""What a reader of committed records sees of an answer: of which batches, and of none before the position."""

from __future__ import annotations

import pytest
from fastcrc import crc32

from mirror_core.wire.batch import CONTROL, TRANSACTIONAL, MalformedBatch, readdress
from mirror_core.wire.hidden_records import build_hidden_batch
from mirror_core.wire.read_committed import DamagedBatch, filter_committed
from tests.support.source_batches import batch, fetched


def marker(base: int, producer_id: int, *, commit: bool) -> bytes:
    """A transaction's end."""
    made = bytearray(batch(base, 1, producer_id=producer_id))
    made[21:23] = (CONTROL | TRANSACTIONAL).to_bytes(2, "big")
    record = bytes((0, 0, 0, 8, 0, 0, 0, commit, 12)) + bytes(6) + b"\0"
    made[61:] = bytes((2 * len(record),)) + record
    made[8:12] = (len(made) - 12).to_bytes(4, "big")
    made[17:21] = crc32.iscsi(bytes(made[21:])).to_bytes(4, "big")
    return bytes(made)


def hidden(base: int, count: int) -> bytes:
    made = build_hidden_batch(count, 1_000)
    readdress(memoryview(made), 1, 0, 0)
    made[:8] = base.to_bytes(8, "big")
    return bytes(made)


def test_only_data_of_committed_transactions_and_of_none_is_seen() -> None:
    answer = fetched(
        batch(0, 1, producer_id=5),
        batch(1, 1, producer_id=6),
        marker(2, 5, commit=False),
        batch(3, 1, producer_id=5),
        marker(4, 6, commit=True),
        hidden(5, 3),
        batch(8, 2),
        aborted=((5, 0),),
    )
    seen = [(header.base_offset, visible) for header, _, visible in filter_committed(answer, 0)]
    assert seen == [(0, False), (1, True), (2, False), (3, True), (4, False), (5, False), (8, True)]
    assert [header.base_offset for header, _, _ in filter_committed(answer, 9)] == [8]
    # What lies before the position is not given, but an abort that it holds still counts.
    assert [(h.base_offset, visible) for h, _, visible in filter_committed(answer, 3)] == seen_from(seen, 3)


def seen_from(seen: list[tuple[int, bool]], position: int) -> list[tuple[int, bool]]:
    return [(base, visible) for base, visible in seen if base >= position]


def test_a_damaged_batch_is_named_and_nothing_before_it_is_lost() -> None:
    bad = bytearray(batch(1, 1))
    bad[-1] ^= 1
    found = filter_committed(fetched(batch(0, 1), bytes(bad)), 0)
    assert next(found)[0].base_offset == 0
    with pytest.raises(DamagedBatch, match="batch at offset 1 is damaged"):
        next(found)
    assert [header.base_offset for header, _, _ in filter_committed(fetched(bytes(bad), batch(2, 1)), 2)] == [2]


@pytest.mark.parametrize("magic", [3, 0x82, 0xFF])
def test_a_format_that_does_not_exist_is_no_batch_though_no_crc_covers_it(magic: int) -> None:
    bad = bytearray(batch(1, 1))
    bad[16] = magic
    found = filter_committed(fetched(batch(0, 1), bytes(bad)), 0)
    assert next(found)[0].base_offset == 0
    with pytest.raises(MalformedBatch, match=f"batch at offset 1 is damaged: there is no magic {magic}$"):
        next(found)
