"""RDD jobs, since planning a query takes Spark seconds."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ClassVar, Final, cast

from py4j.protocol import Py4JError
from pyspark import RDD, SparkConf, SparkContext, StatusTracker
from pyspark.errors import PySparkException
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame, SparkSession

from mirror_core.model.errors import RemoteFault
from mirror_core.spark.copy_executor import TaskFunction, run_task
from mirror_core.spark.executor_tasks import PAYLOAD_COLUMN, to_row
from mirror_core.spark.session import parse_local_master

SLOT_TIMEOUT_S: Final = 60.0  # YARN and Kubernetes need half a minute to start executors
SETTLE_S: Final = 3.0  # executors of a standalone cluster register within a second of each other
MAX_SLOTS: Final = 1_000  # a thread of the driver waits for each
_POLL_S: Final = 0.1
_TAG_CHARACTERS: Final = 12  # they tell the plans of a day apart
_GROUP_PROPERTIES: Final = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


class NoTaskSlot(RemoteFault):
    retryable: ClassVar[bool] = True


def format_run_tag(plan_hash: str) -> str:
    return f"run={plan_hash[:_TAG_CHARACTERS]}"


@contextmanager
def require_task_slot(context: SparkContext, job_name: str, group: str = "", tags: Sequence[str] = ()) -> Iterator[str]:
    """Yields the job group. `tags`: of its jobs, without commas.

    Raises NoTaskSlot when no task starts in time; Spark would wait forever.
    """
    group = group or f"mirrorbook-{secrets.token_hex(4)}"
    context.setJobGroup(group, job_name, interruptOnCancel=True)
    for tag in tags:
        context.addJobTag(tag)
    ended, gave_up, own_jobs = threading.Event(), threading.Event(), list[int]()

    def watch() -> None:
        with suppress(PySparkException, Py4JError, OSError):  # Spark is dead: the job fails itself
            while not ended.wait(SLOT_TIMEOUT_S):
                tracker = context.statusTracker()
                group_jobs = set(tracker.getJobIdsForGroup(group))
                if any(_has_begun(tracker, job_id) for job_id in group_jobs):
                    return
                own_jobs[:] = (
                    job_id
                    for job_id in tracker.getActiveJobsIds()
                    if job_id not in group_jobs and _has_begun(tracker, job_id)
                )
                gave_up.set()
                context.cancelJobGroup(group)

    watcher = threading.Thread(target=watch, name="spark-slots", daemon=True)
    watcher.start()
    try:
        yield group
    except (PySparkException, Py4JError):
        if not gave_up.is_set():
            raise
        raise NoTaskSlot(_format_no_slot(context, job_name, len(own_jobs))) from None
    finally:
        ended.set()
        watcher.join()
        with suppress(PySparkException, Py4JError, OSError):  # Spark is dead
            for tag in tags:
                context.removeJobTag(tag)
            for key in _GROUP_PROPERTIES:  # a notebook's own jobs are not ours to name or to cancel
                context.setLocalProperty(key, cast("str", None))


def _format_no_slot(context: SparkContext, job_name: str, own_jobs: int) -> str:
    where = f"master {context.master} gave it no task slot within {SLOT_TIMEOUT_S:.0f} s"
    if own_jobs:
        jobs = "1 job" if own_jobs == 1 else f"{own_jobs} jobs"
        return (
            f"{job_name}: {where}: {jobs} that this process began before still hold all of them. Try again when those "
            "have ended, or give this process more slots (`--conf spark.cores.max=N` on a standalone cluster)"
        )
    return (
        f"{job_name}: {where}. Other applications may hold all cores (a data plane does, as long as it runs: `--conf "
        "spark.cores.max=N` limits it on a standalone cluster, a queue or a quota elsewhere), or no worker has the "
        "memory that is asked for (`--conf spark.executor.memory`). Free some, or take another master; local[*] runs "
        "it on this machine"
    )


def _has_begun(tracker: StatusTracker, job_id: int) -> bool:
    job = tracker.getJobInfo(job_id)
    for stage_id in job.stageIds if job is not None else ():
        stage = tracker.getStageInfo(stage_id)
        if stage is not None and (stage.numActiveTasks or stage.numCompletedTasks or stage.numFailedTasks):
            return True
    return False


def wait_for_task_slots(context: SparkContext) -> int:
    """How many tasks run at once when all executors have registered; `defaultParallelism` is 2 until then.

    Waits until the configured number is there, or until no more come for `SETTLE_S`. NoTaskSlot when none comes.
    Executors that Spark starts on demand count as if they were there.
    """
    expected = count_expected_slots(dict(context.getConf().getAll()))
    java: Any = context._jsc
    spark = java.sc()
    profile = spark.resourceProfileManager().defaultResourceProfile()
    began = changed_at = time.monotonic()
    slots = 0
    while slots < (expected or math.inf):
        now, registered = time.monotonic(), int(spark.maxNumConcurrentTasks(profile))
        if registered != slots:
            slots, changed_at = registered, now
        if _is_on_demand(context.getConf()) or parse_local_master(str(context.master), None):
            return min(max(1, slots, expected), MAX_SLOTS)
        if slots and now - changed_at >= SETTLE_S:
            break
        if not slots and now - began >= SLOT_TIMEOUT_S:
            raise NoTaskSlot(_format_no_slot(context, "Spark, no executor", 0))
        time.sleep(_POLL_S)
    return min(slots, MAX_SLOTS)


def count_expected_slots(settings: Mapping[str, str]) -> int:
    """0: not known."""

    def get(name: str) -> int:
        value = settings.get(f"spark.{name}", "")
        return int(value) if value.isdecimal() else 0

    executors = get("dynamicAllocation.maxExecutors" if _is_on_demand(settings) else "executor.instances")
    cores = executors * max(1, get("executor.cores")) or get("cores.max")
    return cores // max(1, get("task.cpus"))


def _is_on_demand(settings: Mapping[str, str] | SparkConf) -> bool:
    return settings.get("spark.dynamicAllocation.enabled", "false") == "true"


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


def create_payload_frame(spark: SparkSession, payloads: Sequence[bytes]) -> DataFrame:
    """One row in each partition."""
    rows = distribute_payloads(spark.sparkContext, payloads).map(to_row)
    return spark.createDataFrame(rows, f"{PAYLOAD_COLUMN} binary")


def run_each(
    context: SparkContext, job_name: str, work: TaskFunction, payloads: Sequence[bytes], at_once: int, group: str = ""
) -> list[bytes | PySparkException | Py4JError | OSError]:
    """A job for each payload, `at_once` at most.

    Raises Spark's error when no job succeeded, and NoTaskSlot.
    """
    with (
        require_task_slot(context, job_name, group) as group,
        ThreadPoolExecutor(max(1, min(at_once, len(payloads))), thread_name_prefix="spark-share") as threads,
    ):

        def run_share(payload: bytes) -> bytes | PySparkException | Py4JError | OSError:
            try:
                context.setJobGroup(group, job_name, interruptOnCancel=True)  # of this thread
                return run_job(context, work, [payload])[0]
            except (PySparkException, Py4JError, OSError) as error:
                return error

        try:
            results = list(threads.map(run_share, payloads))
        except BaseException:
            context.cancelJobGroup(group)
            raise
        errors = [result for result in results if not isinstance(result, bytes)]
        if errors and len(errors) == len(results):
            raise errors[0]
        return results
