"""Copies on Spark, a job for each assignment."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

import msgspec
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from mirror_core.dataplane.task_runner import RunnerGone
from mirror_core.evidence.file_store import Folder, is_url, open_local_folder
from mirror_core.model import logs
from mirror_core.model.errors import BadRequest, MirrorError
from mirror_core.model.task_messages import Assignment, ListenAddress, TaskReport
from mirror_core.spark import copy_executor
from mirror_core.spark.hadoop_store import HadoopFolder
from mirror_core.spark.job_submission import NoTaskSlot, require_task_slot, run_each, run_job
from mirror_core.spark.session import (
    NO_CONF,
    PORT_SETTING,
    format_first_line,
    format_job_error,
    get_existing_context,
    get_spark_context,
    parse_local_master,
)

R = TypeVar("R")
REPLICATE_APP: Final = "mirrorbook-replicate"
_JOB_NUMBERS: Final = itertools.count()
"""Unique among runners that share one Spark, since groups can be cancelled."""
_MAX_JOBS: Final = 16
"""Two are normal. More wait only while Spark does not answer."""
_STOP_WAIT_S: Final = 5.0
"""For tasks that the driver has asked to end (`DatagramReceiver.stop_tasks`), before they are cancelled."""


class SparkFailed(MirrorError):
    retryable: ClassVar[bool] = True


class SparkGone(SparkFailed, RunnerGone):
    """Spark's process is dead; this process cannot submit jobs any more."""

    retryable: ClassVar[bool] = False


class SparkRunner:
    """A `dataplane.task_runner.Runner`. Construction takes seconds.

    Raises SparkFailed without two task slots per slot. `number`: among runners that share one Spark.
    """

    def __init__(
        self, master: str = "local[*]", slots: int = 2, conf: Mapping[str, str] = NO_CONF, *, number: int = 0
    ) -> None:
        self.slots = slots
        self._owns_context = get_existing_context() is None
        self._context = get_spark_context(REPLICATE_APP, master, count_task_slots(master, slots), conf)
        self.listening = get_listen_address(dict(self._context.getConf().getAll()), number)
        self._threads = ThreadPoolExecutor(_MAX_JOBS, thread_name_prefix="spark-job")
        self._lock = threading.Lock()
        self._jobs: dict[str, Future[Any]] = {}
        self._closed = False
        try:
            # A barrier gives every slot its own worker. Dynamic allocation has none.
            barrier = self._context.getConf().get("spark.dynamicAllocation.enabled", "false") != "true"
            self._preload_workers(_new_job_group(), 2 * slots, barrier=barrier)
        except SparkGone:
            self.close()
            raise
        except (SparkFailed, NoTaskSlot) as error:
            self.close()
            raise SparkFailed(
                f"Spark, master {self._context.master}: {slots} tasks in two overlapping epochs need {2 * slots} task "
                f"slots at the same time: {error}"
            ) from None

    def submit(self, assignments: Sequence[Assignment]) -> Future[tuple[TaskReport, ...]]:
        """Reports are in order. Fails with SparkFailed or SparkGone when no task ended by itself, or with an error
        of a task that may not be retried.
        """
        payloads = [msgspec.json.encode(assignment) for assignment in assignments]
        return self._start_job(
            partial(copy_executor.run_copy_task, logs.get_log_settings()), payloads, copy_executor.parse_task_report
        )

    def folder(self, location: str) -> Folder:
        return HadoopFolder(self._context, location) if is_url(location) else open_local_folder(location)

    def close(self, *, are_asked: bool = False) -> bool:
        """Tasks that were asked to end finish batches in flight and report. Others are cancelled, and their futures
        fail.
        """
        with self._lock:
            self._closed = True
            jobs = dict(self._jobs)
        wait(jobs.values(), timeout=_STOP_WAIT_S if are_asked else 0)
        running = {group: job for group, job in jobs.items() if not job.done()}
        for group in running:
            self._cancel_group(group)
        wait(jobs.values())  # Spark forgets a cancelled job at once, and kills its tasks' workers later
        self._threads.shutdown()
        if self._owns_context:
            with suppress(PySparkException, Py4JError, OSError):  # dead already, with its workers
                self._context.stop()
        return bool(running)

    def _start_job(
        self, work: copy_executor.TaskFunction, payloads: Sequence[bytes], read: Callable[[bytes], R]
    ) -> Future[tuple[R, ...]]:
        group = _new_job_group()
        with self._lock:
            if self._closed:
                raise SparkGone("Spark, job not started: this runner has been closed")
            job = self._threads.submit(lambda: tuple(read(result) for result in self._run_tasks(group, work, payloads)))
            self._jobs[group] = job
        job.add_done_callback(lambda _: self._jobs.pop(group, None))
        return job

    def _run_tasks(self, group: str, work: copy_executor.TaskFunction, payloads: Sequence[bytes]) -> list[bytes]:
        with self._spark_errors(group):
            if self._closed:  # cancelling a group misses later jobs
                raise SparkGone(f"Spark, job {group}: not started, this runner is being closed")
            results = run_each(self._context, f"Spark, job {group}", work, payloads, len(payloads), group)
        return [
            result if isinstance(result, bytes) else copy_executor.encode_task_death(task, format_job_error(result))
            for task, result in enumerate(results)
        ]

    def _preload_workers(self, group: str, count: int, *, barrier: bool) -> None:
        with self._spark_errors(group), require_task_slot(self._context, f"Spark, job {group}", group):
            run_job(self._context, copy_executor.preload_copy_task, [b""] * count, barrier=barrier)

    @contextmanager
    def _spark_errors(self, group: str) -> Iterator[None]:
        try:
            yield
        except (PySparkException, Py4JError, OSError) as error:
            raise self._to_spark_error(group, error) from None

    def _cancel_group(self, group: str) -> None:
        try:
            self._context.cancelJobGroup(group)
        except (PySparkException, Py4JError, OSError):
            return  # Spark is dead: the job fails itself

    def _to_spark_error(self, group: str, error: Exception) -> SparkFailed:
        reason = format_job_error(error)
        try:
            stopped = self._context._jsc.sc().isStopped()
        except (PySparkException, Py4JError, OSError, AttributeError):
            stopped = True
        if stopped:
            return SparkGone(f"Spark, job {group}: Spark's process has ended ({reason}): start again")
        return SparkFailed(f"Spark, job {group}: {reason}")


