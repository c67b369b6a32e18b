"""An old source with another past: where it differs is found by content, and its log is cut there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from mirror_core.decide.truncation import AllowedStrategies
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.topics import NewTopic, create_topics, delete_topic
from mirror_core.model.errors import Refused
from mirror_core.model.names import Partition
from mirror_core.model.run import FailbackStrategy
from mirror_core.state.state_records import PartitionRecord
from mirror_core.state.writer import StateWriter, make_control_id
from tests.cluster.desk import Desk
from tests.support.failback_runs import content, failback_of, failed_over, go_home
from tests.support.failover_runs import app_topic, begin, denied
from tests.support.gap_logs import transactional
from tests.support.kafka_clients import Pair, Record, produce, read_all
from tests.support.log_shapes import Row, new_producer, send
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.saved_tails import saved_rows
from tests.support.topic_equality import assert_parity

pytestmark = pytest.mark.cluster


def another_past(mirrored: Mirrored, topic: str, write: Callable[[list[Row]], None]) -> list[Record]:
    """Give the old source other records than the new primary has, as an unclean election there does; what west has.

    `write` puts its own into the new topic, from what west has; the mirror is made to believe that it is the old one.
    """
    primary = read_all(mirrored.pair.west, topic)
    with ClusterClient(mirrored.config.cluster("east")) as client:
        delete_topic(client, topic, client.metadata([topic]).topics[topic].id)
        anew = NewTopic(name=topic, partitions=1, replication_factor=1, configs={"retention.ms": "-1"})
        create_topics(client, [anew])
        new_id = client.metadata([topic]).topics[topic].id
    write([Row(key=r.key, value=r.value, timestamp_ms=r.timestamp_ms, headers=list(r.headers)) for r in primary])
    with StateWriter(mirrored.config.cluster("west"), make_control_id(mirrored.name)) as writer:
        status = writer.state.partitions[mirrored.name][Partition(topic, 0)]
        writer.put(PartitionRecord(mirrored.name, replace(status, source_topic_id=new_id)))
    return primary


OTHERS = [Row(key=b"k%d" % n, value=b"other") for n in range(10)]


def test_other_content_below_the_last_mirrored_offset_is_found_and_salvaged(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair, retention_ms="-1")
    produce(pair.east, topic, 40)
    mirrored = failed_over(pair, tmp_path, topic)

    def write(rows: list[Row]) -> None:
        send(new_producer(pair.east), topic, rows[:30])
        send(new_producer(pair.east), topic, OTHERS)

    primary = another_past(mirrored, topic, write)
    failback = failback_of(mirrored)
    plan = failback.plan()
    assert (plan.strategies, plan.discarded) == ({topic: "none"}, 0)
    run = failback.begin(plan.hash)
    with pytest.raises(Refused, match=f"below the last mirrored offset it differs in {topic}-0 from offset 30"):
        failback.run_step(run.id, "salvage")
    with pytest.raises(Refused, match="is not what was approved"):
        failback.run_step(run.id, "salvage")
    failback.abort(run.id)

    plan = failback.plan()
    assert (plan.strategies, plan.discarded) == ({topic: "recreate"}, 10)
    assert list(plan.partitions[f"{Partition(topic, 0)}"].values()) == [10, 30, 40]
    run = failback.begin(plan.hash)
    failback.drive(run.id)
    rows = saved_rows(tmp_path / f"run-{run.id}" / "salvage")
    assert [(row["offset"], row["value"]) for row in rows] == [(30 + n, b"other") for n in range(10)]
    go_home(failback, run.id)
    assert content(read_all(pair.east, topic)) == content(primary)
    assert mirrored.statuses[Partition(topic, 0)].differs_at is None


def inside_a_batch(pair: Pair, topic: str, rows: list[Row]) -> None:
    """One batch of 20 that both have, one of which the second half is another's."""
    send(new_producer(pair.east), topic, rows[:20])
    send(new_producer(pair.east, linger_ms="500"), topic, [*rows[20:30], *OTHERS])


def inside_a_transaction(pair: Pair, topic: str, rows: list[Row]) -> None:
    """From 20 to 24 records of a transaction that ends behind the first difference, at 30."""
    send(new_producer(pair.east), topic, rows[:20])
    producer = transactional(pair.east)
    producer.begin_transaction()
    send(producer, topic, rows[20:25])
    send(new_producer(pair.east), topic, rows[25:30])
    send(new_producer(pair.east), topic, OTHERS)
    producer.commit_transaction(30)


@pytest.mark.slow
@pytest.mark.parametrize("write", [inside_a_batch, inside_a_transaction])
def test_a_log_is_cut_in_the_folder_of_a_stopped_broker(
    desk: Desk, tmp_path: Path, write: Callable[[Pair, str, list[Row]], None]
) -> None:
    pair = desk.pair
    topic, well = app_topic(pair, retention_ms="-1"), app_topic(pair, retention_ms="-1")
    for name in (topic, well):
        send(new_producer(pair.east), name, [Row(key=b"%d" % n, value=b"v%d" % n) for n in range(40)])
    mirrored = new_mirror(pair, tmp_path, topic, well)
    mirrored.copy()
    mirrored.failover.drive(begin(mirrored.failover))
    primary = another_past(mirrored, topic, partial(write, pair, topic))
    send(new_producer(pair.west), topic, [Row(key=b"later", value=b"west")])
    failback, offline = failback_of(mirrored), AllowedStrategies(FailbackStrategy.OFFLINE)
    run = failback.begin(failback.plan(offline).hash, offline)
    with pytest.raises(Refused, match=f"differs in {topic}-0 from offset 30"):
        failback.run_step(run.id, "salvage")
    failback.abort(run.id)
    plan = failback.plan(offline)
    assert plan.strategies == {topic: "offline", well: "none"}
    run = failback.begin(plan.hash, offline)
    failback.run_step(run.id, "salvage")

    points = tmp_path / f"run-{run.id}" / "points.json"
    for _ in range(2):
        with pytest.raises(Refused, match=f"{topic}-0: stop it; on its host `mirrorbook log truncate"):
            failback.drive(run.id)
    assert json.loads(points.read_text())["topics"][topic]["partitions"] == {"0": 30}
    folder = str(pair.east.log_dir())
    refused = desk.run("log", "truncate", "--log-dir", folder, "--to", str(points), "--yes")
    assert refused.code == 3, "cut under a running broker"
    pair.east.terminate()
    try:
        backup = str(tmp_path / "backup")
        cut = desk.run("log", "truncate", "--log-dir", folder, "--to", str(points), "--backup", backup, "--yes")
    finally:
        pair.east.start()
    assert cut.code == 0, cut.err

    failback.drive(run.id)

    aligned = next(s for s in failback.read_status(run.id)[1] if s.step == "align")
    assert aligned.evidence["cut"] == f"{topic}-0 at 20, at most 30"
    go_home(failback, run.id)
    home = content(read_all(pair.east, topic))
    assert home[:40] == content(primary)
    assert [r.value for r in home[40:]] == [b"west"]
    assert not denied(pair.east, topic)
    mirrored.copy()
    assert_parity(mirrored)
