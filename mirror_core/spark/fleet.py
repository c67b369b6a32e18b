"""One Spark for the copying tasks of several mirrors: one JVM, in which each mirror has task slots of its own."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from mirror_core.model.errors import BadRequest
from mirror_core.spark.runner import APP, SparkGone, SparkRunner, cores
from mirror_core.spark.session import NO_CONF, PORT, context, first_line


class SparkFleet:
    """Starts Spark when the first mirror wants to be copied, with slots for all of them.

    A mirror never has more tasks than are its own, so none can take another one's slots.
    """

    def __init__(self, master: str, slots: int, mirrors: int, conf: Mapping[str, str] = NO_CONF) -> None:
        """`slots`: tasks of one mirror's epoch. BadRequest when `conf` names a port that leaves no room for all."""
        port = int(conf.get(PORT, "0"))
        if port and port + mirrors > 1 << 16:
            raise BadRequest(
                f"{PORT} is {port}: {mirrors} mirrors take as many ports from there on, which do not exist"
            )
        self._master = master
        self._slots = slots
        self._mirrors = mirrors
        self._conf = conf
        self._lock = threading.Lock()
        self._context: SparkContext | None = None

    def runner(self, number: int) -> SparkRunner:
        """For the mirror with this number, counted from 0. What it raises is SparkRunner's and `context`'s."""
        with self._lock:
            if self._context is None:
                wanted = cores(self._master, self._slots * self._mirrors)
                self._context = context(APP, self._master, wanted, self._conf)
        try:
            return SparkRunner(self._master, self._slots, self._conf, number=number)
        except (PySparkException, Py4JError, OSError) as error:
            raise SparkGone(f"Spark's process has ended ({first_line(error)}): start again") from None

    def close(self) -> None:
        """Stop Spark, when all runners have been closed."""
        with self._lock:
            if self._context is not None:
                with suppress(PySparkException, Py4JError, OSError):  # it is dead already, and its workers with it
                    self._context.stop()
