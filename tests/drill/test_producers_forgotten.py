"""A destination that forgets producers at once: what brokers do to a mirror that copies old records.

Brokers count a producer's age from its newest batch's timestamps. Copied records are old; so without
producer.id.expiration.ms in server.properties the mirror's sequences are forgotten again and again, while it copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, AclPermissionType, ResourceType

from mirror_core.copy.log_comparisons import MAX_SHORT_COMPARISONS
from mirror_core.kafka.topics import alter_configs
from mirror_core.model.mirror import FailureKind
from mirror_core.model.run import RunMode
from mirrorbook_tools.sandbox.jars import ensure_jars
from tests.drill.one_task import one_task
from tests.support.cluster_admin import as_admin
from tests.support.expired_producers import Application, Looked, caught_up, forgotten
from tests.support.gap_logs import transactional
from tests.support.kafka_clients import TIMEOUT_S, Pair, grant, produce, read_all
from tests.support.log_shapes import Row, send
from tests.support.mirrored_topics import new_mirror, replicate
from tests.support.separate_cluster import in_place_of
from tests.support.topic_equality import assert_same
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill]

DENY = AclPermissionType.DENY


@pytest.fixture(scope="module")
def forgetful(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    # It looks for old producers every 10 minutes otherwise, counted from when the log was opened.
    often = {"producer.id.expiration.check.interval.ms": "200"}
    with in_place_of(pair, "west", tmp_path_factory.mktemp("forgetful"), ensure_jars(), often) as found:
        yield found


def everything_in_each_order(app: Application) -> Iterator[None]:
    """Two rounds: data, a committed transaction, an aborted one, each behind each of them in some partition."""
    actions = (app.plain, app.transact, app.abort)
    for power in (1, 3):
        for number, action in enumerate(actions):
            action([p.index for p in app.partitions if p.index // power % 3 == number])
        yield


def test_what_is_forgotten_between_two_copiers_is_copied_on(forgetful: Pair, tmp_path: Path) -> None:
    app = Application(forgetful, 9)
    mirrored = new_mirror(forgetful, tmp_path, app.topic)
    for _ in everything_in_each_order(app):
        mirrored.copy()
        forgotten(mirrored, app.partitions)
    app.plain(range(9))
    mirrored.copy()
    assert_same(forgetful, [app.topic])


def test_what_is_forgotten_under_a_copier_is_copied_on(forgetful: Pair, tmp_path: Path) -> None:
    app = Application(forgetful, 9)
    mirrored = new_mirror(forgetful, tmp_path, app.topic)
    app.transact(range(9))
    mirrored.copy()
    with one_task(mirrored, app.partitions) as task:
        for number, _ in enumerate(everything_in_each_order(app)):
            caught_up(mirrored, app.partitions)
            forgotten(mirrored, app.partitions)
            if number == 0:  # in order: it writes down what it knows of producers, and reads it back
                forgetful.west.terminate()
                forgetful.west.start()
        app.plain(range(9))
        caught_up(mirrored, app.partitions)
        assert task.ended().failures == ()
    mirrored.copy()
    assert_same(forgetful, [app.topic])


def test_what_is_refused_after_a_rest_is_not_followed_by_what_comes_behind_it(forgetful: Pair, tmp_path: Path) -> None:
    """A leader that has forgotten would take the second batch in the place of the first one."""
    app = Application(forgetful, 1)
    [partition] = app.partitions
    mirrored = new_mirror(forgetful, tmp_path, app.topic)
    app.plain([0])
    mirrored.copy()
    with as_admin(forgetful.west) as client:
        alter_configs(client, {app.topic: {"max.message.bytes": "20000"}})
    with one_task(mirrored, app.partitions) as task:
        app.plain([0])
        caught_up(mirrored, app.partitions)
        forgotten(mirrored, app.partitions)
        wait_until(lambda: task.rests(partition), timeout_s=TIMEOUT_S, why="it has had nothing to do for a while")
        producer = transactional(forgetful.east)
        producer.begin_transaction()  # so that both batches are there at once
        send(producer, app.topic, [Row(value=bytes(50_000))])
        send(producer, app.topic, [Row(value=b"small")])
        producer.commit_transaction(TIMEOUT_S)
        [failure] = task.ends().failures
    assert (failure.kind, failure.offset) == (FailureKind.REFUSED, 40), failure.reason
    assert "raise max.message.bytes" in failure.reason
    assert len(read_all(forgetful.west, app.topic)) == 40, "nothing landed where it does not belong"


def test_a_strangers_record_is_found_by_whoever_copies_next(forgetful: Pair, tmp_path: Path) -> None:
    app = Application(forgetful, 5)
    idle, gap, data, several, known = app.partitions
    mirrored = new_mirror(forgetful, tmp_path, app.topic)
    app.plain(range(5), 10)
    app.transact([several.index], 10)
    mirrored.copy()
    forgotten(mirrored, app.partitions)
    for partition, count in ((idle, 1), (gap, 1), (data, 1), (several, 7)):
        produce(forgetful.west, app.topic, count, partition=partition.index)
    app.abort([gap.index])  # where the stranger's record is, the source has none
    app.plain([data.index, several.index])
    app.plain([known.index])
    found = replicate(mirrored.link).failed
    expected = {idle: 10, gap: 10, data: 10, several: 21}
    assert set(found) == set(expected)
    for partition, offset in expected.items():
        status = mirrored.statuses[partition]
        assert (status.kind, status.failed_at) == (FailureKind.FOREIGN, offset), status.reason
        assert f"offset {offset} was not written by this mirror" in found[partition]


def test_a_strangers_record_under_a_copier_is_found(forgetful: Pair, tmp_path: Path) -> None:
    app = Application(forgetful, 2)
    gap, data = app.partitions
    mirrored = new_mirror(forgetful, tmp_path, app.topic)
    app.plain(range(2), 10)
    mirrored.copy()
    with one_task(mirrored, app.partitions) as task:
        app.plain(range(2), 10)
        caught_up(mirrored, app.partitions)
        forgotten(mirrored, app.partitions)
        for partition in app.partitions:
            produce(forgetful.west, app.topic, 1, partition=partition.index)
        app.abort([gap.index])
        app.plain([data.index])
        report = task.ends()
    expected = dict.fromkeys(app.partitions, (FailureKind.FOREIGN, 20))
    assert {failure.partition: (failure.kind, failure.offset) for failure in report.failures} == expected


def test_idle_partitions_are_looked_at_once_there_is_something_to_copy(
    forgetful: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Application(forgetful, 60)
    mirrored = new_mirror(forgetful, tmp_path, app.topic)
    app.plain(range(60), 5)
    mirrored.copy()
    looked = Looked(monkeypatch)
    for _ in range(2):  # as one epoch after the other does
        forgotten(mirrored, app.partitions)
        with one_task(mirrored, app.partitions):
            app.plain([7], 5)
            caught_up(mirrored, app.partitions)
    assert looked.at == [app.partitions[7]] * 2, "of the others nothing was to be copied"
    forgotten(mirrored, app.partitions)
    looked.at.clear()
    looked.by.clear()
    with one_task(mirrored, app.partitions):
        app.plain(range(60), 5)
        caught_up(mirrored, app.partitions)
    assert sorted(set(looked.at)) == app.partitions
    assert len(looked.by) <= MAX_SHORT_COMPARISONS, "they share connections"
    assert_same(forgetful, [app.topic])


def test_behind_the_fence_nobody_looks_at_the_ends_that_the_run_has_compared(
    forgetful: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Application(forgetful, 20)
    mirrored = new_mirror(forgetful, tmp_path, app.topic)
    app.plain(range(20), 5)
    mirrored.copy()
    failover = mirrored.failover
    run = failover.begin(failover.plan(RunMode.PLANNED).hash, RunMode.PLANNED)
    failover.run_steps(run.id, ("prove",))
    forgotten(mirrored, app.partitions)
    app.plain([7], 5)
    looked = Looked(monkeypatch)
    failover.run_steps(run.id, ("fence", "drain"))
    assert looked.at == [app.partitions[7]], "there was something to copy"
    failover.run_steps(run.id, ("final_sync", "parity"))
    failover.abort(run.id)
    assert_same(forgetful, [app.topic])


def test_what_may_not_be_read_holds_up_no_other_topic(forgetful: Pair, tmp_path: Path) -> None:
    """Where a leader has forgotten, the log's end is read back: a right that this takes is missing for one of them."""
    denied, other = Application(forgetful, 2), Application(forgetful, 2)
    mirrored = new_mirror(forgetful, tmp_path, denied.topic, other.topic)
    for app in (denied, other):
        app.plain(range(2))
    mirrored.copy()
    forgotten(mirrored, [*denied.partitions, *other.partitions])
    grant(forgetful.west, "mirror-data", ResourceType.TOPIC, denied.topic, [AclOperation.READ], permission=DENY)
    for app in (denied, other):
        app.plain(range(2))
    failed = replicate(mirrored.link).failed
    assert set(failed) == set(denied.partitions)
    assert {mirrored.statuses[p].kind for p in denied.partitions} == {FailureKind.DENIED}
    assert all(f"cluster west, topic {denied.topic}: mirror-data may not READ it" in words for words in failed.values())
    assert_same(forgetful, [other.topic])
