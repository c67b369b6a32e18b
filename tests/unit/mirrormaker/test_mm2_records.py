"""Records of MirrorMaker's own topics, as Kafka's `OffsetSync` and `Checkpoint` serialize them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.model.names import Offset, Partition
from mirror_core.wire.fields import MalformedResponse
from mirrorbook_tools.mirrormaker.mm2_records import (
    GroupCheckpoint,
    OffsetSync,
    decode_checkpoint,
    decode_offset_sync,
)


def text(value: str) -> bytes:
    return struct.pack(">h", len(value.encode())) + value.encode()


SYNC_KEY = text("orders") + struct.pack(">i", 3)
SYNC_VALUE = struct.pack(">qq", 1_000, 400)
CHECKPOINT_KEY = text("app") + text("east.orders") + struct.pack(">i", 3)
CHECKPOINT_VALUE = struct.pack(">hqq", 0, 1_000, 400) + text("note")


def test_an_offset_sync_names_the_place_in_both_copies() -> None:
    assert decode_offset_sync(SYNC_KEY, SYNC_VALUE) == OffsetSync(Partition("orders", 3), Offset(1_000), 400)
    assert decode_offset_sync(SYNC_KEY, None) is None


def test_a_checkpoint_names_both_offsets_of_a_group() -> None:
    expected = GroupCheckpoint("app", Partition("east.orders", 3), Offset(1_000), 400)
    assert decode_checkpoint(CHECKPOINT_KEY, CHECKPOINT_VALUE) == expected
    assert decode_checkpoint(CHECKPOINT_KEY, None) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, CHECKPOINT_VALUE),
        (CHECKPOINT_KEY, struct.pack(">h", 1) + CHECKPOINT_VALUE[2:]),
        (CHECKPOINT_KEY, CHECKPOINT_VALUE + b"x"),
        (CHECKPOINT_KEY[:-1], CHECKPOINT_VALUE),
        (struct.pack(">h", -2), CHECKPOINT_VALUE),
        (text("app") + struct.pack(">h", 2) + b"\xff\xff" + struct.pack(">i", 0), CHECKPOINT_VALUE),
    ],
)
def test_a_checkpoint_of_another_shape_is_refused(key: bytes | None, value: bytes) -> None:
    with pytest.raises(MalformedResponse):
        decode_checkpoint(key, value)


@given(st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=40))
def test_any_bytes_are_decoded_or_refused(key: bytes | None, value: bytes | None) -> None:
    for decode in (decode_offset_sync, decode_checkpoint):
        try:
            decode(key, value)
        except MalformedResponse:
            continue
