"""People at the brokers' hosts while a failback cuts logs, who do what its conductor says; and conductors that die."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from unittest.mock import patch

from mirror_core.runbook import truncation_strategies
from tests.drill.dying import Death, DeathAt
from tests.support.checked_threads import Work
from tests.support.kafka_clients import TIMEOUT_S, Pair
from tests.support.killed_conductors import ENDS_S, Conducted
from tests.support.waiting import wait_until

ACTION_S = 180.0
"""A broker that stops or starts, with those before it."""


class Operator:
    """Stops and starts the brokers that the run names."""

    def __init__(self, three: Pair, *, heeds: bool = True) -> None:
        self.three = three
        self.heeds = heeds
        self.told: list[str] = []
        self.threads: list[Work[None]] = []

    def __call__(self, line: str) -> None:
        self.told.append(line)
        for words, action in (("stop broker ", self.three.east.terminate), ("start broker ", self.three.east.start)):
            _, found, after = line.partition(words)
            if found and self.heeds:
                self._do(partial(action, int(after.split()[0])))

    def _do(self, action: Callable[[], None]) -> None:
        """One after the other: a broker has left the cluster some time before its process ends."""
        earlier = self.threads[-1:]

        def in_turn() -> None:
            for one in earlier:
                one.join(ACTION_S)
            action()

        self.threads.append(Work(in_turn, "operator").start())

    def join(self) -> None:
        """Until all that was said is done."""
        for one in self.threads:
            one.join(ACTION_S)


@dataclass
class Deaths:
    """A failback by commands, whose conductor dies at one action of `align` after the other."""

    conducted: Conducted
    operator: Callable[[str], None]
    arguments: tuple[str, ...]
    """Of the next command."""
    heard: int = field(default=0, init=False)

    def run(self, death: Callable[[], object] | None = None) -> int:
        """The next command, to its end; the operator heeds what it says."""
        self.heard = 0
        self.conducted.log.unlink(missing_ok=True)
        with self.conducted.command(*self.arguments, death=Hasty(death)) as process:
            wait_until(partial(self._ended, process.poll), timeout_s=ENDS_S, why=f"it ends: {self.arguments}, {death}")
            code = process.wait(TIMEOUT_S)
        self.arguments = ("failback", "resume", "--yes")
        return code

    def at(self, module: ModuleType, function: str, *, before: bool = False) -> None:
        """It must die there."""
        death = DeathAt(module.__name__, function, before)
        assert self.run(death) == -signal.SIGKILL, f"{death}: {self.said()}"

    def when_all_is_done(self) -> None:
        """And DONE is not written."""
        told = self.conducted.mirrored.evidence / "actions"
        told.unlink(missing_ok=True)
        death = Death("align", "all", told)
        assert self.run(death) == -signal.SIGKILL, self.said()

    def said(self) -> str:
        return self.conducted.log.read_text(encoding="utf-8")

    def _ended(self, poll: Callable[[], int | None]) -> bool:
        ended = poll() is not None
        *lines, _ = self.said().split("\n") if self.conducted.log.exists() else [""]
        for line in lines[self.heard :]:
            self.operator(line)
        self.heard = len(lines)
        return ended


@dataclass(frozen=True, slots=True)
class Hasty:
    """In the conductor's process: people are quick, and so is the short replica."""

    death: Callable[[], object] | None

    def __call__(self) -> None:
        for name, seconds in (("OPERATOR_WAIT_S", 120.0), ("APPROACH_S", 5.0)):
            patch.object(truncation_strategies, name, seconds).start()
        if self.death is not None:
            self.death()
