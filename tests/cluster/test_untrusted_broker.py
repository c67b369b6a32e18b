"""One broker whose certificate does not hold, or that refuses the login, is that broker's trouble and nobody else's."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from mirror_core.mirrors.describe import describe_mirror
from mirror_core.mirrors.mirror_facts import FactKey
from mirror_core.model.timing import now_ms
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.cluster.half_trusted import by_certificate, by_login, half_trusted, spread_topic
from tests.support.data_errors import about_data
from tests.support.data_plane_thread import driving
from tests.support.kafka_clients import TIMEOUT_S, Pair, Record, admin_client, new_topic, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def arrive(pair: Pair, topic: str, records: list[Record], said: list[str]) -> None:
    def arrived() -> bool:
        assert not [line for line in said if line.startswith("the data plane ended")]
        return topic_exists(pair.west, topic) and set(records) <= set(read_all(pair.west, topic))

    wait_until(arrived, timeout_s=TIMEOUT_S, why=f"{len(records)} records of {topic} arrive")


def topic_exists(cluster: SandboxCluster, topic: str) -> bool:
    return topic in admin_client(cluster).list_topics(timeout=TIMEOUT_S).topics


def waits(mirrored: Mirrored) -> str:
    return str(describe_mirror(mirrored.link, mirrored.state, now_ms()).facts[FactKey.COPY_WAITS].text)


@pytest.mark.parametrize(
    ("side", "way", "words"),
    [
        ("east", by_certificate, "certificate refused: Hostname mismatch"),
        pytest.param("west", by_login, "authentication as 'data' failed", marks=pytest.mark.slow),
    ],
)
def test_what_other_brokers_lead_is_copied_beside_one_that_lets_nobody_in(
    pair: Pair, tmp_path: Path, side: str, way: Callable[[Pair, SandboxCluster, Path], Pair], words: str
) -> None:
    with half_trusted(pair, side, tmp_path) as cluster:
        half = way(pair, cluster, tmp_path)
        topic = "t-" + secrets.token_hex(5) if side == "east" else new_topic(half.east, partitions=2)
        spread_topic(cluster, topic)
        for number in range(2):
            produce(half.east, topic, 50, partition=number)
        mirrored = new_mirror(half, tmp_path, topic)
        with driving(mirrored) as said:
            for _ in range(2):
                arrive(half, topic, produce(half.east, topic, 50), said)
            wait_until(lambda: any(words in line for line in said), timeout_s=TIMEOUT_S, why=f"it says {words!r}")
            wait_until(lambda: words in waits(mirrored), timeout_s=TIMEOUT_S, why="`describe` says so, too")
        with about_data():
            assert read_all(half.west, topic) == [r for r in read_all(half.east, topic) if not r.partition]