def get_listen_address(settings: Mapping[str, str], number: int = 0) -> ListenAddress:
    """Spark's driver. `number` is added to a configured port."""
    host = settings["spark.driver.host"].strip("[]")  # IPv6
    bind = settings.get("spark.driver.bindAddress", host).strip("[]")
    port = int(settings.get(PORT_SETTING, "0"))
    return ListenAddress(bind=bind, host=host, port=port + number if port else 0)


def count_task_slots(master: str, slots: int) -> int:
    """For two epochs, or the user's larger number for this machine."""
    match = re.match(r"local\[(\d+)", master) if parse_local_master(master, None) else None
    return max(2 * slots, int(match.group(1)) if match else 0)


def _new_job_group() -> str:
    return f"mirrorbook-{next(_JOB_NUMBERS)}"


class SparkFleet:
    """One Spark for several mirrors. A mirror has no more tasks than slots, so none takes another's."""

    def __init__(self, master: str, slots: int, mirrors: int, conf: Mapping[str, str] = NO_CONF) -> None:
        """`slots`: tasks of one mirror's epoch. BadRequest when the ports from `conf`'s on are too few."""
        port = int(conf.get(PORT_SETTING, "0"))
        if port and port + mirrors > 1 << 16:
            raise BadRequest(
                f"{PORT_SETTING} is {port}: {mirrors} mirrors take as many ports from there on, which do not exist"
            )
        self._master = master
        self._slots = slots
        self._mirrors = mirrors
        self._conf = conf
        self._lock = threading.Lock()
        self._context: SparkContext | None = None

    def runner(self, number: int) -> SparkRunner:
        with self._lock:
            if self._context is None:
                core_count = count_task_slots(self._master, self._slots * self._mirrors)
                self._context = get_spark_context(REPLICATE_APP, self._master, core_count, self._conf)
        try:
            return SparkRunner(self._master, self._slots, self._conf, number=number)
        except (PySparkException, Py4JError, OSError) as error:
            raise SparkGone(f"Spark's process has ended ({format_first_line(error)}): start again") from None

    def close(self) -> None:
        """After all runners are closed."""
        with self._lock:
            if self._context is not None:
                with suppress(PySparkException, Py4JError, OSError):  # already dead, with its workers
                    self._context.stop()
