"""Mirror sets, shared by tests."""

from __future__ import annotations

from pathlib import Path

from mirror_core.model.mirror import DesiredState
from mirror_core.model.run import Run
from tests.support.failover_runs import app_topic, denied
from tests.support.kafka_clients import Pair, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror


def mirrored(pair: Pair, evidence: Path) -> Mirrored:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    made = new_mirror(pair, evidence, topic)
    made.copy()
    return made


def runs_of(*members: Mirrored) -> list[Run]:
    names = {one.name for one in members}
    return [run for run in members[0].state.runs.values() if run.plan.mirror in names]


def topic_of(one: Mirrored) -> str:
    return one.link.mirror.topics[0]


def moved(one: Mirrored) -> None:
    topic = topic_of(one)
    assert one.state.mirrors[one.name].desired is DesiredState.STOPPED
    assert denied(one.pair.east, topic)
    assert not denied(one.pair.west, topic)
    ours = read_all(one.pair.east, topic)
    assert read_all(one.pair.west, topic)[: len(ours)] == ours


def at_home(one: Mirrored) -> None:
    assert one.state.mirrors[one.name].desired is DesiredState.STARTED
    assert one.state.active_run(one.name) is None
    assert not denied(one.pair.east, topic_of(one))
    assert denied(one.pair.west, topic_of(one))
