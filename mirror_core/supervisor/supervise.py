"""Starts, queries and stops a mirror's supervisor on this host, for Airflow and the CLI."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from mirror_core.model.errors import BadRequest, Indeterminate, Refused
from mirror_core.model.logs import Settings, current
from mirror_core.model.names import MirrorName
from mirror_core.supervisor.home import Home, Status
from mirror_core.supervisor.supervisor import STOP_S

PROGRAM: Final = (sys.executable, "-m", "mirror_core")


def replicate_command(config_path: Path, mirror: MirrorName, args: Sequence[str], log: Settings) -> tuple[str, ...]:
    """Raises BadRequest for options that make the child end."""
    if "--until-caught-up" in args:
        raise BadRequest(
            f"mirror {mirror}: supervise keeps replicate running, --until-caught-up makes it end: "
            f"run `mirrorbook replicate {mirror} --until-caught-up` itself"
        )
    return (*PROGRAM, *log.options(), "replicate", mirror, "--config", str(config_path), *args)


def watch_command(config_path: Path, mirror: MirrorName, args: Sequence[str], log: Settings) -> tuple[str, ...]:
    metrics = [word for word in args if word.startswith("--metrics=")]
    if "--metrics" in args[:-1]:
        metrics = ["--metrics", args[args.index("--metrics") + 1]]
    return (*PROGRAM, *log.options(), "mirror", "watch", mirror, "--config", str(config_path), *metrics)


def ensure(
    config_path: Path, mirror: MirrorName, home: Path, args: Sequence[str] = (), *, timeout_s: float = 30.0
) -> None:
    """Does nothing if there is one. The new one outlives this session.

    Raises Indeterminate when it does not appear in time.
    """
    replicate_command(config_path, mirror, args, current())  # fails here, not in a log file
    if not config_path.is_file():
        raise BadRequest(f"mirror {mirror}: no configuration at {config_path}")
    if _alive(home, mirror):
        return
    place = Home(home, mirror)
    place.make()
    options = ("--config", str(config_path), "--home", str(home))
    with place.own_log.open("ab") as out:
        # The shell ends at once, so init adopts the supervisor and no zombie stays.
        subprocess.run(
            ["/bin/sh", "-c", '"$@" &', "sh", *PROGRAM, "supervise", mirror, *options, "--", *args],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            check=True,
        )
    _await(
        lambda: _alive(home, mirror),
        timeout_s,
        f"mirror {mirror}: the supervisor that was started does not run: see {place.own_log}",
    )


def status(home: Path, mirror: MirrorName) -> Status | None:
    """Last status. None: no supervisor, and the last one stopped cleanly."""
    return Home(home, mirror).read()


def stop(home: Path, mirror: MirrorName, *, timeout_s: float = STOP_S + 30.0) -> None:
    """Stops the supervisor and its child, and waits.

    The mirror stays started. Raises Indeterminate when it still runs, Refused when its process cannot be proved to
    be here.
    """
    found = status(home, mirror)
    if found is None or not found.alive:
        return
    if doubt := found.process.signal(signal.SIGTERM):
        if not Home(home, mirror).held():
            return  # it just ended
        raise Refused(
            f"mirror {mirror}: its supervisor is not stopped from here, and nobody was signalled",
            [f"{doubt}; end it where it runs"],
        )
    _await(
        lambda: not Home(home, mirror).held(),
        timeout_s,
        f"mirror {mirror}: supervisor {found.pid} was told to stop and still runs: see {found.log}",
    )


def _alive(home: Path, mirror: MirrorName) -> bool:
    found = status(home, mirror)
    return found is not None and found.alive


def _await(cond: Callable[[], bool], timeout_s: float, otherwise: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not cond():
        if time.monotonic() > deadline:
            raise Indeterminate(otherwise)
        time.sleep(0.05)
