"""A mirror's supervisor in the background, as an init system runs it."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from mirror_core.model.names import MirrorName
from mirror_core.supervisor.child_commands import PROGRAM
from mirror_core.supervisor.directory import SupervisorDirectory, SupervisorStatus
from mirror_core.supervisor.supervisor import STOP_TIMEOUT_S
from tests.support.waiting import patience, wait_until

START_TIMEOUT_S = patience(30.0)


def read_supervisor_status(home: Path, mirror: MirrorName) -> SupervisorStatus | None:
    return SupervisorDirectory(home, mirror).read_status()


def is_supervised(home: Path, mirror: MirrorName) -> bool:
    status = read_supervisor_status(home, mirror)
    return status is not None and status.alive


def ensure_supervisor(config_path: Path, mirror: MirrorName, home: Path, args: tuple[str, ...] = ()) -> None:
    """Does nothing if there is one."""
    if is_supervised(home, mirror):
        return
    home.mkdir(parents=True, exist_ok=True)
    options = ("--config", str(config_path), "--home", str(home))
    with (home / "supervisor.log").open("ab") as log:
        # The shell ends at once, so init adopts the supervisor and no zombie stays.
        subprocess.run(
            ["/bin/sh", "-c", '"$@" &', "sh", *PROGRAM, "supervise", mirror, *options, "--", *args],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            check=True,
        )
    wait_until(lambda: is_supervised(home, mirror), timeout_s=START_TIMEOUT_S, why="the supervisor runs")


def stop_supervisor(home: Path, mirror: MirrorName) -> None:
    """With its child."""
    status = read_supervisor_status(home, mirror)
    if status is None or not status.alive:
        return
    os.kill(status.pid, signal.SIGTERM)
    directory = SupervisorDirectory(home, mirror)
    wait_until(lambda: not directory.is_locked(), timeout_s=STOP_TIMEOUT_S + 30.0, why="the supervisor has stopped")
