"""The one way to a Spark session: on this machine (`local[*]`) or on a cluster (`--master spark://...`)."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import mirror_core
from mirror_core.model.errors import BadRequest, RemoteFault
from mirror_core.model.files import holds_password
from mirror_core.spark.java_shim import log_configuration, spark_java_home

NO_CONF: Final[Mapping[str, str]] = MappingProxyType({})
LOOPBACK: Final = "127.0.0.1"
PORT: Final = "spark.mirrorbook.port"
"""The driver's UDP port for its tasks, for firewalls; none: any that is free."""
ATTEMPTS: Final = 4
"""Attempts of a task. A plain local[N] gives one only: then a killed Python worker fails the whole job."""

_NOT_YOURS: Final = {
    "spark.master": ("", "say it with --master"),
    "spark.speculation": ("false", "a second copy of a task would be a second writer"),
    "spark.sql.adaptive.enabled": ("false", "it would merge tasks"),
    "spark.sql.execution.arrow.maxRecordsPerBatch": ("1", "a row is a whole task's work"),
}
"""Settings that nobody else may choose: what they are, and why."""

_SECRET: Final = re.compile(
    r"secret(?!bitlength)|passw(?:or)?d|passphrase|(?<!delegation\.)token|(?:private|access|account)[._]?key|\.sas\.",
    re.IGNORECASE,
)
_NO_SECRET: Final = re.compile(
    r"spark\.kubernetes\.\w+\.(?:secrets|secretKeyRef)\..*|.*(?:file|path|provider|enabled)", re.IGNORECASE
)
"""Names of files, classes, and Kubernetes secrets."""
_JAVA_PROPERTY: Final = re.compile(r"-D([^\s=]+)=")

_STARTING: Final = threading.Lock()
"""Several mirrors of a set are proved at once, each by a thread of its own: one of them starts Spark."""
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOCAL = re.compile(r"local(?:\[(\*|[1-9]\d*)(?:,([1-9]\d*))?\])?")
_ON_THIS_MACHINE = re.compile(r"spark://(127\.0\.0\.1|localhost|\[::1\])[:,]")


def context(
    app: str, master: str = "local[*]", cores: int | None = None, conf: Mapping[str, str] = NO_CONF
) -> SparkContext:
    """Start Spark, or give back what this process already has: there can be only one.

    `cores` are the task slots: of a local master instead of its own number, of a cluster as the most it may give us.
    `conf` is the user's, and wins over ours; what spark-submit was given is, too, and names the master.
    Other masters than local ones need this package, in the same Python version, installed on their executors.
    BadRequest when there is no Java or the master is no master; RemoteFault when Spark does not start.
    """
    with _STARTING:
        return existing() or _started(app, master, cores, conf)


def _started(app: str, master: str, cores: int | None, conf: Mapping[str, str]) -> SparkContext:
    submitted = _submitted()
    master = submitted.pop("spark.master", master)
    settings = _settings(master, cores, {**submitted, **conf})
    try:
        with _environment(_launch_environment(settings["spark.master"])):
            spark = SparkContext.getOrCreate(SparkConf().setAll([("spark.app.name", app), *settings.items()]))
    except (PySparkException, Py4JError) as error:
        raise RemoteFault(f"Spark, master {master}: does not start: {first_line(error)}") from None
    spark.setLogLevel("ERROR")
    return spark


def session(
    app: str, master: str = "local[*]", cores: int | None = None, conf: Mapping[str, str] = NO_CONF
) -> SparkSession:
    """The same, for tables: costs some seconds more. Raises the same."""
    context(app, master, cores, conf)
    return SparkSession.builder.getOrCreate()


def existing() -> SparkContext | None:
    """Spark, if this process has it, whoever started it."""
    return SparkContext._active_spark_context


def first_line(error: BaseException) -> str:
    """The first line of a Spark error: the rest is a Java stack trace."""
    java = getattr(error, "java_exception", None)
    text = str(java) if java is not None else str(error)
    return text.strip().splitlines()[0] if text.strip() else type(error).__name__


def local_master(master: str, cores: int | None) -> str | None:
    """A local master with its number of slots and with retries; None when the master is not local."""
    found = _LOCAL.fullmatch(master)
    if not found:
        return None
    slots, attempts = found.groups()
    return f"local[{cores or slots or '*'},{attempts or ATTEMPTS}]"


