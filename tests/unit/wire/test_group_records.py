"""Records of `__consumer_offsets`: each version that brokers write, and nothing believed that is damaged."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.model.names import Offset, Partition
from mirror_core.wire.fields import MalformedResponse, encode_compact_string, encode_string
from mirror_core.wire.group_records import OffsetCommitRecord, OffsetCommitValue, decode_offset_commit

TEXT = st.text(st.characters(blacklist_categories=["Cs"]), max_size=40)
INT64 = st.integers(0, 2**63 - 1)


def key(group: str, topic: str, index: int, version: int = 1) -> bytes:
    return struct.pack(">h", version) + encode_string(group) + encode_string(topic) + struct.pack(">i", index)


def value(version: int, offset: int, epoch: int, metadata: str, ms: int, tags: bytes = b"\0") -> bytes:
    parts = [struct.pack(">hq", version, offset)]
    if version >= 3:
        parts.append(struct.pack(">i", epoch))
    parts += [encode_compact_string(metadata) if version >= 4 else encode_string(metadata), struct.pack(">q", ms)]
    if version == 1:
        parts.append(struct.pack(">q", ms + 1000))
    if version >= 4:
        parts.append(tags)
    return b"".join(parts)


TOPIC_ID = b"\1\0\20" + bytes(range(16))
"""One tagged field, number 0, of 16 bytes."""


@given(TEXT, TEXT, st.integers(0, 2**31 - 1), INT64, st.integers(-1, 2**31 - 1), TEXT, INT64.map(lambda n: n // 2))
@pytest.mark.parametrize("version", range(5))
def test_every_version_says_the_same(
    version: int, group: str, topic: str, index: int, offset: int, epoch: int, metadata: str, ms: int
) -> None:
    known = OffsetCommitValue(Offset(offset), epoch if version >= 3 else -1, metadata, ms)
    for tags in (b"\0", TOPIC_ID):
        found = decode_offset_commit(key(group, topic, index), value(version, offset, epoch, metadata, ms, tags))
        assert found == OffsetCommitRecord(group, Partition(topic, index), known)


def test_bytes_that_a_broker_of_kafka_4_wrote() -> None:
    said = decode_offset_commit(
        bytes.fromhex("0001 0004 67312d61 0003 742d31 00000002"),
        bytes.fromhex("0003 000000000000002a 00000005 0000 0000019123456789"),
    )
    assert said == OffsetCommitRecord("g1-a", Partition("t-1", 2), OffsetCommitValue(Offset(42), 5, "", 0x19123456789))


def test_what_is_deleted_and_what_is_below_zero_is_no_offset() -> None:
    nothing = OffsetCommitRecord("g", Partition("t", 0), None)
    assert decode_offset_commit(key("g", "t", 0), None) == nothing
    assert decode_offset_commit(key("g", "t", 0, version=0), value(3, -1, -1, "", 5)) == nothing


@pytest.mark.parametrize("version", [2, 3, 8, 15, -1])
def test_records_about_members_are_not_ours(version: int) -> None:
    assert decode_offset_commit(struct.pack(">h", version) + b"whatever", b"whatever") is None


@pytest.mark.parametrize("version", [5, -1, 300])
def test_a_version_that_is_not_known_is_said(version: int) -> None:
    with pytest.raises(MalformedResponse, match=f"version {version}"):
        decode_offset_commit(key("g", "t", 0), value(3, 1, 1, "", 1).replace(b"\0\3", struct.pack(">h", version), 1))


@pytest.mark.parametrize("version", range(5))
def test_truncated_or_longer_bytes_are_refused(version: int) -> None:
    whole_key, whole = key("group", "topic", 1), value(version, 7, 3, "note", 9, TOPIC_ID)
    for cut in range(len(whole)):
        with pytest.raises(MalformedResponse):
            decode_offset_commit(whole_key, whole[:cut])
    for cut in range(len(whole_key)):
        with pytest.raises(MalformedResponse):
            decode_offset_commit(whole_key[:cut], whole)
    for one, other in ((whole_key + b"\0", whole), (whole_key, whole + b"\0")):
        with pytest.raises(MalformedResponse, match="1 bytes left"):
            decode_offset_commit(one, other)
    with pytest.raises(MalformedResponse, match="without a key"):
        decode_offset_commit(None, whole)
