"""What a test raises when data are wrong: that is never put down to a busy machine, and no such test runs again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Inexact(AssertionError):
    """A record was lost, repeated, shifted or altered, or both sides could be written."""


@contextmanager
def about_data() -> Iterator[None]:
    """Every assertion in here is about data. Works as a decorator too."""
    try:
        yield
    except AssertionError as error:
        raise Inexact(*error.args) from error
