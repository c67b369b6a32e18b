"""One broker process: found by what it runs, started, signalled.

A broker is identified by its command line, which names its own server.properties by absolute path. Unlike a pid in a
file this cannot point to a stranger, and it finds brokers that a killed `up` left behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from mirror_core.java import java_home
from mirror_core.sandbox.errors import SandboxFailed
from mirror_core.sandbox.ports import is_free
from mirror_core.sandbox.state import NodePorts

MAIN_CLASS: Final = "kafka.Kafka"
TOOL_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 180.0
END_PAUSE_S: Final = 0.02
LOG_TAIL_LINES: Final = 12


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
        command = java_command(self.jars, "512m", MAIN_CLASS, str(self.properties_path))
        log = (os.POSIX_SPAWN_OPEN, 1, str(self.log_path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), log, (os.POSIX_SPAWN_DUP2, 1, 2)]
        # Not subprocess.Popen: that object complains when it is dropped while its process lives on.
        pid = os.posix_spawn(
            command[0], command, os.environ, file_actions=actions, setsid=True, setsigdef=(signal.SIGINT,)
        )
        return psutil.Process(pid)

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


def running(main_class: str, arguments: Sequence[object]) -> Iterator[psutil.Process]:
    """Living processes that run this Java class with one of these as its only argument.

    A dead child that nobody has waited for yet is not alive.
    """
    wanted = {str(argument) for argument in arguments}
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            if command[-2:-1] == [main_class] and command[-1] in wanted and is_alive(process):
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # ended meanwhile, or another user's: not ours


def end(processes: Sequence[psutil.Process], signal_number: signal.Signals, timeout_s: float) -> list[psutil.Process]:
    """Signal all, wait for all, and return those that are still alive after `timeout_s`.

    psutil never signals a stranger who got the pid of a process that has ended.
    """
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal_number)
            process.send_signal(signal.SIGCONT)  # a suspended process would never get to its orderly end
    deadline = time.monotonic() + timeout_s
    # Not psutil.wait_procs: for a process that is not our child it waits until init has buried it, too.
    while (alive := [process for process in processes if is_alive(process)]) and time.monotonic() < deadline:
        time.sleep(END_PAUSE_S)
    for process in set(processes) - set(alive):
        with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
            process.wait(0)  # bury our own children
    return alive


def is_alive(process: psutil.Process) -> bool:
    try:
        # The first thread of a killed process may be dead while others still hold its ports and files.
        return process.is_running() and (process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
    except psutil.NoSuchProcess:
        return False


def java_command(jars: Path, heap: str, *arguments: str) -> list[str]:
    java = str(java_home() / "bin" / "java")
    options = ["-XX:+UseSerialGC", f"-Xmx{heap}", "-Djava.net.preferIPv4Stack=true"]
    log_format = ["-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS"]
    return [java, *options, *log_format, "-cp", f"{jars}/*", *arguments]


def run_tool(jars: Path, *arguments: str, timeout_s: float = TOOL_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    """Run a Java main class of the Kafka distribution, such as org.apache.kafka.tools.DumpLogSegments."""
    command = java_command(jars, "256m", *arguments)
    command[1:1] = ["-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise SandboxFailed(f"{arguments[0]} has not ended within {timeout_s:.0f} s") from None
