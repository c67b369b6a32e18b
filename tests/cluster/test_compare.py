"""Parity against real brokers: every seeded defect is found and named, equality is found, and silence is no pass."""

from __future__ import annotations

import json
import random
import socket
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition

from mirror_core.model.names import ClusterName, Partition
from mirror_core.model.parity_verdict import ParityVerdict
from mirror_core.parity.check import LocalParity
from mirror_core.parity.compare import CompareTask
from mirror_core.parity.compare import compare_task as compare_task
from tests.support.broker_faults import damaged
from tests.support.colliding_records import colliding_values
from tests.support.comparisons import CHUNK, EAST, WEST, compare, found
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client, new_topic, read_all
from tests.support.parity_topics import Content, content, copy_bytes, send, twin_topics, whole
from tests.support.sentences import format_sentence

pytestmark = pytest.mark.cluster


def pair_with(pair: Pair, source: list[Content], destination: list[Content]) -> str:
    topic = twin_topics(pair)
    send(pair.east, topic, source)
    send(pair.west, topic, destination)
    return topic


def altered(at: int, **changes: object) -> list[Content]:
    records = content(50)
    records[at] = replace(records[at], **changes)  # type: ignore[arg-type]  # the parametrization names the fields
    return records


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_bytes_copied_as_they_are_pass_by_digest_alone(pair: Pair, codec: str) -> None:
    topic = twin_topics(pair)
    send(pair.east, topic, content(200), compression_type=codec, batch_num_messages="13")
    copy_bytes(pair, topic, 200)
    assert read_all(pair.west, topic) == read_all(pair.east, topic)
    result = compare(pair, whole(topic, 200), level=2)
    assert (result.verdict, result.records, result.chunks, result.findings) == (ParityVerdict.PASSED, 200, 20, ())
    assert result.verified_ends == {Partition(topic, 0): 200}


def flip_a_value(batch: memoryview) -> None:
    at = bytes(batch).find(b"value 23")
    if at > 0:
        batch[at] = ord("V")


def shift_all_times(batch: memoryview) -> None:
    """The records themselves stay as they are: they count from the base timestamp in the batch's header."""
    base, newest = struct.unpack_from(">qq", batch, 27)
    struct.pack_into(">qq", batch, 27, base + 1, newest + 1)


@pytest.mark.parametrize(
    ("alter", "kinds"), [(flip_a_value, [("value", 23)]), (shift_all_times, [("timestamp", n) for n in range(50)])]
)
def test_digests_see_what_was_altered_inside_of_batches(
    pair: Pair, alter: Callable[[memoryview], None], kinds: list[tuple[str, int]]
) -> None:
    topic = twin_topics(pair)
    send(pair.east, topic, content(50))
    copy_bytes(pair, topic, 50, alter=alter)
    assert compare(pair, whole(topic, 50), level=2).verdict is ParityVerdict.INDETERMINATE
    result = compare(pair, whole(topic, 50))
    assert (result.verdict, found(result)) == (ParityVerdict.FAILED, kinds)


def test_two_records_crafted_for_one_digest_are_not_called_equal(pair: Pair) -> None:
    """An application chose the source's record, and whoever may write the destination its counterpart."""
    bytes_digested_before = 38
    ours, theirs = colliding_values(bytes_digested_before)
    topic = twin_topics(pair)
    send(pair.east, topic, [Content(key=None, value=ours, timestamp_ms=1_790_000_000_001)])
    at = 61 + 8  # a batch's header; length, attributes, both deltas, no key, length of the value

    def exchange(batch: memoryview) -> None:
        assert bytes(batch[at : at + len(ours)]) == ours
        batch[at : at + len(ours)] = theirs

    copy_bytes(pair, topic, 1, alter=exchange)
    assert compare(pair, whole(topic, 1), level=2).verdict is ParityVerdict.INDETERMINATE
    assert found(compare(pair, whole(topic, 1))) == [("value", 0)]


def test_other_batch_boundaries_and_codecs_are_equal_record_by_record(pair: Pair) -> None:
    topic = twin_topics(pair)
    send(pair.east, topic, content(100), compression_type="gzip", batch_num_messages="7")
    send(pair.west, topic, content(100), compression_type="zstd", batch_num_messages="11")
    result = compare(pair, whole(topic, 100))
    assert (result.verdict, result.records, result.reasons) == (ParityVerdict.PASSED, 100, ())
    by_digest = compare(pair, whole(topic, 100), level=2)
    assert by_digest.verdict is ParityVerdict.INDETERMINATE
    assert "level 3 would tell" in by_digest.reasons[0]


