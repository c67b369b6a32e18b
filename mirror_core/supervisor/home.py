"""Where a supervisor of a mirror is found, and what it says of itself. Several hosts may share the folder.

<home>/<mirror>/supervisor.lock   held (flock) while a supervisor lives, whatever kills it
<home>/<mirror>/status.json       its `Status`
<home>/<mirror>/replicate.log     what its child printed;  replicate.log.1: before that
<home>/<mirror>/supervisor.log    what a supervisor that nobody watches printed
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
    """What a supervisor says of itself. Times are wall clock, milliseconds since the epoch."""

    mirror: MirrorName
    pid: int
    since_ms: int
    child_pid: int | None = None
    child_since_ms: int | None = None
    restarts: int = 0
    """How often the child has been started after the first time."""
    last_exit: int | None = None
    """Exit code of the newest child that has ended; -N when signal N ended it."""
    last_ended_ms: int | None = None
    next_start_ms: int | None = None
    """When the next child is started; None while one runs."""
    log: str
    """Path of the child's output."""
    alive: bool = True
    """Whether the supervisor is there. False: it was killed, and this is its last word."""
    host: str = ""
    boot: str = ""
    started: int | None = None
    """With `pid`: which process, of which machine's which start (`identity`). Empty: of a version that did not say."""

    @property
    def process(self) -> Process:
        return Process(self.pid, Machine(self.host, self.boot), self.started)


def status_here(mirror: MirrorName, since_ms: int, log: Path) -> Status:
    """The first word of a supervisor that is this process."""
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
    """The folder of one mirror's supervisor."""

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
        """Be the one supervisor; the kernel gives the lock back, however we end. Refused when there is one already."""
        with self._lock.open("a") as lock:
            deadline = time.monotonic() + _SETTLE_S  # `held` takes it for a moment
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
        """Whether a supervisor lives."""
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
        """The living supervisor's status, or a killed one's last word; None when the last one stopped cleanly."""
        deadline = time.monotonic() + _SETTLE_S
        while True:
            held = self.held()
            try:
                found = msgspec.json.decode(self._status.read_bytes(), type=Status)
            except FileNotFoundError:
                found = None
            if not held:
                return replace(found, alive=False) if found else None
            # A new supervisor holds the lock before it has replaced the last word of a killed one.
            # On another machine nobody here can tell.
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
        """Forget the status: this supervisor ends as it should."""
        self._status.unlink(missing_ok=True)

    def bound_log(self) -> None:
        """Put a log that has grown too long aside, so that no disk fills up."""
        # The child appends, so its next line goes to the start of the emptied file; a line may be lost in between.
        if self.log.exists() and self.log.stat().st_size > MAX_LOG_BYTES:
            aside = self.log.with_name(self.log.name + ".1")
            half = aside.with_suffix(".half")
            try:
                shutil.copyfile(self.log, half)
                half.replace(aside)  # whoever reads it finds all of it
            except OSError:  # the disk is full: what the child says from now on is worth more
                half.unlink(missing_ok=True)
            os.truncate(self.log, 0)

    def last_words(self) -> str:
        """The last line that the child printed, as far as that can be read now."""
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
