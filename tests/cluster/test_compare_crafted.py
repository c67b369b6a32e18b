"""Bytes that no client writes, crafted by an application and whoever may write the destination: never called equal."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ParityRange, ParityVerdict
from mirror_core.parity.salvage import LocalSalvage
from mirror_core.wire.batch_encoder import build_batch, compress, encode_record, encode_varint
from mirror_core.wire.hidden_records import build_hidden_batch
from mirror_core.wire.records import MAX_HEADERS, UNDECODED_HEADERS, Codec
from tests.support.comparisons import compare
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic, read_all
from tests.support.parity_topics import START_MS, Content, append_batches, batch_of, send, twin_topics, whole
from tests.support.saved_tails import saved_rows

pytestmark = pytest.mark.cluster

_TAKES_32_BITS = b"\x80\x80\x80\x80\x10"
"""Zero for Java, which drops what overflows; 2**31 for who reads 64 bits."""


def encode(values: list[bytes]) -> bytes:
    return b"".join(
        encode_record(0, n, b"\1" + encode_varint(len(value)) + value + b"\0") for n, value in enumerate(values)
    )


@pytest.mark.parametrize("codec", [Codec.GZIP])
def test_batches_cut_at_another_place_are_not_called_equal(pair: Pair, codec: Codec) -> None:
    """Decompressors stop where compressed data ends. What follows can be what another batch begins with."""
    first, theirs, ours = (compress(codec, encode(values)) for values in ([b"1", b"2"], [b"pay 9", b"9"], [b"3", b"4"]))
    facts = struct.pack(">qiqqBB", 2, 2, START_MS, START_MS, 0, codec)  # of the second batch, without its length
    topic = twin_topics(pair)
    append_batches(pair, "east", topic, [batch_of(first + facts + theirs, 2, codec), batch_of(ours, 2, codec)])
    append_batches(pair, "west", topic, [batch_of(first, 2, codec), batch_of(theirs + facts + ours, 2, codec)])
    seen = [[record.value for record in read_all(side, topic)] for side in (pair.east, pair.west)]
    assert seen == [[b"1", b"2", b"3", b"4"], [b"1", b"2", b"pay 9", b"9"]]
    result = compare(pair, whole(topic, 4))
    assert result.verdict is not ParityVerdict.PASSED, result


@pytest.mark.parametrize("delta", [_TAKES_32_BITS, encode_varint(3)])
def test_a_record_in_a_gap_that_claims_another_offset_is_found(pair: Pair, delta: bytes) -> None:
    """A consumer is handed it; who looks at the offsets that are compared would not see it."""
    one, aborted, two = (Content(key=None, value=value, timestamp_ms=START_MS) for value in (b"1", b"given up", b"2"))
    topic = twin_topics(pair)
    send(pair.east, topic, [one, replace(aborted, aborted=True), two])  # takes offsets 0; 1, and 2 for its marker; 3
    content_of_it = b"\1" + encode_varint(5) + b"pay 9" + b"\0"
    body = b"\0\0" + delta + content_of_it
    forged = build_batch(encode_varint(len(body)) + body, 1, Codec.NONE, START_MS, START_MS)
    beside = [batch_of(encode([value]), 1, Codec.NONE) for value in (b"1", b"2")]
    append_batches(pair, "west", topic, [beside[0], build_hidden_batch(1, START_MS), forged, beside[1]])
    assert b"pay 9" in [record.value for record in read_all(pair.west, topic)]
    assert [record.value for record in read_all(pair.east, topic)] == [b"1", b"2"]
    result = compare(pair, whole(topic, 4))
    assert result.verdict is ParityVerdict.INDETERMINATE
    assert [reason for reason in result.reasons if "batch at offset 2: a record claims offset" in reason]


def test_a_record_with_more_headers_than_are_decoded_ends_no_salvage(pair: Pair, tmp_path: Path) -> None:
    """It may be the only copy of what stands beside it."""
    topic = new_topic(pair.east)
    producer = Producer(pair.east.client_config("admin"))
    for count in (0, MAX_HEADERS + 1, 1):
        headers: list[tuple[str, str | bytes | None]] = [("k", b"v")] * count
        producer.produce(topic, b"value", headers=headers)
    assert producer.flush(TIMEOUT_S) == 0
    wanted = [ParityRange(partition=Partition(topic, 0), start=Offset(0), end=Offset(3))]
    saved = LocalSalvage(pair.config_path)(pair.identities[0], wanted, tmp_path / "saved")
    assert saved[Partition(topic, 0)].records == 3
    names = [[header["name"] for header in row["headers"]] for row in saved_rows(tmp_path / "saved")]
    assert names == [[], [UNDECODED_HEADERS], [b"k"]]
