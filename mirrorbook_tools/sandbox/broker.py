"""One broker process: found by what it runs, started, signalled.

A broker is identified by its command line, which names its own server.properties by absolute path. Unlike a pid in a
file this cannot point to a stranger, and it finds brokers that a killed `up` left behind.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from mirror_core.java import find_java_home
from mirrorbook_tools.sandbox.errors import SandboxFailed
from mirrorbook_tools.sandbox.ports import is_free
from mirrorbook_tools.sandbox.process import end, running, spawn
from mirrorbook_tools.sandbox.state import NodePorts

MAIN_CLASS: Final = "kafka.Kafka"
TOOL_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 180.0
LOG_TAIL_LINES: Final = 12
JVM_OPTIONS: Final = "KAFKA_JVM_PERFORMANCE_OPTS"
"""As Kafka's own scripts read it: how the JVM collects and compiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """Where one node lives."""

    cluster: str
    node: int
    folder: Path
    ports: NodePorts
    jars: Path

    @property
    def label(self) -> str:
        return f"{self.cluster} node {self.node}"

    @property
    def properties_path(self) -> Path:
        return self.folder / "server.properties"

    @property
    def data_dir(self) -> Path:
        return self.folder / "data"

    @property
    def log_path(self) -> Path:
        return self.folder / "broker.log"

    @property
    def formatted_path(self) -> Path:
        """Exists once formatting has ended well; without it the data folder is half done and holds no records."""
        return self.folder / "formatted"

    def process(self) -> psutil.Process | None:
        """The living process of this node, also when it is suspended."""
        return next(running(MAIN_CLASS, [self.properties_path]), None)

    def spawn(self) -> psutil.Process:
        """Start the broker in a session of its own; it outlives us. Raises when a port is taken."""
        for port in (self.ports.client, self.ports.controller):
            if not is_free(port):
                raise SandboxFailed(
                    f"{self.label} cannot start: port {port} is taken by another process. Stop that process, "
                    "or get new ports with `mirrorbook sandbox down --delete` and `up`"
                )
        return spawn(java_command(self.jars, "512m", MAIN_CLASS, str(self.properties_path)), self.log_path)

    def stop(self, signal_number: signal.Signals) -> None:
        """End the process by SIGTERM (orderly) or SIGKILL, and wait until it is gone. Nothing to do when it is."""
        process = self.process()
        if process is None:
            return
        if end([process], signal_number, STOP_TIMEOUT_S):
            raise SandboxFailed(
                f"{self.label} (pid {process.pid}) has not ended {STOP_TIMEOUT_S:.0f} s after {signal_number.name}: "
                f"see {self.log_path}:\n{self.log_tail()}"
            )

    def log_tail(self) -> str:
        """The last lines of its log, without stack frames: those would leave no room for the reason."""
        try:
            text = self.log_path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        lines = [line for line in text.splitlines() if not line.startswith(("\tat ", "\t..."))]
        return "\n".join(f"  {line}" for line in lines[-LOG_TAIL_LINES:])


def java_command(jars: Path, heap: str, *arguments: str) -> list[str]:
    java = str(find_java_home() / "bin" / "java")
    tuned = shlex.split(os.environ.get(JVM_OPTIONS, "-XX:+UseSerialGC"))
    options = [*tuned, f"-Xmx{heap}", "-Djava.net.preferIPv4Stack=true"]
    log_format = ["-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS"]
    if (archive := archive_of(jars)).exists():
        # Its head alone would not tell that it is damaged, and the JVM would crash; a tool's output is parsed.
        options += [f"-XX:SharedArchiveFile={archive}", "-XX:+VerifySharedSpaces", "-Xlog:cds=off"]
    return [java, *options, *log_format, "-cp", f"{jars}/*", *arguments]


def archive_of(jars: Path) -> Path:
    """Where the classes of brokers with these jars are archived for this Java, if they are: see `archive`."""
    home = find_java_home()
    java = hashlib.sha256(f"{home}\n{(home / 'release').read_text(encoding='utf-8')}".encode()).hexdigest()[:16]
    return jars.with_name(f"{jars.name}-{java}.jsa")


def run_tool(jars: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Java main class of the Kafka distribution, such as org.apache.kafka.tools.DumpLogSegments."""
    command = java_command(jars, "256m", *arguments)
    command[1:1] = ["-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise SandboxFailed(f"{arguments[0]} has not ended within {TOOL_TIMEOUT_S:.0f} s") from None
