"""Tells a process from others that reused its pid. Without /proc, nothing is signalled."""

from __future__ import annotations

import os
import signal
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

    def find_mismatch(self) -> str | None:
        """Why it may not be the recorded process. None: it is."""
        machine = get_machine()
        if self.machine.host != machine.host:
            return f"process {self.pid} runs on host {self.machine.host or '(unknown)'}, and this is {machine.host}"
        if not self.machine.boot or not machine.boot:
            return f"nothing tells whether process {self.pid} of now is the one that was meant"
        if self.machine.boot != machine.boot:
            return (
                f"process {self.pid} was one of another container of this host, or of the time before its last start: "
                "whoever has that number here is another one"
            )
        if self.started is None or read_start_ticks(self.pid) != self.started:
            return f"process {self.pid} is not the one that was meant: that one has ended"
        return None

    def has_ended(self) -> bool:
        """Certainly a process of this machine, and gone."""
        if not self.machine.boot or self.started is None or self.machine != get_machine():
            return False
        start_ticks = read_start_ticks(self.pid)
        return _is_absent(self.pid) if start_ticks is None else start_ticks != self.started

    def signal(self, signal_number: signal.Signals) -> str | None:
        """Returns why nothing was signalled. Never signals a process that reused the pid."""
        mismatch = self.find_mismatch()
        if mismatch:
            return mismatch
        try:
            handle = os.pidfd_open(self.pid)
        except OSError as error:
            return f"process {self.pid} cannot be held on to: {error.strerror}"
        try:
            # The pidfd stays with one process even if the pid is reused, so compare now.
            mismatch = self.find_mismatch()
            if mismatch is None:
                signal.pidfd_send_signal(handle, signal_number)
        except OSError as error:
            return f"process {self.pid} cannot be signalled: {error.strerror}"
        finally:
            os.close(handle)
        return mismatch


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
