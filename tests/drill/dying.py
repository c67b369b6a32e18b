"""A conductor that dies by SIGKILL in a step, or falls asleep, at an action that is counted; else the test fails."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal
from unittest.mock import patch

from mirror_core.kafka.connection import Connection
from mirror_core.kafka.sockets import Buffer
from mirror_core.model.run import StepEvidence, StepRecord
from mirror_core.state.journal import Journal
from mirror_core.state.state_records import StateRecord, Tombstone
from mirror_core.state.writer import StateWriter


@dataclass(frozen=True, slots=True)
class Death:
    """What is to be called in the conductor's process before its command: from then on it will die of this."""

    step: str
    after: int | Literal["all", "written"]
    """So many requests to brokers and writes to the state topic; all of them, with DONE not written; DONE written."""
    told: Path
    """Where it says, before it dies, how many of them it has done."""
    by: signal.Signals = signal.SIGKILL
    """Or SIGSTOP: then it goes on when it is woken."""

    def __call__(self) -> None:
        _Doomed(self).watch()


@dataclass(frozen=True, slots=True)
class DeathAt:
    """The same, at an action that has a name: right before a function of a module is called, or after."""

    module: str
    function: str
    before: bool = False

    def __call__(self) -> None:
        module = import_module(self.module)
        action = getattr(module, self.function)

        def deadly(*arguments: object, **named: object) -> None:
            if not self.before:
                action(*arguments, **named)
            _end(signal.SIGKILL)

        patch.object(module, self.function, deadly).start()


class _Doomed:
    """This process."""

    def __init__(self, death: Death) -> None:
        self.death = death
        self.actions = 0
        self.acting = False
        self.greeting = threading.local()

    def watch(self) -> None:
        perform, push, put, greet = Journal.perform, Connection.push, StateWriter.put, Connection.__init__

        def watched_push(connection: Connection, parts: Sequence[Buffer], patience_s: float) -> memoryview:
            rest = push(connection, parts, patience_s)
            if not getattr(self.greeting, "now", False):  # to say who one is, is no action
                self.count()
            return rest

        def watched_greet(connection: Connection, *arguments: object, **named: object) -> None:
            self.greeting.now = True
            greet(connection, *arguments, **named)  # type: ignore[arg-type]
            self.greeting.now = False

        def watched_put(writer: StateWriter, *records: StateRecord | Tombstone) -> None:
            put(writer, *records)
            self.count()

        def watched_perform(journal: Journal, step: str, act: Callable[[], StepEvidence]) -> StepRecord:
            if step != self.death.step:
                return perform(journal, step, act)
            record = perform(journal, step, lambda: self.act(act))
            self.die()
            return record

        patch.object(Journal, "perform", watched_perform).start()
        patch.object(StateWriter, "put", watched_put).start()
        patch.object(Connection, "push", watched_push).start()
        patch.object(Connection, "__init__", watched_greet).start()

    def act(self, act: Callable[[], StepEvidence]) -> StepEvidence:
        self.acting = True
        evidence = act()
        self.acting = False
        if self.death.after != "written":
            self.die()
        return evidence

    def count(self) -> None:
        if self.acting:
            self.actions += 1
            if self.actions == self.death.after:
                self.die()

    def die(self) -> None:
        if self.death.told.exists():
            return  # it has slept already
        self.death.told.write_text(str(self.actions), encoding="utf-8")
        _end(self.death.by)


def _end(by: signal.Signals) -> None:
    os.kill(os.getpid(), by)
    if by is signal.SIGKILL:
        threading.Event().wait()  # a signal to oneself may come a moment later
