"""Starts, queries and stops a mirror's supervisor on this host."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from mirror_core.model.errors import BadRequest, Indeterminate, Refused
from mirror_core.model.logs import LogSettings, get_log_settings
from mirror_core.model.names import MirrorName, format_reverse_name, get_base_name, is_reverse_mirror
from mirror_core.supervisor.directory import SupervisorDirectory, SupervisorStatus
from mirror_core.supervisor.supervisor import STOP_TIMEOUT_S

PROGRAM: Final = (sys.executable, "-m", "mirror_core")


def build_replicate_command(
    config_path: Path, mirror: MirrorName, args: Sequence[str], log: LogSettings
) -> tuple[str, ...]:
    """Copies the mirror there and, when a failback has made its reverse mirror, home again.

    BadRequest for options that make the child end.
    """
    if "--until-caught-up" in args:
        raise BadRequest(
            f"mirror {mirror}: supervise keeps replicate running, --until-caught-up makes it end: "
            f"run `mirrorbook replicate {mirror} --until-caught-up` itself"
        )
    names = (mirror,) if is_reverse_mirror(mirror) else (mirror, format_reverse_name(mirror))
    return (*PROGRAM, *log.to_options(), "replicate", *names, "--config", str(config_path), *args)


def build_watch_command(
    config_path: Path, mirror: MirrorName, args: Sequence[str], log: LogSettings
) -> tuple[str, ...]:
    metrics = [argument for argument in args if argument.startswith("--metrics=")]
    if "--metrics" in args[:-1]:
        metrics = ["--metrics", args[args.index("--metrics") + 1]]
    return (*PROGRAM, *log.to_options(), "mirror", "watch", mirror, "--config", str(config_path), *metrics)


def ensure_supervisor(
    config_path: Path, mirror: MirrorName, home: Path, args: Sequence[str] = (), *, timeout_s: float = 30.0
) -> None:
    """Does nothing if there is one. The new one outlives this session.

    Raises Indeterminate when it does not appear in time.
    """
    build_replicate_command(config_path, mirror, args, get_log_settings())  # fails here, not in a log file
    if not config_path.is_file():
        raise BadRequest(f"mirror {mirror}: no configuration at {config_path}")
    if _is_supervised(home, mirror):
        return
    directory = SupervisorDirectory(home, mirror)
    directory.create()
    options = ("--config", str(config_path), "--home", str(home))
    with directory.own_log.open("ab") as log_file:
        # The shell ends at once, so init adopts the supervisor and no zombie stays.
        subprocess.run(
            ["/bin/sh", "-c", '"$@" &', "sh", *PROGRAM, "supervise", mirror, *options, "--", *args],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            check=True,
        )
    _wait_until(
        lambda: _is_supervised(home, mirror),
        timeout_s,
        f"mirror {mirror}: the supervisor that was started does not run: see {directory.own_log}",
    )


def read_supervisor_status(home: Path, mirror: MirrorName) -> SupervisorStatus | None:
    """Last status. None: no supervisor, and the last one stopped cleanly."""
    return SupervisorDirectory(home, mirror).read_status()


def stop_supervisor(home: Path, mirror: MirrorName, *, timeout_s: float = STOP_TIMEOUT_S + 30.0) -> None:
    """Stops its child, too; waits.

    The mirror stays started. Raises Indeterminate when it still runs, Refused when its process cannot be proved to be
    here.
    """
    supervisor_status = read_supervisor_status(home, mirror)
    if supervisor_status is None or not supervisor_status.alive:
        return
    if mismatch := supervisor_status.process.signal(signal.SIGTERM):
        if not SupervisorDirectory(home, mirror).is_locked():
            return  # it just ended
        raise Refused(
            f"mirror {mirror}: its supervisor is not stopped from here, and nobody was signalled",
            [f"{mismatch}; end it where it runs"],
            reason_code="supervisor_elsewhere",
        )
    _wait_until(
        lambda: not SupervisorDirectory(home, mirror).is_locked(),
        timeout_s,
        f"mirror {mirror}: supervisor {supervisor_status.pid} was told to stop and still runs: see"
        f" {supervisor_status.log}",
    )


def _is_supervised(home: Path, mirror: MirrorName) -> bool:
    statuses = (read_supervisor_status(home, name) for name in {mirror, get_base_name(mirror)})
    return any(status is not None and status.alive for status in statuses)


def _wait_until(condition: Callable[[], bool], timeout_s: float, timeout_text: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise Indeterminate(timeout_text)
        time.sleep(0.05)
