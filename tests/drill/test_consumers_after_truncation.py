"""A destination whose log has lost its end: a group that was synced to what is gone notices it, and skips nothing."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import load_config
from mirror_core.model.names import Offset, Partition
from mirror_core.sync.offset_commits import OffsetCommitter, commit_until_answered
from tests.drill.weather import SOME, Usurper
from tests.support.dedicated_clusters import two_clusters
from tests.support.group_commits import commit_offsets, fetch_offsets
from tests.support.group_consumers import java
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic, produce
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill, pytest.mark.heavy]

KEPT = 100


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_clusters(tmp_path_factory.mktemp("three"), nodes=3) as pair:
        yield pair


def first_of_java(three: Pair, group: str, topic: str, folder: Path) -> int:
    handled: list[tuple[float, int, int]] = []
    with java(three.west, group, topic, handled, folder, reset="latest"):
        wait_until(lambda: handled, timeout_s=TIMEOUT_S, why=f"{group} gets a record")
    return handled[0][2]


def test_after_an_unclean_election_on_the_destination_a_consumer_goes_back_to_where_the_logs_part(
    three: Pair, tmp_path: Path
) -> None:
    topic, group = new_topic(three.west), "g-" + secrets.token_hex(4)
    blind, partition = group + "-blind", Partition(topic, 0)
    usurps = Usurper(three.west, partition)
    produce(three.west, topic, KEPT)
    end = Offset(KEPT + SOME)
    with ClusterClient(load_config(three.config_path).cluster("west")) as west:

        def synced() -> bool:
            with OffsetCommitter(west, check_ownership=None) as commits:
                said = commit_until_answered(commits, {group: {partition: (end, "")}}, west)
            assert said == {group: {partition: "none"}}
            assert commit_offsets(west, blind, {partition: (end, "")}) == {}
            return True

        usurps(synced)
        epochs = [fetch_offsets(west, name).committed[partition].leader_epoch for name in (group, blind)]
    assert epochs[0] >= 0
    assert epochs[1] == -1
    assert first_of_java(three, group, topic, tmp_path) == KEPT
    assert first_of_java(three, blind, topic, tmp_path) == end, "without an epoch nobody notices"
