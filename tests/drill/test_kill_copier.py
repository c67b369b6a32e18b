"""Copiers and brokers that are killed at any moment: what is on the destination is always a beginning of the source."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from tests.support.kafka_clients import Pair, new_topic, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.random_seeds import seed_of
from tests.support.replicate_process import PATIENCE_S, Progress, Writer, assert_prefix, at_work
from tests.support.waiting import wait_until

RUNNERS = ["local", pytest.param("spark", marks=pytest.mark.spark)]
pytestmark = [pytest.mark.drill, pytest.mark.cluster]

PARTITIONS = 8
KILLS = {"local": 10, "spark": 3}
"""Each new driver of Spark takes half a minute: start, and the lease of the dead one."""
RECORDS = 200_000


def fill(pair: Pair, topic: str, count: int) -> None:
    """Small batches, half of the partitions compressed: copying takes some time."""
    for partition in range(PARTITIONS):
        codec = ("none", "lz4")[partition % 2]
        produce(
            pair.east,
            topic,
            count // PARTITIONS,
            partition=partition,
            compression_type=codec,
            batch_num_messages="20",
        )


def catch_up(mirrored: Mirrored, topic: str, runner: str, folder: Path) -> int:
    """The last one ends by itself; both sides are read and compared. Returns how many records there are."""
    with at_work(mirrored, runner, folder, "--until-caught-up") as last:
        assert last.ends() == 0, last.said
        assert "caught up: yes" in last.said
    there = read_all(mirrored.pair.east, topic)
    assert read_all(mirrored.pair.west, topic) == there
    return len(there)


def moved(progress: Progress, before: int) -> bool:
    return progress.total() > before


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_copier_killed_at_random_moments_leaves_an_exact_copy(pair: Pair, tmp_path: Path, runner: str) -> None:
    chance = random.Random(seed_of(f"killed copier, {runner}"))
    topic = new_topic(pair.east, partitions=PARTITIONS)
    fill(pair, topic, RECORDS)
    mirrored = new_mirror(pair, tmp_path, topic)
    there, here = Progress(mirrored, "east", topic), Progress(mirrored, "west", topic)
    checked = dict.fromkeys(range(PARTITIONS), 0)
    too_late = 0
    with Writer(pair.east, topic, PARTITIONS):
        for number in range(KILLS[runner]):
            reached = here.total()
            missing = there.total() - reached
            # The first one dies when it has just created the topic; the others somewhere on their way.
            mark = reached + (chance.randrange(1, max(2, missing // (KILLS[runner] - number))) if number else 0)
            begun = partial(moved, here, reached) if number else here.exists
            with at_work(mirrored, runner, tmp_path, begun=begun) as victim:
                here.reaches(mark, victim)
                victim.kill()
            died = here.total()
            print(f"kill {number}: wanted at {mark}, died at {died} of {there.total()}")
            if died >= there.total():  # on a busy machine it may be done before we look: more for the next one
                too_late += 1
                fill(pair, topic, RECORDS)
            if here.total():
                copy = read_all(pair.west, topic, since=checked)  # before the source, which goes on growing
                assert_prefix(copy, read_all(pair.east, topic, since=checked))
                checked |= {record.partition: record.offset + 1 for record in copy}
    assert too_late < KILLS[runner] - 1, "nearly all had nothing left to copy when they died"
    assert catch_up(mirrored, topic, runner, tmp_path) > RECORDS


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_killed_destination_broker_leaves_an_exact_copy(pair: Pair, tmp_path: Path, runner: str) -> None:
    topic = new_topic(pair.east, partitions=PARTITIONS)
    fill(pair, topic, RECORDS)
    mirrored = new_mirror(pair, tmp_path, topic)
    there, here = Progress(mirrored, "east", topic), Progress(mirrored, "west", topic)
    begun = partial(moved, here, 0)
    chance = random.Random(seed_of(f"killed destination, {runner}"))
    with at_work(mirrored, runner, tmp_path, begun=begun) as first, Writer(pair.east, topic, PARTITIONS):
        here.reaches(chance.randrange(1, RECORDS // 4), first)
        pair.west.kill()
        before = there.total()
        pair.west.start()
        print(f"the broker died at {here.total()} of {before}")
        assert_prefix(read_all(pair.west, topic), read_all(pair.east, topic))
        # It goes on by itself, or ends with a reason for its supervisor to start another one.
        wait_until(
            lambda: first.code is not None or here.total() > before,
            timeout_s=PATIENCE_S,
            why="it copies the rest, or ends",
        )
        if first.code is None:
            first.process.terminate()
            assert first.ends() == 0, first.said
        else:
            assert first.code == 1, first.said
        assert "Traceback" not in first.said
    assert catch_up(mirrored, topic, runner, tmp_path) > RECORDS
