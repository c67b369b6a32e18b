from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from mirror_core.model.errors import BadRequest
from mirror_core.spark.runner import REPLICATE_APP, SparkGone, SparkRunner, count_task_slots
from mirror_core.spark.session import NO_CONF, PORT_SETTING, format_first_line, get_spark_context


class SparkFleet:
    """Starts one Spark for several mirrors, each with its own task slots.

    A mirror has no more tasks than slots, so none takes another's.
    """

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
