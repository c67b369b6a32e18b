"""Clusters whose ACLs Mirrorbook may not touch: mirrored, failed over with and without their source, and home again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from mirror_core.decide.fence_state import FenceNextAction, FenceState
from mirror_core.kafka.config import load_config
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.fence_watcher import check_fence
from mirror_core.mirrors.preflight import RightStatus, check_cluster
from mirror_core.model.run import RunMode, RunState
from mirror_core.model.sync_state import SyncAction as Change
from mirror_core.model.sync_state import SyncCategory
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.state.mirror_link import find_mirror_link
from tests.support.broker_faults import killed
from tests.support.cli_process import mirrorbook
from tests.support.failback_runs import failback_of, go_home
from tests.support.failover_runs import app_topic, denied
from tests.support.foreign_authorizers import called, foreign
from tests.support.kafka_clients import Pair, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.unplanned_runs import begin
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


@pytest.fixture
def apart(pair: Pair, tmp_path: Path) -> Iterator[Pair]:
    with foreign(pair, tmp_path) as changed:
        yield changed


def mirrored_of(pair: Pair, folder: Path, topic: str) -> Mirrored:
    produce(pair.east, topic, 30)
    mirrored = new_mirror(pair, folder, topic)
    mirrored.copy()
    rows = mirror_commands.run_sync(mirrored.link).rows
    acls = [(row.subject, row.action) for row in rows if row.part is SyncCategory.ACLS]
    assert acls == [("cluster east", Change.SKIP), ("cluster west", Change.SKIP)]
    return mirrored


def as_kafkas(mirrored: Mirrored) -> Failover:
    """The same mirror by a configuration that does not say who rules."""
    document = yaml.safe_load(mirrored.config.path.read_text(encoding="utf-8"))
    for side in document["clusters"].values():
        for entry in ("authorizer", "fence_command", "unfence_command"):
            side.pop(entry, None)
    path = mirrored.config.path.with_name("kafkas.yaml")
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return Failover(find_mirror_link(load_config(path), mirrored.name)[0], mirrored.services, started_by="test")


def test_a_dead_source_is_left_without_any_acl_and_closed_by_its_command_when_it_is_back(
    apart: Pair, tmp_path: Path
) -> None:
    topic = app_topic(apart)
    mirrored = mirrored_of(apart, tmp_path, topic)
    with killed(apart.east):
        refused = as_kafkas(mirrored).decide(RunMode.UNPLANNED).reasons
        assert any("DescribeAcls" in str(reason) for reason in refused), "nobody would need `authorizer: foreign`"
        assert denied(apart.west, topic)
        run = begin(mirrored.failover)
        assert mirrored.failover.drive(run.id).state is RunState.DONE
        assert called(apart, "west") == ["unfence"]
        assert not denied(apart.west, topic)
        assert called(apart, "east") == []
    assert not denied(apart.east, topic), "it is back, and nobody has closed it yet"
    found = wait_until(lambda: check_fence(mirrored.link), timeout_s=60, why="east answers")
    assert found is not None
    assert (found.state, found.action) == (FenceState.APPLIED, FenceNextAction.APPLY)
    assert called(apart, "east") == ["fence"]
    assert denied(apart.east, topic)
    debt = mirrored.state.pending_fences[mirrored.name]
    assert debt.by_command
    assert debt.applied_at_ms is not None
    assert check_fence(mirrored.link).action is FenceNextAction.NOTHING
    produce(apart.east, topic, 2)  # as a super user, whom no command stops
    again = check_fence(mirrored.link)
    assert any("2 offsets that no fence stopped" in alarm for alarm in again.alarms)
    assert called(apart, "east") == ["fence", "fence"]


@pytest.mark.slow
def test_a_planned_failover_closes_its_source_by_command_and_an_abort_opens_it(apart: Pair, tmp_path: Path) -> None:
    topic = app_topic(apart)
    mirrored = mirrored_of(apart, tmp_path, topic)
    failover = mirrored.failover
    run = begin(failover, RunMode.PLANNED)
    for step in ("prove", "fence"):
        failover.run_step(run.id, step)
    assert denied(apart.east, topic)
    assert failover.abort(run.id).state is RunState.ABORTED
    assert called(apart, "east") == ["fence", "unfence"]
    assert not denied(apart.east, topic)

    run = begin(failover, RunMode.PLANNED)
    assert failover.drive(run.id).state is RunState.DONE
    assert denied(apart.east, topic)
    assert not denied(apart.west, topic)
    assert read_all(apart.east, topic) == read_all(apart.west, topic)[: len(read_all(apart.east, topic))]
    assert check_fence(mirrored.link).state is FenceState.APPLIED

    failback = failback_of(mirrored)
    home = failback.begin(failback.plan().hash)
    assert failback.drive(home.id).state is RunState.RUNNING
    go_home(failback, home.id)
    assert called(apart, "west")[-1] == "fence"
    assert called(apart, "east")[-1] == "unfence"
    assert not denied(apart.east, topic)
    assert denied(apart.west, topic)


@pytest.mark.slow
def test_without_commands_a_planned_failover_is_refused_and_people_are_called_behind_an_unplanned_one(
    pair: Pair, tmp_path: Path
) -> None:
    with foreign(pair, tmp_path, commands=False) as apart:
        topic = app_topic(apart)
        mirrored = mirrored_of(apart, tmp_path, topic)
        config = ("--config", str(mirrored.config.path))
        planned = mirrorbook("failover", "plan", mirrored.name, *config)
        assert planned.returncode == 3
        assert "no fence_command" in planned.stdout + planned.stderr
        assert "--mode unplanned" in planned.stdout + planned.stderr
        with killed(apart.east):
            run = begin(mirrored.failover)
            assert mirrored.failover.drive(run.id).state is RunState.DONE
        for _ in range(2):
            found = wait_until(lambda: check_fence(mirrored.link), timeout_s=60, why="east answers")
            assert found is not None
            assert found.state is FenceState.WATCHED_ONLY
            assert found.is_exposed
            assert "close it by its own means" in found.alarms[0]


def test_a_check_asks_for_no_right_on_acls_and_says_what_is_missing(pair: Pair, tmp_path: Path) -> None:
    with foreign(pair, tmp_path, commands=False) as apart:
        found = check_cluster(load_config(apart.config_path).cluster("west"))
        assert found.authorizer == "foreign"
        assert not [right for right in found.rights if right.verdict is RightStatus.MISSING or right.command]
        said = mirrorbook("cluster", "check", "west", "--json", "--config", str(apart.config_path))
        advice = " ".join(json.loads(said.stdout)["advice"])
        assert "Mirrorbook gives and denies nothing there" in advice
        assert "a planned failover is refused" in advice
