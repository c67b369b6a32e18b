"""Keeps one `mirrorbook replicate` running.

A refused `replicate` may mean a failover with a pending fence, so `mirrorbook mirror watch` runs next.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from mirror_core.model.clock import now_ms
from mirror_core.model.errors import BadRequest, LostOwnership, Refused
from mirror_core.model.names import MirrorName
from mirror_core.supervisor.child import tethered
from mirror_core.supervisor.home import Home, Status, status_here

FIRST_DELAY_S: Final = 0.5
MAX_DELAY_S: Final = 30.0
HEALTHY_S: Final = 10.0
"""After this time an exit is a new incident."""
CALM_S: Final = 5.0
CALM_EXITS: Final = frozenset({BadRequest.exit_code, Refused.exit_code, LostOwnership.exit_code})
"""Only a person, or another owner's end, changes these."""
STOP_S: Final = 60.0
LOOK_S: Final = 60.0

REPLICATE: Final = "replicate"
WATCH: Final = "watch"


def next_delay_s(exit_code: int, ran_s: float, last_delay_s: float) -> float:
    """`last_delay_s`: delay before the child's start."""
    if exit_code in CALM_EXITS:
        return CALM_S
    if ran_s >= HEALTHY_S:
        return FIRST_DELAY_S
    return min(max(2 * last_delay_s, FIRST_DELAY_S), MAX_DELAY_S)


class Supervisor:
    def __init__(
        self,
        home: Path,
        mirror: MirrorName,
        command: Sequence[str],
        say: Callable[[str], None],
        *,
        refused: Sequence[str] = (),
    ) -> None:
        """`refused`: runs once after each refusal of `command`."""
        self._home = Home(home, mirror)
        self._command = tuple(command)
        self._refused = tuple(refused)
        self._name = REPLICATE
        self._print = say
        self._status = status_here(mirror, now_ms(), self._home.log)
        self._child: subprocess.Popen[bytes] | None = None
        self._started = self._due = time.monotonic()
        self._delay_s = 0.0
        self._stopping = False

    def run(self) -> None:
        """Until SIGTERM or SIGINT. Raises Refused when the mirror has a supervisor here."""
        self._home.make()
        with self._home.locked(), self._signals() as woken:
            self._tell(self._status)
            try:
                while not self._stopping:
                    self._look()
                    self._home.bound_log()
                    self._sleep(woken)
            finally:
                self._stop_child()
            self._home.clear()

    def _look(self) -> None:
        if self._child is not None:
            code = self._child.poll()
            if code is None:
                return
            self._ended(code)
        if time.monotonic() >= self._due:
            self._start()

    def _start(self) -> None:
        again = self._status.last_exit is not None
        try:
            with self._home.log.open("ab") as out:
                self._child = tethered(self._command if self._name == REPLICATE else self._refused, out)
        except OSError as error:  # no processes, files or memory: retry
            self._delay_s = next_delay_s(1, 0.0, self._delay_s)
            self._due = time.monotonic() + self._delay_s
            self._tell(replace(self._status, next_start_ms=now_ms() + round(self._delay_s * 1000)))
            self._say(f"{self._name} could not be started: {error}; again in {self._delay_s:g} s")
            return
        self._started = time.monotonic()
        self._tell(
            replace(
                self._status,
                child_pid=self._child.pid,
                child_since_ms=now_ms(),
                next_start_ms=None,
                restarts=self._status.restarts + again,
            )
        )
        self._say(f"{self._name} runs as process {self._child.pid}, output in {self._home.log}")

    def _ended(self, code: int) -> None:
        ran_s = time.monotonic() - self._started
        ended = self._name
        self._delay_s = next_delay_s(code, ran_s, self._delay_s)
        if ended == WATCH:
            self._name, self._delay_s = REPLICATE, CALM_S
        elif code == Refused.exit_code and self._refused:
            self._name, self._delay_s = WATCH, FIRST_DELAY_S
        self._due = time.monotonic() + self._delay_s
        self._child = None
        ended_ms = now_ms()
        self._tell(
            replace(
                self._status,
                child_pid=None,
                child_since_ms=None,
                last_exit=code,
                last_ended_ms=ended_ms,
                next_start_ms=ended_ms + round(self._delay_s * 1000),
            )
        )
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        words = self._home.last_words()
        self._say(
            f"{ended} {how} after {ran_s:.1f} s, {self._name} starts in {self._delay_s:g} s"
            + (f"; it said: {words}" if words else "")
        )

    def _stop_child(self) -> None:
        child = self._child
        if child is None:
            return
        child.terminate()
        try:
            code = child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            code = child.wait()
            self._say(f"{self._name} did not stop within {STOP_S:g} s: killed")
        self._say(f"{self._name} stopped, exit code {code}")

    def _sleep(self, woken: int) -> None:
        seconds = LOOK_S if self._child is not None else max(0.0, self._due - time.monotonic())
        if select.select([woken], [], [], seconds)[0]:
            os.read(woken, 4096)

    def _say(self, text: str) -> None:
        with suppress(OSError):  # disk full or closed pipe: copying goes on
            self._print(f"{self._status.mirror}: {text}")

    def _tell(self, status: Status) -> None:
        self._status = status
        try:
            self._home.write(status)
        except OSError as error:
            self._say(f"its status could not be written: {error}")

    @contextmanager
    def _signals(self) -> Iterator[int]:
        """Yields a descriptor that is readable after a signal."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)

        def stop(number: int, frame: object) -> None:
            self._stopping = True

        before = [(number, signal.signal(number, stop)) for number in (signal.SIGTERM, signal.SIGINT)]
        before.append((signal.SIGCHLD, signal.signal(signal.SIGCHLD, lambda number, frame: None)))
        old = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(old)
            for number, handler in before:
                signal.signal(number, handler)
            os.close(reader)
            os.close(writer)
