""""""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import mirror_core
from mirror_core.java import SUPPORTED_JAVA_VERSIONS, find_java_home, get_cache_dir
from mirror_core.model.errors import BadRequest, RemoteFault
from mirror_core.model.files import has_password

VECTOR_MODULE: Final = "jdk.incubator.vector"


# Without its own level the gateway would set the root to "warn".
LOG4J_CONFIGURATION: Final = """\
rootLogger.level = error
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark %p %c{1}: %m%ex{0}%n
"""


# Keeps all arguments but one, in order.
LAUNCHER_SCRIPT: Final = """\
#!/bin/sh
# Spark's launcher always adds this module (only MLlib uses it); this runtime has none, and would refuse to start.
for argument do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def find_spark_java_home() -> Path:
    """A shim where Java lacks the module that Spark's launcher demands."""
    home = find_java_home(list_java_versions(pyspark.__version__), f"Spark {pyspark.__version__}")
    if _has_module(home, VECTOR_MODULE):
        return home
    shim = _get_shim_folder() / hashlib.sha256(str(home).encode()).hexdigest()[:16]
    _write_atomically(
        shim / "bin" / "java", LAUNCHER_SCRIPT.format(module=VECTOR_MODULE, java=home / "bin" / "java"), 0o755
    )
    return shim


def list_java_versions(spark_version: str) -> tuple[int, ...]:
    """Arrow of Spark 3.5 does not run on Java 21: a salvage would fail."""
    return (17,) if spark_version.startswith("3.") else SUPPORTED_JAVA_VERSIONS


def write_log_configuration() -> Path:
    path = _get_shim_folder() / "log4j2.properties"
    _write_atomically(path, LOG4J_CONFIGURATION, 0o644)
    return path


def _has_module(home: Path, module: str) -> bool:
    try:
        return module in (home / "release").read_text(encoding="utf-8").split('MODULES="', 1)[1].split()
    except (OSError, IndexError):
        return False


def _get_shim_folder() -> Path:
    return get_cache_dir() / "spark-java"


def _write_atomically(path: Path, text: str, mode: int) -> None:
    """Atomic: several processes may start Spark at once."""
    if (
        path.is_file()
        and path.read_text(encoding="utf-8") == text
        and os.access(path, os.X_OK if mode & 1 else os.R_OK)
    ):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(temporary, mode)
    os.replace(temporary, path)


NO_CONF: Final[Mapping[str, str]] = MappingProxyType({})
LOOPBACK: Final = "127.0.0.1"
PORT_SETTING: Final = "spark.mirrorbook.port"
"""UDP port of the driver, for firewalls. Unset: any free one."""
SPECULATION_SETTING: Final = "spark.speculation"
TASK_ATTEMPTS: Final = 4  # without it a killed Python worker fails the whole job on local[N]
_FIXED_SETTINGS: Final = {  # with the reason
    "spark.master": ("", "say it with --master"),
    SPECULATION_SETTING: ("false", "a second copy of a task would be a second writer"),
}
_SECRET_NAME: Final = re.compile(
    r"secret(?!bitlength)|passw(?:or)?d|passphrase|(?<!delegation\.)token|(?:private|access|account)[._]?key|\.sas\.",
    re.IGNORECASE,
)
_NOT_SECRET_NAME: Final = re.compile(
    r"spark\.kubernetes\.\w+\.(?:secrets|secretKeyRef)\..*|.*(?:file|path|provider|enabled)", re.IGNORECASE
)
_JAVA_PROPERTY: Final = re.compile(r"-D([^\s=]+)=")
_START_LOCK: Final = threading.Lock()  # mirrors of a set start Spark from several threads
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_TASK_LOST: Final = re.compile(
    r"Task \d+ in stage \S+ failed (\d+) times, most recent failure: Lost task [^(]*\(TID \d+\) \(([^)]*)\): (.*)"
)
_CLASS_NAME: Final = re.compile(r"^(?:[a-z]\w*\.)+\w+: ")
_LOCAL = re.compile(r"local(?:\[(\*|[1-9]\d*)(?:,([1-9]\d*))?\])?")
_ON_THIS_MACHINE = re.compile(r"spark://(127\.0\.0\.1|localhost|\[::1\])[:,]")


def get_spark_context(
    app: str, master: str = "local[*]", cores: int | None = None, conf: Mapping[str, str] = NO_CONF
) -> SparkContext:
    """Starts Spark, or returns the one of this process.

    `cores`: task slots, on a cluster the maximum. `conf` and spark-submit's settings win. Executors need this package
    and Python version. BadRequest without Java, for an invalid master or for a running Spark with speculation,
    RemoteFault when Spark does not start.
    """
    with _START_LOCK:
        existing = get_existing_context()
        if existing is None:
            return _start_context(app, master, cores, conf)
        if existing.getConf().get(SPECULATION_SETTING, "false") != "false":
            raise BadRequest(
                f"Spark application {existing.applicationId}, which this process started before: {SPECULATION_SETTING} "
                "is on, and a second copy of a task would be a second writer. Start Spark without it"
            )
        return existing


