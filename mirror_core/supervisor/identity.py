"""Tells a process from others that reused its pid: on another machine, in a container, after a boot.

Only a process that is provably the recorded one is signalled; without /proc, none.
"""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_SPACE: Final = Path("/proc/self/ns/pid")
_STARTED: Final = 22
"""Field of /proc/PID/stat. The second one is a name, which may hold anything."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Scope of process ids."""

    host: str
    boot: str
    """Kernel boot id and pid namespace, since containers have their own. Empty: unknown."""


def here() -> Machine:
    try:
        boot = f"{_BOOT_ID.read_text(encoding='ascii').strip()} {os.readlink(_SPACE)}"
    except OSError:
        boot = ""
    return Machine(socket.gethostname(), boot)


def started(pid: int) -> int | None:
    """Clock ticks since boot. None: no such process, or unknown."""
    try:
        told = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    words = told.rpartition(b")")[2].split()  # from the third field on
    return int(words[_STARTED - 3])


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    machine: Machine
    started: int | None

    def doubt(self) -> str | None:
        """Why it may not be the recorded process. None: it is."""
        now = here()
        if self.machine.host != now.host:
            return f"process {self.pid} runs on host {self.machine.host or '(unknown)'}, and this is {now.host}"
        if not self.machine.boot or not now.boot:
            return f"nothing tells whether process {self.pid} of now is the one that was meant"
        if self.machine.boot != now.boot:
            return (
                f"process {self.pid} was one of another container of this host, or of the time before its last start: "
                "whoever has that number here is another one"
            )
        if self.started is None or started(self.pid) != self.started:
            return f"process {self.pid} is not the one that was meant: that one has ended"
        return None

    def has_ended(self) -> bool:
        """Certainly a process of this machine, and gone."""
        if not self.machine.boot or self.started is None or self.machine != here():
            return False
        began = started(self.pid)
        return _is_absent(self.pid) if began is None else began != self.started

    def signal(self, number: signal.Signals) -> str | None:
        """Returns why nothing was signalled. Never signals a process that reused the pid."""
        doubt = self.doubt()
        if doubt:
            return doubt
        try:
            handle = os.pidfd_open(self.pid)
        except OSError as error:
            return f"process {self.pid} cannot be held on to: {error.strerror}"
        try:
            # The pidfd stays with one process even if the pid is reused, so compare now.
            doubt = self.doubt()
            if doubt is None:
                signal.pidfd_send_signal(handle, number)
        except OSError as error:
            return f"process {self.pid} cannot be signalled: {error.strerror}"
        finally:
            os.close(handle)
        return doubt


def _is_absent(pid: int) -> bool:
    """/proc may hide other users' processes (hidepid)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def this_process() -> Process:
    return Process(os.getpid(), here(), started(os.getpid()))
