"""A failover to a destination without markers and the way home, by commands: with markers there, and without."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_core.model.mirror import GapFilling
from mirror_core.model.names import MirrorName
from mirror_core.state.state_topic import read_state
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.cluster.desk import Desk
from tests.support.gap_logs import bounds, transaction, transactional
from tests.support.kafka_clients import new_topic, produce, read_all, read_all_aiokafka
from tests.support.managed_service import managed

pytestmark = [pytest.mark.cluster, pytest.mark.drill]


def applications(cluster: SandboxCluster, *topics: str) -> None:
    """Committed and aborted transactions, and plain records between them; all have keys."""
    producer = transactional(cluster)
    for topic in topics:
        for commit in (True, False, True):
            transaction(producer, topic, 4, commit=commit, partitions=(0, 1))
        produce(cluster, topic, 3, partition=1)
        transaction(producer, topic, 2, commit=False, partitions=(1,))


@pytest.mark.parametrize("home", [GapFilling.MARKERS, GapFilling.HIDDEN])
def test_transactions_go_there_and_back(desk: Desk, tmp_path: Path, home: GapFilling) -> None:
    with ExitStack() as stack:
        pair = stack.enter_context(managed(desk.pair, tmp_path))
        if home is GapFilling.HIDDEN:
            pair = stack.enter_context(managed(pair, tmp_path, side="east"))
        desk.config.write_text(pair.config_path.read_text(encoding="utf-8"), encoding="utf-8")
        kept, tailed = new_topic(pair.east, 2), new_topic(pair.east, 2)
        cleaned = new_topic(pair.east, 2, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
        topics = kept, tailed, cleaned
        applications(pair.east, *topics)
        mirrored = replace(desk, pair=pair).started(*topics)
        assert mirrored.link.mirror.gaps is GapFilling.HIDDEN
        mirrored.copy()

        def equal() -> None:
            for topic in (kept, tailed):  # the third one is cleaned by each cluster at its own times
                assert bounds(pair.west, topic) == bounds(pair.east, topic)
                assert read_all(pair.west, topic) == read_all(pair.east, topic)
                assert read_all_aiokafka(pair.west, topic) == read_all_aiokafka(pair.east, topic)
            said = desk.run("parity", mirrored.name, "--runner", "local", "--json")
            answer = json.loads(said.out)
            assert (said.code, answer["verdict"], answer["left_out"]) == (0, "passed", [])
            assert answer["records"] <= sum(len(read_all(pair.east, topic)) for topic in topics), "hidden ones counted"

        equal()
        assert "until promotion: hidden records have no key" in desk.run("mirror", "describe", mirrored.name).out
        applications(pair.east, kept)  # for the drain
        assert desk.run("failover", "run", mirrored.name, "--runner", "local", "--yes").code == 0
        applications(pair.west, *topics)
        applications(pair.east, tailed)  # a super user passes every fence
        primary = read_all(pair.west, tailed)
        assert desk.run("failback", "run", mirrored.name, "--runner", "local", "--yes").code == 0
        back = read_state(mirrored.config.cluster("east")).mirrors[MirrorName(f"{mirrored.name}-back")]
        assert back.gaps is home
        assert read_all(pair.east, tailed) == primary
        equal()
        applications(pair.east, *topics)
        mirrored.copy()
        equal()
