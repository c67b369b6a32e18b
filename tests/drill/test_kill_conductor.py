"""The conductor is killed at every step, once while it works and once after it; `resume` ends where it would have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirror_core.decide.steps import names
from mirror_core.kafka.config import Config
from mirror_core.model.mirror import Desired, PartitionState
from mirror_core.model.names import Partition
from mirror_core.model.run import RunKind, RunState, StepState
from mirror_core.state.topic import read_state
from tests.brokers import Pair, produce, read_all, read_all_aiokafka
from tests.cluster.test_failover import acls, app_topic, committed, denied
from tests.cluster.test_failover import commit as commit_offset
from tests.commands import Forked
from tests.mirroring import Mirrored, new_mirror
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill]

RECORDS = 200
FAILOVER, FAILBACK = names(RunKind.FAILOVER), names(RunKind.FAILBACK)


@contextmanager
def conductor(mirrored: Mirrored, *arguments: str) -> Iterator[Forked]:
    """The command in a process of its own; gone when the block ends."""
    options = ["--config", str(mirrored.config.path), "--runner", "local", "--evidence", str(mirrored.evidence)]
    process = Forked(*arguments, mirrored.name, *options, log=log_of(mirrored))
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def log_of(mirrored: Mirrored) -> Path:
    return mirrored.evidence / "conductor.log"


def finish(mirrored: Mirrored, *arguments: str) -> None:
    with conductor(mirrored, *arguments) as process:
        assert process.wait(300) == 0, log_of(mirrored).read_text(encoding="utf-8")


def kill_when(mirrored: Mirrored, cluster: str, mirror: str, step: str, state: StepState, *arguments: str) -> None:
    """Start the conductor, and SIGKILL it as soon as the journal says so of the mirror's newest run."""
    config: Config = mirrored.config

    def reached() -> bool:
        seen = read_state(config.cluster(cluster))
        mine = [r for r in seen.runs.values() if r.plan.mirror == mirror]
        if not mine:
            return False
        newest = max(mine, key=lambda r: r.started_ms)
        record = seen.steps.get((newest.id, step))
        # Past it is late but no failure: what counts is that the end is right wherever it was killed.
        return record is not None and (record.state is state or record.state is StepState.DONE)

    with conductor(mirrored, *arguments) as process:
        wait_until(lambda: reached() or process.poll() is not None, timeout_s=300, why=f"{mirror}: {step} is {state}")
        process.kill()


KILLS = [(step, state) for step in FAILOVER for state in (StepState.STARTED, StepState.DONE)]


@pytest.mark.parametrize(("step", "state"), KILLS, ids=lambda value: str(value))
def test_a_failover_killed_at_any_step_is_resumed_to_the_same_end(
    pair: Pair, tmp_path: Path, step: str, state: StepState
) -> None:
    topic = app_topic(pair)
    group = f"g-{topic}"
    sent = produce(pair.east, topic, RECORDS)
    commit_offset(pair.east, group, topic, 77)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(group,))
    mirrored.copy()
    sent += produce(pair.east, topic, 20)

    kill_when(mirrored, "west", mirrored.name, step, state, "failover", "run", "--yes")
    finish(mirrored, "failover", "resume")

    (run,) = [r for r in mirrored.state.runs.values() if r.plan.mirror == mirrored.name]
    assert run.state is RunState.DONE
    assert {p: (s.state, s.lmo) for p, s in mirrored.statuses.items()} == {
        Partition(topic, 0): (PartitionState.STOPPED, RECORDS + 20)
    }
    assert mirrored.state.mirrors[mirrored.name].desired is Desired.STOPPED
    assert read_all(pair.west, topic) == sent
    assert read_all_aiokafka(pair.west, topic) == sent
    assert committed(pair.west, group, topic) == 77
    assert sum(a.name == topic and a.permission == "DENY" for a in acls(mirrored, "east")) == 1
    assert not denied(pair.west, topic)
    assert denied(pair.east, topic)
    assert (tmp_path / f"run-{run.id}" / "report.html").exists()


def test_a_failback_killed_at_every_step_comes_home(pair: Pair, tmp_path: Path) -> None:
    """One failback, whose conductor dies at each of its steps and at each of the failover that leads home."""
    topic = app_topic(pair)
    produce(pair.east, topic, RECORDS)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    finish(mirrored, "failover", "run", "--yes")
    tail = produce(pair.east, topic, 11)
    produce(pair.west, topic, 30)
    primary = read_all(pair.west, topic)

    first = True
    for step in FAILBACK[:-1]:
        for state in (StepState.STARTED, StepState.DONE):
            arguments = ("failback", "run" if first else "resume", "--yes")
            kill_when(mirrored, "west", mirrored.name, step, state, *arguments)
            first = False
    back = f"{mirrored.name}-back"
    for step in FAILOVER:
        for state in (StepState.STARTED, StepState.DONE):
            kill_when(mirrored, "east", back, step, state, "failback", "resume", "--yes")
    for state in (StepState.STARTED, StepState.DONE):
        kill_when(mirrored, "west", mirrored.name, FAILBACK[-1], state, "failback", "resume", "--yes")
    finish(mirrored, "failback", "resume", "--yes")

    runs = sorted(mirrored.state.runs.values(), key=lambda r: r.started_ms)
    mine = [r for r in runs if r.plan.mirror == mirrored.name]
    assert [(r.plan.kind, r.state) for r in mine] == [("failover", RunState.DONE), ("failback", RunState.DONE)]
    home = [r for r in read_state(mirrored.config.cluster("east")).runs.values() if r.plan.mirror == back]
    assert [r.state for r in home] == [RunState.DONE]
    assert read_all(pair.east, topic) == primary
    assert read_all_aiokafka(pair.east, topic) == primary
    saved = mirrored.state.steps[mine[-1].id, "salvage"].evidence["records"]
    assert saved == len(tail)
    assert not denied(pair.east, topic)
    assert denied(pair.west, topic)
    assert {s.state for s in mirrored.statuses.values()} == {PartitionState.MIRRORING}
    mirrored.copy()
    assert read_all(pair.west, topic) == read_all(pair.east, topic)
