"""The stages of `make test` and of `make nightly`: which tests, how many at a time, and under which conditions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

EVERYWHERE: Final = ("tests/cluster", "tests/drill", "tests/wheel")
QUICK: Final = "not (drill or slow or timed or heavy or flaky)"
TOGETHER: Final = ("tests/spark", "tests/dag")
"""Spark's session and Airflow's database are slow to come by, and what they leave in a process is not for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    name: str
    folders: tuple[str, ...]
    marks: str
    """pytest's -m: the tests of these folders that belong here."""
    lanes: int
    """So many processes at a time."""
    together: tuple[str, ...] = ()
    """Folders whose tests run in one process of their own."""
    beside: tuple[str, ...] = ()
    """Folders whose tests run in processes beside these, by what they leave of the CPUs. Never run again."""
    env: Mapping[str, str] = field(default_factory=dict)
    times: int = 1
    again: bool = True
    """False: a failed test of this stage is never run again."""
    most_failures: int = 6
    """A process that has seen so many stops: the run is red, and its reasons are known."""


ALL: Final = 1000
"""At night nobody waits: as many failures as there are."""
EXPLORE: Final = {"MIRRORBOOK_EXPLORE": "1"}
"""New seeds and new examples in each run; otherwise the same ones every time."""

GATE: Final = (
    Stage(name="tests", folders=EVERYWHERE, together=TOGETHER, beside=("tests/unit",), marks=QUICK, lanes=4),
)

NIGHTLY: Final = (
    Stage(name="explore", folders=("tests/unit",), marks=QUICK, lanes=2, env=EXPLORE, again=False, most_failures=ALL),
    Stage(
        name="slow",
        folders=EVERYWHERE,
        together=TOGETHER,
        marks="slow and not (drill or timed or heavy or flaky)",
        lanes=3,
        most_failures=ALL,
    ),
    Stage(
        name="drills",
        folders=EVERYWHERE,
        together=TOGETHER,
        marks="drill and not (timed or heavy or flaky)",
        lanes=2,
        env=EXPLORE,
        most_failures=ALL,
    ),
    Stage(
        name="heavy",
        folders=EVERYWHERE,
        together=TOGETHER,
        marks="heavy and not (timed or flaky)",
        lanes=1,
        env=EXPLORE,
        most_failures=ALL,
    ),
    Stage(
        name="deployed",
        folders=("tests/dag", "tests/drill"),
        together=TOGETHER,
        marks="drill and dag and not (timed or flaky)",
        lanes=1,
        env={"MIRRORBOOK_AIRFLOW": "celery"},
        most_failures=ALL,
    ),
    Stage(
        name="timed",
        folders=("tests/unit", *EVERYWHERE),
        together=TOGETHER,
        marks="timed and not flaky",
        lanes=1,
        env={"MIRRORBOOK_PATIENCE": "1"},
        most_failures=ALL,
    ),
    Stage(name="quarantine", folders=EVERYWHERE, together=TOGETHER, marks="flaky", lanes=1, times=3, again=False),
)
