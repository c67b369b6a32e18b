"""Copying tasks on Spark: each epoch is one job of one task per assignment, and two epochs may overlap.

Spark places the tasks and starts a killed one again; which task may write what is decided by the fence, not by Spark.
"""

from __future__ import annotations

import itertools
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from mirror_core.dataplane.runner import RunnerGone
from mirror_core.evidence.folders import Folder, is_url, local_folder
from mirror_core.model import logs
from mirror_core.model.copying import Assignment, Listening, TaskReport
from mirror_core.model.errors import MirrorError
from mirror_core.spark import task
from mirror_core.spark.hadoop import HadoopFolder
from mirror_core.spark.jobs import results
from mirror_core.spark.session import NO_CONF, PORT, context, existing, first_line, local_master
from mirror_core.spark.slots import NoSlot, slots_wanted

R = TypeVar("R")

APP: Final = "mirrorbook-replicate"
_NUMBERS: Final = itertools.count()
"""Of jobs. Runners of one process have one Spark: none may cancel a group of another's."""
_MAX_JOBS: Final = 16
"""Jobs that may wait for Spark at once. Two are normal; more pile up only while Spark doesn't answer."""

_TASK_LOST = re.compile(
    r"Task (\d+) in stage \S+ failed (\d+) times, most recent failure: Lost task [^(]*\(TID \d+\) \(([^)]*)\): (.*)"
)
_CLASS_NAME = re.compile(r"^(?:[a-z]\w*\.)+\w+: ")
_POLITE_S: Final = 5.0
"""How long tasks on this machine may take to end by themselves before they are cancelled."""


class SparkFailed(MirrorError):
    """Spark could not bring a job to its end. The destination's log ends still say where to go on."""

    retryable: ClassVar[bool] = True


class SparkGone(SparkFailed, RunnerGone):
    """Spark's own process is dead: nothing can be submitted any more by this process."""

    retryable: ClassVar[bool] = False


