"""What a file's tests leave is found, or forgotten, before the next file's begin."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, AclPermissionType, ResourceType

from mirror_core.state.state_records import STATE_TOPIC
from tests.support import leftover_check
from tests.support.data_plane_thread import beating, driving
from tests.support.kafka_clients import TIMEOUT_S, Pair, grant, new_topic, produce
from tests.support.leftover_check import Leftovers
from tests.support.mirrored_topics import Mirrored, new_mirror

pytestmark = pytest.mark.cluster


@pytest.fixture
def west(pair: Pair) -> Leftovers:
    return Leftovers(pair.west)


def copied(pair: Pair, folder: Path) -> Mirrored:
    topic = new_topic(pair.east)
    produce(pair.east, topic, 5)
    mirrored = new_mirror(pair, folder, topic)
    mirrored.copy()
    return mirrored


def test_a_mirror_that_has_ended_is_forgotten(pair: Pair, west: Leftovers, tmp_path: Path) -> None:
    mirrored = copied(pair, tmp_path)
    assert mirrored.statuses
    assert west.found() == []
    west.forget()
    state = mirrored.state
    assert mirrored.name not in {**state.mirrors, **state.leases}
    assert not mirrored.statuses
    assert west.found() == []


def test_a_mirror_that_runs_is_found(pair: Pair, west: Leftovers, tmp_path: Path) -> None:
    mirrored = copied(pair, tmp_path)
    with driving(mirrored):
        beating(mirrored, 1)
        [found] = west.found()
    assert found.startswith(f"cluster west: mirror {mirrored.name} runs: ")
    assert west.found() == []


def test_a_denial_is_found_and_told_once(pair: Pair, west: Leftovers) -> None:
    topic = new_topic(pair.west)
    grant(pair.west, "app", ResourceType.TOPIC, topic, [AclOperation.WRITE], permission=AclPermissionType.DENY)
    [found] = west.found()
    assert found.startswith("cluster west: an ACL stands: DENY WRITE on TOPIC")
    assert topic in found
    assert west.found() == []


def test_a_transaction_that_nobody_ends_is_found(
    pair: Pair, west: Leftovers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(pair, tmp_path)
    producer = Producer({**pair.west.client_config("admin"), "transactional.id": f"tx-{secrets.token_hex(4)}"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(STATE_TOPIC, key="lease/nobody", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    with monkeypatch.context() as hurried:  # that one has ended may take longer to be seen
        hurried.setattr(leftover_check, "DECIDED_S", 0.5)
        assert west.found() == [f"cluster west: a transaction is open in {STATE_TOPIC}-0"]
    producer.abort_transaction(TIMEOUT_S)
    assert west.found() == []
