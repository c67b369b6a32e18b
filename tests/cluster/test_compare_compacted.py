"""Parity of compacted topics: what one side's cleaner has taken is no difference, what nobody may take is one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mirror_core.copy.log_inspection import DivergenceFinder
from mirror_core.kafka.topics import alter_configs
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ParityResult, ParityVerdict
from tests.support.cluster_admin import as_admin, broker_setting
from tests.support.compacted_comparisons import keyed
from tests.support.comparisons import compare, found
from tests.support.kafka_clients import Pair, new_topic, read_all
from tests.support.log_shapes import HOUR_MS, await_cleaner
from tests.support.mirrored_topics import new_mirror
from tests.support.parity_topics import START_MS, Content, send, twin_topics, whole

pytestmark = pytest.mark.cluster


def without(records: list[Content], at: int) -> list[Content]:
    """No record at this offset and the next one: an aborted transaction took them."""
    return [*records[:at], replace(records[at], aborted=True), *records[at + 2 :]]


def compared(pair: Pair, source: list[Content], destination: list[Content]) -> ParityResult:
    topic = twin_topics(pair, cleanup_policy="compact")
    send(pair.east, topic, source)
    send(pair.west, topic, destination)
    return compare(pair, whole(topic, 50))


def test_a_topic_that_the_source_goes_on_cleaning_is_equal_to_its_copy(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(
        pair.east,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio="0.01",
        segment_ms=str(HOUR_MS),
        retention_ms="-1",
        delete_retention_ms=str(24 * HOUR_MS),
    )
    mirrored = new_mirror(pair, tmp_path, topic)
    send(pair.east, topic, keyed(100))
    mirrored.copy()
    later = [replace(record, timestamp_ms=START_MS + 1_000) for record in keyed(60, 1)]
    later[50:] = [replace(record, value=None) for record in later[50:]]
    roller = Content(key=b"roller", value=b"", timestamp_ms=START_MS + 2 * HOUR_MS)
    send(pair.east, topic, later)
    send(pair.east, topic, [roller])  # in a batch of its own: it begins a new segment, and the old one can be cleaned
    with broker_setting(pair.east, "log.cleaner.backoff.ms", "100"):
        await_cleaner(pair.east, {Partition(topic, 0): 160})
    mirrored.copy()
    left = len(read_all(pair.east, topic))
    assert left == 101, "of each key the newest, and the roller"
    assert len(read_all(pair.west, topic)) == 161
    result = compare(pair, whole(topic, 161))
    assert (result.verdict, result.records, found(result)) == (ParityVerdict.PASSED, left, [])


@pytest.mark.parametrize("kind", ["extra", "missing"])
def test_the_newest_of_a_key_on_one_side_only_is_found(pair: Pair, kind: str) -> None:
    sides = [without(keyed(50), 20), keyed(50)]
    result = compared(pair, *(sides if kind == "extra" else sides[::-1]))
    assert (result.verdict, found(result)) == (ParityVerdict.FAILED, [(kind, 20), (kind, 21)])
    assert result.records == 48


@pytest.mark.parametrize("kind", ["extra", "missing"])
def test_what_something_newer_of_its_key_has_replaced_may_be_on_one_side_only(pair: Pair, kind: str) -> None:
    records = keyed(50)
    records[40:42] = [replace(new, key=old.key) for new, old in zip(records[40:42], records[20:22], strict=True)]
    sides = [without(records, 20), records]
    result = compared(pair, *(sides if kind == "extra" else sides[::-1]))
    assert (result.verdict, result.records, found(result)) == (ParityVerdict.PASSED, 48, [])


@pytest.mark.parametrize("kind", ["extra", "missing"])
def test_a_record_without_a_key_may_be_on_one_side_only_when_both_clean(pair: Pair, kind: str) -> None:
    records = keyed(50)
    records[20:22] = [replace(record, key=None) for record in records[20:22]]
    sides = [without(records, 20), records]
    topic = twin_topics(pair)
    for cluster, content in zip((pair.east, pair.west), sides if kind == "extra" else sides[::-1], strict=True):
        send(cluster, topic, content)
    for cluster, verdict in ((pair.east, ParityVerdict.FAILED), (pair.west, ParityVerdict.PASSED)):
        with as_admin(cluster) as client:
            alter_configs(client, {topic: {"cleanup.policy": "compact"}})
        result = compare(pair, whole(topic, 50))
        expected = [(kind, 20), (kind, 21)] if verdict is ParityVerdict.FAILED else []
        assert (result.verdict, found(result)) == (verdict, expected)


@pytest.mark.parametrize("lacks", ["source", "destination"])
def test_whose_history_was_rewritten_is_told_from_what_a_cleaner_took(pair: Pair, lacks: str) -> None:
    def first_divergence(records: list[Content]) -> int | None:
        topic = twin_topics(pair, cleanup_policy="compact")
        sides = [records, without(records, 20)]
        for cluster, content in zip((pair.east, pair.west), sides[:: -1 if lacks == "source" else 1], strict=True):
            send(cluster, topic, content)
        with as_admin(pair.east) as east, as_admin(pair.west) as west, DivergenceFinder(east, west) as divergence:
            return divergence.find_first_divergence(Partition(topic, 0), Offset(22), 0)

    records = keyed(30)
    assert first_divergence(records) == 20, "nothing newer has replaced it"
    records[24:26] = [replace(new, key=old.key) for new, old in zip(records[24:26], records[20:22], strict=True)]
    assert first_divergence(records) is None


@pytest.mark.parametrize("kind", ["extra", "missing"])
def test_a_tombstone_may_be_gone_only_together_with_what_it_deleted(pair: Pair, kind: str) -> None:
    gone = keyed(50)
    gone[20:22] = [replace(record, value=None) for record in gone[20:22]]
    sides = [without(gone, 20), gone]
    result = compared(pair, *(sides if kind == "extra" else sides[::-1]))
    assert (result.verdict, found(result)) == (ParityVerdict.PASSED, [])

    still = list(gone)
    still[5:7] = [replace(new, key=old.key) for new, old in zip(still[5:7], gone[20:22], strict=True)]
    sides = [without(still, 20), still]
    result = compared(pair, *(sides if kind == "extra" else sides[::-1]))
    assert (result.verdict, found(result)) == (ParityVerdict.FAILED, [(kind, 20), (kind, 21)])


def test_an_altered_record_is_found_beside_what_was_cleaned(pair: Pair) -> None:
    records = keyed(50)
    records[40:42] = [replace(new, key=old.key) for new, old in zip(records[40:42], records[20:22], strict=True)]
    copy = [*records[:23], replace(records[23], value=b"other"), *records[24:]]
    result = compared(pair, without(records, 20), copy)
    assert (result.verdict, found(result)) == (ParityVerdict.FAILED, [("value", 23)])
