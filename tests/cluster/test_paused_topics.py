"""Topics paused by name: nothing of them is copied, everything says so, and they go on where they were."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import pytest

from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.mirror_change import prepare_split, split_mirror
from mirror_core.model.errors import BadRequest, HeldByRun
from mirror_core.model.figures import FigureKey
from mirror_core.model.names import MirrorName, Partition
from mirror_core.model.run import RunMode, RunState
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.cluster.desk import Desk
from tests.support.broker_faults import killed
from tests.support.data_plane_thread import driving
from tests.support.failback_runs import failback_of, go_home
from tests.support.failover_runs import app_topic, commit, committed, denied
from tests.support.failover_runs import begin as begin_planned
from tests.support.gap_logs import bounds
from tests.support.kafka_clients import TIMEOUT_S, Pair, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror, replicate
from tests.support.unplanned_runs import begin
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster
ROUNDS = 3
"""So many times the other topic is copied, and the paused one is not: its last task has ended."""


def end(cluster: SandboxCluster, topic: str) -> int:
    return bounds(cluster, topic)[Partition(topic, 0)][1]


def is_level(pair: Pair, topic: str) -> bool:
    return end(pair.east, topic) == end(pair.west, topic)


def write_until_left_behind(pair: Pair, runs: str, paused: str) -> None:
    """Both are written to."""
    ends = list[int]()

    def is_left_behind() -> bool:
        for topic in (runs, paused):
            produce(pair.east, topic, 1, user="app")
        wait_until(lambda: is_level(pair, runs), timeout_s=TIMEOUT_S, why=f"{runs} is copied")
        ends.append(end(pair.west, paused))
        return len(ends) > ROUNDS and len(set(ends[-ROUNDS:])) == 1

    wait_until(is_left_behind, timeout_s=TIMEOUT_S, why=f"{paused} is copied no more")


def observed_end(mirrored: Mirrored, topic: str) -> int:
    observation = mirrored.state.source_observations[mirrored.name]
    return dict(observation.get_ends())[Partition(topic, 0)].end


def test_a_paused_topic_is_told_and_counted_and_goes_on_where_it_was(desk: Desk, pair: Pair) -> None:
    runs, paused = app_topic(pair), app_topic(pair)
    for topic in (runs, paused):
        produce(pair.east, topic, 20, user="app")
    group = f"g-{secrets.token_hex(4)}"
    mirrored = new_mirror(pair, desk.folder, runs, paused, groups=(group,))
    mirrored.copy()
    with driving(mirrored):
        assert desk.run("mirror", "pause", mirrored.name, "--topics", paused).code == 0
        write_until_left_behind(pair, runs, paused)
    with driving(mirrored) as said:  # another process
        write_until_left_behind(pair, runs, paused)
        behind, copied = end(pair.east, paused) - end(pair.west, paused), end(pair.west, paused)
        wait_until(
            lambda: observed_end(mirrored, paused) == copied + behind, timeout_s=TIMEOUT_S, why="the end is recorded"
        )
        facts = json.loads(desk.run("mirror", "describe", mirrored.name, "--json").out)["facts"]
        assert (facts["paused_topics"]["value"], facts["lag"]["value"]) == ([paused], behind)
        assert facts["missing_offsets"]["value"] == behind
        rows: list[dict[str, Any]] = json.loads(desk.run("mirror", "list", "--json").out)["mirrors"]
        [row] = [row for row in rows if row["name"] == mirrored.name]
        assert row["paused_topics"] == [paused]
        assert "paused_topics" in {trouble["code"] for trouble in row["troubles"]}
        planned = mirrored.failover.decide(RunMode.PLANNED)
        assert not planned.reasons
        assert [w.values["topics"] for w in planned.plan.warnings if w.code == "topics_paused"] == [(paused,)]
        commit(pair.east, group, paused, copied + behind)
        mirror_commands.run_sync(mirrored.link)
        assert committed(pair.west, group, paused) == copied, "no record that is not there yet is skipped"
        assert desk.run("mirror", "resume", mirrored.name, "--topics", ".*").code == 0
        wait_until(lambda: is_level(pair, paused), timeout_s=TIMEOUT_S, why="it goes on")
        assert not [line for line in said if "ended" in line]
    for topic in (runs, paused):
        assert read_all(pair.west, topic) == read_all(pair.east, topic)
    assert mirrored.link.mirror.paused_topics == ()


@pytest.fixture
def with_paused(pair: Pair, tmp_path: Path) -> tuple[Mirrored, str, str]:
    """20 records of each topic are copied; then one is paused, and each gets 7 more."""
    runs, paused = app_topic(pair), app_topic(pair)
    for topic in (runs, paused):
        produce(pair.east, topic, 20, user="app")
    mirrored = new_mirror(pair, tmp_path, runs, paused)
    mirrored.copy()
    mirror_commands.run_sync(mirrored.link)
    mirror_commands.pause_topics(mirrored.link, [paused])
    for topic in (runs, paused):
        produce(pair.east, topic, 7, user="app")
    mirrored.copy()
    assert (end(pair.west, runs), end(pair.west, paused)) == (27, 20)
    return mirrored, runs, paused


def test_an_unplanned_failover_counts_what_a_paused_topic_lacks(with_paused: tuple[Mirrored, str, str]) -> None:
    mirrored, runs, paused = with_paused
    pair = mirrored.pair
    with killed(pair.east):
        plan = mirrored.failover.decide(RunMode.UNPLANNED).plan
        assert plan.figures[FigureKey.LOST_OFFSETS] == 7
        assert "topics_paused" in {warning.code for warning in plan.warnings}
        run = begin(mirrored.failover)
        assert mirrored.failover.drive(run.id).state is RunState.DONE
        assert not denied(pair.west, paused)
        assert (end(pair.west, runs), end(pair.west, paused)) == (27, 21), "one was just written"
    assert mirrored.state.mirrors[mirrored.name].paused_topics == ()


def test_a_planned_failover_copies_what_a_paused_topic_lacks_and_nobody_pauses_meanwhile(
    with_paused: tuple[Mirrored, str, str],
) -> None:
    mirrored, runs, paused = with_paused
    pair, failover = mirrored.pair, mirrored.failover
    run_id = begin_planned(failover)
    with pytest.raises(HeldByRun):
        mirror_commands.pause_topics(mirrored.link, [runs])
    with pytest.raises(HeldByRun):
        mirror_commands.resume_topics(mirrored.link, [paused])
    failover.abort(run_id)
    assert mirrored.link.mirror.paused_topics == (paused,), "the abort leaves it as it was"
    assert failover.drive(begin_planned(failover)).state is RunState.DONE
    for topic in (runs, paused):
        assert read_all(pair.west, topic) == read_all(pair.east, topic)
        assert end(pair.west, topic) == 27
        produce(pair.west, topic, 3, user="app")
    assert mirrored.state.mirrors[mirrored.name].paused_topics == ()

    failback = failback_of(mirrored)
    home = failback.begin(failback.plan().hash)
    failback.drive(home.id)
    go_home(failback, home.id)

    for topic in (runs, paused):
        produce(pair.east, topic, 2, user="app")
    mirrored.copy()
    for topic in (runs, paused):
        assert read_all(pair.west, topic) == read_all(pair.east, topic)
        assert end(pair.west, topic) == 32


def test_only_topics_that_the_mirror_carries_are_paused_and_a_stop_ends_it(
    with_paused: tuple[Mirrored, str, str],
) -> None:
    mirrored, runs, paused = with_paused
    with pytest.raises(BadRequest, match="carries no topic that matches"):
        mirror_commands.select_topics(mirrored.link.mirror, mirrored.state, ["mirrorbook.*"])
    mirror_commands.pause_topics(mirrored.link, [runs, paused])
    assert mirrored.link.mirror.paused_topics == tuple(sorted((runs, paused)))
    mirrored.copy()  # nothing, and without an error
    mirror_commands.stop_mirror(mirrored.link)
    mirror_commands.start_mirror(mirrored.link)
    mirrored.copy()
    assert is_level(mirrored.pair, paused)


def test_a_paused_topic_that_moves_to_another_mirror_is_paused_there_only(
    with_paused: tuple[Mirrored, str, str],
) -> None:
    mirrored, runs, paused = with_paused
    into = MirrorName(f"{mirrored.name}-2")
    mirror_commands.pause_mirror(mirrored.link)
    plan = prepare_split(mirrored.link, mirrored.state, into, (paused,))
    split_mirror(mirrored.link, into, (paused,), plan.hash)
    assert mirrored.state.mirrors[into].paused_topics == (paused,)
    assert not mirrored.link.mirror.paused_topics
    mirror_commands.resume_mirror(mirrored.link)
    assert replicate(mirrored.link).caught_up
    mirror_commands.pause_topics(mirrored.link, [runs, paused])
    assert mirrored.link.mirror.paused_topics == (runs,), "only what it carries"
