"""An Airflow of which a part, or all of it, is killed in the middle of a DAG run, and begun again.

Not its politest end: SIGKILL, with all of its children. Of the scheduler these are the tasks at work, too.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
from confluent_kafka.admin import AclOperation, ResourceType

from demo.airflow import Airflow
from mirror_core.mirrors import mirror_commands
from mirror_core.model.names import format_reverse_name
from mirror_core.model.run import RunKind, RunState
from mirror_core.state.state_topic import read_state
from mirrorbook_tools.demo.processes import end, session_of
from mirrorbook_tools.sandbox.credentials import CONTROL, DATA
from tests.support.celery_airflow import PROCESSES, CeleryAirflow, make_airflow
from tests.support.failover_runs import denied
from tests.support.kafka_clients import Pair, grant, new_topic, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.waiting import wait_until

RUN_S: Final = 600.0
FINAL: Final = ("success", "failed")
AT_WORK: Final = ("running", "deferred", "awaiting_input")
RECORDS: Final = 300
WHOLE: Final = "airflow"
"""All of its parts: nothing of it is left."""


@dataclass
class Parts:
    """The processes of one Airflow, each of which can be killed and begun again."""

    airflow: Airflow
    environment: dict[str, str] = field(default_factory=dict)
    begun: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def learn(self) -> None:
        """What standalone gives them all. A process that has changed its title has lost it from there."""
        self.environment = self._main("triggerer").environ()

    def kill(self, part: str) -> bool:
        """It, and its children. Whether there was anything to kill: no worker is at work when its task has ended."""
        if part == WHOLE:
            return self._kill_all()
        lost = self._workers() if part == "worker" else [self._main(part)]
        tree = [*lost, *(child for one in lost for child in one.children(recursive=True))]
        for process in tree:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(tree, timeout=30)
        if (before := self.begun.pop(part, None)) is not None:
            before.wait()
        return bool(lost)

    def begin(self, part: str) -> None:
        """Again, on the same database. A scheduler makes its own worker when it needs one; Celery's is a part."""
        if part == WHOLE:
            self.airflow.start()
        elif part != "worker" or self._has_celery:
            with open(self.airflow.log_path, "ab") as log:
                self.begun[part] = subprocess.Popen(
                    [sys.executable, "-m", "airflow", *_find_command(part)],
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        self.airflow.wait_healthy()
        if part == WHOLE:
            self.learn()  # its ports are others

    def stop(self) -> None:
        for process in self.begun.values():
            end(session_of(process.pid))
            process.wait()
        self.begun.clear()

    def _kill_all(self) -> bool:
        leader = self.airflow.pid
        assert leader is not None
        leaders = [leader, *(process.pid for process in self.begun.values())]

        def gone() -> bool:
            """Also what was forked while we looked."""
            living = [p for one in leaders for p in session_of(one) if p.status() != psutil.STATUS_ZOMBIE]
            for process in living:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            return not living

        wait_until(gone, timeout_s=30, why="nothing of Airflow is left")
        self.stop()
        self.airflow.stop()
        return True

    def _main(self, part: str) -> psutil.Process:
        if part in self.begun:
            return psutil.Process(self.begun[part].pid)
        leader = psutil.Process(self.airflow.pid)
        return next(p for p in leader.children() if part in _title(p).replace("_", "-"))

    @property
    def _has_celery(self) -> bool:
        return isinstance(self.airflow, CeleryAirflow)

    def _workers(self) -> list[psutil.Process]:
        """Those that watch over a task, which is their child."""
        if self._has_celery:
            return [self._main("worker")]
        workers = (p for p in self._main("scheduler").children() if "LocalExecutor" in _title(p))
        return [p for p in workers if p.children()]


def _find_command(part: str) -> list[str]:
    return next(command.split() for command in PROCESSES if command.split()[-1] == part)


def _title(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


@contextmanager
def airflow_in_parts(pair: Pair, folder: Path) -> Iterator[Parts]:
    """One that soon misses what is lost, and knows both clusters."""
    settings = {
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
        "AIRFLOW__MIRRORBOOK__EXECUTORS_CONFIG": str(pair.config_path),
    }
    airflow = make_airflow(folder, settings)
    airflow.start()
    made = Parts(airflow)
    try:
        airflow.wait_healthy()
        made.learn()
        airflow.pause("mirror_watch")  # it would fence again what the tests before have left, when that is put back
        for cluster in (pair.east, pair.west):
            airflow.add_connection(cluster.name, cluster.client_config(CONTROL), cluster.client_config(DATA))
        airflow.call("POST", "/variables", {"key": "mirrorbook_clusters", "value": "east,west"})
        (folder / "mirrorbook").mkdir(mode=0o700, exist_ok=True)
        yield made
    finally:
        made.stop()
        airflow.stop()


def copied_mirror(pair: Pair, evidence: Path) -> Mirrored:
    """A mirror of a topic that user `app` may write and read, and of its group `g-TOPIC`, copied and synced so far."""
    topic = new_topic(pair.east, partitions=2, prefix="orders-")
    produce(pair.east, topic, RECORDS)
    grant(pair.east, "app", ResourceType.TOPIC, topic, [AclOperation.WRITE, AclOperation.READ])
    mirror = new_mirror(pair, evidence, topic, groups=(f"g-{topic}",))
    mirror.copy()
    mirror_commands.run_sync(mirror.link)  # who may write is asked of no source that is given up
    return mirror


def goes_on(
    parts: Parts,
    part: str,
    dag: str,
    conf: Mapping[str, object],
    during: str,
    *,
    begun: Callable[[], bool] | None = None,
    asked: Callable[[str], None] = lambda task: None,
    meanwhile: Callable[[], None] = lambda: None,
    then: Callable[[], None] = lambda: None,
) -> None:
    """Begin a run, approve all that it asks, lose the part while this task is at work, and see it end well.

    `begun`: where the journal tells better than Airflow what it has begun with. `asked`: done before the question of a
    task is answered. `meanwhile`: done while the part is lost. `then`: done when it is back.
    """
    airflow, lost = parts.airflow, False
    airflow.unpause(dag)
    run = airflow.trigger(dag, conf)

    def ended() -> bool:
        nonlocal lost
        tasks = airflow.tasks(dag, run)
        if not lost and (begun() if begun else tasks.get(during) in AT_WORK):
            lost = parts.kill(part)
            if lost:
                try:
                    meanwhile()
                finally:
                    parts.begin(part)  # other tests have the same Airflow
                then()
        for task in (name for name, state in tasks.items() if state == "awaiting_input"):
            asked(task)
            approve(airflow, dag, run, task)
        return airflow.run_state(dag, run) in FINAL

    wait_until(ended, timeout_s=RUN_S, why=f"{dag} has ended")
    assert lost, f"{during} was never seen at work"
    if part in ("api-server", WHOLE) and airflow.run_state(dag, run) == "failed":
        # A task that ends while there is no API server cannot say how, and one that is to begin cannot ask what: a
        # scheduler that is up before it takes both for failed, until no retry is left. What a red run's documentation
        # says is done.
        body = {"dag_run_id": run, "only_failed": True, "dry_run": False}
        airflow.call("POST", f"/dags/{dag}/clearTaskInstances", body)
        wait_until(ended, timeout_s=RUN_S, why=f"{dag} has ended after a failed task was cleared")
    assert airflow.run_state(dag, run) == "success", airflow.tasks(dag, run)
    come_to_rest(airflow, dag)


def come_to_rest(airflow: Airflow, dag: str) -> None:
    """What runs by the clock would look after all mirrors: it would fence again what other tests have left behind."""
    airflow.pause(dag)
    path = f"/dags/{dag}/dagRuns/~/taskInstances?state=queued&state=running"
    wait_until(lambda: not airflow.call("GET", path)["task_instances"], timeout_s=RUN_S, why=f"no task of {dag} runs")


def approve(airflow: Airflow, dag: str, run: str, task: str) -> None:
    """Press the button, and see that it has been pressed."""
    airflow.await_question(dag, run, task, RUN_S)
    airflow.answer(dag, run, task, "Approve")
    wait_until(lambda: airflow.tasks(dag, run)[task] != "awaiting_input", timeout_s=RUN_S, why=f"{task} is answered")


def in_step(mirror: Mirrored, step: str) -> Callable[[], bool]:
    """Whether a run of this mirror has begun with a step."""
    return lambda: any(known == step for run, known in mirror.state.steps if mirror.name in run)


def in_step_home(mirror: Mirrored, step: str) -> Callable[[], bool]:
    """The same of the failover that brings its applications home, whose journal is at home."""
    east, back = mirror.config.cluster("east"), format_reverse_name(mirror.name)
    return lambda: any(known == step for run, known in read_state(east).steps if back in run)


def promoted(mirror: Mirrored) -> None:
    """There is one run, it is done, both sides hold the same, and applications can write on one of them."""
    (run,) = [r for r in mirror.state.runs.values() if r.plan.mirror == mirror.name]
    assert run.state is RunState.DONE
    (topic,) = mirror.link.mirror.topics
    assert read_all(mirror.pair.west, topic) == read_all(mirror.pair.east, topic)
    assert denied(mirror.pair.east, topic)
    assert not denied(mirror.pair.west, topic)


def at_home(mirror: Mirrored) -> None:
    """The same after a failback, whose own run and that of the failover home are done."""
    back = format_reverse_name(mirror.name)
    runs = [*mirror.state.runs.values(), *read_state(mirror.config.cluster("east")).runs.values()]
    mine = [(r.plan.mirror, r.plan.kind, r.state) for r in runs if r.plan.mirror in (mirror.name, back)]
    assert sorted(mine) == [
        (mirror.name, RunKind.FAILBACK, RunState.DONE),
        (mirror.name, RunKind.FAILOVER, RunState.DONE),
        (back, RunKind.FAILOVER, RunState.DONE),
    ]
    (topic,) = mirror.link.mirror.topics
    assert read_all(mirror.pair.west, topic) == read_all(mirror.pair.east, topic)
    assert denied(mirror.pair.west, topic)
    assert not denied(mirror.pair.east, topic)
