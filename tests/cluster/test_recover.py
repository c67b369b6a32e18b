"""`mirror recover`: for each sort of failure that can be made, what it shows, what it refuses, and that it mends.

One of each way runs always; the others are drills, for their number.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic

from mirror_core.dataplane.epoch_planner import Planner
from mirror_core.decide.failure_remedies import RecoveryAction
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.topics import create_partitions, delete_records, delete_topic
from mirror_core.mirrors import partition_recovery
from mirror_core.mirrors.recovery_plan import plan_recovery
from mirror_core.model.errors import Refused, RemoteFault
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import FailureKind, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.parity import salvage
from mirror_core.state.lease import acquire_lease
from mirror_core.state.writer import StateWriter, make_control_id, make_data_id
from mirror_core.wire.batch import HEADER_SIZE, split_batches
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.cluster.desk import Desk, Said
from tests.support.cluster_admin import alter_topic
from tests.support.kafka_clients import TIMEOUT_S, Record, admin_client, new_topic, produce, read_all
from tests.support.mirrored_topics import Mirrored, replicate
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

BYTES = re.compile(r"\([\d,]+ bytes\)")
BY_NAME = "ask for it by name: --action"


def recover(desk: Desk, mirrored: Mirrored, *options: str) -> Said:
    said = desk.run("mirror", "recover", mirrored.name, *options)
    return Said(said.code, BYTES.sub("(N bytes)", said.out), said.err)


def copied(desk: Desk, *, partitions: int = 1, count: int = 100) -> tuple[Mirrored, str]:
    topic = new_topic(desk.pair.east, partitions)
    for index in range(partitions):
        produce(desk.pair.east, topic, count, partition=index)
    mirrored = desk.started(topic)
    mirrored.copy()
    return mirrored, topic


def failed(mirrored: Mirrored, topic: str, kind: FailureKind, index: int = 0) -> PartitionStatus:
    """Replicate; exactly this partition is FAILED, and of this kind."""
    assert set(replicate(mirrored.link).failed) == {Partition(topic, index)}
    status = mirrored.statuses[Partition(topic, index)]
    assert (status.state, status.kind) == (PartitionState.FAILED, kind)
    return status


def equal_again(desk: Desk, mirrored: Mirrored, topic: str) -> None:
    mirrored.copy()
    assert read_all(desk.pair.east, topic) == read_all(desk.pair.west, topic) != []
    assert {s.state for s in mirrored.statuses.values()} == {PartitionState.MIRRORING}
    assert {s.reason for s in mirrored.statuses.values()} == {None}


def delete(cluster: SandboxCluster, topic: str) -> None:
    admin = admin_client(cluster)
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    wait_until(lambda: topic not in topics_of(cluster), timeout_s=TIMEOUT_S, why=f"{topic} is gone")


def topics_of(cluster: SandboxCluster) -> Collection[str]:
    return admin_client(cluster).list_topics(timeout=TIMEOUT_S).topics


def as_admin(cluster: SandboxCluster) -> ClusterClient:
    properties = cluster.client_config("admin")
    return ClusterClient(ClusterConfig(ClusterName(cluster.name), properties, properties))


def commit(cluster: SandboxCluster, group: str, topic: str) -> None:
    consumer = Consumer({**cluster.client_config("admin"), "group.id": group, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
    consumer.close()


# -- foreign: a recopy, by name only -------------------------------------------------------------------------------


def test_a_foreign_record_is_recopied_after_its_price_was_shown_and_only_when_asked_by_name(desk: Desk) -> None:
    mirrored, topic = copied(desk, partitions=2)
    commit(desk.pair.west, f"g-{topic}", topic)
    produce(desk.pair.west, topic, 3)
    failed(mirrored, topic, FailureKind.FOREIGN)
    shown = format_sentence("recover_foreign_offset", topic, 100, "west", topic, 100, 3, 100, "west")
    cost = format_sentence("recopy_costs", topic, 203, "west", 200, 2, "east", topic)
    before = desk.traces()
    assert recover(desk, mirrored, "--yes") == Said(
        3,
        f"{shown}  not now: {BY_NAME} recopy\n{cost}",
        f"error: mirror {mirrored.name}: recover:\n  - {topic}-0: {BY_NAME} recopy\n",
    )
    assert recover(desk, mirrored, "--action", "recopy", "--dry-run") == Said(0, shown + cost, "")
    assert desk.traces() == before
    assert recover(desk, mirrored, "--action", "recopy", "--topics", f"{topic[:-1]}.", "--yes") == Said(
        0, f"{shown}{cost}{topic}: deleted on cluster west; the next epoch copies it anew\n", ""
    )
    assert topic not in topics_of(desk.pair.west)
    assert mirrored.statuses == {}
    equal_again(desk, mirrored, topic)


def test_a_new_partition_that_somebody_wrote_to_is_never_taken_for_the_copy(
    desk: Desk,
) -> None:
    """Also where the source has nothing below its end, so that no comparison shows it: nothing is deleted there."""
    pair = desk.pair
    cases = ("empty", "all deleted", "below the first record", "other records", "nobody wrote")
    topics = {case: new_topic(pair.east) for case in cases}
    for topic in topics.values():
        produce(pair.east, topic, 20)
    mirrored = desk.started(*topics.values())
    mirrored.copy()
    foreign = dict[str, list[Record]]()
    with as_admin(pair.west) as west, as_admin(pair.east) as east:
        for side in (west, east):
            create_partitions(side, dict.fromkeys(topics.values(), 2))
        for case, topic in topics.items():
            new = Partition(topic, 1)
            foreign[case] = produce(pair.west, topic, 5, partition=1) if case != "nobody wrote" else []
            if case != "empty":
                produce(pair.east, topic, 5, partition=1)
            if case in ("all deleted", "below the first record"):
                delete_records(east, {new: Offset(5)})
            if case in ("below the first record", "other records"):
                produce(pair.east, topic, 3, partition=1)
    written = {case: Partition(topic, 1) for case, topic in topics.items() if case != "nobody wrote"}
    assert set(replicate(mirrored.link).failed) == set(written.values())
    for case, partition in written.items():
        status = mirrored.statuses[partition]
        assert (status.state, status.kind, status.failed_at) == (PartitionState.FAILED, FailureKind.FOREIGN, 0), case
        assert "ended at offset 5 before this mirror copied anything to it" in str(status.reason)
        assert [r for r in read_all(pair.west, partition.topic) if r.partition == 1] == foreign[case], case
    assert read_all(pair.west, topics["nobody wrote"]) == read_all(pair.east, topics["nobody wrote"])
    other = topics["other records"]
    said = recover(desk, mirrored, "--action", "recopy", "--topics", other, "--yes")
    assert said.code == 0, said
    assert set(replicate(mirrored.link).failed) == set(written.values()) - {Partition(other, 1)}
    assert read_all(pair.east, other) == read_all(pair.west, other)


def test_partitions_that_only_the_destination_has_are_shown_and_saved_before_a_recopy_deletes_them(
    desk: Desk, tmp_path: Path
) -> None:
    mirrored, topic = copied(desk)
    foreign = produce(desk.pair.west, topic, 2)
    failed(mirrored, topic, FailureKind.FOREIGN)
    admin = admin_client(desk.pair.west)

    def widen(width: int) -> None:
        admin.create_partitions([NewPartitions(topic, width)])[topic].result(TIMEOUT_S)
        last = width - 1
        wait_until(
            lambda: last in (seen := admin.list_topics(topic).topics[topic].partitions) and seen[last].leader >= 0,
            timeout_s=TIMEOUT_S,
            why=f"{topic}-{last} has a leader",
        )

    widen(2)
    foreign += produce(desk.pair.west, topic, 5, partition=1)
    with ClusterClient(mirrored.config.cluster("west")) as client:
        before = client.metadata([topic]).topics[topic].id
    told = recover(desk, mirrored, "--action", "recopy", "--dry-run")
    assert format_sentence("recover_loses_offsets_too", 5, topic, 0, "west") in told.out
    seen = plan_recovery(mirrored.link, mirrored.state, None, RecoveryAction.RECOPY)
    widen(3)
    produce(desk.pair.west, topic, 1, partition=2)
    with pytest.raises(Refused, match=f"{topic}-2 has grown from 0 to 1"):
        partition_recovery.recover_partitions(mirrored.link, seen, print)
    with ClusterClient(mirrored.config.cluster("west")) as client:
        assert client.metadata([topic]).topics[topic].id == before
    folder = tmp_path / "saved"
    assert recover(desk, mirrored, "--action", "recopy", "--salvage", str(folder), "--yes").code == 0
    rows = [row for path in folder.rglob("*.parquet") for row in pq.read_table(path).to_pylist()]
    assert {(row["partition"], row["value"]) for row in rows} >= {(r.partition, r.value) for r in foreign}
    assert len(rows) == len(foreign) + 1
    equal_again(desk, mirrored, topic)


def test_a_retry_that_cannot_help_is_refused(desk: Desk) -> None:
    mirrored, topic = copied(desk)
    produce(desk.pair.west, topic, 1)
    failed(mirrored, topic, FailureKind.FOREIGN)
    said = recover(desk, mirrored, "--action", "retry", "--yes")
    why = format_sentence("retry_does_not_help_somebody_else")
    assert (said.code, said.err) == (3, f"error: mirror {mirrored.name}: recover:\n  - {topic}-0: {why}\n")
    assert recover(desk, mirrored, "--topics", "t-other") == Said(0, "no partition is FAILED\n", "")
    assert recover(desk, mirrored, "--topics", "(") == Said(
        2,
        "",
        format_sentence("topics_option_not_re2", "("),
    )


@pytest.mark.drill
def test_nothing_is_recopied_while_somebody_copies(desk: Desk) -> None:
    mirrored, topic = copied(desk)
    produce(desk.pair.west, topic, 1)
    failed(mirrored, topic, FailureKind.FOREIGN)
    lease = acquire_lease(mirrored.link.destination, mirrored.name, "another-host/1/x")
    try:
        said = recover(desk, mirrored, "--action", "recopy", "--yes")
        reason = f"{topic}-0: {Finding('recopy_while_copying', mirrored.name, owner='another-host/1/x')}"
        assert (said.code, said.err) == (3, f"error: mirror {mirrored.name}: recover:\n  - {reason}\n")
        assert len(read_all(desk.pair.west, topic)) == 101
    finally:
        lease.release()
    assert desk.run("mirror", "pause", mirrored.name).code == 0
    assert recover(desk, mirrored, "--action", "recopy", "--yes").code == 0
    assert desk.run("mirror", "resume", mirrored.name).code == 0
    equal_again(desk, mirrored, topic)


@pytest.mark.drill
def test_what_was_not_saved_is_not_deleted(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrored, topic = copied(desk)
    produce(desk.pair.west, topic, 3)
    failed(mirrored, topic, FailureKind.FOREIGN)
    folder = tmp_path / "salvage"
    said = recover(desk, mirrored, "--salvage", str(folder), "--yes")
    assert said == Said(2, "", "error: --salvage saves what a recopy would delete: add --action recopy\n")
    anew = "--action", "recopy", "--salvage", str(folder), "--yes"
    with monkeypatch.context() as patched:
        patched.setattr(salvage, "read_record_batches", lambda task: iter(()))
        said = recover(desk, mirrored, *anew)
        assert said.code == 1
        assert f"{topic}-0: 0 saved, 3 in the log" in said.err
    real = partition_recovery.salvage_lost_records

    def save_and_grow(*arguments: Any) -> None:
        real(*arguments)
        produce(desk.pair.west, topic, 1)

    with monkeypatch.context() as patched:
        patched.setattr(partition_recovery, "salvage_lost_records", save_and_grow)
        said = recover(desk, mirrored, *anew)
        assert said.code == 3
        assert f"{topic}-0 has grown from 103 to 104 since you were asked" in said.err
    assert mirrored.statuses[Partition(topic, 0)].kind is FailureKind.FOREIGN
    assert len(read_all(desk.pair.west, topic)) == 104
    said = recover(desk, mirrored, *anew)
    assert said.code == 3, "another range than the one in the folder"
    assert f"{folder} holds a salvage of other ranges" in said.err
    assert recover(desk, mirrored, "--action", "recopy", "--salvage", str(tmp_path / "more"), "--yes").code == 0
    assert [row["offset"] for p in (tmp_path / "more").glob("*.parquet") for row in pq.read_table(p).to_pylist()] == [
        *range(100, 104)
    ]
    equal_again(desk, mirrored, topic)


# -- a recopy that is interrupted ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("deleted", [pytest.param(False, marks=pytest.mark.drill), True])
def test_a_recopy_that_was_killed_is_finished_by_the_next_and_left_alone_by_copiers(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, deleted: bool
) -> None:
    mirrored, topic = copied(desk, partitions=2)
    produce(desk.pair.west, topic, 1)
    failed(mirrored, topic, FailureKind.FOREIGN)

    def dies(client: ClusterClient, name: str, topic_id: str) -> None:
        if deleted:
            delete_topic(client, name, topic_id)
        raise RemoteFault("killed here")

    with monkeypatch.context() as patched:
        patched.setattr(partition_recovery, "delete_topic", dies)
        assert recover(desk, mirrored, "--action", "recopy", "--yes").err == "error: killed here\n"
    assert {s.kind for s in mirrored.statuses.values()} == {FailureKind.RECOPYING}
    assert set(replicate(mirrored.link).failed) == {Partition(topic, 0), Partition(topic, 1)}
    assert len(read_all(desk.pair.west, topic)) == (0 if deleted else 201)
    said = recover(desk, mirrored, "--yes")
    kind = "replaced" if deleted else "recopying"
    assert said.code == 3, "not even the rest of a recopy without being asked by name"
    assert (format_sentence("topic_is_being_copied_anew", topic, kind, topic, "west", mirrored.name, topic)) in said.out
    assert recover(desk, mirrored, "--topics", topic, "--action", "recopy", "--yes").code == 0
    equal_again(desk, mirrored, topic)


@pytest.mark.drill
def test_a_recopy_that_has_not_deleted_yet_can_be_given_up(desk: Desk) -> None:
    mirrored, topic = copied(desk)
    produce(desk.pair.west, topic, 1)
    failed(mirrored, topic, FailureKind.FOREIGN)
    seen = plan_recovery(mirrored.link, mirrored.state, None, RecoveryAction.RECOPY)
    with StateWriter(mirrored.link.destination, make_control_id(mirrored.name)) as writer:
        partition_recovery.record_recopy(mirrored.link, writer, seen.costs[0])
    assert recover(desk, mirrored, "--action", "retry", "--yes").code == 0
    failed(mirrored, topic, FailureKind.FOREIGN)
    assert len(read_all(desk.pair.west, topic)) == 101


@pytest.mark.drill
def test_another_topic_than_the_one_that_was_shown_is_not_deleted(desk: Desk) -> None:
    mirrored, topic = copied(desk)
    produce(desk.pair.west, topic, 1)
    failed(mirrored, topic, FailureKind.FOREIGN)
    seen = plan_recovery(mirrored.link, mirrored.state, None, RecoveryAction.RECOPY)
    delete(desk.pair.west, topic)
    create(desk.pair.west, topic)
    produce(desk.pair.west, topic, 5)
    with pytest.raises(Refused, match="it is another topic now"):
        partition_recovery.recover_partitions(mirrored.link, seen, print)
    assert len(read_all(desk.pair.west, topic)) == 5


def create(cluster: SandboxCluster, topic: str) -> None:
    admin = admin_client(cluster)
    admin.create_topics([NewTopic(topic, 1)])[topic].result(TIMEOUT_S)

    def led() -> bool:
        seen = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
        return bool(seen) and seen[0].leader >= 0

    wait_until(led, timeout_s=TIMEOUT_S, why=f"{cluster.name} elects a leader of {topic}")


# -- topics that come and go ---------------------------------------------------------------------------------------


def test_a_source_topic_that_was_recreated_is_never_taken_up_by_a_retry(desk: Desk) -> None:
    mirrored, topic = copied(desk)
    delete(desk.pair.east, topic)
    create(desk.pair.east, topic)
    produce(desk.pair.east, topic, 10)
    failed(mirrored, topic, FailureKind.RECREATED)
    assert recover(desk, mirrored, "--action", "retry", "--yes").code == 3
    assert len(read_all(desk.pair.west, topic)) == 100
    assert recover(desk, mirrored, "--action", "recopy", "--yes").code == 0
    equal_again(desk, mirrored, topic)


@pytest.mark.drill
def test_a_mirror_topic_that_was_deleted_is_copied_anew(desk: Desk) -> None:
    mirrored, topic = copied(desk)
    delete(desk.pair.west, topic)
    failed(mirrored, topic, FailureKind.REPLACED)
    assert recover(desk, mirrored, "--action", "recopy", "--yes").code == 0
    equal_again(desk, mirrored, topic)


@pytest.mark.drill
def test_a_topic_that_was_gone_and_is_made_anew_is_no_longer_said_to_be_deleted(desk: Desk) -> None:
    mirrored, topic = copied(desk)
    delete(desk.pair.east, topic)
    partition, kinds = Partition(topic, 0), list[FailureKind | None]()
    with (
        ClusterClient(mirrored.link.source) as source,
        ClusterClient(mirrored.link.destination) as destination,
        StateWriter(mirrored.link.destination, make_data_id(mirrored.name)) as writer,
    ):
        planner = Planner(mirrored.link, source, destination)
        for is_anew in (False, False, True):
            if is_anew:
                admin = admin_client(desk.pair.east)
                admin.create_topics([NewTopic(topic, 1)])[topic].result(TIMEOUT_S)
                wait_until(lambda: topic in topics_of(desk.pair.east), timeout_s=TIMEOUT_S, why="it is made anew")
            writer.put(*planner.plan(writer.state, all_ends=False).changes)
            kinds.append(mirrored.statuses[partition].kind)
    assert kinds[1:] == [FailureKind.GONE, FailureKind.RECREATED]
    assert "created anew under the same name" in (mirrored.statuses[partition].reason or "")
    assert recover(desk, mirrored, "--action", "recopy", "--yes").code == 0


def test_a_copy_of_a_topic_that_is_gone_from_the_source_can_be_let_go_and_stays(desk: Desk) -> None:
    mirrored, topic = copied(desk)
    delete(desk.pair.east, topic)
    with (
        ClusterClient(mirrored.link.source) as source,
        ClusterClient(mirrored.link.destination) as destination,
        StateWriter(mirrored.link.destination, make_data_id(mirrored.name)) as writer,
    ):
        planner = Planner(mirrored.link, source, destination)
        assert planner.plan(writer.state, all_ends=False).failed == {}, "metadata may lag behind: not believed at once"
        writer.put(*planner.plan(writer.state, all_ends=False).changes)
    assert mirrored.statuses[Partition(topic, 0)].kind is FailureKind.GONE
    assert recover(desk, mirrored, "--action", "recopy", "--yes").code == 3
    said = recover(desk, mirrored, "--action", "accept", "--yes")
    assert said == Said(
        0,
        format_sentence("recover_gone_topic", topic, "east", topic, 1),
        "",
    )
    assert mirrored.statuses == {}
    assert len(read_all(desk.pair.west, topic)) == 100


@pytest.mark.drill
def test_a_topic_in_the_way_is_never_deleted_by_us(desk: Desk) -> None:
    topic = new_topic(desk.pair.east)
    produce(desk.pair.east, topic, 20)
    mirrored = desk.started(topic)
    create(desk.pair.west, topic)
    produce(desk.pair.west, topic, 7)
    for _ in range(2):  # the second plan looks again
        failed(mirrored, topic, FailureKind.OCCUPIED)
    assert recover(desk, mirrored, "--action", "recopy", "--yes").code == 3
    assert len(read_all(desk.pair.west, topic)) == 7
    delete(desk.pair.west, topic)
    assert recover(desk, mirrored, "--yes").code == 0
    equal_again(desk, mirrored, topic)


# -- mended from outside, and retried ------------------------------------------------------------------------------


def test_a_batch_that_the_destination_refuses_crosses_once_it_may(desk: Desk) -> None:
    mirrored, topic = copied(desk)
    with as_admin(desk.pair.west) as client:
        alter_topic(client, topic, {"message.timestamp.before.max.ms": "0"})
    produce(desk.pair.east, topic, 10)
    status = failed(mirrored, topic, FailureKind.REFUSED)
    assert status.failed_at == 100
    with as_admin(desk.pair.west) as client:
        alter_topic(client, topic, {"message.timestamp.before.max.ms": str(2**63 - 1)})
    assert recover(desk, mirrored, "--yes") == Said(
        0,
        format_sentence("recover_refused_offset", topic, 100, status.reason, 100, 1),
        "",
    )
    assert mirrored.statuses[Partition(topic, 0)].state is PartitionState.LOG_ALIGNMENT
    equal_again(desk, mirrored, topic)


@pytest.mark.drill
def test_a_corrupt_batch_crosses_once_it_is_repaired(desk: Desk) -> None:
    mirrored, topic = copied(desk)
    produce(desk.pair.east, topic, 1)
    log = desk.pair.east.log_dir() / f"{topic}-0" / f"{0:020}.log"
    data = log.read_bytes()
    [*_, (_, batch)] = list(split_batches(memoryview(bytearray(data))))
    at = len(data) - len(batch) + HEADER_SIZE + 10
    for flip, after in ((0xFF, None), (0, FailureKind.CORRUPT)):
        if after is not None:
            assert failed(mirrored, topic, after).failed_at == 100
        with log.open("r+b") as file:  # in the page cache that the broker reads from, behind its back
            file.seek(at)
            file.write(struct.pack("B", data[at] ^ flip))
    assert recover(desk, mirrored, "--yes").code == 0
    equal_again(desk, mirrored, topic)
