"""`mirrorbook log truncate` on real brokers' folders: what comes up afterwards ends where it was said, and goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mirror_core.kafka.log_offsets import OffsetPoint, describe_producers
from mirror_core.kafka.topics import delete_records
from mirror_core.model.names import Offset, Partition
from mirror_core.wire.batch import split_batches
from mirrorbook_tools.logdir.partition_truncation import perform_action
from mirrorbook_tools.logdir.stopped_broker import hold_stopped_broker, parse_targets, plan_broker_truncation
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.cluster.desk import Desk
from tests.support.cluster_admin import as_admin, broker_setting
from tests.support.gap_logs import transactional, write
from tests.support.kafka_clients import TIMEOUT_S, Record, new_topic, read_all, read_all_aiokafka
from tests.support.log_shapes import CODECS, HOUR_MS, await_cleaner, compacted, compacted_transactions, new_producer
from tests.support.log_truncation import braided, ends, hundreds, stored
from tests.support.sentences import format_sentence

pytestmark = [pytest.mark.cluster, pytest.mark.drill]

SMALL_SEGMENTS = {"index_interval_bytes": "1", "segment_index_bytes": "96"}
"""Of eight batches or so."""
COMPACT = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": "0.01",
    "segment_ms": str(HOUR_MS),
    "message_timestamp_after_max_ms": str(2**63 - 1),
}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def seen(cluster: SandboxCluster, topic: str) -> tuple[list[Record], list[Record]]:
    """By a reader of committed records, and by one of all."""
    return read_all(cluster, topic), read_all(cluster, topic, committed=False)


def as_options(offsets: Mapping[str, int]) -> list[str]:
    return [word for topic, offset in offsets.items() for word in ("--partition", f"{topic}-0={offset}")]


def test_logs_end_where_it_is_said_and_go_on_from_there(desk: Desk, tmp_path: Path) -> None:
    east = desk.pair.east
    settings: list[dict[str, str]] = [{}, SMALL_SEGMENTS, {}, {}, {}, COMPACT]
    topics = [new_topic(east, 1, "t-", retention_ms="-1", **config) for config in settings]
    inside, parted, mixed, whole, first, cleaned = topics
    for topic in (inside, parted, whole, first):
        hundreds(east, topic, 20)
    braided(east, mixed)
    with broker_setting(east, "log.cleaner.backoff.ms", "100"):
        await_cleaner(east, compacted_transactions(east, cleaned))
        batching = {codec: new_producer(east, compression_type=codec, linger_ms="1000") for codec in CODECS}
        partitions = compacted(new_topic(east, len(CODECS), "t-", retention_ms="-1", **COMPACT), batching)
        await_cleaner(east, partitions)
    before = {topic: seen(east, topic) for topic in topics}
    offsets = {inside: 1250, parted: 1250, mixed: 75, whole: 2000, first: 99, cleaned: 200}
    holed = next(iter(partitions))
    folder = str(east.log_dir())
    command = ("log", "truncate", "--log-dir", folder, *as_options(offsets), "--partition", f"{holed}=3000")

    said = desk.run(*command, "--dry-run")
    assert (said.code, said.out) == (3, "")
    assert f"{folder} is in use: stop its broker first" in said.err

    last_of = {topic: stored(east.log_dir() / f"{topic}-0") for topic in topics}
    east.terminate()
    try:
        untouched = contents(east.log_dir())
        said = desk.run(*command, "--dry-run")
        assert said.code == 0, said.err
        assert f"{inside}-0: ends at 2000, target 1250, will end at 1200\n" in said.out
        assert f"{mixed}-0: ends at 112, target 75, will end at 50\n  the last batch" in said.out
        assert "since offset 60\n" in said.out
        assert f"{whole}-0: ends at 2000, target 2000: nothing to do\n" in said.out
        assert desk.run(*command).code == 3, "nobody is there to ask"
        assert contents(east.log_dir()) == untouched

        backup = tmp_path / "backup"
        said = desk.run(*command, "--backup", str(backup), "--yes", "--json")
        assert said.code == 0, said.err
        told: dict[str, Any] = {f"{p['topic']}-{p['partition']}": p for p in json.loads(said.out)["partitions"]}
        for topic in topics:
            kept = [header for header in last_of[topic] if header.next_offset <= told[f"{topic}-0"]["offset"]]
            lost = last_of[topic][len(kept) :]
            assert told[f"{topic}-0"]["batches"] == len(lost)
            assert stored(east.log_dir() / f"{topic}-0") == kept
            at_most = max((h.next_offset for h in last_of[topic] if h.next_offset <= offsets[topic]), default=0)
            assert told[f"{topic}-0"]["boundary"] == at_most
            restored = b"".join(p.read_bytes() for p in sorted((backup / f"{topic}-0").glob("*.log*")))
            assert [header for header, _ in split_batches(memoryview(restored))] == lost
        assert told[f"{parted}-0"]["records"] == 800
        assert len(list((backup / f"{parted}-0").glob("*.log"))) == 1
        done = contents(east.log_dir())
        said = desk.run(*command, "--yes")
        assert "nothing to do" in said.out
        assert contents(east.log_dir()) == done
    finally:
        east.start()

    expected = {topic: told[f"{topic}-0"]["offset"] for topic in topics}
    assert {t: expected[t] for t in topics[:-1]} == {
        inside: 1200, parted: 1200, mixed: 50, whole: 2000, first: 0,
    }  # fmt: skip
    assert 0 < expected[cleaned] <= 200
    for point in (OffsetPoint.LOG_END, OffsetPoint.HIGH_WATERMARK, OffsetPoint.STABLE_END):
        assert ends(east, topics, point) == expected
    for topic in topics:
        for now, then in zip(seen(east, topic), before[topic], strict=True):
            assert now == [record for record in then if record.offset < expected[topic]]
    with as_admin(east) as client:
        states = describe_producers(client, [Partition(topic, 0) for topic in (inside, parted, mixed)])
        assert ends(east, [holed.topic])[holed.topic] == told[str(holed)]["offset"]
    assert [view.last_sequence for view in states[Partition(inside, 0)]] == [1199]
    assert [view.last_sequence for view in states[Partition(parted, 0)]] == [1199]
    assert all(view.open_transaction_start < 0 for view in states[Partition(mixed, 0)])
    for topic in topics:
        hundreds(east, topic, 1)
        after = read_all(east, topic)
        added = [record.offset for record in after if record.offset >= expected[topic]]
        assert added == list(range(expected[topic], expected[topic] + 100))
        assert after[:-100] == [record for record in before[topic][0] if record.offset < expected[topic]]
        assert read_all_aiokafka(east, topic) == after
        lines = (east.log_dir() / f"{topic}-0" / "leader-epoch-checkpoint").read_text(encoding="utf-8").splitlines()
        assert [int(line.split()[1]) for line in lines[2:]][-1] == expected[topic]


def test_whoever_is_killed_in_the_middle_repeats_the_command(desk: Desk, tmp_path: Path) -> None:
    east = desk.pair.east
    topics = [new_topic(east, 1, "t-", retention_ms="-1", **SMALL_SEGMENTS) for _ in range(4)]
    for topic in topics:
        hundreds(east, topic, 10)
        braided(east, topic)
        hundreds(east, topic, 20)
    before = {topic: read_all(east, topic) for topic in topics}
    offsets = dict.fromkeys(topics, 1075)
    command = ("log", "truncate", "--log-dir", str(east.log_dir()), *as_options(offsets), "--yes")
    east.terminate()
    try:
        with hold_stopped_broker([east.log_dir()]) as log_dirs:
            plan = plan_broker_truncation(log_dirs, parse_targets(command[5:-1:2]))
            for number, cut in enumerate(plan.due_truncations, start=1):
                for action in cut.actions[: len(cut.actions) * number // len(plan.due_truncations)]:
                    perform_action(cut.log.partition, action)
        # Whoever starts the broker now has logs that are whole, only longer than they should be.
        east.start()
        middle = ends(east, topics)
        for topic in topics:
            assert read_all(east, topic) == [r for r in before[topic] if r.offset < middle[topic]]
        assert len(set(middle.values())) > 1
        east.kill()
        said = desk.run(*command)
        assert said.code == 0, said.err
        assert "warning: the broker was killed, or died" in said.out
    finally:
        east.start()
    assert ends(east, topics, OffsetPoint.STABLE_END) == ends(east, topics) == dict.fromkeys(topics, 1050)


def test_what_cannot_be_cut_is_refused_with_all_reasons(desk: Desk, tmp_path: Path) -> None:
    east = desk.pair.east
    begun, fine, open_ = [new_topic(east, retention_ms="-1") for _ in range(3)]
    for topic in (begun, fine, open_):
        hundreds(east, topic, 3)
    with as_admin(east) as client:
        delete_records(client, {Partition(begun, 0): Offset(250)})
    producer = transactional(east)
    producer.begin_transaction()
    write(producer, open_, 5)
    targets = {begun: 240, fine: 150, open_: 250}
    command = ["log", "truncate", "--log-dir", str(east.log_dir()), "--yes"]
    east.terminate()
    try:
        untouched = contents(east.log_dir())
        said = desk.run(*command, *as_options(targets), "--partition", "__consumer_offsets-0=0")
        assert said.code == 3
        assert format_sentence("log_starts_behind_cut", begun, 250, 240) in said.err
        assert f"{open_}-0: transactions are open at its end 305" in said.err
        assert "__consumer_offsets-0: it is an internal topic" in said.err
        assert f"{fine}-0" not in said.err
        said = desk.run(*command, *as_options({begun: 299}))
        assert said.code == 3
        assert "behind the log start 250: recreate the topic" in said.err
        file = tmp_path / "points.json"
        document: dict[str, Any] = {"cluster_id": "another", "run": "r", "topics": {}}
        topic_id = "00000000-0000-0000-0000-000000000001"
        document["topics"][fine] = {"id": topic_id, "partitions": {"0": 150, "7": 1}}
        file.write_text(json.dumps(document), encoding="utf-8")
        said = desk.run(*command, "--to", str(file))
        assert said.code == 3
        assert "is for another" in said.err
        properties = (east.log_dir() / "meta.properties").read_text(encoding="utf-8")
        [document["cluster_id"]] = [li.split("=")[1] for li in properties.splitlines() if li.startswith("cluster.id=")]
        file.write_text(json.dumps(document), encoding="utf-8")
        said = desk.run(*command, "--to", str(file))
        assert said.code == 3
        assert "it was recreated" in said.err
        assert contents(east.log_dir()) == untouched
        metadata = (east.log_dir() / f"{fine}-0" / "partition.metadata").read_text(encoding="utf-8")
        document["topics"][fine]["id"] = metadata.split("topic_id: ")[1].strip()
        file.write_text(json.dumps(document), encoding="utf-8")
        said = desk.run(*command, "--to", str(file))
        assert said.code == 0, said.err
        assert f"not on this broker: {fine}-7\n" in said.out
        assert said.out.endswith(f"{fine}-0: ends at 100\n")
    finally:
        east.start()
    assert ends(east, [fine]) == {fine: 100}
    producer.abort_transaction(TIMEOUT_S)
