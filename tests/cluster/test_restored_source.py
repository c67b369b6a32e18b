"""What an older history of the source left behind: requests on their way, and a cluster restored from a backup."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import NewPartitions

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Principal
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.produce_link import ProduceBatch, ProduceLink, Tag
from mirror_core.mirrors import mirror_commands
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Partition
from mirror_core.model.run import RunMode
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from mirrorbook_tools.sandbox.jars import ensure_jars
from tests.drill.one_task import one_task
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client, new_topic, produce, read_all
from tests.support.log_cutting import batch_of_100, lose_tails
from tests.support.log_shapes import Row as Record
from tests.support.log_shapes import new_producer, send
from tests.support.mirrored_topics import Mirrored, new_mirror, replicate
from tests.support.sentences import format_sentence
from tests.support.separate_cluster import in_place_of
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill]

Rows = list[ProduceBatch[object]]
SEND = ProduceLink.send


@contextmanager
def before_sending(monkeypatch: pytest.MonkeyPatch, act: Callable[[Rows], bool]) -> Iterator[None]:
    """What is done before a task's batches are sent; it says whether they are."""

    def send_perhaps(link: ProduceLink[Tag], rows: Sequence[ProduceBatch[Tag]], patience_s: float) -> None:
        if act([ProduceBatch(row.topic, row.partition, memoryview(bytes(row.batch)), "late") for row in rows]):
            SEND(link, rows, patience_s)

    with monkeypatch.context() as patched:
        patched.setattr(ProduceLink, "send", send_perhaps)
        yield


def arrive(mirrored: Mirrored, rows: Rows) -> None:
    """They come out of the socket of the destination in which they have waited."""
    with ClusterClient(mirrored.link.destination, Principal.DATA) as client:
        [broker] = client.brokers()
        with Connection(client.config, client.principal, *client.address(broker)) as connection:
            link = ProduceLink[object](connection)
            SEND(link, rows)
            while link.in_flight:
                assert [answer.error for _, answer in link.read_responses()] == [0] * len(rows), "the broker takes them"


