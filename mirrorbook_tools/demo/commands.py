"""`mirrorbook` itself, as a person would type it: the demonstration has no runbook of its own."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from mirror_core.model.text import escape_invisible_lines
from mirror_core.supervisor.child_commands import PROGRAM
from mirrorbook_tools.demo.processes import Processes
from mirrorbook_tools.demo.terminal_screen import Screen
from mirrorbook_tools.demo.workload import StoryFailed

DATA_PLANE: Final = "data plane"
SHOWN: Final = 2000
"""The end of a failed command's output."""


class Commands:
    """They have a configuration, and a folder for what they say. `tick` is called all the time while one is at work."""

    def __init__(self, config: Path, folder: Path, processes: Processes, screen: Screen, tick: Callable[[], None]):
        self._config = config
        self._folder = folder
        self._processes = processes
        self._screen = screen
        self._tick = tick
        self._copying = False

    def run(self, *words: str) -> str:
        """To its end; what it printed. StoryFailed, with its own words, for any exit code but 0."""
        shown = self._begin("command", words)
        while (code := self._processes.ended("command")) is None:
            self._tick()
        if code:
            raise StoryFailed(f"{shown}: exit code {code}\n{self._said('command')}")
        return (self._folder / "command.out").read_text(encoding="utf-8")

    def document(self, *words: str) -> dict[str, Any]:
        """For a command that prints JSON."""
        found: dict[str, Any] = json.loads(self.run(*words, "--json"))
        return found

    def copy(self, *words: str) -> None:
        """The data plane, which runs on beside all the rest."""
        self._begin(DATA_PLANE, words)
        self._copying = True

    def check_copying(self) -> None:
        """StoryFailed when a data plane that was begun here has ended."""
        if self._copying and (code := self._processes.ended(DATA_PLANE)) is not None:
            raise StoryFailed(f"copying has ended, exit code {code}\n{self._said(DATA_PLANE)}")

    def _begin(self, name: str, words: tuple[str, ...]) -> str:
        shown = shlex.join(["mirrorbook", *words])
        self._screen.command(shown)
        out, err = self._folder / f"{name}.out", self._folder / f"{name}.err"
        own = words.index("--") if "--" in words else len(words)  # behind it are another command's options
        command: list[str | Path] = [*PROGRAM, *words[:own], "--config", self._config, *words[own:]]
        self._processes.start(name, command, out=out, err=err)
        return shown

    def _said(self, name: str) -> str:
        said = "".join(
            (self._folder / f"{name}.{stream}").read_text(encoding="utf-8", errors="replace")
            for stream in ("out", "err")
        )
        return escape_invisible_lines(said[-SHOWN:].strip())
