"""Two mirrors between the same clusters: what one of them does with rights is nothing to the other one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.kafka.acls import delete_acls
from mirror_core.model.acl import Acl, Operation, Resource
from mirror_core.model.drift import Part
from mirror_core.model.run import Mode
from mirror_core.sandbox.cluster import SandboxCluster
from mirror_core.sandbox.credentials import scram_config
from mirror_core.sync.cycle import sync
from tests import brokers
from tests.administering import as_admin, rights_of
from tests.brokers import Pair, grant, produce
from tests.cluster.links import writer_of
from tests.cluster.test_failback import failback_of, go_home
from tests.cluster.test_failover import app_topic, begin, denied
from tests.cluster.test_unplanned import begin as give_up
from tests.mirroring import Mirrored, new_mirror

pytestmark = pytest.mark.cluster


@pytest.fixture
def second(pair: Pair) -> Iterator[tuple[str, str]]:
    """Another application that both clusters know."""
    user = brokers.new_user(pair.east, pair.west)
    yield user
    for cluster in (pair.east, pair.west):
        brokers.forget_user(cluster, user[0])


def refused(cluster: SandboxCluster, topic: str, user: tuple[str, str]) -> bool:
    answers = list[KafkaError | None]()
    config = scram_config(cluster.bootstrap, *user)
    producer = Producer({**config, "message.timeout.ms": 20_000, "log_level": 0})
    producer.produce(topic, b"x", partition=0, on_delivery=lambda error, _: answers.append(error))
    producer.flush(30)
    [error] = answers
    assert error is None or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    return error is not None


def right(topic: str, user: tuple[str, str]) -> Acl:
    return Acl(resource=Resource.TOPIC, name=topic, principal=f"User:{user[0]}", operation=Operation.WRITE)


def revoke(cluster: SandboxCluster, acl: Acl) -> None:
    with as_admin(cluster) as client:
        delete_acls(client, [acl])


def there_and_home(mirrored: Mirrored) -> None:
    mirrored.failover.drive(begin(mirrored.failover))
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    failback.drive(run.id)
    go_home(failback, run.id)
    mirrored.copy()


@pytest.mark.parametrize("mode", [Mode.PLANNED, pytest.param(Mode.UNPLANNED, marks=pytest.mark.slow)])
def test_one_of_two_that_came_home_goes_again_alone(
    pair: Pair, tmp_path: Path, second: tuple[str, str], mode: Mode
) -> None:
    """Nobody writes the other one's topic on the destination; and whose right was revoked since, not its own either."""
    orders, payments = app_topic(pair), app_topic(pair)
    for topic in (orders, payments):
        grant(pair.east, second[0], ResourceType.TOPIC, topic, [AclOperation.WRITE])
        produce(pair.east, topic, 10)
    made = [new_mirror(pair, tmp_path / name, topic) for name, topic in (("o", orders), ("p", payments))]
    for mirrored in made:
        mirrored.copy()
        with writer_of(mirrored.link) as writer:
            sync(mirrored.link, writer)
        there_and_home(mirrored)
    assert right(orders, second) not in rights_of(pair.west), "what promotion gave ended with the way home"

    revoke(pair.east, right(orders, second))
    with writer_of(made[0].link) as writer:
        sync(made[0].link, writer, only=frozenset({Part.TOPICS, Part.ACLS}))
    failover = made[0].failover
    failover.drive(begin(failover) if mode is Mode.PLANNED else give_up(failover).id)

    assert not denied(pair.west, orders)
    assert refused(pair.west, orders, second)
    for topic in (orders, payments):
        assert denied(pair.east, topic) is (topic == orders)
    assert denied(pair.west, payments)
    assert refused(pair.west, payments, second)
    assert not refused(pair.east, payments, second)
    made[1].copy()


def test_a_right_that_was_revoked_on_the_new_primary_is_not_given_at_home(
    pair: Pair, tmp_path: Path, second: tuple[str, str]
) -> None:
    topic = app_topic(pair)
    grant(pair.east, second[0], ResourceType.TOPIC, topic, [AclOperation.WRITE])
    produce(pair.east, topic, 10)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    mirrored.failover.drive(begin(mirrored.failover))
    assert not refused(pair.west, topic, second)
    revoke(pair.west, right(topic, second))
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    failback.drive(run.id)
    home = failback.home().plan(Mode.PLANNED)
    assert [w for w in home.warnings if f"User:{second[0]}" in w and "west has withdrawn the right" in w]
    go_home(failback, run.id)
    assert not denied(pair.east, topic)
    assert refused(pair.east, topic, second)
    assert right(topic, second) in rights_of(pair.east), "not ours to take away"
