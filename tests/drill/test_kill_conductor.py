"""The conductor is killed in every step, at several of its actions; `resume` ends where it would have ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_core.decide.steps import list_step_names
from mirror_core.mirrors import mirror_commands
from mirror_core.model.mirror import DesiredState, PartitionState
from mirror_core.model.names import Partition
from mirror_core.model.run import RunKind, RunMode, RunState
from mirror_core.state.state_topic import read_state
from tests.support.failover_runs import acls, app_topic, committed, denied
from tests.support.failover_runs import commit as commit_offset
from tests.support.kafka_clients import Pair, produce, read_all, read_all_aiokafka
from tests.support.killed_conductors import conducted
from tests.support.mirrored_topics import new_mirror

pytestmark = [pytest.mark.cluster, pytest.mark.drill]

RECORDS = 200
FAILOVER, FAILBACK = list_step_names(RunKind.FAILOVER), list_step_names(RunKind.FAILBACK)
UNPLANNED = list_step_names(RunKind.FAILOVER, RunMode.UNPLANNED)


def test_a_failover_killed_in_every_step_is_resumed_to_the_same_end(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    group = f"g-{topic}"
    sent = produce(pair.east, topic, RECORDS)
    commit_offset(pair.east, group, topic, 77)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(group,))
    mirrored.copy()
    sent += produce(pair.east, topic, 20)

    deaths = conducted(mirrored, "failover killed in every step")
    deaths.kill_through(FAILOVER, ("failover", "run", "--yes"), ("failover", "resume"))
    deaths.kill_in(FAILOVER[-1], "written", "failover", "resume")
    deaths.finish("failover", "resume")

    (run,) = [r for r in mirrored.state.runs.values() if r.plan.mirror == mirrored.name]
    assert run.state is RunState.DONE
    assert {p: (s.state, s.lmo) for p, s in mirrored.statuses.items()} == {
        Partition(topic, 0): (PartitionState.STOPPED, RECORDS + 20)
    }
    assert mirrored.state.mirrors[mirrored.name].desired is DesiredState.STOPPED
    assert read_all(pair.west, topic) == sent
    assert read_all_aiokafka(pair.west, topic) == sent
    assert committed(pair.west, group, topic) == 77
    assert sum(a.name == topic and a.permission == "DENY" for a in acls(mirrored, "east")) == 1
    assert not denied(pair.west, topic)
    assert denied(pair.east, topic)
    assert (tmp_path / f"run-{run.id}" / "report.html").exists()


def test_an_unplanned_failover_killed_in_every_step_is_resumed_to_the_same_end(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    group = f"g-{topic}"
    sent = produce(pair.east, topic, RECORDS)
    commit_offset(pair.east, group, topic, 77)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(group,))
    mirrored.copy()
    mirror_commands.run_sync(mirrored.link)

    deaths = conducted(mirrored, "unplanned failover killed in every step")
    pair.east.kill()
    try:
        arguments: tuple[str, ...] = ("failover", "run", "--mode", "unplanned", "--yes")
        for step in UNPLANNED:
            for after in (1, "all"):
                deaths.kill_in(step, after, *arguments)
                arguments = ("failover", "resume")
        deaths.finish("failover", "resume")
        assert read_all(pair.west, topic) == sent
        assert committed(pair.west, group, topic) == 77
        assert not denied(pair.west, topic)
    finally:
        pair.east.start()

    (run,) = [r for r in mirrored.state.runs.values() if r.plan.mirror == mirrored.name]
    assert (run.state, run.plan.mode) == (RunState.DONE, RunMode.UNPLANNED)
    assert {s.lmo for s in mirrored.statuses.values()} == {RECORDS}
    assert {s.state for s in mirrored.statuses.values()} == {PartitionState.STOPPED}
    assert mirrored.state.pending_fences[mirrored.name].run == run.id


def test_a_failback_killed_at_every_step_comes_home(pair: Pair, tmp_path: Path) -> None:
    """One failback, whose conductor dies at each of its steps and at each of the failover that leads home."""
    topic = app_topic(pair)
    produce(pair.east, topic, RECORDS)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    deaths = conducted(mirrored, "failback killed at every step")
    deaths.finish("failover", "run", "--yes")
    tail = produce(pair.east, topic, 11)
    produce(pair.west, topic, 30)
    primary = read_all(pair.west, topic)

    resume = ("failback", "resume", "--yes")
    *until_home, last = FAILBACK
    deaths.kill_through(until_home, ("failback", "run", "--yes"), resume)
    for step in FAILOVER:
        deaths.kill_in(step, deaths.chance.randrange(1, 16), *resume, home=True)
    deaths.kill_through([last], resume, resume)
    deaths.finish(*resume)

    runs = sorted(mirrored.state.runs.values(), key=lambda r: r.started_ms)
    mine = [r for r in runs if r.plan.mirror == mirrored.name]
    assert [(r.plan.kind, r.state) for r in mine] == [("failover", RunState.DONE), ("failback", RunState.DONE)]
    home = [
        r for r in read_state(mirrored.config.cluster("east")).runs.values() if r.plan.mirror == f"{mirrored.name}-back"
    ]
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
