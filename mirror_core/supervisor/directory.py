"""Files of a mirror's supervisor. Several hosts may share the folder.

<home>/<mirror>/supervisor.lock   held (flock) by a living supervisor
<home>/<mirror>/status.json       `SupervisorStatus`
<home>/<mirror>/replicate.log     output of its child; replicate.log.1: older
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
from mirror_core.supervisor.process_identity import MachineIdentity, ProcessIdentity, get_current_process, get_machine

MAX_LOG_BYTES: Final = 16 << 20
_LOCK_WAIT_S: Final = 1.0
_PAUSE_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorStatus:
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
    """None while a child runs."""
    log: str
    alive: bool = True
    """False: the supervisor was killed; this is its last status."""
    host: str = ""
    boot: str = ""
    started: int | None = None

    @property
    def process(self) -> ProcessIdentity:
        return ProcessIdentity(self.pid, MachineIdentity(self.host, self.boot), self.started)


def make_own_status(mirror: MirrorName, since_ms: int, log: Path) -> SupervisorStatus:
    process = get_current_process()
    return SupervisorStatus(
        mirror=mirror,
        pid=process.pid,
        since_ms=since_ms,
        log=str(log),
        host=process.machine.host,
        boot=process.machine.boot,
        started=process.started,
    )


class SupervisorDirectory:
    def __init__(self, root: Path, mirror: MirrorName) -> None:
        self.mirror = mirror
        self.folder = root / quote(mirror, safe="")
        self.log = self.folder / "replicate.log"
        self._lock = self.folder / "supervisor.lock"
        self._status = self.folder / "status.json"

    def create(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Refused when a supervisor holds it. The kernel releases it however the process ends."""
        with self._lock.open("a") as lock:
            deadline = time.monotonic() + _LOCK_WAIT_S  # `is_locked` takes it briefly
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise self._make_refusal() from None
                    time.sleep(_PAUSE_S)
            yield

    def is_locked(self) -> bool:
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

    def read_status(self) -> SupervisorStatus | None:
        """Last one of a living or killed supervisor. None: it stopped cleanly."""
        deadline = time.monotonic() + _LOCK_WAIT_S
        while True:
            is_held = self.is_locked()
            try:
                status = msgspec.json.decode(self._status.read_bytes(), type=SupervisorStatus)
            except FileNotFoundError:
                status = None
            if not is_held:
                return replace(status, alive=False) if status else None
            # A new supervisor locks before it replaces a killed one's status. Unknown on other machines.
            if status is not None and (status.host not in ("", get_machine().host) or status.process.is_running()):
                return status
            if time.monotonic() > deadline:
                return status
            time.sleep(_PAUSE_S)

    def write_status(self, status: SupervisorStatus) -> None:
        new_file = self._status.with_suffix(".new")
        new_file.write_bytes(msgspec.json.encode(status))
        os.replace(new_file, self._status)

    def clear_status(self) -> None:
        self._status.unlink(missing_ok=True)

    def rotate_log(self) -> None:
        """So that the disk does not fill up."""
        # The child appends, so its next line starts the emptied file. A line may be lost.
        if self.log.exists() and self.log.stat().st_size > MAX_LOG_BYTES:
            rotated = self.log.with_name(self.log.name + ".1")
            partial = rotated.with_suffix(".half")
            try:
                shutil.copyfile(self.log, partial)
                partial.replace(rotated)  # readers see a complete file
            except OSError:  # disk full: new output matters more
                partial.unlink(missing_ok=True)
            os.truncate(self.log, 0)

    def read_last_line(self) -> str:
        """As far as it can be read now."""
        try:
            with self.log.open("rb") as source:
                source.seek(max(0, source.seek(0, os.SEEK_END) - 4096))
                lines = source.read().decode("utf-8", "replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1].strip() if lines else ""

    def _make_refusal(self) -> Refused:
        status = self.read_status()
        owner = f"process {status.pid}" if status and status.alive else "another process"
        location = f"host {status.host}" if status and status.host not in ("", get_machine().host) else "this host"
        return Refused(
            f"mirror {self.mirror}: already supervised",
            [f"{owner} on {location} does so already"],
            reason_code="supervisor_runs",
        )
