"""Reopened clusters, shared by tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from mirror_core.kafka.config import Config
from mirror_core.model.errors import MirrorError
from mirror_core.model.mirror import DesiredState, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition, PartitionOffsets
from mirror_core.model.pending_fence import FenceAction, PendingFence
from mirror_core.runbook.fence_actions import lift_fence_or_record
from mirror_core.state import mirror_link as linking
from mirror_core.state.journal import Journal
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import PartitionRecord, State
from mirror_core.sync.fence_command import ClusterClosed
from tests.support.fence_commands import MIRROR, TOPICS, linked
from tests.support.memory_state import MemoryLog, journal_of

NORTH, EAST = ClusterName("north"), ClusterName("east")

OWED = PendingFence(mirror=MIRROR.name, cluster=EAST, action=FenceAction.LIFT, run="a", since_ms=1, by_command=True)

CLOSED = replace(
    OWED,
    action=FenceAction.APPLY,
    applied_at_ms=2,
    log_ends=PartitionOffsets.from_mapping({Partition("orders", 0): Offset(7)}),
)


@pytest.fixture
def link(tmp_path: Path) -> MirrorLink:
    return linked(tmp_path)


def log_of(journal: Journal) -> MemoryLog:
    assert isinstance(journal.log, MemoryLog)
    return journal.log


def closed(run: str = "a") -> Journal:
    """A run that has closed its source, of a mirror with two topics."""
    journal = journal_of(run, "fence")
    journal.log.put(MIRROR, *mirrored(MIRROR.name))
    journal.save_checkpoint("fence", ClusterClosed(cluster="east"))
    return journal


def mirrored(name: MirrorName, topics: tuple[str, ...] = TOPICS) -> Iterator[PartitionRecord]:
    for topic in topics:
        yield PartitionRecord(
            name,
            PartitionStatus(
                partition=Partition(topic, 0),
                state=PartitionState.STOPPED,
                source_topic_id="s",
                destination_topic_id="d",
            ),
        )


def aborted(link: MirrorLink, journal: Journal) -> str:
    return lift_fence_or_record(link, cast("Any", journal.log), journal.run)


def topics_told(link: MirrorLink) -> list[str]:
    return (link.config.path.parent / "topics").read_text().split()


# -- two mirrors from one source ------------------------------------------------------------------------------------


def other_mirror(*debts: PendingFence, towards: str, topics: tuple[str, ...] = ("orders",)) -> list[Any]:
    other = Mirror(
        name=MirrorName("other"), source=EAST, destination=ClusterName(towards), source_id="E", destination_id="X",
        topics=topics, producer_id=1 << 62, desired=DesiredState.STOPPED, created_ms=1,
    )  # fmt: skip
    return [other, *mirrored(other.name, topics), *(replace(debt, mirror=other.name) for debt in debts)]


def third(monkeypatch: pytest.MonkeyPatch, answer: State | MirrorError) -> None:
    def states(config: Config) -> Iterator[tuple[ClusterName, State | MirrorError]]:
        yield NORTH, answer

    monkeypatch.setattr(linking, "read_states", states)
