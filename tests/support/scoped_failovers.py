"""Scoped failovers, shared by tests."""

from __future__ import annotations

from pathlib import Path

from mirror_core.decide.steps import list_step_names
from mirror_core.model.run import RunKind
from tests.support.failover_runs import app_topic, begin
from tests.support.kafka_clients import Pair, produce
from tests.support.mirrored_topics import Mirrored, new_mirror

STEPS = list_step_names(RunKind.FAILOVER)


def copied(pair: Pair, evidence: Path, records: int = 10) -> tuple[Mirrored, str]:
    topic = app_topic(pair)
    produce(pair.east, topic, records)
    mirrored = new_mirror(pair, evidence, topic)
    mirrored.copy()
    return mirrored, topic


def through(mirrored: Mirrored, last: str) -> str:
    run = begin(mirrored.failover)
    for name in STEPS[: STEPS.index(last) + 1]:
        mirrored.failover.run_step(run, name)
    return run
