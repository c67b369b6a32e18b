"""A conductor and everybody else: what he decides by is what is, and nobody ends him who may not act anyway."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_core.model.errors import Refused
from mirror_core.model.mirror import FailureKind, PartitionState
from mirror_core.model.names import ClusterName, Partition
from mirror_core.model.parity import ParityRange, ParityResult
from mirror_core.runbook.failover import Failover
from mirror_core.state.records import PartitionRecord
from mirror_core.state.writer import StateWriter, data_id
from tests.brokers import Pair, produce
from tests.cluster.test_failover import app_topic, begin, denied
from tests.mirroring import Mirrored, new_mirror

pytestmark = pytest.mark.cluster


def mirrored_topic(pair: Pair, evidence: Path, partitions: int = 1) -> tuple[Mirrored, str]:
    topic = app_topic(pair, partitions)
    produce(pair.east, topic, 10)
    mirrored = new_mirror(pair, evidence, topic)
    mirrored.copy()
    return mirrored, topic


def test_a_partition_that_fails_while_the_rest_is_proven_stops_the_promotion(pair: Pair, tmp_path: Path) -> None:
    mirrored, topic = mirrored_topic(pair, tmp_path, 2)
    link, failed = mirrored.link, mirrored.statuses[Partition(topic, 1)]

    def parity(
        source: ClusterName, destination: ClusterName, ranges: Sequence[ParityRange], output: Path | None
    ) -> ParityResult:
        """It takes hours, in which the data plane goes on, and says what it finds."""
        kind, state = FailureKind.DIVERGED, PartitionState.FAILED
        with StateWriter(link.destination, data_id(link.mirror.name)) as data:
            data.put(PartitionRecord(link.mirror.name, replace(failed, state=state, kind=kind, reason="not the same")))
        return mirrored.services.parity(source, destination, ranges, output)

    failover = Failover(link, replace(mirrored.services, parity=parity), started_by="test")
    run = begin(failover)
    with pytest.raises(Refused, match=f"failed partitions: approved was none, now it is 1: {topic}-1"):
        failover.drive(run)
    assert denied(pair.west, topic), "promoted although nobody approved of a partition that failed"
    failover.abort(run)
    now = mirrored.statuses[Partition(topic, 1)]
    assert (now.state, now.reason) == (PartitionState.FAILED, "not the same")
