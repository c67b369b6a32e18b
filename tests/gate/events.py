"""What a process of tests writes down as it goes, one JSON object a line; read by the process that started it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

Outcome = Literal["passed", "failed", "skipped"]


class Collected(msgspec.Struct, frozen=True, tag=True):
    """The tests that this process is going to run, in order."""

    tests: tuple[str, ...]


class Ended(msgspec.Struct, frozen=True, tag=True):
    """`seconds`: with its fixtures' set-up and tear-down."""

    test: str
    outcome: Outcome
    seconds: float


class Failure(msgspec.Struct, frozen=True, tag=True):
    """Why a test, its fixtures, or the collection of a file failed; a test may have several."""

    test: str
    phase: str
    """setup, call, teardown; or collection, where `test` is a file."""
    error: str
    """The assertion and where it stands, without the source around it."""
    said: str
    """What the test and the commands that it ran printed."""
    brokers: str
    """What the brokers of this process wrote last, if there are any."""
    load: str
    logs: str
    """The folder with copies of the logs."""
    again: bool
    """False: never run again. A record that was lost once is lost, whatever a second run finds."""


Event = Collected | Ended | Failure


def line_of(event: Event) -> bytes:
    return msgspec.json.encode(event) + b"\n"


def events_in(path: Path, start: int = 0) -> Iterator[tuple[Event, int]]:
    """Whole lines from this byte on, each with the byte behind it. A line that is still being written is left."""
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                return
            start += len(line)
            yield msgspec.json.decode(line, type=Event), start