def _start_context(app: str, master: str, cores: int | None, conf: Mapping[str, str]) -> SparkContext:
    submitted = _read_submitted_conf()
    master = submitted.pop("spark.master", master)
    settings = _build_settings(master, cores, {**submitted, **conf})
    try:
        with _set_environment(_build_environment(settings["spark.master"])):
            spark = SparkContext.getOrCreate(SparkConf().setAll([("spark.app.name", app), *settings.items()]))
    except (PySparkException, Py4JError) as error:
        raise RemoteFault(f"Spark, master {master}: does not start: {format_first_line(error)}") from None
    spark.setLogLevel("ERROR")
    return spark


def get_spark_session(
    app: str, master: str = "local[*]", cores: int | None = None, conf: Mapping[str, str] = NO_CONF
) -> SparkSession:
    get_spark_context(app, master, cores, conf)
    return SparkSession.builder.getOrCreate()


def get_existing_context() -> SparkContext | None:
    return SparkContext._active_spark_context


def format_first_line(error: BaseException) -> str:
    java = getattr(error, "java_exception", None)
    text = str(java) if java is not None else str(error)
    return text.strip().splitlines()[0] if text.strip() else type(error).__name__


def format_job_error(error: BaseException) -> str:
    """One line, without class names and Spark's advice."""
    text = format_first_line(error)
    match = _TASK_LOST.search(text)
    if match:
        attempts, executor, text = match.groups()
        return f"a task failed {attempts} times, the last time on {executor}: {_strip_class_name(text)}"
    return _strip_class_name(text)


def _strip_class_name(text: str) -> str:
    return _CLASS_NAME.sub("", text).split(" Consider setting ")[0].strip()


def parse_local_master(master: str, cores: int | None) -> str | None:
    """With slots and retries. None: not local."""
    match = _LOCAL.fullmatch(master)
    if not match:
        return None
    slots, attempts = match.groups()
    return f"local[{cores or slots or '*'},{attempts or TASK_ATTEMPTS}]"


def check_master(master: str) -> None:
    """Raises BadRequest. Starts nothing."""
    if parse_local_master(master, None) is None and not re.match(r"(spark|k8s)://|yarn$", master):
        raise BadRequest(f"{master!r} is not a Spark master: local[*], spark://HOST:PORT, k8s://... or yarn")


def _read_submitted_conf() -> dict[str, str]:
    """Empty unless spark-submit started this process."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    SparkContext._ensure_initialized()  # without its JVM a SparkConf is empty
    return dict(SparkConf().getAll())


def check_conf(conf: Mapping[str, str]) -> None:
    """Raises BadRequest for fixed settings and for secrets."""
    _check_choices(conf)
    for key, value in conf.items():
        if _has_secret(key, value):
            raise BadRequest(
                f"Spark setting {key} holds a secret, and settings that are given so are arguments of processes, which "
                "every user of the machine can list: put it into spark-defaults.conf in SPARK_CONF_DIR (mode 0600), or "
                "into a credential provider"
            )


def _check_choices(conf: Mapping[str, str]) -> None:
    for key, value in conf.items():
        fixed, reason = _FIXED_SETTINGS.get(key, (value, ""))
        if value != fixed:
            raise BadRequest(f"Spark setting {key} can't be {value!r}: {reason}")
        if key == PORT_SETTING and not (value.isdecimal() and int(value) < 1 << 16):
            raise BadRequest(f"{PORT_SETTING} is {value!r}, which is no port number (UDP, on the driver)")
        if not key.startswith("spark."):
            raise BadRequest(f"{key!r} is no Spark setting: their names begin with 'spark.'")


def _has_secret(key: str, value: str) -> bool:
    names = [key, *_JAVA_PROPERTY.findall(value)]
    return has_password(value) or any(
        _SECRET_NAME.search(name) and not _NOT_SECRET_NAME.fullmatch(name) for name in names
    )


def _build_settings(master: str, cores: int | None, conf: Mapping[str, str]) -> dict[str, str]:
    check_master(master)
    _check_choices(conf)  # spark-submit's may hold secrets
    local = parse_local_master(master, cores)
    settings = {
        "spark.master": local or master,
        "spark.driver.memory": "512m",
        _JAVA_OPTIONS: "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        SPECULATION_SETTING: "false",  # a copy of a task would be a second writer
        "spark.task.maxFailures": str(TASK_ATTEMPTS),
        "spark.scheduler.mode": "FAIR",  # epochs overlap, and parity runs, too
        "spark.python.worker.reuse": "true",
        "spark.python.task.killTimeout": "200ms",
        # Executors need half a minute; Spark's ten minutes hide a wrong number of slots.
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "2s",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "1" if local else "15",
    }
    if not conf.get("spark.submit.pyFiles"):  # the daemon starts before they arrive
        settings["spark.python.daemon.module"] = "mirror_core.spark.daemon"
    if local:  # local users reach its ports; Spark makes the secret
        settings["spark.authenticate"] = "true"
    if local or _ON_THIS_MACHINE.match(master):
        settings |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    if local is None and cores is not None:
        settings["spark.cores.max"] = str(cores)
    settings |= conf
    if "log4j" not in settings[_JAVA_OPTIONS]:
        settings[_JAVA_OPTIONS] += f" -Dlog4j2.configurationFile={write_log_configuration()}"
    return settings


def _build_environment(master: str) -> Mapping[str, str]:
    """Spark reads these only from the environment. Without PYSPARK_PYTHON workers use python3 of PATH."""
    chosen = {"JAVA_HOME": str(find_spark_java_home())}
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
def _set_environment(values: Mapping[str, str]) -> Iterator[None]:
    previous = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, previous_value in previous.items():
            if previous_value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = previous_value
