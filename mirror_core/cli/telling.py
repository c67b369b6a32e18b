"""What a command says to a person. Names in it may be anybody's: what hides, or a terminal obeys, is written out."""

from __future__ import annotations

import typer

from mirror_core.model.text import visible_lines


def tell(words: str, *, err: bool = False) -> None:
    """Say it on standard output, or on standard error."""
    typer.echo(visible_lines(words), err=err)
