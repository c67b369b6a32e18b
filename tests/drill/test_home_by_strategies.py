"""The source is killed under load, given up, and comes back: home by three strategies at once, under load again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from mirror_core.kafka.consumer_groups import list_groups
from mirror_core.model.errors import Refused
from mirror_core.model.run import FailbackStrategy
from mirror_core.runbook.failback_conductor import Failback
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.drill.applications import Login, login
from tests.drill.coming_home import drilling, there_and_home
from tests.drill.groups import PARTITIONS
from tests.support.broker_faults import killed
from tests.support.cli_process import mirrorbook
from tests.support.cluster_admin import as_admin
from tests.support.kafka_clients import Pair, new_topic

pytestmark = [pytest.mark.cluster, pytest.mark.drill]


@pytest.fixture
def user(pair: Pair) -> Iterator[Login]:
    with login(pair) as made:
        yield made


def cut_by_hand(east: SandboxCluster, folder: Path, failback: Failback, run: str) -> None:
    """What the run asks for on the broker's host."""
    with pytest.raises(Refused, match="stop it; on its host `mirrorbook log truncate"):
        failback.drive(run)
    east.terminate()
    try:
        where = ("--log-dir", str(east.log_dir()), "--to", str(folder / f"run-{run}" / "points.json"))
        done = mirrorbook("log", "truncate", *where, "--backup", str(folder / "backup"), "--yes")
    finally:
        east.start()
    assert done.returncode == 0, done.stderr


def test_groups_of_the_consumer_protocol_resume_where_the_copy_ends_there_and_at_home(
    pair: Pair, tmp_path: Path, user: Login
) -> None:
    """KIP-848: by Kafka's own consumer and by librdkafka; each skips nothing and repeats no more than was said."""
    recreated = (new_topic(pair.east, PARTITIONS, retention_ms="-1") for _ in range(2))
    ways = dict.fromkeys(recreated, FailbackStrategy.RECREATE)
    with drilling(pair, user, tmp_path, ways, protocol="consumer") as drill:

        def check_type(failback: Failback, run: str) -> None:
            with as_admin(pair.west) as client:
                groups = list_groups(client)
            assert {groups[group.name].kind for group in drill.groups} == {"consumer"}

        there_and_home(drill, tmp_path, killed, check_type)


def test_what_was_said_is_lost_and_home_loses_nothing(pair: Pair, tmp_path: Path, user: Login) -> None:
    ways = {
        new_topic(pair.east, PARTITIONS, retention_ms="-1"): way
        for way in (FailbackStrategy.NONE, FailbackStrategy.RECREATE, FailbackStrategy.OFFLINE)
    }
    with drilling(pair, user, tmp_path, ways) as drill:
        there_and_home(drill, tmp_path, killed, partial(cut_by_hand, pair.east, tmp_path))
