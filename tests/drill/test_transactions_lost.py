"""The source is killed under transactions: open, without their producer, unknown to any coordinator, prepared."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.decide.fence_state import find_late_ranges
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.kafka.topics import alter_configs
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.fence_watcher import check_fence, record_reported
from mirror_core.model.names import Partition
from mirror_core.model.run import RunMode, RunState
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.cluster_admin import as_admin, hang
from tests.support.data_plane_thread import beating, driving
from tests.support.failover_runs import app_topic
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client, grant, read_topics, read_topics_aiokafka
from tests.support.mirrored_topics import new_mirror
from tests.support.pending_fences import debt_of, stood
from tests.support.sentences import format_sentence
from tests.support.unplanned_runs import begin
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill]

OPEN, GONE, PREPARED = KINDS = ("open", "gone", "prepared")


class Transactions:
    """An application with one transactional id of each kind, on whichever cluster."""

    def __init__(self, topic: str) -> None:
        self.topic = topic

    def id_of(self, kind: str) -> str:
        return f"{kind}-{self.topic}"

    def begin(self, cluster: SandboxCluster, kind: str, *records: tuple[Partition, str]) -> Producer:
        settings = {"transactional.id": self.id_of(kind), "transaction.timeout.ms": 300_000, "log_level": 0}
        producer = Producer({**cluster.client_config("app"), **settings})
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        for partition, value in records:
            producer.produce(partition.topic, value.encode(), partition=partition.index)
        assert producer.flush(TIMEOUT_S) == 0
        return producer

    def commit(self, cluster: SandboxCluster, kind: str, *records: tuple[Partition, str]) -> None:
        self.begin(cluster, kind, *records).commit_transaction(TIMEOUT_S)


def test_readers_on_the_other_side_are_not_held_up_and_nothing_is_repeated_when_the_application_goes_on(
    pair: Pair, tmp_path: Path
) -> None:
    east, west = pair.east, pair.west
    topic, unmarked = app_topic(pair, 5), app_topic(pair)
    first, second, third, unknown, marked = (Partition(topic, index) for index in range(5))
    stuck = Partition(unmarked, 0)
    everything = [first, second, third, unknown, marked, stuck]
    parts = {OPEN: (first, second), GONE: (second, third), PREPARED: (marked, stuck)}
    application = Transactions(topic)
    for kind in KINDS:
        grant(east, "app", ResourceType.TRANSACTIONAL_ID, application.id_of(kind), [AclOperation.WRITE])
        application.commit(east, kind, *((partition, f"{kind} {partition} committed") for partition in everything))
    mirrored = new_mirror(pair, tmp_path, topic, unmarked)
    mirrored.copy()
    mirror_commands.run_sync(mirrored.link)

    def seen() -> dict[str, str]:
        sighting = mirrored.state.source_observations.get(mirrored.name)
        return {t.id: t.state for t in sighting.transactions} if sighting else {}

    def ended(partition: Partition) -> bool:
        with as_admin(west) as client, as_admin(east) as source:
            stable = list_offsets(source, [partition], OffsetPoint.STABLE_END)
            return list_offsets(client, [partition], OffsetPoint.LOG_END) == stable

    with driving(mirrored):
        beating(mirrored, 2)
        # One is open; of another one the producer is gone; of the third one no coordinator knows.
        producers = [application.begin(east, OPEN, (first, "open"), (second, "open"))]
        application.begin(east, GONE, (second, "gone"), (third, "gone"))
        hang(east, unknown)
        # A log that takes no marker: the coordinator has answered the commit, and cannot write it there.
        prepared = application.begin(east, PREPARED, (marked, PREPARED), (stuck, PREPARED))
        wait_until(
            lambda: seen() == {application.id_of(kind): "Ongoing" for kind in KINDS},
            timeout_s=TIMEOUT_S,
            why="the data plane has seen them all",
        )
        with as_admin(east) as client:
            alter_configs(client, {unmarked: {"max.message.bytes": "0"}})
        prepared.commit_transaction(TIMEOUT_S)
        wait_until(
            lambda: seen()[application.id_of(PREPARED)] == "PrepareCommit",
            timeout_s=TIMEOUT_S,
            why="it has seen that one is prepared",
        )
        wait_until(lambda: ended(marked), timeout_s=TIMEOUT_S, why="what can be read is copied")
        east.kill()
    producers.clear()
    try:
        told = "\n".join(map(str, mirrored.failover.plan(RunMode.UNPLANNED).warnings))
        assert (
            format_sentence("prepared_transaction_cut", f"{application.id_of(PREPARED)!r}", marked, stuck)
        ) in told, told
        for kind, partitions in parts.items():
            assert f"{application.id_of(kind)!r} ({', '.join(map(str, sorted(partitions)))})" in told, told
        assert mirrored.failover.drive(begin(mirrored.failover).id).state is RunState.DONE

        with as_admin(west) as client:
            logs = [list_offsets(client, everything, point) for point in (OffsetPoint.STABLE_END, OffsetPoint.LOG_END)]
        assert logs[0] == logs[1], "somebody's transaction is open for ever"
        for kind, partitions in parts.items():
            # It goes on: what it was not acknowledged for it does once more, and something new.
            again = [(p, kind) for p in partitions if kind != PREPARED]
            application.commit(west, kind, *again, *((p, f"{kind} new") for p in everything))
        read = read_topics(west, [topic, unmarked])
        assert read == read_topics_aiokafka(west, [topic, unmarked])
        for partition in everything:
            values = [r.value for r in read[partition.topic] if r.partition == partition.index]
            assert len(values) == len(set(values)), f"{partition}: repeated"
            assert {f"{kind} {partition} committed".encode() for kind in KINDS} <= set(values)
            assert {f"{kind} new".encode() for kind in KINDS} <= set(values)
            assert b"hanging" not in values
    finally:
        east.start()
    found = wait_until(lambda: stood(check_fence(mirrored.link)), timeout_s=TIMEOUT_S, why="the fence is up")
    assert found is not None
    assert check_fence(mirrored.link).alarms == found.one_time_alarms, "told until it is noted that somebody was"
    record_reported(mirrored.link, found.one_time_alarms)
    assert stuck in find_late_ranges(debt_of(mirrored), mirrored.statuses), "what was acknowledged and lost has a name"
    assert check_fence(mirrored.link).alarms == ()
    admin = admin_client(east)  # kept: collected with a future pending, it would abandon the request
    for deleted in admin.delete_topics([topic, unmarked]).values():
        deleted.result(TIMEOUT_S)
