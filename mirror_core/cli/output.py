"""Prints to people. Control characters in foreign names are escaped."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
import threading
from collections.abc import Iterable
from typing import Final, TextIO

import typer

from mirror_core.model.text import escape_invisible, escape_invisible_lines, indent_further_lines

MAX_LINE_WIDTH: Final = 80
"""A serial console, a jump host and a phone show no more."""


def print_line(text: str, *, err: bool = False, indent: str | None = None) -> None:
    """Wrapped at words on a terminal, whole in files and pipes. `indent`: of all lines but the first."""
    typer.echo(fit_lines(text, sys.stderr if err else sys.stdout, indent), err=err)


def print_document(text: str) -> None:
    """Markdown or JSON: no line is wrapped."""
    typer.echo(escape_invisible_lines(text))


def fit_lines(text: str, stream: TextIO, indent: str | None = None) -> str:
    text = indent_further_lines(escape_invisible_lines(text))
    if not stream.isatty():
        return text
    return "\n".join(line for whole in text.split("\n") for line in _fit_line(whole, indent, get_line_width(stream)))


_MARGIN: Final = re.compile(r" *(?:- )?")


def _fit_line(line: str, indent: str | None, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    margin = _MARGIN.match(line)
    first_indent = margin[0] if margin else ""
    return list_wrapped_lines(
        line[len(first_indent) :],
        first_indent=first_indent,
        indent=" " * len(first_indent) if indent is None else indent,
        width=width,
    )


UNLIMITED_WIDTH: Final = sys.maxsize


def get_terminal_width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else UNLIMITED_WIDTH


def get_line_width(stream: TextIO | None = None) -> int:
    stream = sys.stdout if stream is None else stream
    return min(MAX_LINE_WIDTH, shutil.get_terminal_size().columns) if stream.isatty() else UNLIMITED_WIDTH


def format_block(rows: Iterable[tuple[str, str]], indent: int = 2, width: int | None = None) -> list[str]:
    """Labels and wrapped texts in two columns. No word, path or option is broken."""
    labelled = [(f"{label}:", text) for label, text in rows]
    label_width = max((len(label) for label, _ in labelled), default=0)
    return [
        line
        for label, text in labelled
        for line in list_wrapped_lines(
            text,
            first_indent=f"{'':{indent}}{label:{label_width}} ",
            indent=" " * (indent + label_width + 1),
            width=width,
        )
    ]


def wrap_text(text: str, indent: str = "") -> str:
    """`indent`: of all lines but the first."""
    return "\n".join(list_wrapped_lines(escape_invisible(text), indent=indent))


_UNBROKEN: Final = re.compile(r"`[^`]*`|(?<=[0-9]) (?=[^ ])|(?:^|(?<=: ))(?:mirrorbook|kafka-[a-z-]+[.]sh) .*")
"""A command, and a number with its unit."""
_HARD_SPACE: Final = "\u00a0"


def split_unbroken(text: str) -> list[str]:
    """At blanks where a line may end."""
    return _glue_commands(text).split()


def _glue_commands(text: str) -> str:
    return _UNBROKEN.sub(lambda match: match[0].replace(" ", _HARD_SPACE), text)


def list_wrapped_lines(text: str, *, first_indent: str = "", indent: str = "", width: int | None = None) -> list[str]:
    lines = textwrap.wrap(
        _glue_commands(text),
        width or get_line_width(),
        initial_indent=first_indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_HARD_SPACE, " ") for line in lines]


_redirect_lock = threading.RLock()


def print_line_or_continue(text: str, *, err: bool = False) -> None:
    """Never fails: falls back to stderr, then to nowhere. Thread-safe."""
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
