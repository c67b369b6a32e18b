"""`mirrorbook supervise` with the real `replicate` and real brokers: data flows again whatever was killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from mirror_core.kafka.config import load_config
from mirror_core.mirrors.mirror_creation import create_mirror
from mirror_core.model.mirror import DesiredState
from mirror_core.model.names import MirrorName, format_reverse_name
from mirror_core.state.state_topic import read_state
from mirror_core.state.writer import StateWriter, make_control_id
from mirror_core.supervisor.directory import SupervisorStatus
from tests.support.cli_process import mirrorbook
from tests.support.detached_supervisor import ensure_supervisor, read_supervisor_status, stop_supervisor
from tests.support.kafka_clients import Pair, new_topic, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster
TIMEOUT_S = 90.0


@dataclass(frozen=True, slots=True)
class Supervised:
    """A mirror of one topic, under a supervisor that belongs to no one."""

    pair: Pair
    topic: str
    mirrored: Mirrored
    home: Path
    options: tuple[str, ...]

    def ensure(self) -> None:
        ensure_supervisor(self.pair.config_path, self.mirrored.name, self.home, self.options)

    def status(self) -> SupervisorStatus:
        found = read_supervisor_status(self.home, self.mirrored.name)
        assert found is not None
        return found

    def flows(self, count: int) -> None:
        """Produce, and wait until it has all arrived."""
        produce(self.pair.east, self.topic, count)
        there = read_all(self.pair.east, self.topic)

        def same() -> bool:
            return read_all(self.pair.west, self.topic) == there

        wait_until(self._created, timeout_s=TIMEOUT_S, why=f"{self.topic} is created on west")
        wait_until(same, timeout_s=TIMEOUT_S, why=f"{len(there)} records are on west, each at its offset")

    def _created(self) -> bool:
        return any(partition.topic == self.topic for partition in self.mirrored.statuses)


@pytest.fixture
def supervised(pair: Pair, tmp_path: Path) -> Iterator[Supervised]:
    topic = new_topic(pair.east)
    mirrored = new_mirror(pair, tmp_path, topic)
    options = ("--runner", "local", "--receipts", str(tmp_path / "receipts"))
    made = Supervised(pair, topic, mirrored, tmp_path / "home", options)
    made.ensure()
    try:
        yield made
    finally:
        stop_supervisor(made.home, mirrored.name)


def test_data_flows_again_after_the_driver_was_killed(supervised: Supervised) -> None:
    supervised.flows(100)
    first = supervised.status()
    assert first.child_pid is not None
    os.kill(first.child_pid, signal.SIGKILL)
    supervised.flows(100)
    now = supervised.status()
    assert now.pid == first.pid
    assert now.restarts >= 1
    assert now.child_pid != first.child_pid


def test_ensure_replaces_a_killed_supervisor_and_leaves_a_living_one_alone(supervised: Supervised) -> None:
    supervised.flows(50)
    first = supervised.status()
    supervised.ensure()
    assert supervised.status().pid == first.pid
    assert psutil.Process() not in psutil.Process(first.pid).parents()
    assert first.child_pid is not None
    child = psutil.Process(first.child_pid)
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: not child.is_running(), timeout_s=TIMEOUT_S, why="the driver follows its supervisor")
    assert not supervised.status().alive
    supervised.ensure()
    assert supervised.status().pid != first.pid
    supervised.flows(50)


@pytest.mark.slow
def test_a_paused_mirror_is_asked_after_calmly_and_goes_on_when_resumed(supervised: Supervised) -> None:
    supervised.flows(50)
    config = ("--config", str(supervised.pair.config_path))
    paused = mirrorbook("mirror", "pause", supervised.mirrored.name, *config)
    assert paused.returncode == 0, paused.stderr
    log = supervised.status().log
    wait_until(lambda: "not copied now" in Path(log).read_text(), timeout_s=TIMEOUT_S, why="replicate tells of it")
    resumed = mirrorbook("mirror", "resume", supervised.mirrored.name, *config)
    assert resumed.returncode == 0, resumed.stderr
    supervised.flows(50)


def test_the_way_home_is_copied_as_soon_as_there_is_one(supervised: Supervised) -> None:
    """As step `create_reverse` of a failback records it: on the old source."""
    supervised.flows(20)
    name, topic = format_reverse_name(supervised.mirrored.name), new_topic(supervised.pair.west)
    config = load_config(supervised.pair.config_path)
    other = MirrorName(f"{supervised.mirrored.name}-other")
    made = create_mirror(config, other, source="west", destination="east", topics=(topic,), groups=())
    with StateWriter(config.cluster("east"), make_control_id(name)) as writer:
        writer.put(replace(made, name=name, desired=DesiredState.STARTED))
    produce(supervised.pair.west, topic, 20)
    there = read_all(supervised.pair.west, topic)
    east = config.cluster("east")
    wait_until(lambda: read_state(east).partitions.get(name), timeout_s=TIMEOUT_S, why=f"{topic} is created on east")
    wait_until(lambda: read_all(supervised.pair.east, topic) == there, timeout_s=TIMEOUT_S, why="west's are on east")
    supervised.flows(20)


def test_the_command_refuses_a_second_supervisor_with_exit_code_3(supervised: Supervised) -> None:
    second = mirrorbook(
        "supervise",
        supervised.mirrored.name,
        *("--config", str(supervised.pair.config_path)),
        *("--home", str(supervised.home)),
        *("--", *supervised.options),
    )
    assert second.returncode == 3
    assert f"process {supervised.status().pid} on this host does so already" in second.stderr
    assert "Traceback" not in second.stderr
