"""Files of a mirror's supervisor. Several hosts may share the folder.

<home>/<mirror>/supervisor.lock   held (flock) by a living supervisor
<home>/<mirror>/status.json       `SupervisorStatus`
<home>/<mirror>/replicate.log     output of its child; replicate.log.1: older
<home>/<mirror>/supervisor.log    output of a detached supervisor
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from mirror_core.model.errors import Refused
from mirror_core.model.names import MirrorName
from mirror_core.supervisor.identity import Machine, Process, here, this_process

MAX_LOG_BYTES: Final = 16 << 20
_SETTLE_S: Final = 1.0
_PAUSE_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Times are wall clock, milliseconds since the epoch."""

    mirror: MirrorName
    pid: int
    since_ms: int
    child_pid: int | None = None
    child_since_ms: int | None = None
    restarts: int = 0
    last_exit: int | None = None
    """-N: killed by signal N."""
    last_ended_ms: int | None = None
    next_start_ms: int | None = None
    """Unset (None) while a child runs."""
    log: str
    alive: bool = True
    """False: the supervisor was killed; this is its last status."""
    host: str = ""
    boot: str = ""
    started: int | None = None

    @property
    def process(self) -> Process:
        return Process(self.pid, Machine(self.host, self.boot), self.started)


def status_here(mirror: MirrorName, since_ms: int, log: Path) -> Status:
    us = this_process()
    return Status(
        mirror=mirror,
        pid=us.pid,
        since_ms=since_ms,
        log=str(log),
        host=us.machine.host,
        boot=us.machine.boot,
        started=us.started,
    )


class Home:
    """Files of one mirror's supervisor."""

    def __init__(self, home: Path, mirror: MirrorName) -> None:
        self.mirror = mirror
        self.folder = home / quote(mirror, safe="")
        self.log = self.folder / "replicate.log"
        self.own_log = self.folder / "supervisor.log"
        self._lock = self.folder / "supervisor.lock"
        self._status = self.folder / "status.json"

    def make(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Raises Refused when a supervisor holds the lock. The kernel releases it however the process ends."""
        with self._lock.open("a") as lock:
            deadline = time.monotonic() + _SETTLE_S  # `is_locked` takes it briefly
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise self._refusal() from None
                    time.sleep(_PAUSE_S)
            yield

    def held(self) -> bool:
        try:
            lock = self._lock.open("a")
        except FileNotFoundError:
            return False
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    def read(self) -> Status | None:
        """Last status of a living or killed supervisor. None: it stopped cleanly."""
        deadline = time.monotonic() + _SETTLE_S
        while True:
            held = self.held()
            try:
                found = msgspec.json.decode(self._status.read_bytes(), type=Status)
            except FileNotFoundError:
                found = None
            if not held:
                return replace(found, alive=False) if found else None
            # A new supervisor locks before it replaces a killed one's status. Unknown on other machines.
            if found is not None and (found.host not in ("", here().host) or found.process.doubt() is None):
                return found
            if time.monotonic() > deadline:
                return found
            time.sleep(_PAUSE_S)

    def write(self, status: Status) -> None:
        fresh = self._status.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(status))
        os.replace(fresh, self._status)

    def clear(self) -> None:
        self._status.unlink(missing_ok=True)

    def bound_log(self) -> None:
        """Moves a long log aside, so that the disk does not fill up."""
        # The child appends, so its next line starts the emptied file. A line may be lost.
        if self.log.exists() and self.log.stat().st_size > MAX_LOG_BYTES:
            aside = self.log.with_name(self.log.name + ".1")
            half = aside.with_suffix(".half")
            try:
                shutil.copyfile(self.log, half)
                half.replace(aside)  # readers see a complete file
            except OSError:  # disk full: new output matters more
                half.unlink(missing_ok=True)
            os.truncate(self.log, 0)

    def last_words(self) -> str:
        """As far as it can be read now."""
        try:
            with self.log.open("rb") as source:
                source.seek(max(0, source.seek(0, os.SEEK_END) - 4096))
                lines = source.read().decode("utf-8", "replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1].strip() if lines else ""

    def _refusal(self) -> Refused:
        found = self.read()
        who = f"process {found.pid}" if found and found.alive else "another process"
        where = f"host {found.host}" if found and found.host not in ("", here().host) else "this host"
        return Refused(f"mirror {self.mirror}: already supervised", [f"{who} on {where} does so already"])
