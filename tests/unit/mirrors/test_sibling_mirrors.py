"""Whose mirrors carry the same topics to a third cluster: as far as that answers, and nobody waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirror_core.kafka.config import Config, load_config
from mirror_core.model.errors import Unreachable
from mirror_core.model.mirror import DesiredState, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Partition
from mirror_core.runbook import snapshot_reader
from mirror_core.state import mirror_link
from mirror_core.state.mirror_link import make_mirror_link
from mirror_core.state.state_records import PartitionRecord, State
from tests.support.memory_state import MemoryLog
from tests.support.steps_mirror import MIRROR

NAMES = ("east", "west", "north", "south")
OURS = replace(MIRROR, source=ClusterName("east"), destination=ClusterName("west"))


def towards_north(name: str, *topics: str, source: str = "east", desired: DesiredState = DesiredState.STARTED) -> State:
    log = MemoryLog()
    mirror = replace(OURS, name=MirrorName(name), source=ClusterName(source), destination=ClusterName("north"))
    log.put(replace(mirror, desired=desired))
    for topic in topics:
        status = PartitionStatus(
            partition=Partition(topic, 0), state=PartitionState.MIRRORING, source_topic_id="s", destination_topic_id="d"
        )
        log.put(PartitionRecord(mirror.name, status))
    return log.state


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (towards_north("n", "a", "b", "x"), [(MirrorName("n"), frozenset({"a", "b"}))]),
        (towards_north("n", "x"), []),
        (towards_north("n", "a", source="south"), []),
        (towards_north("n", "a", desired=DesiredState.STOPPED), []),
    ],
)
def test_only_thirds_that_share_topics_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: State, expected: list[tuple[MirrorName, frozenset[str]]]
) -> None:
    path = tmp_path / "mirrorbook.yaml"
    path.write_text("clusters:\n" + "".join(f'  {name}: {{bootstrap.servers: "h:1"}}\n' for name in NAMES))

    def states(config: Config) -> Iterator[tuple[ClusterName, object]]:
        assert set(config.clusters) == {"north", "south"}
        yield ClusterName("south"), Unreachable("silent")
        yield ClusterName("north"), told

    monkeypatch.setattr(mirror_link, "read_states", states)
    found = list[tuple[Mirror, frozenset[str]]]()
    snapshot_reader.find_sibling_mirrors(make_mirror_link(load_config(path), OURS), {"a", "b"}, found)
    assert [(mirror.name, topics) for mirror, topics in found] == expected


def test_a_third_cluster_that_is_silent_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        snapshot_reader, "read_other_states", lambda link: [(ClusterName("north"), Unreachable("silent"))]
    )
    nobody: Any = None
    assert snapshot_reader.find_sibling_mirrors(nobody, {"a"}, []) == ["north"]