def test_times_stamped_by_the_source_broker_are_equal_when_the_copy_carries_them(pair: Pair) -> None:
    topic = twin_topics(pair, message_timestamp_type="LogAppendTime")
    send(pair.east, topic, content(30))
    stamped = [record.timestamp_ms for record in read_all(pair.east, topic)]
    copies = [replace(record, timestamp_ms=time) for record, time in zip(content(30), stamped, strict=True)]
    send(pair.west, topic, copies)
    assert compare(pair, whole(topic, 30)).verdict is ParityVerdict.PASSED


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("value", {"value": b"other"}),
        ("value", {"value": b""}),
        ("key", {"key": b"other"}),
        ("key", {"key": None}),
        ("timestamp", {"timestamp_ms": content(50)[23].timestamp_ms + 1}),
        ("headers", {"headers": (("n", b"24"), ("null", None))}),
        ("headers", {"headers": (("n", b"23"), ("null", b""))}),
        ("headers", {"headers": (("null", None), ("n", b"23"))}),
        ("headers", {"headers": ()}),
    ],
)
def test_an_altered_record_is_found_at_its_offset(pair: Pair, kind: str, changes: dict[str, object]) -> None:
    topic = pair_with(pair, content(50), altered(23, **changes))
    result = compare(pair, whole(topic, 50))
    assert (result.verdict, found(result)) == (ParityVerdict.FAILED, [(kind, 23)])
    assert result.verified_ends == {Partition(topic, 0): 23}


def test_swapped_records_are_called_reordered(pair: Pair) -> None:
    swapped = content(50)
    swapped[31], swapped[34] = swapped[34], swapped[31]
    result = compare(pair, whole(pair_with(pair, content(50), swapped), 50))
    assert (result.verdict, found(result)) == (ParityVerdict.FAILED, [("reordered", 31), ("reordered", 34)])
    assert "at offset 34 on the destination" in result.findings[0].detail


def moved_by_one(first: int, end: int) -> list[tuple[str, int]]:
    """What is found where each record of the source stands one offset later on the destination: within its chunk it is
    found again, at the chunk's last offset another record stands in its place."""
    kinds = list[tuple[str, int]]()
    for offset in range(first, end):
        if offset % CHUNK < CHUNK - 1:
            kinds.append(("reordered", offset))
        else:
            here, there = content(end)[offset], content(end)[offset - 1]
            fields = {"headers": True, "key": here.key != there.key, "timestamp": True, "value": True}
            kinds += [(kind, offset) for kind, differs in fields.items() if differs]
    return kinds


def test_a_duplicated_record_is_found_and_what_it_has_moved(pair: Pair) -> None:
    twice = [*content(50)[:21], *content(50)[20:49]]  # both logs end at 50
    topic = pair_with(pair, content(50), twice)
    result = compare(pair, whole(topic, 50))
    assert (result.verdict, found(result)) == (ParityVerdict.FAILED, moved_by_one(21, 50))
    assert format_sentence("source_record_at_another_offset", 22) in result.findings[0].detail
    assert result.verified_ends == {Partition(topic, 0): 21}


def test_a_log_that_is_shifted_by_one_is_found_from_its_first_record_on(pair: Pair) -> None:
    topic = pair_with(pair, content(50), [replace(content(1)[0], value=b"a stranger's"), *content(50)[:49]])
    result = compare(pair, whole(topic, 50))
    assert (result.verdict, found(result)) == (ParityVerdict.FAILED, moved_by_one(0, 50))
    assert result.verified_ends == {Partition(topic, 0): 0}


def test_swapped_partitions_are_found_in_both(pair: Pair) -> None:
    """As many records, the same ends: only what stands at each offset tells."""
    topic = twin_topics(pair, partitions=2)
    parts = content(20)[:10], content(20)[10:]
    for partition in (0, 1):
        send(pair.east, topic, parts[partition], partition)
        send(pair.west, topic, parts[1 - partition], partition)
    ranges = [whole(topic, 10, partition=partition) for partition in (0, 1)]
    assert compare(pair, *ranges, level=1).verdict is ParityVerdict.PASSED
    result = compare(pair, *ranges)
    assert result.verdict is ParityVerdict.FAILED
    fields = (("headers", "headers"), ("key", "key"), ("timestamp", "timestamp_ms"), ("value", "value"))
    assert [(f.partition.index, f.offset, f.kind) for f in result.findings] == [
        (partition, offset, kind)
        for partition in (0, 1)
        for offset in range(10)
        for kind, name in fields
        if getattr(parts[0][offset], name) != getattr(parts[1][offset], name)
    ]
    assert result.verified_ends == {Partition(topic, 0): 0, Partition(topic, 1): 0}


