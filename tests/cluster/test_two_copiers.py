"""Two processes for one mirror: one copies, the other ends with exit code 5, and the copy is exact in any case."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.kafka_clients import Pair, new_topic, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.replicate_process import PATIENCE_S, Copier, Progress, Writer, at_work, copier
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster
PARTITIONS = 4
TAKEN = "another process now controls this mirror; stopping"
FENCED = f"state topic __mirrorbook_state: cannot write: {TAKEN}"


@pytest.fixture
def topic(pair: Pair) -> str:
    return new_topic(pair.east, partitions=PARTITIONS)


@pytest.fixture
def mirrored(pair: Pair, tmp_path: Path, topic: str) -> Mirrored:
    return new_mirror(pair, tmp_path, topic)


def await_equal(mirrored: Mirrored, topic: str, copying: Copier) -> None:
    """The living one copies all that is there now, and both sides are the same."""
    there, here = Progress(mirrored, "east", topic), Progress(mirrored, "west", topic)
    here.reaches(there.total(), copying)
    assert read_all(mirrored.pair.east, topic) == read_all(mirrored.pair.west, topic) != []


def stop(copying: Copier) -> None:
    copying.process.terminate()
    assert copying.ends() == 0, copying.said


def test_a_second_one_is_refused_and_the_first_goes_on(mirrored: Mirrored, topic: str, tmp_path: Path) -> None:
    produce(mirrored.pair.east, topic, 200)
    with at_work(mirrored, "local", tmp_path) as first:
        lease = mirrored.state.leases[mirrored.name]
        with copier(mirrored, "local", tmp_path / "second.log") as second:
            assert second.ends() == 5
            said = re.sub(r"\d+\.\d s ago", "N s ago", second.said)
        assert said == (format_sentence("another_process_copies_it_already", mirrored.name, lease.owner, 1, 10))
        assert f"/{first.process.pid}/" in lease.owner
        produce(mirrored.pair.east, topic, 200, partition=1)
        await_equal(mirrored, topic, first)
        assert mirrored.state.leases[mirrored.name].generation == 1
        stop(first)


def test_of_two_that_start_at_the_same_instant_one_goes_on(mirrored: Mirrored, topic: str, tmp_path: Path) -> None:
    with Writer(mirrored.pair.east, topic, PARTITIONS):
        for turn in range(3):
            with ExitStack() as both:
                rivals = [
                    both.enter_context(copier(mirrored, "local", tmp_path / f"{turn}-{name}.log"))
                    for name in ("a", "b")
                ]
                wait_until(
                    lambda rivals=rivals: any(rival.code is not None for rival in rivals),  # type: ignore[misc]
                    timeout_s=PATIENCE_S,
                    why="one of the two gives way",
                )
                (loser,) = [rival for rival in rivals if rival.code is not None]
                (winner,) = [rival for rival in rivals if rival is not loser]
                assert loser.code == 5, loser.said
                # It has found the other one's lease, or was overtaken while it wrote its own, or while it took over.
                assert "another process copies it already" in loser.said or TAKEN in loser.said
                here = Progress(mirrored, "west", topic)
                here.reaches(here.total() + 200, winner)
                stop(winner)
    with at_work(mirrored, "local", tmp_path) as last:
        await_equal(mirrored, topic, last)
        stop(last)


@pytest.mark.parametrize("runner", ["local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow])])
def test_one_that_was_suspended_finds_its_successor_and_ends(
    mirrored: Mirrored, topic: str, tmp_path: Path, runner: str
) -> None:
    """With Spark only the driver sleeps: its tasks go on writing beside those of the successor."""
    here = Progress(mirrored, "west", topic)
    with Writer(mirrored.pair.east, topic, PARTITIONS), copier(mirrored, runner, tmp_path / "first.log") as first:
        here.reaches(200, first)
        first.psutil.suspend()
        with at_work(mirrored, "local", tmp_path) as second:
            here.reaches(here.total() + 500, second)
            first.psutil.resume()
            assert first.ends() == 5, first.said
            assert f"error: cluster west, {FENCED}\n" in first.said
            here.reaches(here.total() + 500, second)
            stop(second)
    with at_work(mirrored, "local", tmp_path, "--until-caught-up") as last:
        assert last.ends() == 0, last.said
    assert read_all(mirrored.pair.east, topic) == read_all(mirrored.pair.west, topic) != []
