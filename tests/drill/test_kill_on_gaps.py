"""Copiers that are killed while they fill the gaps of transactions: every offset is filled, and none twice."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from tests.support.gap_logs import assert_equal, transaction, transactional
from tests.support.kafka_clients import Pair, new_topic
from tests.support.mirrored_topics import new_mirror
from tests.support.random_seeds import seed_of
from tests.support.replicate_process import Application, Progress, at_work

pytestmark = [pytest.mark.drill, pytest.mark.cluster]

PARTITIONS = 4
KILLS = {"local": 8, "spark": 2}
"""Each new driver of Spark takes half a minute: start, and the lease of the dead one."""


class Transactions(Application):
    """Small transactions over some partitions, committed and aborted."""

    def __init__(self, pair: Pair, topic: str, seed: int) -> None:
        super().__init__()
        self.producer = transactional(pair.east)
        self.topic = topic
        self.chance = random.Random(seed)

    def _write(self) -> None:
        chance = self.chance
        while not self._stop.wait(0.01):
            chosen = chance.sample(range(PARTITIONS), chance.randrange(1, PARTITIONS))
            transaction(
                self.producer, self.topic, chance.randrange(1, 9), commit=chance.random() < 0.7, partitions=chosen
            )


@pytest.mark.parametrize("runner", ["local", pytest.param("spark", marks=pytest.mark.spark)])
def test_a_copier_killed_among_transactions_leaves_an_exact_copy(pair: Pair, tmp_path: Path, runner: str) -> None:
    seed = seed_of(f"killed among transactions, {runner}")
    chance = random.Random(seed)
    topic = new_topic(pair.east, partitions=PARTITIONS)
    mirrored = new_mirror(pair, tmp_path, topic)
    there, here = Progress(mirrored, "east", topic), Progress(mirrored, "west", topic)
    with Transactions(pair, topic, seed):
        for number in range(KILLS[runner]):
            reached = here.total()
            begun = partial(_moved, here, reached)
            with at_work(mirrored, runner, tmp_path, begun=begun) as victim:
                here.reaches(reached + chance.randrange(1, 150), victim)
                victim.kill()
            print(f"kill {number}: died at {here.total()} of {there.total()}")
    with at_work(mirrored, runner, tmp_path, "--until-caught-up") as last:
        assert last.ends() == 0, last.said
        assert "caught up: yes" in last.said
    assert_equal(pair, topic)


def _moved(progress: Progress, before: int) -> bool:
    return progress.total() > before