def test_a_record_that_only_the_source_has_is_missing(pair: Pair) -> None:
    copy = content(50)
    copy[20:22] = [replace(copy[20], aborted=True)]  # it and its abort marker take offsets 20 and 21
    topic = pair_with(pair, content(50), copy)
    result = compare(pair, whole(topic, 50))
    assert (result.verdict, found(result)) == (ParityVerdict.FAILED, [("missing", 20), ("missing", 21)])
    assert result.verified_ends == {Partition(topic, 0): 20}


def test_a_record_that_only_the_destination_has_is_extra(pair: Pair) -> None:
    original = content(50)
    original[20:22] = [replace(original[20], aborted=True)]
    result = compare(pair, whole(pair_with(pair, original, content(50)), 50))
    assert (result.verdict, found(result)) == (ParityVerdict.FAILED, [("extra", 20), ("extra", 21)])


def test_what_was_aborted_on_both_sides_is_no_difference(pair: Pair) -> None:
    records = content(50)
    records[20:22] = [replace(records[20], aborted=True)]
    result = compare(pair, whole(pair_with(pair, records, records), 50))
    assert (result.verdict, result.records) == (ParityVerdict.PASSED, 48)


def test_a_destination_that_ends_too_early_and_one_that_goes_on_fail(pair: Pair) -> None:
    short = pair_with(pair, content(50), content(45))
    result = compare(pair, whole(short, 50))
    assert (result.verdict, found(result)) == (ParityVerdict.FAILED, [("log end", 45)])
    assert (result.verified_ends, result.records) == ({Partition(short, 0): 45}, 45)

    long = pair_with(pair, content(45), content(50))
    result = compare(pair, whole(long, 45))
    assert (result.verdict, found(result)) == (ParityVerdict.FAILED, [("log end", 45)])
    assert "goes on to 50" in result.findings[0].detail


def test_a_topic_that_the_destination_lacks_fails(pair: Pair) -> None:
    topic = new_topic(pair.east, retention_ms="-1")
    send(pair.east, topic, content(20))
    result = compare(pair, whole(topic, 20))
    assert (result.verdict, found(result)) == (ParityVerdict.FAILED, [("missing", 0)])


def delete_before(pair: Pair, cluster: str, topic: str, offset: int) -> None:
    admin = admin_client(pair.east if cluster == "east" else pair.west)
    futures = admin.delete_records([TopicPartition(topic, 0, offset)], request_timeout=TIMEOUT_S)
    for future in futures.values():
        future.result(TIMEOUT_S)


def test_what_the_source_has_deleted_is_not_compared_and_what_the_destination_lost_is_found(pair: Pair) -> None:
    topic = pair_with(pair, content(50), content(50))
    delete_before(pair, "east", topic, 15)
    result = compare(pair, whole(topic, 50))
    assert (result.verdict, result.records, result.verified_ends) == (
        ParityVerdict.PASSED,
        35,
        {Partition(topic, 0): 50},
    )
    delete_before(pair, "west", topic, 18)
    result = compare(pair, whole(topic, 50))
    assert (result.verdict, found(result)) == (ParityVerdict.FAILED, [("log start", 15)])
    assert result.verified_ends == {Partition(topic, 0): 15}


def test_retention_that_overtakes_the_reading_is_followed_and_a_loss_on_the_destination_is_not(pair: Pair) -> None:
    topic = pair_with(pair, content(50), content(50))
    source, destination = pair.identities
    task = CompareTask(
        config_path=str(pair.config_path),
        source=source,
        destination=destination,
        level=3,
        chunk=CHUNK,
        pieces=(whole(topic, 50),),  # as it was when the ends were looked at
    )
    delete_before(pair, "east", topic, 15)
    rows = compare_task(task)
    assert [(row.start, row.end, row.level > 0, row.equal) for row in rows][:2] == [
        (0, 15, False, True),
        (15, 20, True, True),
    ]
    assert sum(row.src_count or 0 for row in rows) == 35
    delete_before(pair, "west", topic, 18)
    assert {row.error != "" for row in compare_task(task) if row.start >= 15} == {True}


def test_a_range_that_starts_and_ends_inside_batches_is_compared_exactly(pair: Pair) -> None:
    copy = altered(23, value=b"other")
    topic = pair_with(pair, content(50), copy)
    assert compare(pair, whole(topic, 23, start=3)).verdict is ParityVerdict.PASSED
    assert compare(pair, whole(topic, 50, start=24)).records == 26
    assert found(compare(pair, whole(topic, 24, start=23))) == [("value", 23)]


def test_every_one_of_many_random_defects_is_found(pair: Pair) -> None:
    dice = random.Random(7)
    bad = sorted(dice.sample(range(600), 40))
    copy = content(600)
    for at in bad:
        copy[at] = replace(copy[at], value=b"damaged", timestamp_ms=copy[at].timestamp_ms)
    result = compare(pair, whole(pair_with(pair, content(600), copy), 600))
    assert found(result) == [("value", at) for at in bad]


