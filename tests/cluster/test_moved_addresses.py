"""Addresses and logins in mirrorbook.yaml change without a new mirror: the same cluster goes on, another is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, TopicPartition

from mirror_core.dataplane.driver import Replication, ReplicationOptions
from mirror_core.dataplane.task_runner import LocalRunner
from mirror_core.decide.mirror_change import FilterChange
from mirror_core.kafka.config import load_config
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.mirror_change import prepare_change
from mirror_core.mirrors.recovery_plan import plan_recovery
from mirror_core.model.errors import BadRequest, MirrorError, Refused
from mirror_core.model.mirror import PartitionState
from mirror_core.model.run import RunMode
from mirror_core.state.state_topic import read_state
from tests.support.checked_threads import beside
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client, new_topic, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror, replicate
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def reconfigured(mirrored: Mirrored, folder: Path, change: Callable[[dict[str, Any]], None]) -> Mirrored:
    """The same mirror, by a file of other words."""
    document = yaml.safe_load(mirrored.config.path.read_text(encoding="utf-8"))
    change(document["clusters"])
    path = folder / "other.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return replace(mirrored, config=load_config(path))


@pytest.fixture
def copied(pair: Pair, tmp_path: Path) -> tuple[Mirrored, str]:
    topic = new_topic(pair.east)
    produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    mirror_commands.run_sync(mirrored.link)
    return mirrored, topic


def test_other_addresses_and_another_login_of_the_same_clusters_go_on(
    copied: tuple[Mirrored, str], tmp_path: Path
) -> None:
    mirrored, topic = copied
    pair = mirrored.pair

    def change(clusters: dict[str, Any]) -> None:
        for cluster in (pair.east, pair.west):
            side = clusters[cluster.name]
            for principal in filter(None, (side, side.get("control"), side.get("data"))):
                if "bootstrap.servers" in principal:
                    address = principal["bootstrap.servers"].replace("127.0.0.1", "localhost")
                    assert address != principal["bootstrap.servers"]
                    principal["bootstrap.servers"] = address
        admin = pair.east.client_config("admin")
        login = {key: admin[key] for key in ("sasl.username", "sasl.password")}
        clusters["east"].setdefault("data", {}).update(login)

    moved = reconfigured(mirrored, tmp_path, change)
    assert "localhost" in moved.link.source.control["bootstrap.servers"]
    produce(pair.east, topic, 5)
    moved.copy()
    mirror_commands.run_sync(moved.link)
    assert read_all(pair.west, topic) == read_all(pair.east, topic)
    assert {s.state for s in moved.statuses.values()} == {PartitionState.MIRRORING}
    assert not moved.failover.decide(RunMode.PLANNED).reasons


def test_an_address_that_leads_to_another_cluster_is_refused_and_nothing_is_written(
    copied: tuple[Mirrored, str], tmp_path: Path
) -> None:
    mirrored, topic = copied
    pair = mirrored.pair
    other = new_topic(pair.west)
    before = seen(pair, topic)
    recorded = mirrored.state.partitions[mirrored.name], mirrored.link.mirror

    def lead_east_to_west(clusters: dict[str, Any]) -> None:
        clusters["east"] = clusters["west"]

    moved = reconfigured(mirrored, tmp_path, lead_east_to_west)
    for attempt in (
        lambda: replicate(moved.link),
        lambda: mirror_commands.run_sync(moved.link),
        lambda: prepare_change(moved.link, moved.state, FilterChange(topics=(topic, other))),
    ):
        with pytest.raises(Refused, match=format_sentence("cluster_replaced_pattern")):
            attempt()
    assert plan_recovery(moved.link, moved.state, None, None).proposals == (), "nothing has failed by it"
    codes = {reason.code for reason in moved.failover.decide(RunMode.PLANNED).reasons}
    assert "source_replaced" in codes
    assert seen(pair, topic) == before
    assert (mirrored.state.partitions[mirrored.name], mirrored.link.mirror) == recorded
    produce(pair.east, topic, 5)
    mirrored.copy()
    assert read_all(pair.west, topic) == read_all(pair.east, topic), "with the right address it goes on"


def test_a_running_data_plane_whose_file_leads_to_another_cluster_waits_and_goes_on(pair: Pair, tmp_path: Path) -> None:
    """Its tasks read the file anew. By the other cluster's topic ids all topics would seem to be recreated."""
    topic, path, stop = new_topic(pair.east), tmp_path / "running.yaml", threading.Event()
    text = pair.config_path.read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    produce(pair.east, topic, 20)
    mirrored = replace(new_mirror(pair, tmp_path, topic), config=load_config(path))
    mirrored.copy()
    document = yaml.safe_load(text)
    document["clusters"]["east"] = document["clusters"]["west"]
    replication = Replication(
        mirrored.link, LocalRunner, ReplicationOptions(epoch_s=2), stop=stop, report_line=lambda line: None
    )
    state_cluster = load_config(pair.config_path).cluster("west")

    def has_met_another() -> bool:
        lease = read_state(state_cluster).leases.get(mirrored.name)
        return lease is not None and "cluster east is" in str(lease.wait_reasons)

    with beside(replication.run, stop.set, timeout_s=TIMEOUT_S):
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        wait_until(has_met_another, timeout_s=TIMEOUT_S, why="a task has met the other cluster")
        produce(pair.east, topic, 5)
        assert len(read_all(pair.west, topic)) == 20
        path.write_text(text, encoding="utf-8")
        wait_until(
            lambda: read_all(pair.west, topic) == read_all(pair.east, topic), timeout_s=TIMEOUT_S, why="it goes on"
        )
    assert {s.state for s in mirrored.statuses.values()} == {PartitionState.MIRRORING}


def test_a_destination_that_is_another_cluster_does_not_know_the_mirror(
    copied: tuple[Mirrored, str], tmp_path: Path
) -> None:
    mirrored, topic = copied
    before = seen(mirrored.pair, topic)

    def lead_west_to_east(clusters: dict[str, Any]) -> None:
        clusters["west"] = clusters["east"]

    moved = reconfigured(mirrored, tmp_path, lead_west_to_east)
    with pytest.raises(BadRequest, match=mirrored.name):
        moved.link  # noqa: B018 - looks it up
    with pytest.raises(MirrorError):
        replicate(replace(mirrored.link, destination=moved.config.cluster("west"), config=moved.config))
    assert seen(mirrored.pair, topic) == before


def seen(pair: Pair, topic: str) -> object:
    """What both clusters have of it: topics, records, settings' names, rights."""
    return [
        (sorted(admin_client(c).list_topics(topic, timeout=TIMEOUT_S).topics), read_all(c, topic), end(c, topic))
        for c in (pair.east, pair.west)
    ]


def end(cluster: Any, topic: str) -> tuple[int, int]:
    consumer = Consumer({**cluster.client_config("admin"), "group.id": "looks"})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT_S)
        return low, high
    finally:
        consumer.close()
