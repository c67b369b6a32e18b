"""Processes that a demonstration has started. Each leads a session of its own, so that Ctrl-C is for the demonstration
only; pid and time of start tell it from a stranger, also for the next demonstration, if this one was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import psutil

from mirror_core.supervisor.process_identity import read_start_ticks
from mirrorbook_tools.demo.interrupts import Interrupts
from mirrorbook_tools.demo.workdir import Place
from mirrorbook_tools.sandbox.process import end as end_processes

STOP_S: Final = 10.0


class Processes:
    """Those of one demonstration; its place has the note of them."""

    def __init__(self, place: Place, interrupts: Interrupts) -> None:
        self._place = place
        self._interrupts = interrupts
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._leaders: dict[int, int | None] = {}

    def start(self, name: str, command: Sequence[str | Path], *, out: Path, err: Path | None = None) -> None:
        """Start it under this name. What it prints goes to `out`, its errors to `err`, or to `out` as well."""
        with ExitStack() as files:
            printed = files.enter_context(open(out, "wb"))
            errors = files.enter_context(open(err, "wb")) if err else subprocess.STDOUT
            files.enter_context(self._interrupts.held())  # a child that nobody knows of would run on
            child = self._children[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=printed, stderr=errors, start_new_session=True
            )
            self.lead(child.pid)

    def lead(self, pid: int) -> None:
        """Note a child that leads a session, whoever has started it."""
        self._leaders[pid] = read_start_ticks(pid)
        self._place.note(self._leaders)

    def ended(self, name: str) -> int | None:
        """Its exit code; None while it runs."""
        return self._children[name].poll()

    def stop(self, name: str, timeout_s: float = STOP_S) -> int:
        """Ask it to end, kill it when it does not; its exit code."""
        return self._stop([name], timeout_s)[name]

    def stop_all(self) -> int:
        """For all at once, and of what such as have ended by themselves have left; how many ran."""
        running = sum(self.ended(name) is None for name in self._children)
        self._stop(list(self._children), STOP_S)
        return running

    def _stop(self, names: Sequence[str], timeout_s: float) -> dict[str, int]:
        children = {name: self._children[name] for name in names}
        before = [process for child in children.values() for process in members(child.pid, self._leaders[child.pid])]
        for child in children.values():
            child.terminate()
        deadline = time.monotonic() + timeout_s
        for child in children.values():
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
        codes = {name: child.wait() for name, child in children.items()}
        # Children of theirs, also such as they have started meanwhile.
        after = [process for child in children.values() for process in members(child.pid, self._leaders[child.pid])]
        end_processes([*before, *after], signal.SIGKILL, STOP_S)
        for name in names:
            del self._children[name]
        return codes


def end_known(known: Mapping[int, int | None]) -> None:
    """End sessions that a demonstration noted and has not ended: it was killed. `known`: when each began, by pid."""
    for pid, began in known.items():
        end(members(pid, began))


def members(leader: int, began: int | None) -> list[psutil.Process]:
    """All processes of the session that this process leads, or has led; none when its number is a stranger's now."""
    if read_start_ticks(leader) not in (None, began):
        return []
    return [process for process in session_of(leader) if process.pid != os.getpid()]


def session_of(leader: int) -> list[psutil.Process]:
    """All processes of the session that this process leads, or has led, itself included."""
    members = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == leader:
                members.append(process)
    return members


def end(processes: Sequence[psutil.Process]) -> None:
    """SIGTERM, then SIGKILL for those that stay."""
    stubborn = end_processes(processes, signal.SIGTERM, STOP_S)
    end_processes(stubborn, signal.SIGKILL, STOP_S)
