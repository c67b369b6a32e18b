"""Killed conductors, shared by tests."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mirror_core.model.run import RunState, StepState
from mirror_core.state.state_topic import read_state
from tests.drill.dying import Death
from tests.support.cli_process import Forked
from tests.support.mirrored_topics import Mirrored
from tests.support.random_seeds import seed_of
from tests.support.waiting import patience

ENDS_S = patience(300.0)


@dataclass(frozen=True, slots=True)
class Conducted:
    """The runs of one mirror, as commands in processes of their own."""

    mirrored: Mirrored
    chance: random.Random

    @property
    def log(self) -> Path:
        return self.mirrored.evidence / "conductor.log"

    @contextmanager
    def command(self, *arguments: str, death: Callable[[], object] | None = None) -> Iterator[Forked]:
        """Gone when the block ends."""
        options = ["--config", str(self.mirrored.config.path), "--runner", "local"]
        options += ["--evidence", str(self.mirrored.evidence)]
        process = Forked(*arguments, self.mirrored.name, *options, log=self.log, before=death or int)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def finish(self, *arguments: str) -> None:
        with self.command(*arguments) as process:
            assert process.wait(ENDS_S) == 0, self.log.read_text(encoding="utf-8")

    def kill_in(self, step: str, after: int | Literal["all", "written"], *arguments: str, home: bool = False) -> None:
        """SIGKILL in this step of the run that holds the mirror; the journal must show that it was struck there."""
        told = self.mirrored.evidence / "actions"
        told.unlink(missing_ok=True)
        with self.command(*arguments, death=Death(step, after, told)) as process:
            code = process.wait(ENDS_S)
        assert code == -signal.SIGKILL, self.log.read_text(encoding="utf-8")
        print(f"{step}: died after {told.read_text(encoding='utf-8')} actions, wanted {after}")
        name = f"{self.mirrored.name}-back" if home else self.mirrored.name
        state = read_state(self.mirrored.config.cluster("east" if home else "west"))
        (run,) = [r for r in state.runs.values() if r.plan.mirror == name and r.state is RunState.RUNNING]
        struck = state.steps[run.id, step]
        assert struck.state is (StepState.DONE if after == "written" else StepState.STARTED), f"{step}: {struck.state}"
        later = [r.step for r in state.steps.values() if r.run == run.id and r.started_ms > struck.started_ms]
        assert not later, f"killed in {step}, and yet {later} have begun"

    def kill_through(self, steps: Iterable[str], first: tuple[str, ...], then: tuple[str, ...]) -> None:
        """Three times in each step: at its first action, at one of the next dozen, and when all is done, not said."""
        arguments = first
        for step in steps:
            for after in (1, self.chance.randrange(2, 16), "all"):
                self.kill_in(step, after, *arguments)
                arguments = then


def conducted(mirrored: Mirrored, name: str) -> Conducted:
    """`name`: of the test, which has a seed of its own."""
    return Conducted(mirrored, random.Random(seed_of(name)))
