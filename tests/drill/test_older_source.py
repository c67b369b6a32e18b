"""From the last Kafka 3.x to the newest: every shape of log, and a failover."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror_core.kafka.groups import commit_offsets, fetch_offsets
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import Mode, RunState
from tests import shapes
from tests.administering import as_admin
from tests.brokers import Pair, new_topic, produce, read_all, read_all_aiokafka
from tests.mirroring import new_mirror
from tests.older import older_source
from tests.same import assert_parity, assert_same

pytestmark = [pytest.mark.cluster, pytest.mark.drill]


@pytest.fixture(scope="module")
def older(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with older_source(pair, tmp_path_factory.mktemp("older")) as found:
        yield found


def test_every_shape_crosses_from_an_older_cluster(older: Pair, tmp_path: Path) -> None:
    made = shapes.build(older.east)
    mirrored = new_mirror(older, tmp_path, f"{made.prefix}.*")
    mirrored.copy()
    assert_same(older, made.topics.values())
    made.end_the_open_transaction()
    made.append()
    mirrored.copy()
    assert_same(older, made.topics.values())
    assert_parity(mirrored)


def test_a_failover_leaves_an_older_cluster(older: Pair, tmp_path: Path) -> None:
    # Settings that brokers of 4.0 no longer know.
    topic = new_topic(older.east, 2, message_format_version="0.10.0", message_downconversion_enable="true")
    sent = produce(older.east, topic, 300) + produce(older.east, topic, 200, partition=1, compression_type="zstd")
    group = "g-" + secrets.token_hex(4)
    with as_admin(older.east) as client:
        assert commit_offsets(client, group, {Partition(topic, 0): (Offset(120), "")}) == {}
    mirrored = new_mirror(older, tmp_path, topic, groups=(group,))
    mirrored.copy()
    sent += produce(older.east, topic, 50)
    done = mirrored.failover.drive(mirrored.failover.begin(mirrored.failover.plan(Mode.PLANNED).hash).id)
    assert done.state is RunState.DONE
    assert read_all(older.west, topic) == sorted(sent)
    assert read_all_aiokafka(older.west, topic) == sorted(sent)
    with as_admin(older.west) as client:
        moved = fetch_offsets(client, group).committed[Partition(topic, 0)]
    assert moved.offset == 120
