"""A part of Airflow is killed in the middle of each DAG: once it is back the run ends as if nothing had been.

Not its politest end: SIGKILL, with all of its children. Of the scheduler these are the tasks at work, too.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from demo.airflow import REPOSITORY, Airflow
from mirror_core.decide.drills import drill_name
from mirror_core.demo.processes import end, session_of
from mirror_core.mirrors import verbs
from mirror_core.model.mirror import Desired
from mirror_core.model.names import MirrorName
from mirror_core.model.run import Mode, RunState
from mirror_core.runbook import drill
from mirror_core.sandbox.credentials import CONTROL, DATA
from mirror_core.supervisor import supervise
from tests.brokers import Pair, grant, new_topic, produce, read_all
from tests.mirroring import Mirrored, new_mirror
from tests.waiting import wait_until

pytestmark = [pytest.mark.dag, pytest.mark.cluster, pytest.mark.drill, pytest.mark.heavy]

RUN_S: Final = 600.0
FINAL: Final = ("success", "failed")
AT_WORK: Final = ("running", "deferred", "awaiting_input")
RECORDS: Final = 300


@dataclass
class Parts:
    """The processes of one Airflow, each of which can be killed and begun again."""

    airflow: Airflow
    environment: dict[str, str] = field(default_factory=dict)
    begun: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def learn(self) -> None:
        """What standalone gives them all. A process that has changed its title has lost it from there."""
        self.environment = self._main("triggerer").environ()

    def kill(self, part: str) -> None:
        """It, and its children."""
        lost = self._workers() if part == "worker" else [self._main(part)]
        tree = [*lost, *(child for one in lost for child in one.children(recursive=True))]
        for process in tree:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(tree, timeout=30)
        if (before := self.begun.pop(part, None)) is not None:
            before.wait()
        if part != "worker":
            with open(self.airflow.log_path, "ab") as log:
                self.begun[part] = subprocess.Popen(
                    [sys.executable, "-m", "airflow", part],
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )

    def stop(self) -> None:
        for process in self.begun.values():
            end(session_of(process.pid))
            process.wait()

    def _main(self, part: str) -> psutil.Process:
        if part in self.begun:
            return psutil.Process(self.begun[part].pid)
        leader = psutil.Process(self.airflow.pid)
        return next(p for p in leader.children() if part in _title(p).replace("_", "-"))

    def _workers(self) -> list[psutil.Process]:
        """Those that watch over a task, which is their child."""
        workers = (p for p in self._main("scheduler").children() if "LocalExecutor" in _title(p))
        return [p for p in workers if p.children()]


def _title(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


@pytest.fixture(scope="module")
def parts(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    settings = {
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    }
    airflow = Airflow(tmp_path_factory.mktemp("airflow"), dags=REPOSITORY / "dags", settings=settings)
    airflow.start()
    made = Parts(airflow)
    try:
        airflow.wait_healthy()
        made.learn()
        for cluster in (pair.east, pair.west):
            airflow.add_connection(cluster.name, cluster.client_config(CONTROL), cluster.client_config(DATA))
        airflow.call("POST", "/variables", {"key": "mirrorbook_clusters", "value": "east,west"})
        yield made
    finally:
        made.stop()
        airflow.stop()
        home = airflow.folder / "mirrorbook" / "data-plane"
        for folder in sorted(home.iterdir()) if home.is_dir() else ():
            supervise.stop(home, MirrorName(folder.name))


@pytest.fixture
def mirrored(pair: Pair, tmp_path: Path) -> Mirrored:
    topic = new_topic(pair.east, partitions=2, prefix="orders-")
    produce(pair.east, topic, RECORDS)
    grant(pair.east, "app", ResourceType.TOPIC, topic, [AclOperation.WRITE, AclOperation.READ])
    mirror = new_mirror(pair, tmp_path, topic)
    mirror.copy()
    return mirror


def goes_on(
    parts: Parts,
    part: str,
    dag: str,
    conf: Mapping[str, object],
    during: str,
    *,
    begun: Callable[[], bool] | None = None,
    then: Callable[[], None] = lambda: None,
) -> None:
    """Begin a run, approve all that it asks, lose the part while this task is at work, and see it end well.

    `begun`: where the journal tells better than Airflow what it has begun with. `then`: done when the part is back.
    """
    airflow, lost = parts.airflow, False
    airflow.unpause(dag)
    run = airflow.trigger(dag, conf)

    def ended() -> bool:
        nonlocal lost
        tasks = airflow.tasks(dag, run)
        if not lost and (begun() if begun else tasks.get(during) in AT_WORK):
            parts.kill(part)
            lost = True
            airflow.wait_healthy()
            then()
        for task in (name for name, state in tasks.items() if state == "awaiting_input"):
            approve(airflow, dag, run, task)
        return airflow.run_state(dag, run) in FINAL

    wait_until(ended, timeout_s=RUN_S, why=f"{dag} has ended")
    assert lost, f"{during} was never seen at work"
    if part == "api-server" and airflow.run_state(dag, run) == "failed":
        # A task that ends while there is no API server cannot say how: Airflow takes it for failed, and no retry is
        # left. What a red run's documentation says is done.
        body = {"dag_run_id": run, "only_failed": True, "dry_run": False}
        airflow.call("POST", f"/dags/{dag}/clearTaskInstances", body)
        wait_until(ended, timeout_s=RUN_S, why=f"{dag} has ended after a failed task was cleared")
    assert airflow.run_state(dag, run) == "success", airflow.tasks(dag, run)


def approve(airflow: Airflow, dag: str, run: str, task: str) -> None:
    """Press the button, and see that it has been pressed."""
    airflow.await_question(dag, run, task, RUN_S)
    airflow.answer(dag, run, task, "Approve")
    wait_until(lambda: airflow.tasks(dag, run)[task] != "awaiting_input", timeout_s=RUN_S, why=f"{task} is answered")


def in_step(mirror: Mirrored, step: str) -> Callable[[], bool]:
    """Whether a run of this mirror has begun with a step."""
    return lambda: any(known == step for run, known in mirror.state.steps if mirror.name in run)


def promoted(mirror: Mirrored) -> None:
    """There is one run, it is done, and both sides hold the same."""
    (run,) = [r for r in mirror.state.runs.values() if r.plan.mirror == mirror.name]
    assert run.state is RunState.DONE
    (topic,) = {partition.topic for partition in mirror.statuses}
    assert read_all(mirror.pair.west, topic) == read_all(mirror.pair.east, topic)
    produce(mirror.pair.west, topic, 1)


@pytest.mark.parametrize(
    "part",
    ["scheduler", *(pytest.param(part, marks=pytest.mark.slow) for part in ("worker", "api-server", "triggerer"))],
)
def test_a_failover(parts: Parts, mirrored: Mirrored, part: str) -> None:
    begun = in_step(mirrored, "fence")
    goes_on(parts, part, "mirror_failover", {"mirror": mirrored.name}, "cut_over", begun=begun)
    promoted(mirrored)


@pytest.mark.slow
@pytest.mark.parametrize(("part", "step"), [("worker", "final_offsets")])
def test_a_source_that_is_given_up(parts: Parts, mirrored: Mirrored, part: str, step: str) -> None:
    conf = {"mirror": mirrored.name}
    goes_on(parts, part, "mirror_failover_unplanned", conf, "cut_over", begun=in_step(mirrored, step))
    promoted(mirrored)


@pytest.mark.slow
@pytest.mark.parametrize(("part", "step"), [("scheduler", "catch_up")])
def test_a_failback(parts: Parts, mirrored: Mirrored, part: str, step: str) -> None:
    failover = mirrored.failover
    failover.drive(failover.begin(failover.plan(Mode.PLANNED).hash).id)
    goes_on(parts, part, "mirror_failback", {"mirror": mirrored.name}, step, begun=in_step(mirrored, step))
    (topic,) = {partition.topic for partition in mirrored.statuses}
    assert read_all(mirrored.pair.west, topic) == read_all(mirrored.pair.east, topic)
    produce(mirrored.pair.east, topic, 1, user="app")


@pytest.mark.slow
@pytest.mark.parametrize("part", ["worker"])
def test_a_mirror_is_created(parts: Parts, pair: Pair, tmp_path: Path, part: str) -> None:
    topic = new_topic(pair.east)
    known = new_mirror(pair, tmp_path, topic)
    conf = {"mirror": f"{known.name}-2", "source": "east", "destination": "west", "topics": [new_topic(pair.east)]}
    goes_on(parts, part, "mirror_create", conf, "create")
    assert known.state.mirrors[MirrorName(f"{known.name}-2")].desired is Desired.STARTED


@pytest.mark.slow
@pytest.mark.parametrize("part", ["scheduler"])
def test_a_drill(parts: Parts, mirrored: Mirrored, part: str) -> None:
    def standing() -> bool:
        return drill_name(mirrored.name) in mirrored.state.mirrors

    goes_on(parts, part, "mirror_drill", {"mirrors": [mirrored.name]}, "drill", begun=standing)
    assert drill.past(mirrored.state, mirrored.name)[0].state is RunState.DONE
    assert drill_name(mirrored.name) not in mirrored.state.mirrors


@pytest.mark.parametrize(
    ("part", "dag", "during"),
    [("worker", "mirror_sync", "sync"), pytest.param("api-server", "mirror_parity", "parity", marks=pytest.mark.slow)],
)
def test_what_runs_by_the_clock(parts: Parts, mirrored: Mirrored, part: str, dag: str, during: str) -> None:
    goes_on(parts, part, dag, {"mirrors": [mirrored.name]}, during)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["worker"])
def test_what_a_mirror_shall_do(parts: Parts, mirrored: Mirrored, part: str) -> None:
    goes_on(parts, part, "mirror_control", {"mirror": mirrored.name, "action": "pause"}, "control")
    assert mirrored.link.mirror.desired is Desired.PAUSED


@pytest.mark.parametrize("part", ["triggerer"])
def test_a_data_plane_is_watched(parts: Parts, mirrored: Mirrored, part: str) -> None:
    """It lives outside of Airflow, so it goes on copying; the watch ends green when the mirror is stopped."""
    (topic,) = {partition.topic for partition in mirrored.statuses}

    def live() -> None:
        produce(mirrored.pair.east, topic, 10)
        want = read_all(mirrored.pair.east, topic)
        wait_until(lambda: read_all(mirrored.pair.west, topic) == want, timeout_s=RUN_S, why="it is copied")
        verbs.stop(mirrored.link)

    conf = {"mirror": mirrored.name, "runner": "local"}
    goes_on(parts, part, "mirror_replicate", conf, "watch", then=live)