def test_a_batch_of_an_older_history_that_lands_after_the_place_was_taken_up_is_found(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its like, for which it is taken as a repetition, and by a batch that has other bounds."""
    alike, other = topics = [new_topic(pair.east, retention_ms="-1") for _ in range(2)]
    partitions = [Partition(topic, 0) for topic in topics]
    for topic in topics:
        for first in (0, 100, 200):
            batch_of_100(pair.east, topic, first)
    mirrored = new_mirror(pair, tmp_path, *topics)
    mirrored.copy()

    waiting: Rows = []

    def wait_in_the_socket(rows: Rows) -> bool:
        waiting.extend(rows)
        return False

    for topic in topics:
        batch_of_100(pair.east, topic, 300)
    with before_sending(monkeypatch, wait_in_the_socket), one_task(mirrored, partitions):
        wait_until(lambda: len(waiting) == 2, timeout_s=TIMEOUT_S, why="both batches are on their way")
    lose_tails(pair.east, dict.fromkeys(topics, 300))
    together = new_producer(pair.east, linger_ms="1000")
    send(together, alike, [Record(value=b"new", timestamp_ms=1_700_000_000_300 + n) for n in range(100)])
    send(together, other, [Record(value=b"new") for n in range(150)])

    def land_first(rows: Rows) -> bool:
        for row in rows:
            arrive(mirrored, [late for late in waiting if late.topic == row.topic])
            waiting[:] = [late for late in waiting if late.topic != row.topic]
        return True

    with (
        before_sending(monkeypatch, land_first),
        one_task(mirrored, partitions, dict.fromkeys(partitions, 400)) as task,
    ):
        failures = {failure.partition: failure for failure in task.ends().failures}
    assert set(failures) == set(partitions)
    for partition, failure in failures.items():
        assert (failure.kind, failure.offset) == (FailureKind.DIVERGED, 300), failure.reason
        assert len(read_all(pair.west, partition.topic)) == 400, "nothing of the new history came behind it"


@pytest.fixture(scope="module")
def restorable(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with in_place_of(pair, "east", tmp_path_factory.mktemp("restorable"), ensure_jars()) as found:
        yield found


def restart(cluster: SandboxCluster, between: Callable[[], object] = lambda: None) -> None:
    cluster.terminate()
    try:
        between()
    finally:
        cluster.start()


def leader_epoch(cluster: SandboxCluster, mirrored: Mirrored, topic: str) -> int:
    with ClusterClient(mirrored.config.cluster(cluster.name)) as client:
        return client.metadata([topic]).topics[topic].partitions[0].epoch


def test_a_source_restored_from_a_backup_that_has_grown_past_the_position_is_not_believed(
    restorable: Pair, tmp_path: Path
) -> None:
    east = restorable.east
    grown, same = topics = [new_topic(east, retention_ms="-1") for _ in range(2)]
    for topic in topics:
        for first in (0, 100, 200):
            batch_of_100(east, topic, first)
    restart(east, lambda: shutil.copytree(east.log_dir(), tmp_path / "backup"))
    restart(east)
    mirrored = new_mirror(restorable, tmp_path, *topics)
    for topic in topics:
        batch_of_100(east, topic, 300)
    mirrored.copy()
    vouched = {status.source_epoch for status in mirrored.statuses.values()}

    def restore() -> None:
        shutil.rmtree(east.log_dir())
        shutil.copytree(tmp_path / "backup", east.log_dir())

    restart(east, restore)
    assert max(leader_epoch(east, mirrored, topic) for topic in topics) < min(e for e in vouched if e is not None)
    produce(east, grown, 250)
    batch_of_100(east, same, 300)
    produce(east, same, 50)

    assert set(replicate(mirrored.link).failed) == {Partition(grown, 0)}
    status = mirrored.statuses[Partition(grown, 0)]
    assert (status.kind, status.failed_at) == (FailureKind.DIVERGED, 300), status.reason
    assert len(read_all(restorable.west, grown)) == 400, "nothing of the other history was added"
    assert read_all(restorable.west, same) == read_all(east, same)


@pytest.mark.parametrize("data_plane", [True, False], ids=["data plane", "sync"])
def test_partitions_that_a_restored_source_does_not_have_any_more_are_only_on_the_destination(
    restorable: Pair, tmp_path: Path, data_plane: bool
) -> None:
    """Nobody is told to delete their copy, and a planned failover waits for none of them."""
    east, topic = restorable.east, new_topic(restorable.east, 2, retention_ms="-1")
    produce(east, topic, 50)
    restart(east, lambda: shutil.copytree(east.log_dir(), tmp_path / "backup"))
    admin = admin_client(east)
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(TIMEOUT_S)
    mirrored, lost = new_mirror(restorable, tmp_path, topic), Partition(topic, 2)
    wait_until(lambda: len(list_partitions(east, topic)) == 3, timeout_s=TIMEOUT_S, why="it is wider")
    produce(east, topic, 70, partition=2)
    mirrored.copy()

    def restore() -> None:
        shutil.rmtree(east.log_dir())
        shutil.copytree(tmp_path / "backup", east.log_dir())

    restart(east, restore)
    copies = {Partition(topic, index) for index in range(3)}
    if data_plane:
        assert set(replicate(mirrored.link).failed) == copies
    else:
        mirror_commands.run_sync(mirrored.link)
        assert {p for p, status in mirrored.statuses.items() if status.kind is FailureKind.DIVERGED} == copies
    status = mirrored.statuses[lost]
    assert (status.kind, status.reason) == (
        FailureKind.DIVERGED,
        format_sentence("topic_has_lost_partitions", topic, 2, 3),
    )
    decision = mirrored.failover.decide(RunMode.PLANNED)
    assert lost not in decision.scope.drained
    assert len([record for record in read_all(restorable.west, topic) if record.partition == 2]) == 70


def list_partitions(cluster: SandboxCluster, topic: str) -> list[int]:
    found = admin_client(cluster).list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
    return [index for index, partition in found.items() if partition.leader >= 0]
