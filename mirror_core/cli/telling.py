"""What a command says to a person. Names in it may be anybody's: what hides, or a terminal obeys, is written out."""

from __future__ import annotations

import os
import sys
import threading
from typing import TextIO

import typer

from mirror_core.model.text import visible_lines


def tell(words: str, *, err: bool = False) -> None:
    """Say it on standard output, or on standard error."""
    typer.echo(visible_lines(words), err=err)


_LOST = threading.RLock()


def tell_on(words: str, *, err: bool = False) -> None:
    """The same of what must not end for want of somebody who listens, as a run behind its fence: where a pipe is closed
    or a disk is full, the rest is said on standard error, or to nobody. For use by several threads."""
    stream = sys.stderr if err else sys.stdout
    try:
        tell(words, err=err)
    except OSError as error:
        _give_up(stream, error)
        if not err:
            tell_on(words, err=True)


def _give_up(stream: TextIO, error: OSError) -> None:
    """Unless another thread has done so."""
    with _LOST:
        if stream is sys.stderr:
            sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
            if stream is sys.stdout:
                sys.stdout = sys.stderr
        elif stream is sys.stdout:
            sys.stdout = sys.stderr
            tell_on(f"standard output takes nothing any more ({error.strerror}): the rest is said here", err=True)
