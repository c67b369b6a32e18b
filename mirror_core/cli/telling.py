"""Prints to people. Control characters in foreign names are escaped."""

from __future__ import annotations

import os
import sys
import threading
from typing import TextIO

import typer

from mirror_core.model.text import visible_lines


def tell(words: str, *, err: bool = False) -> None:
    typer.echo(visible_lines(words), err=err)


_LOST = threading.RLock()


def tell_on(words: str, *, err: bool = False) -> None:
    """Never fails, as for a run behind its fence: falls back to stderr, then to nowhere. Thread-safe."""
    stream = sys.stderr if err else sys.stdout
    try:
        tell(words, err=err)
    except OSError as error:
        _give_up(stream, error)
        if not err:
            tell_on(words, err=True)


def _give_up(stream: TextIO, error: OSError) -> None:
    with _LOST:
        if stream is sys.stderr:
            sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
            if stream is sys.stdout:
                sys.stdout = sys.stderr
        elif stream is sys.stdout:
            sys.stdout = sys.stderr
            tell_on(f"standard output takes nothing any more ({error.strerror}): the rest is said here", err=True)
