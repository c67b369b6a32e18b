"""Prints to people. Control characters in foreign names are escaped."""

from __future__ import annotations

import os
import sys
import threading
from typing import TextIO

import typer

from mirror_core.model.text import escape_invisible_lines


def print_line(text: str, *, err: bool = False) -> None:
    typer.echo(escape_invisible_lines(text), err=err)


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
