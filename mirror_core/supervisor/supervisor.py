"""Keeps one `mirrorbook replicate` running."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final

from mirror_core.model.errors import BadRequest, LostOwnership, Refused
from mirror_core.model.names import MirrorName
from mirror_core.model.timing import now_ms
from mirror_core.supervisor.directory import SupervisorDirectory, SupervisorStatus, make_own_status

_PR_SET_PDEATHSIG: Final = 1


def start_tethered(command: Sequence[str], output: BinaryIO) -> subprocess.Popen[bytes]:
    """In its own process group; on Linux it gets SIGTERM when the calling thread's process dies.

    So Ctrl-C is the parent's, and a hanging child can be killed with its children.
    """
    libc = ctypes.CDLL(None)  # before the fork, which must not load libraries
    parent = os.getpid()

    def set_death_signal() -> None:
        if sys.platform == "linux":
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # the parent died before
                os.kill(os.getpid(), signal.SIGTERM)

    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        process_group=0,
        preexec_fn=set_death_signal,
    )


FIRST_DELAY_S: Final = 0.5
MAX_DELAY_S: Final = 30.0
HEALTHY_S: Final = 10.0
"""Then an exit is a new incident."""
REFUSED_DELAY_S: Final = 5.0
SLOW_RETRY_EXIT_CODES: Final = frozenset({BadRequest.exit_code, Refused.exit_code, LostOwnership.exit_code})
"""Only a person, or another owner's end, changes these."""
STOP_TIMEOUT_S: Final = 60.0
LOG_CHECK_INTERVAL_S: Final = 60.0
REPLICATE: Final = "replicate"
WATCH: Final = "watch"


def compute_next_delay_s(exit_code: int, ran_s: float, last_delay_s: float) -> float:
    if exit_code in SLOW_RETRY_EXIT_CODES:
        return REFUSED_DELAY_S
    if ran_s >= HEALTHY_S:
        return FIRST_DELAY_S
    return min(max(2 * last_delay_s, FIRST_DELAY_S), MAX_DELAY_S)


class Supervisor:
    def __init__(
        self,
        home: Path,
        mirror: MirrorName,
        command: Sequence[str],
        print_text: Callable[[str], None],
        *,
        refusal_command: Sequence[str] = (),
    ) -> None:
        """`refusal_command`: runs once after each refusal of `command`."""
        self._directory = SupervisorDirectory(home, mirror)
        self._command = tuple(command)
        self._refusal_command = tuple(refusal_command)
        self._child_name = REPLICATE
        self._print_text = print_text
        self._status = make_own_status(mirror, now_ms(), self._directory.log)
        self._child: subprocess.Popen[bytes] | None = None
        self._started_s = self._next_start_s = time.monotonic()
        self._delay_s = 0.0
        self._stopping = False

    def run(self) -> SupervisorStatus:
        """Until SIGTERM or SIGINT; returns the last status. Raises Refused when the mirror has a supervisor here."""
        self._directory.create()
        with self._directory.hold_lock(), self._handle_signals() as woken:
            self._update_status(self._status)
            try:
                while not self._stopping:
                    self._check_child()
                    self._directory.rotate_log()
                    self._wait(woken)
            finally:
                self._stop_child()
            self._directory.clear_status()
        return self._status

    def _check_child(self) -> None:
        if self._child is not None:
            code = self._child.poll()
            if code is None:
                return
            self._handle_child_end(code)
        if time.monotonic() >= self._next_start_s:
            self._start_child()

    def _start_child(self) -> None:
        is_restart = self._status.last_exit is not None
        try:
            with self._directory.log.open("ab") as log_file:
                self._child = start_tethered(
                    self._command if self._child_name == REPLICATE else self._refusal_command, log_file
                )
        except OSError as error:  # no processes, files or memory: retry
            self._delay_s = compute_next_delay_s(1, 0.0, self._delay_s)
            self._next_start_s = time.monotonic() + self._delay_s
            self._update_status(replace(self._status, next_start_ms=now_ms() + round(self._delay_s * 1000)))
            self._print_message(f"{self._child_name} could not be started: {error}; again in {self._delay_s:g} s")
            return
        self._started_s = time.monotonic()
        self._update_status(
            replace(
                self._status,
                child_pid=self._child.pid,
                child_since_ms=now_ms(),
                next_start_ms=None,
                restarts=self._status.restarts + is_restart,
            )
        )
        self._print_message(f"{self._child_name} runs as process {self._child.pid}, output in {self._directory.log}")

    def _handle_child_end(self, code: int) -> None:
        ran_s = time.monotonic() - self._started_s
        ended_name = self._child_name
        self._delay_s = compute_next_delay_s(code, ran_s, self._delay_s)
        if ended_name == WATCH:
            self._child_name, self._delay_s = REPLICATE, REFUSED_DELAY_S
        elif code == Refused.exit_code and self._refusal_command:
            self._child_name, self._delay_s = WATCH, FIRST_DELAY_S
        self._next_start_s = time.monotonic() + self._delay_s
        self._child = None
        ended_ms = now_ms()
        self._update_status(
            replace(
                self._status,
                child_pid=None,
                child_since_ms=None,
                last_exit=code,
                last_ended_ms=ended_ms,
                next_start_ms=ended_ms + round(self._delay_s * 1000),
            )
        )
        ending = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        last_line = self._directory.read_last_line()
        self._print_message(
            f"{ended_name} {ending} after {ran_s:.1f} s, {self._child_name} starts in {self._delay_s:g} s"
            + (f"; it said: {last_line}" if last_line else "")
        )

    def _stop_child(self) -> None:
        child = self._child
        if child is None:
            return
        child.terminate()
        try:
            code = child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            code = child.wait()
            self._print_message(f"{self._child_name} did not stop within {STOP_TIMEOUT_S:g} s: killed")
        self._print_message(f"{self._child_name} stopped, exit code {code}")

    def _wait(self, woken: int) -> None:
        seconds = LOG_CHECK_INTERVAL_S if self._child is not None else max(0.0, self._next_start_s - time.monotonic())
        if select.select([woken], [], [], seconds)[0]:
            os.read(woken, 4096)

    def _print_message(self, text: str) -> None:
        with suppress(OSError):  # disk full or closed pipe: copying goes on
            self._print_text(f"{self._status.mirror}: {text}")

    def _update_status(self, status: SupervisorStatus) -> None:
        self._status = status
        try:
            self._directory.write_status(status)
        except OSError as error:
            self._print_message(f"its status could not be written: {error}")

    @contextmanager
    def _handle_signals(self) -> Iterator[int]:
        """Yields a descriptor that is readable after a signal."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)

        def stop(number: int, frame: object) -> None:
            self._stopping = True

        previous_handlers = [(number, signal.signal(number, stop)) for number in (signal.SIGTERM, signal.SIGINT)]
        previous_handlers.append((signal.SIGCHLD, signal.signal(signal.SIGCHLD, lambda number, frame: None)))
        previous_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(previous_fd)
            for number, handler in previous_handlers:
                signal.signal(number, handler)
            os.close(reader)
            os.close(writer)
