"""What a failure is about: its essence in a few lines, and whether it speaks of data."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.support.data_errors import Inexact

RECORDS: Final = re.compile(r"\bRecord\(partition=")
NOT_REFUSED: Final = "DID NOT RAISE"


def about_data(error: BaseException, text: str) -> bool:
    """Whether it tells of a record lost, repeated, shifted or altered, or of a side that took what it must refuse.

    Such a failure raises `Inexact`. To be safe, this also counts what compares records without saying so, and what
    should have been refused and was not.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, Inexact):
            return True
        seen = seen.__cause__ or seen.__context__
    refusal_missing = isinstance(error, pytest.fail.Exception) and NOT_REFUSED in str(error)
    return refusal_missing or RECORDS.search(text) is not None


def essence(text: str) -> str:
    """The line that failed, pytest's explanation of it, and where it stands: not the test's source."""
    lines = text.splitlines()
    kept = [line[:400] for line in lines if re.match(r"^(E |> |\S+\.py:\d+)", line)]
    return "\n".join(kept or [line[:400] for line in lines[-15:]])
