"""Quiescence, shared by tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.kafka.log_offsets import OffsetPoint
from mirror_core.kafka.reassignment import ReplicaPlacement
from mirror_core.kafka.topics import TopicConfigs
from mirror_core.model.errors import MirrorError, Unreachable
from mirror_core.model.mirror import Mirror, PartitionState
from mirror_core.model.names import Offset, Partition
from mirror_core.runbook import promotion_steps, quiescence
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.runbook.step_records import SettleResult
from mirror_core.runbook.unplanned_steps import UnplannedSteps
from mirror_core.state.journal import Journal
from tests.support.fence_commands import MIRROR, linked
from tests.support.memory_state import MemoryLog, journal_of
from tests.support.reopened_clusters import mirrored

WELL, SHORT = Partition("orders", 0), Partition("orders", 1)

# -- the step ----------------------------------------------------------------------------------------------------------


class West:
    """The destination's answers: one partition is well, the other one's leader is alone."""

    def __init__(self) -> None:
        self.log = {WELL: Offset(10), SHORT: Offset(8)}
        self.high: dict[Partition, Offset] = {WELL: Offset(10), SHORT: Offset(5)}
        self.in_sync: tuple[int, ...] = (2,)
        self.own: dict[int, Offset] = {}
        """Where each broker's own replica of what is short ends."""
        self.asked = "2"
        self.grows = False
        self.looks = 0
        self.each_look: Callable[[], object] = int

    def offsets(self, client: object, partitions: Iterable[Partition], point: OffsetPoint) -> dict[Partition, Offset]:
        wanted = set(partitions)
        if point is not OffsetPoint.LOG_END:
            return {p: o for p, o in self.high.items() if p in wanted}
        self.looks += 1
        self.each_look()
        if self.grows:
            self.log[SHORT] = Offset(self.log[SHORT] + 1)
        return {p: o for p, o in self.log.items() if p in wanted}

    def placements(self, client: object, topics: Iterable[str]) -> dict[Partition, ReplicaPlacement]:
        return dict.fromkeys((WELL, SHORT), ReplicaPlacement(leader=2, replicas=(1, 2, 3), in_sync=self.in_sync))

    def configs(self, client: object, topics: Iterable[str]) -> tuple[dict[str, TopicConfigs], dict[str, MirrorError]]:
        return {"orders": TopicConfigs({}, {"min.insync.replicas": self.asked})}, {}

    def replica_ends(self, client: object, broker: int, partitions: Iterable[Partition]) -> dict[Partition, Offset]:
        if broker not in self.own:
            raise Unreachable(f"broker {broker} is silent")
        return dict.fromkeys(partitions, self.own[broker])


@pytest.fixture
def west(monkeypatch: pytest.MonkeyPatch) -> West:
    made = West()
    monkeypatch.setattr(quiescence, "list_known_offsets", made.offsets)
    monkeypatch.setattr(quiescence, "describe_placements", made.placements)
    monkeypatch.setattr(quiescence, "describe_available_configs", made.configs)
    monkeypatch.setattr(quiescence, "list_replica_ends", made.replica_ends)
    monkeypatch.setattr(quiescence, "QUIESCENCE_LIMIT_S", 0.0)
    monkeypatch.setattr(quiescence, "STILL_INTERVAL_S", 0.0)
    monkeypatch.setattr(quiescence, "STABLE_AFTER_S", 0.0)
    monkeypatch.setattr(promotion_steps, "list_known_offsets", made.offsets)
    monkeypatch.setattr(promotion_steps, "list_offsets", made.offsets)
    monkeypatch.setattr(promotion_steps, "ClusterClient", lambda *a, **k: nullcontext(SimpleNamespace(name="west")))
    monkeypatch.setattr(UnplannedSteps, "scope", SimpleNamespace(drained=[WELL, SHORT], topic_names=["orders"]))
    return made


@pytest.fixture
def journal() -> Journal:
    return journal_of("r", "settle", "record_lmo", "promote")


@pytest.fixture
def steps(journal: Journal, tmp_path: Path) -> UnplannedSteps:
    [one] = mirrored(MIRROR.name, ("orders",))
    begun = replace(one.status, state=PartitionState.MIRRORING)
    rows = [replace(one, status=replace(begun, partition=p)) for p in (WELL, SHORT)]
    assert isinstance(MIRROR, Mirror)
    cast("MemoryLog", journal.log).put(MIRROR, *rows)
    return UnplannedSteps(linked(tmp_path), cast("Any", None), cast("Any", journal.log), journal, lambda line: None)


CLIENT: Any = SimpleNamespace(name="west")


def settle(steps: UnplannedSteps) -> SettleResult:
    settled = steps._wait_for_stable_logs(CLIENT)
    steps.journal.save_checkpoint("settle", settled)
    return settled


def agree(steps: UnplannedSteps) -> bool:
    """A person's word, if the step has asked for it."""
    asked = Failover(steps.link, cast("Any", None), started_by="me")._find_awaited_confirmation(
        steps.writer, steps.journal
    )
    if asked is not None:
        steps.journal.save_checkpoint(*asked)
    return asked is not None