def test_nothing_to_compare_is_indeterminate(pair: Pair) -> None:
    topic = twin_topics(pair)
    for ranges in ([], [whole(topic, 0)]):
        result = compare(pair, *ranges)
        assert (result.verdict, result.records) == (ParityVerdict.INDETERMINATE, 0)
        assert "no record was compared" in result.reasons[-1]


def test_an_empty_partition_beside_a_full_one_passes(pair: Pair) -> None:
    topic = twin_topics(pair, partitions=2)
    send(pair.east, topic, content(20))
    copy_bytes(pair, topic, 20)
    result = compare(pair, whole(topic, 20), whole(topic, 0, partition=1))
    assert (result.verdict, result.verified_ends) == (
        ParityVerdict.PASSED,
        {Partition(topic, 0): 20, Partition(topic, 1): 0},
    )


def test_a_topic_that_the_source_lacks_is_indeterminate_and_the_rest_is_compared(pair: Pair) -> None:
    gone = new_topic(pair.west)
    topic = pair_with(pair, content(20), content(20))
    result = compare(pair, whole(gone, 5), whole(topic, 20))
    assert (result.verdict, result.records) == (ParityVerdict.INDETERMINATE, 20)
    assert gone in result.reasons[0]
    assert result.verified_ends == {Partition(gone, 0): 0, Partition(topic, 0): 20}


@pytest.mark.parametrize("side", [EAST, WEST])
def test_a_damaged_batch_is_indeterminate_and_named(pair: Pair, side: ClusterName) -> None:
    topic = twin_topics(pair)
    for first in range(0, 40, 10):
        send(pair.east, topic, content(40)[first : first + 10])
    copy_bytes(pair, topic, 40)
    with damaged(pair.east if side == EAST else pair.west, Partition(topic, 0), b"value 25"):
        result = compare(pair, whole(topic, 40))
    assert result.verdict is ParityVerdict.INDETERMINATE
    assert f"cluster {side}" in result.reasons[0]
    assert "CRC does not match" in result.reasons[0]
    assert result.verified_ends == {Partition(topic, 0): 20}
    assert [(one.kind, one.offset) for one in result.damage_findings] == [(f"unreadable on {side}", 20)]


def test_a_dead_side_is_indeterminate_and_named(pair: Pair, tmp_path: Path) -> None:
    topic = pair_with(pair, content(20), content(20))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        text = pair.config_path.read_text().replace(pair.east.bootstrap, f"127.0.0.1:{closed.getsockname()[1]}")
    config = pair.config_path.parent / f"dead-{tmp_path.name}.yaml"  # beside the file that it refers to
    config.write_text(text)
    result = LocalParity(config)(*pair.identities, [whole(topic, 20)], tmp_path / "out")
    assert (result.verdict, result.verified_ends) == (ParityVerdict.INDETERMINATE, {Partition(topic, 0): 0})
    assert "cluster east" in result.reasons[0]
    assert "indeterminate" in (tmp_path / "out" / "index.html").read_text()


def test_ends_alone_prove_nothing(pair: Pair) -> None:
    topic = pair_with(pair, content(50), altered(23, value=b"other"))
    result = compare(pair, whole(topic, 50), level=1)
    assert (result.verdict, result.records, result.verified_ends) == (
        ParityVerdict.PASSED,
        50,
        {Partition(topic, 0): 0},
    )


def test_the_report_names_the_difference_and_holds_no_content_and_no_secret(pair: Pair, tmp_path: Path) -> None:
    topic = pair_with(pair, content(50), altered(23, value=b"confidential"))
    result = compare(pair, whole(topic, 50), output=tmp_path)
    assert result.report == str(tmp_path / "index.html")
    page, document = (tmp_path / "index.html").read_text(), (tmp_path / "result.json").read_text()
    assert json.loads(document)["findings"][0]["offset"] == 23
    assert f"{topic}-0" in page
    secrets = [password for cluster in (pair.east, pair.west) for password in cluster.passwords.values()]
    for text in (page, document):
        assert not any(secret in text for secret in ["confidential", *secrets])
    assert "http" not in page


def test_a_range_beyond_the_last_stable_offset_is_indeterminate(pair: Pair) -> None:
    topic = twin_topics(pair)
    send(pair.east, topic, content(10))
    send(pair.west, topic, content(11))
    producer = Producer({**pair.east.client_config("admin"), "transactional.id": f"open-{topic}"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    assert producer.flush(TIMEOUT_S) == 0
    result = compare(pair, whole(topic, 11))
    producer.abort_transaction(TIMEOUT_S)
    assert result.verdict is ParityVerdict.INDETERMINATE
    assert "readable up to 10 only" in result.reasons[0]
    assert result.verified_ends == {Partition(topic, 0): 10}
