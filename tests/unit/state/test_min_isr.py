"""A state topic that cannot be written for want of replicas: people are told so, and what ends it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.kafka.config import ClusterConfig, load_config
from mirror_core.kafka.reassignment import ReplicaPlacement
from mirror_core.kafka.topics import TopicConfigs
from mirror_core.kafka.transactional_producer import ProducerFenced
from mirror_core.model.errors import LostOwnership, MissingPermission, RemoteFault, Unreachable
from mirror_core.model.names import MirrorName, Partition
from mirror_core.state import topic_reader, writer
from mirror_core.state.state_topic import read_state
from mirror_core.state.topic_reader import explain_min_isr
from mirror_core.state.writer import StateWriter, WriterId, make_control_id, make_data_id

STATE, TRANSACTIONS = "__mirrorbook_state", "__transaction_state"
M = MirrorName("m")


@pytest.fixture
def west(tmp_path: Path) -> ClusterConfig:
    path = tmp_path / "mirrorbook.yaml"
    path.write_text('clusters: {west: {bootstrap.servers: "127.0.0.1:1"}}', encoding="utf-8")
    return load_config(path).cluster("west")


def placed(*in_sync: int) -> ReplicaPlacement:
    return ReplicaPlacement(leader=in_sync[0], replicas=(1, 2, 3), in_sync=in_sync)


def looks(monkeypatch: pytest.MonkeyPatch, found: Mapping[str, list[ReplicaPlacement]]) -> None:
    """The cluster tells of these topics, each with min.insync.replicas=2."""
    configs = {topic: TopicConfigs({}, {"min.insync.replicas": "2"}) for topic in found}
    monkeypatch.setattr(topic_reader, "ClusterClient", lambda *a, **k: nullcontext(SimpleNamespace()))
    monkeypatch.setattr(topic_reader, "describe_available_configs", lambda client, topics: (configs, {}))
    monkeypatch.setattr(
        topic_reader,
        "describe_placements",
        lambda client, topics: {Partition(t, n): p for t in topics for n, p in enumerate(found[t])},
    )


def test_each_topic_that_is_short_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch, west: ClusterConfig) -> None:
    looks(monkeypatch, {STATE: [placed(2)], TRANSACTIONS: [placed(1, 2), placed(2), placed(2, 3)]})
    said = explain_min_isr(west, 1.0)
    for topic in (STATE, TRANSACTIONS):
        assert f"{topic}: 1 of 3 replicas in sync, and min.insync.replicas=2; not in sync: broker 1, 3" in said
        assert "--bootstrap-server 127.0.0.1:1 --command-config ADMIN.properties --alter --entity-type topics " in said
        assert f"--entity-name {topic} --add-config min.insync.replicas=1`" in said


def test_nothing_is_said_where_enough_are_in_sync(monkeypatch: pytest.MonkeyPatch, west: ClusterConfig) -> None:
    looks(monkeypatch, {STATE: [placed(1, 2)], TRANSACTIONS: [placed(1, 2, 3)]})
    assert explain_min_isr(west, 1.0) == ""


def test_nothing_is_said_of_a_cluster_that_is_silent(west: ClusterConfig) -> None:
    assert explain_min_isr(west, 0.1) == ""


WHY = "Too few brokers of west have it (...)"


@pytest.mark.parametrize(
    ("error", "writer_id", "kind", "told"),
    [
        (Unreachable("no answer in time"), make_control_id(M), Unreachable, True),
        (RemoteFault("NOT_ENOUGH_REPLICAS"), make_control_id(M), RemoteFault, True),
        (ProducerFenced(), make_control_id(M), LostOwnership, False),
        (MissingPermission("TOPIC_AUTHORIZATION_FAILED"), make_control_id(M), MissingPermission, False),
        (Unreachable("no answer in time"), make_data_id(M), Unreachable, False),
    ],
)
def test_who_cannot_write_is_told_why(
    monkeypatch: pytest.MonkeyPatch,
    west: ClusterConfig,
    error: Exception,
    writer_id: WriterId,
    kind: type[Exception],
    told: bool,
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(writer, "explain_min_isr", lambda cluster, timeout_s: WHY)
    one = StateWriter(west, writer_id)
    one._producer = cast("Any", SimpleNamespace(take_over=refuse, write=refuse, settle=refuse, number=0))
    attempts: list[Callable[[], object]] = [one.__enter__, one.put]
    for attempt in attempts:
        with pytest.raises(kind) as failed:
            attempt()
        assert type(failed.value) is kind
        assert (WHY in str(failed.value)) is told


def test_a_reason_that_is_not_known_changes_no_error(monkeypatch: pytest.MonkeyPatch, west: ClusterConfig) -> None:
    monkeypatch.setattr(writer, "explain_min_isr", lambda cluster, timeout_s: "")
    error = Unreachable("no answer in time")
    assert StateWriter(west, make_control_id(M))._explain_error(error) is error


@pytest.mark.parametrize(("code", "told"), [("OFFSET_NOT_AVAILABLE", True), ("NOT_LEADER_OR_FOLLOWER", False)])
def test_who_cannot_read_since_its_leader_does_not_know_the_end_is_told_why(
    monkeypatch: pytest.MonkeyPatch, west: ClusterConfig, code: str, told: bool
) -> None:
    def refuse(client: object, topic: str) -> None:
        raise topic_reader._ReadAgain(code)

    monkeypatch.setattr(topic_reader, "ClusterClient", lambda *a, **k: nullcontext(SimpleNamespace()))
    monkeypatch.setattr(topic_reader, "_find_leader", refuse)
    monkeypatch.setattr(topic_reader, "explain_min_isr", lambda cluster, timeout_s: WHY)
    with pytest.raises(Unreachable, match=code) as failed:
        read_state(west, timeout_s=0.0)
    assert (WHY in str(failed.value)) is told
