"""Committed offsets of many groups: no answer is too large to be taken, and one that is harms no other group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from mirror_core.kafka import consumer_groups
from mirror_core.kafka.consumer_groups import GroupOffsetsClient, _split_groups
from mirror_core.model.errors import RemoteFault, Unreachable
from mirror_core.model.names import Partition

GROUPS = [f"g{number}" for number in range(120)]


class Broker:
    """Whose answers about these groups cannot be taken."""

    name, timeout_s = "east", 1.0

    def __init__(self, large: set[str], error: RemoteFault) -> None:
        self.large, self.error = large, error
        self.asked = 0

    def call_each(self, requests: list[list[str]], answer: type, broker: int) -> list[Any]:
        self.asked += 1
        if self.large & {group for request in requests for group in request}:
            raise self.error
        rows = [[SimpleNamespace(group_id=g, error_code=ErrorCode.none) for g in request] for request in requests]
        return [SimpleNamespace(groups=row) for row in rows]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_groups, "build_offset_fetch", list)
    monkeypatch.setattr(consumer_groups, "find_coordinators", lambda client, unknown: {})
    monkeypatch.setattr(consumer_groups, "parse_group_offsets", lambda client, row: {})


def fetched(broker: Any) -> consumer_groups.FetchedGroupOffsets:
    return GroupOffsetsClient(broker, dict.fromkeys(GROUPS, 1)).fetch_until_known(dict.fromkeys(GROUPS))


def test_one_group_whose_answer_is_too_large_hides_no_other() -> None:
    broker = Broker({"g77"}, RemoteFault("frame of 200000000 bytes announced"))
    found = fetched(broker)
    assert {group: str(error) for group, error in found.faults.items()} == {"g77": str(broker.error)}
    assert found.offsets.keys() == set(GROUPS) - {"g77"}
    assert broker.asked < 2 * 8


def test_a_coordinator_that_keeps_silent_is_asked_once() -> None:
    broker = Broker({"g77"}, Unreachable("broker 1"))
    assert fetched(broker).faults.keys() == set(GROUPS)
    assert broker.asked == 1


def test_groups_are_asked_about_together_by_their_partitions() -> None:
    many = [Partition("t", index) for index in range(15_000)]
    wanted = {"a": many, "b": many[:4_000], "c": many[:2_000], "d": many * 2, "e": None}
    assert _split_groups(wanted, wanted) == [["a", "b"], ["c"], ["d"], ["e"]]
    assert [len(share) for share in _split_groups(dict.fromkeys(GROUPS), GROUPS)] == [50, 50, 20]
