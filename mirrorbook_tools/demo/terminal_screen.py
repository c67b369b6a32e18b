"""What the demonstration shows: acts, lines with their time, and counters, as one living line on a terminal."""

from __future__ import annotations

import textwrap
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Final, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from mirror_core.model.text import escape_invisible

WIDTH: Final = 78
PLAIN_S: Final = 5.0
"""Off a terminal the counters are a line now and then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """For this moment. None: not known, or of no meaning now."""

    written: int
    """Orders that were acknowledged."""
    read: int
    """Orders that the consumer group has handled, each counted once."""
    behind: int | None
    """Orders that west does not have yet."""
    silent_s: float | None
    """Since a write was accepted."""

    def line(self) -> str:
        behind = "" if self.behind is None else f"  behind {self.behind:,}"
        silent = "" if self.silent_s is None else f"  without writes {self.silent_s:.1f} s"
        return f"written {self.written:,}  read {self.read:,}{behind}{silent}"


class Screen:
    """Lines go to `out`. Off a terminal nothing moves a cursor."""

    def __init__(self, out: TextIO) -> None:
        # Said, not guessed: FORCE_COLOR and its like would make a terminal of a file.
        terminal = out.isatty()
        self._console = Console(file=out, force_terminal=terminal, highlight=False, markup=False, emoji=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._moving = terminal and not self._console.is_dumb_terminal
        self._began = self._shown = time.monotonic()

    def __enter__(self) -> Screen:
        if self._moving:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._moving:
            self._live.stop()

    def act(self, title: str) -> None:
        self._print("")
        self._print(title, "bold")

    def paragraph(self, words: str) -> None:
        for line in folded(words, ""):
            self._print(line)

    def line(self, words: str) -> None:
        """As it is, so that scripts find it."""
        self._print(escape_invisible(words))

    def say(self, words: str) -> None:
        """What has happened, and when."""
        for line in folded(words, f"{time.monotonic() - self._began:6.1f} s  "):
            self._print(line)

    def command(self, words: str) -> None:
        """What a person would type."""
        for line in typed(words, " " * 10):
            self._print(line, "dim")

    def counters(self, now: Counters) -> None:
        if self._moving:
            self._live.update(Text(now.line(), no_wrap=True, overflow="ellipsis"), refresh=True)
        elif time.monotonic() > self._shown + PLAIN_S:
            self._shown = time.monotonic()
            self.say(now.line())

    def still(self) -> None:
        """The counters have no more to tell."""
        if self._moving:
            self._live.update(Text(""), refresh=True)

    def _print(self, line: str, style: str = "") -> None:
        # Not wrapped by the console: it would cut a path or a command at its own width, which may be a file's.
        self._console.print(Text(line, style=style), soft_wrap=True)


def folded(words: str, head: str) -> list[str]:
    """Lines that fit into 80 columns, the first with this head, the others below its words. Paths stay whole."""
    lines = textwrap.wrap(
        escape_invisible(words),
        WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [""]


def typed(words: str, indent: str) -> list[str]:
    """For a command, which can be copied as it is."""
    lines = textwrap.wrap(
        f"$ {escape_invisible(words)}",
        WIDTH - 2,
        initial_indent=indent,
        subsequent_indent=indent + "    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]
