from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Final

from mirror_core.java import find_java_home, get_cache_dir

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
    home = find_java_home()
    if _has_module(home, VECTOR_MODULE):
        return home
    shim = _get_shim_folder() / hashlib.sha256(str(home).encode()).hexdigest()[:16]
    _write_atomically(
        shim / "bin" / "java", LAUNCHER_SCRIPT.format(module=VECTOR_MODULE, java=home / "bin" / "java"), 0o755
    )
    return shim


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
