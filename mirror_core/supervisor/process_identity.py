"""Tells a process from others that reused its pid."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE: Final = Path("/proc/self/ns/pid")
_START_TICKS_FIELD: Final = 22
"""In /proc/PID/stat. The second field is a name, which may hold anything."""


@dataclass(frozen=True, slots=True)
class MachineIdentity:
    host: str
    boot: str
    """Kernel boot id and pid namespace, since containers have their own. Empty: unknown."""


def get_machine() -> MachineIdentity:
    try:
        boot = f"{_BOOT_ID.read_text(encoding='ascii').strip()} {os.readlink(_PID_NAMESPACE)}"
    except OSError:
        boot = ""
    return MachineIdentity(socket.gethostname(), boot)


def read_start_ticks(pid: int) -> int | None:
    """Clock ticks since boot. None: no such process, or unknown."""
    try:
        stat_line = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat_line.rpartition(b")")[2].split()  # from the third field on
    return int(fields[_START_TICKS_FIELD - 3])


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    pid: int
    machine: MachineIdentity
    started: int | None

    def is_running(self) -> bool:
        """Certainly a process of this machine, and there."""
        is_known = self.machine.boot and self.started is not None
        return bool(is_known) and self.machine == get_machine() and read_start_ticks(self.pid) == self.started

    def has_ended(self) -> bool:
        """Certainly a process of this machine, and gone."""
        if not self.machine.boot or self.started is None or self.machine != get_machine():
            return False
        start_ticks = read_start_ticks(self.pid)
        return _is_absent(self.pid) if start_ticks is None else start_ticks != self.started


def _is_absent(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def get_current_process() -> ProcessIdentity:
    return ProcessIdentity(os.getpid(), get_machine(), read_start_ticks(os.getpid()))
