"""Processes of the sandbox: started so that they outlive us, found by what they run, ended."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

END_PAUSE_S: Final = 0.02


def spawn(command: list[str], log_path: Path) -> psutil.Process:
    """Start a process in a session of its own; what it prints is added to its log."""
    log = (os.POSIX_SPAWN_OPEN, 1, str(log_path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), log, (os.POSIX_SPAWN_DUP2, 1, 2)]
    # Not subprocess.Popen: that object complains when it is dropped while its process lives on.
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=actions, setsid=True, setsigdef=(signal.SIGINT,))
    return psutil.Process(pid)


def running(main_class: str, arguments: Sequence[object]) -> Iterator[psutil.Process]:
    """Living processes that run this Java class, or Python module, with one of these as its only argument.

    A dead child that nobody has waited for yet is not alive.
    """
    wanted = {str(argument) for argument in arguments}
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            if command[-2:-1] == [main_class] and command[-1] in wanted and is_alive(process):
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # ended meanwhile, or another user's: not ours


def end(processes: Sequence[psutil.Process], signal_number: signal.Signals, timeout_s: float) -> list[psutil.Process]:
    """Signal all, wait for all, and return those that are still alive after `timeout_s`.

    psutil never signals a stranger who got the pid of a process that has ended.
    """
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal_number)
            process.send_signal(signal.SIGCONT)  # a suspended process would never get to its orderly end
    deadline = time.monotonic() + timeout_s
    # Not psutil.wait_procs: for a process that is not our child it waits until init has buried it, too.
    while (alive := [process for process in processes if is_alive(process)]) and time.monotonic() < deadline:
        time.sleep(END_PAUSE_S)
    for process in set(processes) - set(alive):
        with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
            process.wait(0)  # bury our own children
    return alive


def suspend(process: psutil.Process) -> None:
    """SIGSTOP; returns when its last thread has stopped. On a busy machine that takes them a while, and one of them
    may answer a request meanwhile. A process that ends by itself is not waited for."""
    process.send_signal(signal.SIGSTOP)
    while is_alive(process) and not _stopped(process):
        time.sleep(END_PAUSE_S)


def _stopped(process: psutil.Process) -> bool:
    try:
        # Only Linux tells it of each thread.
        parts = [psutil.Process(thread.id) for thread in process.threads()] if sys.platform == "linux" else [process]
        return all(part.status() == psutil.STATUS_STOPPED for part in parts)
    except psutil.NoSuchProcess:
        return False  # a thread has ended meanwhile: look again


def is_alive(process: psutil.Process) -> bool:
    try:
        # The first thread of a killed process may be dead while others still hold its ports and files.
        return process.is_running() and (process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
    except psutil.NoSuchProcess:
        return False
