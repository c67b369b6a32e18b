"""Prints to people. Control characters in foreign names are escaped."""

from __future__ import annotations

import os
import re
import sys
import textwrap
import threading
from collections.abc import Iterable
from typing import Final, TextIO

import typer

from mirror_core.model.text import escape_invisible, escape_invisible_lines


def print_line(text: str, *, err: bool = False) -> None:
    typer.echo(escape_invisible_lines(text), err=err)


LINE_WIDTH: Final = 80
"""A serial console, a jump host and a phone show no more."""


def format_block(rows: Iterable[tuple[str, str]], indent: int = 2) -> list[str]:
    """Labels and wrapped texts in two columns. No word, path or option is broken."""
    labelled = [(f"{label}:", text) for label, text in rows]
    label_width = max((len(label) for label, _ in labelled), default=0)
    return [
        line
        for label, text in labelled
        for line in _wrap_words(
            text,
            first_indent=f"{'':{indent}}{label:{label_width}} ",
            indent=" " * (indent + label_width + 1),
        )
    ]


def wrap_line(text: str, indent: str = "") -> str:
    """At words, on a terminal; whole in files and pipes."""
    return wrap_text(text, indent) if sys.stdout.isatty() else escape_invisible(text)


def wrap_text(text: str, indent: str = "") -> str:
    """`indent`: of all lines but the first."""
    return "\n".join(_wrap_words(text, indent=indent))


_UNBROKEN: Final = re.compile(r"`[^`]*`|(?<=[0-9]) (?=[^ ])")
"""A command, and a number with its unit."""
_HARD_SPACE: Final = "\u00a0"


def _wrap_words(text: str, *, first_indent: str = "", indent: str = "") -> list[str]:
    glued = _UNBROKEN.sub(lambda match: match[0].replace(" ", _HARD_SPACE), escape_invisible(text))
    lines = textwrap.wrap(
        glued,
        LINE_WIDTH,
        initial_indent=first_indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_HARD_SPACE, " ") for line in lines]


_redirect_lock = threading.RLock()


def print_line_or_continue(text: str, *, err: bool = False) -> None:
    """Never fails, as for a run behind its fence: falls back to stderr, then to nowhere. Thread-safe."""
    stream = sys.stderr if err else sys.stdout
    try:
        print_line(text, err=err)
    except OSError as error:
        _redirect_output(stream, error)
        if not err:
            print_line_or_continue(text, err=True)


def _redirect_output(stream: TextIO, error: OSError) -> None:
    with _redirect_lock:
        if stream is sys.stderr:
            sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
            if stream is sys.stdout:
                sys.stdout = sys.stderr
        elif stream is sys.stdout:
            sys.stdout = sys.stderr
            print_line_or_continue(
                f"standard output takes nothing any more ({error.strerror}): the rest is said here", err=True
            )