def check_master(master: str) -> None:
    """BadRequest when this is no Spark master. Starts nothing."""
    if local_master(master, None) is None and not re.match(r"(spark|k8s|mesos)://|yarn$", master):
        raise BadRequest(f"{master!r} is not a Spark master: local[*], spark://HOST:PORT, k8s://... or yarn")


def _submitted() -> dict[str, str]:
    """What spark-submit was given, where it has started this process; or nothing."""
    return dict(SparkConf().getAll()) if "PYSPARK_GATEWAY_PORT" in os.environ else {}


def check_conf(conf: Mapping[str, str]) -> None:
    """BadRequest when it holds what can't be chosen, or a secret. Starts nothing."""
    _check_choices(conf)
    for key, value in conf.items():
        if _holds_secret(key, value):
            raise BadRequest(
                f"Spark setting {key} holds a secret, and settings that are given so are arguments of processes, which "
                "every user of the machine can list: put it into spark-defaults.conf in SPARK_CONF_DIR (mode 0600), or "
                "into a credential provider"
            )


def _check_choices(conf: Mapping[str, str]) -> None:
    for key, value in conf.items():
        ours, why = _NOT_YOURS.get(key, (value, ""))
        if value != ours:
            raise BadRequest(f"Spark setting {key} can't be {value!r}: {why}")
        if key == PORT and not (value.isdecimal() and int(value) < 1 << 16):
            raise BadRequest(f"{PORT} is {value!r}, which is no port number (UDP, on the driver)")
        if not key.startswith("spark."):
            raise BadRequest(f"{key!r} is no Spark setting: their names begin with 'spark.'")


def _holds_secret(key: str, value: str) -> bool:
    names = [key, *_JAVA_PROPERTY.findall(value)]
    return holds_password(value) or any(_SECRET.search(name) and not _NO_SECRET.fullmatch(name) for name in names)


def _settings(master: str, cores: int | None, conf: Mapping[str, str]) -> dict[str, str]:
    check_master(master)
    _check_choices(conf)  # spark-submit's own may hold secrets: where it has them from is its user's choice
    local = local_master(master, cores)
    settings = {
        "spark.master": local or master,
        "spark.driver.memory": "512m",
        _JAVA_OPTIONS: "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.speculation": "false",  # a second copy of a task would be a second writer
        "spark.task.maxFailures": str(ATTEMPTS),
        "spark.scheduler.mode": "FAIR",  # two epochs overlap, and parity runs beside them
        "spark.python.worker.reuse": "true",
        "spark.python.task.killTimeout": "200ms",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1",  # a row is a whole task's work: hand each over at once
        # Half a minute for executors to come; Spark's own ten are no answer to a wrong number of slots.
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "2s",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "1" if local else "15",
        "spark.sql.adaptive.enabled": "false",  # would merge our partitions, which are tasks, into fewer
    }
    if not conf.get("spark.submit.pyFiles"):  # what travels with the job is not there yet when a daemon starts
        settings["spark.python.daemon.module"] = "mirror_core.spark.daemon"
    if local:  # other users of this machine reach its ports; Spark makes up the secret
        settings["spark.authenticate"] = "true"
    if local or _ON_THIS_MACHINE.match(master):
        settings |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    if local is None and cores is not None:
        settings["spark.cores.max"] = str(cores)
    settings |= conf
    if "log4j" not in settings[_JAVA_OPTIONS]:
        settings[_JAVA_OPTIONS] += f" -Dlog4j2.configurationFile={log_configuration()}"
    return settings


def _launch_environment(master: str) -> Mapping[str, str]:
    """What Spark only takes from environment variables. PYSPARK_PYTHON: else workers run whatever python3 PATH has."""
    chosen = {"JAVA_HOME": str(spark_java_home())}
    if master.startswith("local"):
        root = str(Path(mirror_core.__file__).parents[1])
        inherited = os.environ.get("PYTHONPATH")
        chosen |= {
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([root, inherited] if inherited else [root]),
            "SPARK_LOCAL_IP": LOOPBACK,
        }
    else:
        chosen["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON", sys.executable)
    return chosen


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set these variables for as long as the JVM is being started, and put back what was there."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = old
