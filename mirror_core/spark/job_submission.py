"""An RDD job, since planning a query takes Spark seconds."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ClassVar, Final

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext
from pyspark.errors import PySparkException
from pyspark.serializers import NoOpSerializer

from mirror_core.model.errors import RemoteFault
from mirror_core.spark.copy_executor import TaskFunction, run_task

SLOT_TIMEOUT_S: Final = 60.0
"""YARN and Kubernetes need half a minute to start executors."""


class NoTaskSlot(RemoteFault):
    """No free task slot now."""

    retryable: ClassVar[bool] = True


@contextmanager
def require_task_slot(
    context: SparkContext, job_name: str, group: str = "", other_groups: Callable[[], Collection[str]] = tuple
) -> Iterator[None]:
    """Raises NoTaskSlot when no task starts in time; Spark would wait forever.

    `other_groups`: running groups of this process.
    """
    group = group or f"mirrorbook-{secrets.token_hex(4)}"
    context.setJobGroup(group, job_name, interruptOnCancel=True)
    ended, gave_up, own_groups = threading.Event(), threading.Event(), list[str]()

    def watch() -> None:
        with suppress(PySparkException, Py4JError, OSError):  # Spark is dead: the job fails itself
            while not ended.wait(SLOT_TIMEOUT_S):
                if _has_begun(context, group):
                    return
                own_groups[:] = (other_group for other_group in other_groups() if _has_begun(context, other_group))
                gave_up.set()
                context.cancelJobGroup(group)

    watcher = threading.Thread(target=watch, name="spark-slots", daemon=True)
    watcher.start()
    try:
        yield
    except (PySparkException, Py4JError):
        if not gave_up.is_set():
            raise
        if own_groups:
            raise NoTaskSlot(
                f"{job_name}: no task slot within {SLOT_TIMEOUT_S:.0f} s: {len(own_groups)} job(s) that this process"
                " began before have not ended, and hold theirs. It is tried again when they have"
            ) from None
        raise NoTaskSlot(
            f"{job_name}: master {context.master} gave it no task slot within {SLOT_TIMEOUT_S:.0f} s. Other "
            "applications may hold all cores (a data plane does, as long as it runs: `--conf spark.cores.max=N` limits "
            "it on a standalone cluster, a queue or a quota elsewhere), or no worker has the memory that is asked for "
            "(`--conf spark.executor.memory`). Free some, or take another master; local[*] runs it on this machine"
        ) from None
    finally:
        ended.set()
        watcher.join()


def _has_begun(context: SparkContext, group: str) -> bool:
    tracker = context.statusTracker()
    for job_id in tracker.getJobIdsForGroup(group):
        job = tracker.getJobInfo(job_id)
        for stage_id in job.stageIds if job is not None else ():
            stage = tracker.getStageInfo(stage_id)
            if stage is not None and (stage.numActiveTasks or stage.numCompletedTasks or stage.numFailedTasks):
                return True
    return False


def run_job(
    context: SparkContext, work: TaskFunction, payloads: Sequence[bytes], *, barrier: bool = False
) -> list[bytes]:
    """Runs a module's function on each payload. Raises Spark's errors.

    `barrier`: all at once or none.
    """
    rows = distribute_payloads(context, payloads)
    function = partial(run_task, work)
    return (rows.barrier().mapPartitions(function) if barrier else rows.mapPartitions(function)).collect()


def distribute_payloads(context: SparkContext, payloads: Sequence[bytes]) -> RDD[bytes]:
    """One payload in each partition, sent with its task.

    PySpark would put them on the driver's disk, where a token is plain text: `parallelize` for a moment, a function of
    more than 1 MiB as a broadcast until the process ends.
    """
    java: Any = context._jvm
    java_payloads = java.java.util.ArrayList()
    for payload in payloads:
        java_payloads.add(payload)
    java_context: Any = context._jsc
    return RDD(java_context.parallelize(java_payloads, len(payloads)), context, NoOpSerializer())
