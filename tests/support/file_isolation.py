"""A file's tests leave nothing to those of other files, and what they have left open is charged to themselves."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.support.kafka_clients import Pair
from tests.support.leftover_check import Leftovers


def pytest_collection_finish() -> None:
    """What all tests import stays: looking through it once a file was a tenth of the unit tests' time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def garbage_collected() -> Iterator[None]:
    """A socket that nobody closed warns when it is collected: that is to be in the file that opened it. What is left
    then is looked through once: it belongs to whoever stays, such as Airflow."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def leftovers(pair: Pair) -> list[Leftovers]:
    return [Leftovers(cluster) for cluster in (pair.east, pair.west)]


@pytest.fixture(scope="module", autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Other files' tests meet no mirror at work, no denial, and no open transaction of this one's."""
    tests = (test for test in request.session.items if request.node in test.listchain())
    if not any("pair" in getattr(test, "fixturenames", ()) for test in tests):
        yield
        return
    sides: list[Leftovers] = request.getfixturevalue("leftovers")
    yield
    found = [one for side in sides for one in side.found()]
    for side in sides:
        side.forget()
    assert not found, f"left to tests of other files: {'; '.join(found)}"
