"""What one broker says at one moment is no reason to fail a topic for good."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.dataplane import planning
from mirror_core.dataplane.again import PASSING
from mirror_core.dataplane.planning import Planner
from mirror_core.kafka.client import TopicView
from mirror_core.model.errors import Unreachable
from mirror_core.model.mirror import FailureKind, PartitionState, PartitionStatus
from mirror_core.model.names import Partition
from mirror_core.state.records import State
from mirror_core.sync import compaction, strange
from mirror_core.sync.compaction import behind
from mirror_core.sync.strange import Strange
from tests.unit.test_refusals import LINK

P = Partition("orders", 0)
HERS, ANOTHER = "1" * 32, "2" * 32
COPIED = PartitionStatus(
    partition=P, state=PartitionState.MIRRORING, source_topic_id=HERS, destination_topic_id="3" * 32
)


@pytest.mark.parametrize(
    ("by_the_others", "gone"), [((), [P]), ((ANOTHER,), [P]), ((HERS,), []), ((HERS, ANOTHER), [])]
)
def test_a_topic_that_a_listing_leaves_out_is_deleted_when_no_broker_knows_it(
    monkeypatch: pytest.MonkeyPatch, by_the_others: tuple[str, ...], gone: list[Partition]
) -> None:
    asked = list[set[str]]()

    def known_ids(client: object, topics: Any) -> dict[str, frozenset[str]]:
        asked.append(set(topics))
        return {name: frozenset(by_the_others) for name in topics}

    monkeypatch.setattr(planning, "known_ids", known_ids)
    planner = Planner(LINK, cast("Any", None), cast("Any", None))
    assert planner._gone({P: COPIED}, {}) == [], "one listing may be behind"
    assert planner._gone({P: COPIED}, {}) == gone
    assert asked == [{P.topic}], "only what was missed twice is asked for"


def test_a_topic_of_which_nobody_can_say_whether_it_is_empty_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away(*_: object) -> Any:
        raise Unreachable("no leader for orders-0")

    monkeypatch.setattr(strange, "list_points", away)
    monkeypatch.setattr(strange, "known_offsets", away)
    there = cast("TopicView", SimpleNamespace(name="orders", id=ANOTHER, partitions={0: None}))
    found = Strange(LINK, State(), cast("Any", SimpleNamespace(name="west")), [there]).problem(there)
    assert found is not None
    words, kind = found
    assert "whether it is empty could not be seen: no leader for orders-0" in words
    assert kind in PASSING
    assert kind is not FailureKind.OCCUPIED


def test_a_partition_without_a_leader_keeps_its_own_topic_from_being_cleaned_by_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {
        "east": {Partition("bills", 0): 5, Partition("cards", 0): 7, Partition("late", 0): 3},
        "west": {Partition("bills", 0): 5, Partition("late", 0): 2},
    }

    def known_offsets(client: Any, partitions: Any, point: object) -> dict[Partition, int]:
        return {p: offset for p, offset in known[client.name].items() if p in partitions}

    monkeypatch.setattr(compaction, "known_offsets", known_offsets)
    sides = [cast("Any", SimpleNamespace(name=name)) for name in known]
    topics = {
        name: cast("TopicView", SimpleNamespace(partitions={0: None})) for name in ("bills", "cards", "late", "lone")
    }
    assert behind(sides[0], sides[1], topics, 0.0) == {"cards", "late", "lone"}
