"""Records of `__share_group_state`: what they say is acknowledged, and nothing believed that is damaged."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from mirror_core.kafka import share_groups
from mirror_core.kafka.share_groups import describe_start_offsets, find_acknowledged_end
from mirror_core.model.names import Offset, Partition
from mirror_core.wire.fields import MalformedResponse, encode_string
from mirror_core.wire.group_records import (
    SharePartition,
    ShareStateRecord,
    decode_share_state,
    find_state_partition,
)

TOPIC_ID = UUID("0121a8f2-70a7-496a-9b57-20bd83cd9bb6")
SHARE_PARTITION = SharePartition("queue", TOPIC_ID, 2)
COMPLETE_COUNT = b"\x01\x00\x04" + struct.pack(">i", 7)
"""One tagged field, number 0, of 4 bytes."""


def key(kind: int) -> bytes:
    return struct.pack(">h", kind) + encode_string("queue") + TOPIC_ID.bytes + struct.pack(">i", 2)


def batches(*rows: tuple[int, int, int]) -> bytes:
    return bytes([len(rows) + 1]) + b"".join(struct.pack(">qqbh", f, n, state, 1) + b"\0" for f, n, state in rows)


def snapshot(*rows: tuple[int, int, int], tags: bytes = COMPLETE_COUNT) -> bytes:
    return struct.pack(">hiiiqqq", 0, 1, 0, 3, 10, 1_700_000_000_000, 1_700_000_000_001) + batches(*rows) + tags


def update(*rows: tuple[int, int, int], tags: bytes = COMPLETE_COUNT) -> bytes:
    return struct.pack(">hiiq", 0, 1, 3, -1) + batches(*rows) + tags


@pytest.mark.parametrize("tags", [b"\0", COMPLETE_COUNT])
def test_only_what_was_acknowledged_or_archived_counts(tags: bytes) -> None:
    rows = (10, 14, 2), (15, 15, 0), (16, 19, 4)
    acknowledged = (Offset(10), Offset(15)), (Offset(16), Offset(20))
    found = decode_share_state(key(0), snapshot(*rows, tags=tags))
    assert found == ShareStateRecord(SHARE_PARTITION, is_snapshot=True, acknowledged=acknowledged)
    found = decode_share_state(key(1), update(*rows, tags=tags))
    assert found == ShareStateRecord(SHARE_PARTITION, is_snapshot=False, acknowledged=acknowledged)


def test_a_deleted_state_is_an_empty_one_and_other_records_are_none() -> None:
    assert decode_share_state(key(0), None) == ShareStateRecord(SHARE_PARTITION, is_snapshot=True, acknowledged=())
    assert decode_share_state(struct.pack(">h", 2) + b"whatever", b"whatever") is None


def test_damaged_records_are_refused() -> None:
    for data in (snapshot((1, 2, 2))[:-1], snapshot() + b"x", b"\0\1" + snapshot()[2:], b""):
        with pytest.raises(MalformedResponse):
            decode_share_state(key(0), data)
    with pytest.raises(MalformedResponse):
        decode_share_state(None, b"")
    with pytest.raises(MalformedResponse):
        decode_share_state(key(0)[:-1], snapshot())


def acknowledged(*ranges: tuple[int, int]) -> ShareStateRecord:
    return ShareStateRecord(SHARE_PARTITION, True, tuple((Offset(first), Offset(end)) for first, end in ranges))


@pytest.mark.parametrize(
    ("start", "records", "end"),
    [
        (3, [], 3),
        (3, [acknowledged((3, 7))], 7),
        (3, [acknowledged((7, 9)), acknowledged((3, 7))], 9),
        (3, [acknowledged((4, 9))], 3),  # record 3 is still to be delivered
        (3, [acknowledged((0, 5), (6, 9))], 5),
        (8, [acknowledged((0, 5))], 8),
    ],
)
def test_what_is_acknowledged_ends_before_the_first_record_that_is_not(
    start: int, records: list[ShareStateRecord], end: int
) -> None:
    assert find_acknowledged_end(Offset(start), records) == end


@pytest.mark.parametrize(("group", "java_hash"), [("queue", 1403264766), ("billing", -936927020)])
def test_the_state_partition_is_the_one_that_javas_hash_names(group: str, java_hash: int) -> None:
    """Of `GROUP:ASGo8nCnSWqbVyC9g82btg:2`."""
    assert find_state_partition(SharePartition(group, TOPIC_ID, 2), 50) == abs(java_hash) % 50


@pytest.mark.parametrize(
    ("later_end", "acknowledged", "read"), [(20, 7, True), (900, 7, True), (900, 0, False), (20, 0, False)]
)
def test_what_is_acknowledged_is_known_while_the_log_grows(
    monkeypatch: pytest.MonkeyPatch, later_end: int, acknowledged: int, read: bool
) -> None:
    """The lag is of a log that may have grown since its end was listed: it hides as many acknowledgements."""
    ends, reads, partition = iter([20, later_end]), list[object](), Partition("t", 2)
    start = SimpleNamespace(offset=0, lag=later_end - acknowledged, share_partition=SHARE_PARTITION)
    record = ShareStateRecord(SHARE_PARTITION, is_snapshot=True, acknowledged=((Offset(0), Offset(acknowledged)),))

    def read_states(*asked: object) -> dict[SharePartition, list[ShareStateRecord]]:
        reads.append(asked)
        return {SHARE_PARTITION: [record]}

    monkeypatch.setattr(share_groups, "can_sync_share_groups", lambda _: True)
    monkeypatch.setattr(share_groups, "_describe", lambda *_: ({"queue": {partition: start}}, {}))
    monkeypatch.setattr(share_groups, "list_known_offsets", lambda *_: {partition: Offset(next(ends))})
    monkeypatch.setattr(share_groups, "_read_share_states", read_states)
    client: Any = None
    found = describe_start_offsets(client, 1, ["queue"]).starts["queue"][partition]
    assert (found.acknowledged_ahead, bool(reads)) == (acknowledged, read)
