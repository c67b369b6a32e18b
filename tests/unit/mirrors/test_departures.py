"""A topic that leaves counts as gone only when more than one broker says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.dataplane import epoch_planner
from mirror_core.dataplane.epoch_planner import stop_departed
from mirror_core.kafka.client import TopicMetadata
from mirror_core.mirrors import departures
from mirror_core.model.mirror import PartitionState, PartitionStatus
from mirror_core.model.names import Partition
from tests.support.cluster_names import LINK

P = Partition("orders", 0)
COPY = "3" * 32
STOPPING = PartitionStatus(
    partition=P, state=PartitionState.STOPPING, source_topic_id="1" * 32, destination_topic_id=COPY
)


class Destination:
    """Brokers that are asked one after the other: what each one lists."""

    name = "west"

    def __init__(self, *listings: dict[str, TopicMetadata]) -> None:
        self.listings = list(listings)

    def metadata(self, topics: object = None) -> Any:
        listed = self.listings.pop(0) if len(self.listings) > 1 else self.listings[0]
        return SimpleNamespace(topics=listed, denied=frozenset())

    def mark_metadata_stale(self) -> None:
        pass

    def __enter__(self) -> Destination:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def listed(topic_id: str = COPY) -> dict[str, TopicMetadata]:
    return {P.topic: TopicMetadata(P.topic, topic_id, False, {0: cast("Any", None)}, 1, 1)}


@pytest.mark.parametrize(
    ("listings", "is_stopped"),
    [
        (({}, {}, listed()), False),
        (({}, {}, {}), True),
        ((listed("4" * 32),), True),
    ],
)
def test_a_copy_has_no_end_only_where_it_is_surely_gone(
    monkeypatch: pytest.MonkeyPatch, listings: tuple[dict[str, TopicMetadata], ...], is_stopped: bool
) -> None:
    monkeypatch.setattr(epoch_planner, "_fetch_known_offsets", lambda client, wanted, point: {})
    stopped = stop_departed(cast("Any", Destination(*listings)), {P: STOPPING})
    expected = [(P, PartitionState.STOPPED, None)] if is_stopped else []
    assert [(p, s.state, s.lmo) for p, s in stopped.items()] == expected


def test_a_topic_that_one_broker_does_not_list_is_not_called_released(monkeypatch: pytest.MonkeyPatch) -> None:
    for listings, disputed in (((({}, {}, listed())), {P.topic}), (({}, {}, {}), set()), ((listed(),), set())):
        monkeypatch.setattr(departures, "ClusterClient", lambda config, made=listings: Destination(*made))
        assert departures._find_disputed_topics(LINK, {P.topic}) == disputed
