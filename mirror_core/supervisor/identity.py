"""Which process: its number alone is another process's on another machine, after a restart, in another container.

Nothing is signalled that is not provably the process that somebody wrote down. Where the system does not tell (no
Linux, no /proc), nothing is proved, so nothing is signalled.
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
"""Which word of /proc/PID/stat says when the process began; the second one is a name, which may hold anything."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where numbers of processes mean the same."""

    host: str
    boot: str
    """Of the kernel, and of the namespace that numbers processes: containers of one machine have their own. Empty: this
    system does not say."""


def here() -> Machine:
    try:
        boot = f"{_BOOT_ID.read_text(encoding='ascii').strip()} {os.readlink(_SPACE)}"
    except OSError:
        boot = ""
    return Machine(socket.gethostname(), boot)


def started(pid: int) -> int | None:
    """When this process of ours began, in clock ticks since the boot; None when there is none, or nobody says."""
    try:
        told = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    words = told.rpartition(b")")[2].split()  # begins with the third one
    return int(words[_STARTED - 3])


@dataclass(frozen=True, slots=True)
class Process:
    """As it was written down."""

    pid: int
    machine: Machine
    started: int | None

    def doubt(self) -> str | None:
        """Why it cannot be proved to be the process of this number here and now; None when it can."""
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
        """Whether it is certain that it was a process of this machine, and is not there any more."""
        if not self.machine.boot or self.started is None or self.machine != here():
            return False
        began = started(self.pid)
        return _is_absent(self.pid) if began is None else began != self.started

    def signal(self, number: signal.Signals) -> str | None:
        """Signal it, and nobody who has got its number meanwhile. What is returned is why nobody was signalled."""
        doubt = self.doubt()
        if doubt:
            return doubt
        try:
            handle = os.pidfd_open(self.pid)
        except OSError as error:
            return f"process {self.pid} cannot be held on to: {error.strerror}"
        try:
            # From here on the handle is one process's, whatever becomes of the number. So now is the time to look.
            doubt = self.doubt()
            if doubt is None:
                signal.pidfd_send_signal(handle, number)
        except OSError as error:
            return f"process {self.pid} cannot be signalled: {error.strerror}"
        finally:
            os.close(handle)
        return doubt


def _is_absent(pid: int) -> bool:
    """Whether nobody has this number. /proc may be mounted so that it hides other users' processes (hidepid)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def this_process() -> Process:
    return Process(os.getpid(), here(), started(os.getpid()))
