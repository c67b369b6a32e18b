"""Two mirrors between the same clusters: what one of them does with rights is nothing to the other one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.kafka.acl_requests import delete_acls, wait_until_acls_absent
from mirror_core.model.acl import Acl, Operation, Resource
from mirror_core.model.run import RunMode, RunState
from mirror_core.model.sync_state import SyncCategory
from mirror_core.rights.required_acls import is_allowed
from mirror_core.sync.mirror_sync import sync_mirror
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from mirrorbook_tools.sandbox.credentials import scram_config
from tests.cluster.links import writer_of
from tests.support import kafka_clients
from tests.support.cluster_admin import as_admin, rights_of
from tests.support.failback_runs import failback_of, go_home
from tests.support.failover_runs import app_topic, begin, denied
from tests.support.kafka_clients import Pair, grant, produce
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.unplanned_runs import begin as give_up

pytestmark = pytest.mark.cluster


@pytest.fixture
def second(pair: Pair) -> Iterator[tuple[str, str]]:
    """Another application that both clusters know."""
    user = kafka_clients.new_user(pair.east, pair.west)
    yield user
    for cluster in (pair.east, pair.west):
        kafka_clients.forget_user(cluster, user[0])


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
        wait_until_acls_absent(client, [acl])


def there(mirrored: Mirrored) -> None:
    assert mirrored.failover.drive(begin(mirrored.failover)).state is RunState.DONE


def home(mirrored: Mirrored, before_the_end: Callable[[], None] = lambda: None) -> None:
    """`before_the_end`: when applications are home, and the mirror has not begun again."""
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    failback.drive(run.id)
    way = failback.make_reverse_failover()
    assert way.drive(way.begin(way.plan(RunMode.PLANNED).hash).id).state is RunState.DONE
    before_the_end()
    assert failback.drive(run.id).state is RunState.DONE
    mirrored.copy()


def there_and_home(mirrored: Mirrored) -> None:
    there(mirrored)
    home(mirrored)


def two(pair: Pair, folder: Path, second: tuple[str, str]) -> tuple[Mirrored, Mirrored, str, str]:
    """Two mirrors of a topic each, which both applications may write on east; and the topics."""
    orders, payments = app_topic(pair), app_topic(pair)
    for topic in (orders, payments):
        grant(pair.east, second[0], ResourceType.TOPIC, topic, [AclOperation.WRITE])
        produce(pair.east, topic, 10)
    one, other = (new_mirror(pair, folder / topic, topic) for topic in (orders, payments))
    for mirrored in (one, other):
        mirrored.copy()
        with writer_of(mirrored.link) as writer:
            sync_mirror(mirrored.link, writer)
    return one, other, orders, payments


@pytest.mark.parametrize("mode", [RunMode.PLANNED, pytest.param(RunMode.UNPLANNED, marks=pytest.mark.slow)])
def test_one_of_two_that_came_home_goes_again_alone(
    pair: Pair, tmp_path: Path, second: tuple[str, str], mode: RunMode
) -> None:
    """Nobody writes the other one's topic on the destination; and whose right was revoked since, not its own either.

    Nor does whose right was granted there, went home with the applications, and was revoked before the mirror began
    again.
    """
    one, other, orders, payments = two(pair, tmp_path, second)
    third = right(orders, ("third", ""))
    there(one)
    grant(pair.west, "third", ResourceType.TOPIC, orders, [AclOperation.WRITE])
    home(one, before_the_end=lambda: revoke(pair.east, third))
    there_and_home(other)
    assert right(orders, second) not in rights_of(pair.west), "what promotion gave ended with the way home"

    revoke(pair.east, right(orders, second))
    with writer_of(one.link) as writer:
        sync_mirror(one.link, writer, only=frozenset({SyncCategory.TOPICS, SyncCategory.ACLS}))
    failover = one.failover
    failover.drive(begin(failover) if mode is RunMode.PLANNED else give_up(failover).id)

    assert not denied(pair.west, orders)
    assert refused(pair.west, orders, second)
    assert not is_allowed(rights_of(pair.west), third.principal, third.resource, orders, third.operation)
    for topic in (orders, payments):
        assert denied(pair.east, topic) is (topic == orders)
    assert denied(pair.west, payments)
    assert refused(pair.west, payments, second)
    assert not refused(pair.east, payments, second)
    other.copy()


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
    home = failback.make_reverse_failover().plan(RunMode.PLANNED)
    assert [w for w in map(str, home.warnings) if f"User:{second[0]}" in w and "west has withdrawn the right" in w]
    go_home(failback, run.id)
    assert not denied(pair.east, topic)
    assert refused(pair.east, topic, second)
    assert right(topic, second) in rights_of(pair.east), "not ours to take away"


@pytest.mark.slow  # what each step does is seen above; the order of many is tried in memory
def test_both_go_there_and_home_twice_one_within_the_other_while_rights_are_revoked(
    pair: Pair, tmp_path: Path, second: tuple[str, str]
) -> None:
    orders_mirror, payments_mirror, orders, payments = two(pair, tmp_path, second)
    both = (orders, payments)
    revoke(pair.east, right(orders, second))
    there(orders_mirror)
    grant(pair.west, second[0], ResourceType.TOPIC, orders, [AclOperation.WRITE])
    there(payments_mirror)
    revoke(pair.west, right(payments, second))
    assert [refused(pair.west, topic, second) for topic in both] == [False, True]
    home(orders_mirror, before_the_end=lambda: revoke(pair.east, right(orders, second)))
    assert [denied(pair.west, topic) for topic in both] == [True, False]
    home(payments_mirror)
    assert [(denied(pair.east, t), denied(pair.west, t)) for t in both] == [(False, True)] * 2

    there(orders_mirror)
    assert [denied(pair.west, topic) for topic in both] == [False, True]
    there(payments_mirror)
    for topic in both:
        assert not denied(pair.west, topic)
        assert refused(pair.west, topic, second), f"nobody grants {second[0]} {topic} any more"
    home(payments_mirror)
    assert [denied(pair.west, topic) for topic in both] == [False, True]
    home(orders_mirror)
    assert [(denied(pair.east, t), denied(pair.west, t)) for t in both] == [(False, True)] * 2
    assert [refused(pair.east, topic, second) for topic in both] == [True, True]
