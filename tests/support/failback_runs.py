"""Failback runs, shared by tests."""

from __future__ import annotations

from pathlib import Path

from mirror_core.model.run import RunMode, RunState
from mirror_core.runbook.failback_conductor import Failback
from tests.support.failover_runs import begin
from tests.support.kafka_clients import Pair, Record
from tests.support.mirrored_topics import Mirrored, new_mirror


def content(records: list[Record]) -> list[Record]:
    """Without the single writes by which tests probe who may write."""
    return [r for r in records if r.value != b"x"]


def failed_over(pair: Pair, evidence: Path, topic: str) -> Mirrored:
    mirrored = new_mirror(pair, evidence, topic)
    mirrored.copy()
    failover = mirrored.failover
    failover.drive(begin(failover))
    return mirrored


def failback_of(mirrored: Mirrored) -> Failback:
    return Failback(mirrored.link, mirrored.services, started_by="test")


def go_home(failback: Failback, run_id: str) -> None:
    """The second approval, and what follows it."""
    home = failback.make_reverse_failover()
    home.drive(home.begin(home.plan(RunMode.PLANNED).hash).id)
    assert failback.drive(run_id).state is RunState.DONE
