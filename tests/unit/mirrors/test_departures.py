"""A topic that leaves counts as gone only when more than one broker says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.dataplane import epoch_planner
from mirror_core.dataplane.epoch_planner import stop_departed
from mirror_core.kafka.client import TopicMetadata
from mirror_core.mirrors import departures
from mirror_core.model.mirror import PartitionState, PartitionStatus, TopicAccess, TopicDeparture
from mirror_core.model.names import Partition
from mirror_core.model.sync_state import DriftRow, SyncAction, SyncCategory
from mirror_core.state.state_records import State
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


@pytest.mark.parametrize(
    ("listings", "is_listed", "is_disputed"),
    [
        (({}, {}, listed()), False, True),
        (({}, {}, {}), False, False),
        ((listed(), {}), True, False),
    ],
)
def test_one_listing_says_which_copies_are_there(
    listings: tuple[dict[str, TopicMetadata], ...], is_listed: bool, is_disputed: bool
) -> None:
    copies = departures.list_copies(cast("Any", Destination(*listings)), {P.topic})
    assert (P.topic in copies.listed, P.topic in copies.disputed) == (is_listed, is_disputed)


class Log:
    """A state, and what is put into it."""

    def __init__(self, departure: TopicDeparture) -> None:
        self.state = State()
        self.records = list[Any]()
        self.state.put(LINK.mirror)
        self.state.put(departure)

    def put(self, *records: Any) -> None:
        self.records += records


RELEASING = TopicDeparture(
    mirror=LINK.mirror.name,
    topic=P.topic,
    access=TopicAccess.RELEASED,
    since_ms=1,
    statuses=(
        PartitionStatus(partition=P, state=PartitionState.STOPPED, source_topic_id="1" * 32, destination_topic_id=COPY),
    ),
)


@pytest.mark.parametrize("is_left_out", [False, True])
def test_a_topic_that_a_later_listing_leaves_out_is_not_recorded_as_released(
    monkeypatch: pytest.MonkeyPatch, is_left_out: bool
) -> None:
    """Listed first, so that it is released; when its settings are to be restored, another broker answers."""
    unlisted_row = DriftRow(
        part=SyncCategory.CONFIGS, subject=P.topic, source="", destination="", action=SyncAction.REFUSE, reason="why"
    )
    released = list[Any]()

    def apply(link: object, log: object, topics: object, **_: object) -> tuple[DriftRow, ...]:
        released.append(topics)
        return (unlisted_row,) if is_left_out else ()

    monkeypatch.setattr(departures, "ClusterClient", lambda config: Destination(listed(), {}))
    monkeypatch.setattr(departures, "apply_promotion", apply)
    log = Log(RELEASING)
    departures.finish_departures(LINK, cast("Any", log))
    assert released == [[P.topic]]
    assert [record.is_done for record in log.records] == ([] if is_left_out else [True])