class SparkRunner:
    """A `dataplane.runner.Runner`. Takes seconds to construct: starts Spark and two workers for each of `slots`.

    Raises SparkFailed when the master does not give us twice as many task slots as `slots`: epochs could not overlap.
    `number`: which one of this process's runners, where several mirrors share one Spark.
    """

    def __init__(
        self, master: str = "local[*]", slots: int = 2, conf: Mapping[str, str] = NO_CONF, *, number: int = 0
    ) -> None:
        self.slots = slots
        self._ours = existing() is None
        self._context = context(APP, master, cores(master, slots), conf)
        self.listening = listening(dict(self._context.getConf().getAll()), number)
        self._threads = ThreadPoolExecutor(_MAX_JOBS, thread_name_prefix="spark-job")
        self._lock = threading.Lock()
        self._jobs: dict[str, Future[Any]] = {}
        self._closed = False
        # Tasks on this machine are asked to end by a file, and still report; tasks elsewhere can only be cancelled.
        self._stop_file: Path | None = None
        if local_master(str(self._context.master), None):
            self._stop_file = Path(tempfile.mkdtemp(prefix="mirrorbook-")) / "stop"
        try:
            # Barrier: all of them at the same time or not at all, so that every slot gets a worker of its own. There is
            # none where executors come and go.
            barrier = self._context.getConf().get("spark.dynamicAllocation.enabled", "false") != "true"
            self._run(_group(), task.warm, [b""] * (2 * slots), barrier=barrier)
        except SparkGone:
            self.close()
            raise
        except (SparkFailed, NoSlot) as error:
            self.close()
            raise SparkFailed(
                f"Spark, master {master}: {slots} tasks in two overlapping epochs need {2 * slots} task slots at the "
                f"same time: {error}"
            ) from None

    def submit(self, assignments: Sequence[Assignment]) -> Future[tuple[TaskReport, ...]]:
        """Start one epoch's tasks at once; the future ends when all have.

        Reports come in the order of the assignments. The future fails with SparkFailed when Spark gave up (a worker
        died four times...), SparkGone when Spark is dead, or a task's own error when it may not be retried.
        """
        payloads = [msgspec.json.encode(assignment) for assignment in assignments]
        stop_file = str(self._stop_file) if self._stop_file else ""
        return self._start(partial(task.copy, stop_file, logs.current()), payloads, task.report_of)

    def folder(self, place: str) -> Folder:
        return HadoopFolder(self._context, place) if is_url(place) else local_folder(place)

    def close(self) -> None:
        """End what still runs, wait for it, and stop Spark, unless it had been started by somebody else.

        Tasks on this machine finish what is in flight and report; on a cluster they are cancelled: their futures fail.
        """
        with self._lock:
            self._closed = True
            jobs = dict(self._jobs)
        if self._stop_file is not None and jobs:
            self._stop_file.touch()
            wait(jobs.values(), timeout=_POLITE_S)
        for group, job in jobs.items():
            if not job.done():
                self._cancel(group)
        wait(jobs.values())
        self._threads.shutdown()
        if self._stop_file is not None:
            shutil.rmtree(self._stop_file.parent)
            self._stop_file = None
        if self._ours:
            try:
                self._context.stop()
            except (PySparkException, Py4JError, OSError):
                return  # it is dead already, and its workers with it

    def _start(self, work: task.Work, payloads: Sequence[bytes], read: Callable[[bytes], R]) -> Future[tuple[R, ...]]:
        """Run `work`, a module's function, on each payload, in a thread of its own, and `read` each result."""
        group = _group()
        with self._lock:
            if self._closed:
                raise SparkGone("Spark, job not started: this runner has been closed")
            job = self._threads.submit(lambda: tuple(read(result) for result in self._run(group, work, payloads)))
            self._jobs[group] = job
        job.add_done_callback(lambda _: self._jobs.pop(group, None))
        return job

    def _run(self, group: str, work: task.Work, payloads: Sequence[bytes], barrier: bool = False) -> list[bytes]:
        try:
            with slots_wanted(self._context, f"Spark, job {group}", group, partial(self._others, group)):
                if self._closed:  # to cancel a group means the jobs that it has now, not those that are still to come
                    raise SparkGone(f"Spark, job {group}: not started, this runner is being closed")
                return results(self._context, work, payloads, barrier=barrier)
        except (PySparkException, Py4JError, OSError) as error:
            raise self._failed(group, error) from None

    def _others(self, group: str) -> list[str]:
        with self._lock:
            return [other for other in self._jobs if other != group]

    def _cancel(self, group: str) -> None:
        try:
            self._context.cancelJobGroup(group)
        except (PySparkException, Py4JError, OSError):
            return  # Spark is dead: the job's own thread notices, and says so

    def _failed(self, group: str, error: Exception) -> SparkFailed:
        reason = _reason(error)
        try:
            stopped = self._context._jsc.sc().isStopped()
        except (PySparkException, Py4JError, OSError, AttributeError):
            stopped = True
        if stopped:
            return SparkGone(f"Spark, job {group}: Spark's process has ended ({reason}): start again")
        return SparkFailed(f"Spark, job {group}: {reason}")


def _reason(error: Exception) -> str:
    """Spark's reason in one line, without the class names and the advice around it."""
    text = first_line(error)
    found = _TASK_LOST.search(text)
    if found:
        task_number, attempts, where, text = found.groups()
        return f"task {task_number} failed {attempts} times, the last time on {where}: {_bare(text)}"
    return _bare(text)


def _bare(text: str) -> str:
    return _CLASS_NAME.sub("", text).split(" Consider setting ")[0].strip()


def listening(settings: Mapping[str, str], number: int = 0) -> Listening:
    """Where Spark's own driver is reached by its executors; behind a port of ours, or the `number`-th after it."""
    host = settings["spark.driver.host"].strip("[]")  # Spark has IPv6 addresses in brackets
    bind = settings.get("spark.driver.bindAddress", host).strip("[]")
    port = int(settings.get(PORT, "0"))
    return Listening(bind=bind, host=host, port=port + number if port else 0)


def cores(master: str, slots: int) -> int:
    """Task slots to ask for: two epochs' worth, or the user's own number for this machine when that is more."""
    wanted = re.match(r"local\[(\d+)", master) if local_master(master, None) else None
    return max(2 * slots, int(wanted.group(1)) if wanted else 0)


def _group() -> str:
    return f"mirrorbook-{next(_NUMBERS)}"
