"""Where readers of MirrorMaker's copies begin, on real brokers: copies that differ, and records that lie."""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import load_config
from mirror_core.kafka.topics import delete_records, delete_topics
from mirror_core.model.names import Offset, Partition
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.cluster.desk import Desk, Said
from tests.support.group_commits import commit_offsets
from tests.support.kafka_clients import TIMEOUT_S, Pair, Record, admin_client, new_topic, produce
from tests.support.mirrored_topics import Mirrored, new_mirror

pytestmark = pytest.mark.cluster
FIRST_MS: Final = 1_700_000_000_000


def create_topic(cluster: SandboxCluster, topic: str) -> None:
    admin = admin_client(cluster)  # kept: collected with a future pending, it would abandon the request
    admin.create_topics([NewTopic(topic, 1)])[topic].result(TIMEOUT_S)


def send(cluster: SandboxCluster, topic: str, records: Sequence[tuple[bytes | None, bytes | None, int]]) -> None:
    producer = Producer({**cluster.client_config("admin"), "enable.idempotence": True})
    for key, value, timestamp_ms in records:
        producer.produce(topic, value, key=key, timestamp=timestamp_ms)
    assert producer.flush(TIMEOUT_S) == 0


@dataclass(frozen=True, slots=True)
class OldCopy:
    """As MirrorMaker makes it, of a topic that a mirror carries, too. Its aliases are this test's own."""

    desk: Desk
    mirrored: Mirrored
    topic: str
    alias: str
    group: str
    records: Sequence[Record]

    @property
    def name(self) -> str:
        return f"{self.alias}.{self.topic}"

    def copy(self, records: Sequence[Record]) -> None:
        producer = Producer({**self.desk.pair.west.client_config("admin"), "enable.idempotence": True})
        for record in records:
            producer.produce(
                self.name, record.value, key=record.key, headers=[*record.headers], timestamp=record.timestamp_ms
            )
        assert producer.flush(TIMEOUT_S) == 0

    def note_sync(self, source_offset: int, copy_offset: int) -> None:
        key = struct.pack(">h", len(self.topic)) + self.topic.encode() + struct.pack(">i", 0)
        send(self.desk.pair.east, self.syncs, [(key, struct.pack(">qq", source_offset, copy_offset), FIRST_MS)])

    def note_checkpoint(self, group: str, source_offset: int, copy_offset: int) -> None:
        names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in (group, self.name))
        value = struct.pack(">hqqh", 0, source_offset, copy_offset, 0)
        send(self.desk.pair.west, self.checkpoints, [(names + struct.pack(">i", 0), value, FIRST_MS)])

    @property
    def syncs(self) -> str:
        return f"mm2-offset-syncs.{self.alias}-w.internal"

    @property
    def checkpoints(self) -> str:
        return f"{self.alias}.checkpoints.internal"

    def commit(self, offset: int, side: str = "west", topic: str = "", group: str = "") -> None:
        with ClusterClient(self.mirrored.config.cluster(side)) as client:
            wanted = {Partition(topic or self.name, 0): (Offset(offset), "")}
            assert commit_offsets(client, group or self.group, wanted) == {}

    def ask(self, *options: str) -> Said:
        words = ("import", "mm2-offsets", self.mirrored.name, str(self.desk.folder / "mm2.properties"), *options)
        return self.desk.run(*words, "--groups", f"{self.group}.*")

    def look_up(self, expected: int = 0) -> dict[str, Any]:
        """The one reader."""
        (reader,) = self.look_up_all(expected).values()
        return reader

    def look_up_all(self, expected: int = 0) -> dict[str, dict[str, Any]]:
        said = self.ask("--json")
        assert said.code == expected, said
        return {reader["group"]: reader for reader in json.loads(said.out)["readers"]}


@pytest.fixture
def old_copy(desk: Desk, pair: Pair, tmp_path: Path) -> OldCopy:
    topic, alias, group = new_topic(pair.east), f"e{secrets.token_hex(4)}", f"g-{secrets.token_hex(4)}"
    records = produce(pair.east, topic, 40)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(".*",))
    mirrored.copy()
    made = OldCopy(desk, mirrored, topic, alias, group, records)
    for cluster, name in ((pair.west, made.name), (pair.west, made.checkpoints), (pair.east, made.syncs)):
        create_topic(cluster, name)
    (desk.folder / "mm2.properties").write_text(
        f"clusters = {alias}, {alias}-w\n{alias}->{alias}-w.enabled = true\n"
        f"{alias}.bootstrap.servers = {pair.east.bootstrap}\n{alias}-w.bootstrap.servers = {pair.west.bootstrap}\n",
        encoding="latin-1",
    )
    return made


def outcome(reader: dict[str, Any]) -> tuple[str, int | None, int | None, str | None]:
    return (
        reader["certainty"],
        reader["offset"],
        reader["repeats"],
        reader["reason"]["code"] if reader["reason"] else None,
    )


def test_a_reader_goes_on_at_the_same_record(old_copy: OldCopy) -> None:
    old_copy.copy(old_copy.records[10:])  # MirrorMaker was started later
    old_copy.note_sync(12, 2)
    old_copy.note_sync(20, 10)
    old_copy.commit(15)
    assert outcome(old_copy.look_up()) == ("exact", 25, 0, None)
    old_copy.commit(30)
    assert outcome(old_copy.look_up()) == ("exact", 40, 0, None)


def test_without_any_record_of_mirror_makers_logs_are_compared_from_their_starts(old_copy: OldCopy) -> None:
    old_copy.copy(old_copy.records)
    old_copy.commit(15)
    assert outcome(old_copy.look_up()) == ("exact", 15, 0, None)


def test_a_place_that_is_not_the_same_record_is_not_believed(old_copy: OldCopy) -> None:
    old_copy.copy(old_copy.records[10:])
    old_copy.note_sync(22, 10)  # record 20 is there
    old_copy.commit(15)
    assert outcome(old_copy.look_up(expected=4)) == ("unknown", None, None, "mm2_no_common_place")
    old_copy.note_sync(11, 1)
    assert outcome(old_copy.look_up()) == ("exact", 25, 0, None)


def test_a_record_that_mirror_maker_lost_is_not_skipped(old_copy: OldCopy) -> None:
    old_copy.copy([*old_copy.records[:20], *old_copy.records[21:]])
    old_copy.note_sync(5, 5)
    old_copy.commit(30)
    assert outcome(old_copy.look_up()) == ("clamped", 20, 10, "mm2_record_differs")


def test_what_an_application_wrote_into_the_old_copy_is_passed_over(old_copy: OldCopy) -> None:
    old_copy.copy(old_copy.records[:20])
    send(old_copy.desk.pair.west, old_copy.name, [(b"mine", b"alone", FIRST_MS)] * 3)
    old_copy.copy(old_copy.records[20:])
    old_copy.commit(22)
    assert outcome(old_copy.look_up()) == ("exact", 20, 0, None)


def test_records_that_only_the_old_copy_still_has_are_not_skipped_in_silence(old_copy: OldCopy) -> None:
    old_copy.copy(old_copy.records)
    old_copy.note_sync(5, 5)
    old_copy.commit(8)
    with ClusterClient(old_copy.mirrored.config.cluster("east")) as client:
        delete_records(client, {Partition(old_copy.topic, 0): Offset(12)})
    old_copy.mirrored.copy()
    assert outcome(old_copy.look_up(expected=4)) == ("unknown", None, None, "mm2_no_common_place")


def test_a_copy_that_is_behind_the_reader_says_so(old_copy: OldCopy) -> None:
    newer = produce(old_copy.desk.pair.east, old_copy.topic, 5)
    old_copy.copy([*old_copy.records, *newer])
    old_copy.commit(43)
    assert outcome(old_copy.look_up()) == ("clamped", 40, 3, "mm2_not_copied_yet")
    old_copy.mirrored.copy()
    assert outcome(old_copy.look_up()) == ("exact", 43, 0, None)


def test_a_group_without_an_offset_begins_by_its_checkpoint(old_copy: OldCopy) -> None:
    old_copy.copy(old_copy.records)
    old_copy.note_checkpoint(old_copy.group, 18, 15)
    old_copy.note_checkpoint(f"other-{old_copy.group}", 18, 15)
    reader = old_copy.look_up()
    assert outcome(reader) == ("exact", 15, 0, None)
    assert (reader["by_checkpoint"], reader["checkpoint_source_offset"], reader["old_offset"]) == (True, 18, 15)


def test_a_group_of_the_source_is_the_mirrors(old_copy: OldCopy) -> None:
    old_copy.copy(old_copy.records)
    old_copy.commit(15)
    old_copy.commit(15, "east", old_copy.topic)
    assert old_copy.look_up()["carried"]
    offsets = old_copy.desk.folder / "offsets.csv"
    assert old_copy.ask("--output", str(offsets)).code == 0
    assert not offsets.exists()


def test_offsets_are_written_for_one_group_and_over_no_file(old_copy: OldCopy) -> None:
    old_copy.copy(old_copy.records)
    old_copy.commit(15)
    offsets = old_copy.desk.folder / "offsets.csv"
    said = old_copy.ask("--output", str(offsets))
    assert said.code == 0
    assert offsets.read_text(encoding="utf-8") == f"{old_copy.topic},0,15\n"
    assert said.out.count("kafka-consumer-groups.sh --bootstrap-server") == 2
    assert old_copy.ask("--output", str(offsets)).code == 2
    old_copy.commit(20, group=f"{old_copy.group}-2")
    assert old_copy.ask("--output", str(offsets.with_name("both.csv"))).code == 2
    old_copy.commit(16, topic=old_copy.topic)
    assert old_copy.look_up_all()[old_copy.group]["current"] == 16


def test_records_that_are_not_mirror_makers_are_refused_by_their_place(old_copy: OldCopy) -> None:
    old_copy.copy(old_copy.records)
    old_copy.commit(15)
    send(old_copy.desk.pair.west, old_copy.checkpoints, [(b"\0\1g", b"\x1b[2J", FIRST_MS)])
    said = old_copy.ask()
    assert said.code == 1
    assert f"{old_copy.checkpoints}-0, offset 0" in said.err
    assert "\x1b" not in said.err


def test_a_file_of_other_clusters_is_noticed(old_copy: OldCopy) -> None:
    old_copy.copy(old_copy.records)
    old_copy.commit(15)
    path = old_copy.desk.folder / "mm2.properties"
    text = path.read_text(encoding="latin-1")
    path.write_text(text.replace(old_copy.desk.pair.east.bootstrap, "other:9092"), encoding="latin-1")
    said = old_copy.ask("--json")
    assert [warning["code"] for warning in json.loads(said.out)["warnings"]] == ["mm2_other_addresses"]


def test_the_same_file_is_turned_into_these_two_clusters(old_copy: OldCopy) -> None:
    said = old_copy.desk.run("import", "mm2", str(old_copy.desk.folder / "mm2.properties"), "--json")
    assert said.code == 0, said
    document = json.loads(said.out)
    path = old_copy.desk.folder / "imported.yaml"
    path.write_text(document["configuration"], encoding="utf-8")
    (flow,) = document["flows"]
    for alias, cluster in (
        (flow["source"], old_copy.desk.pair.east),
        (flow["destination"], old_copy.desk.pair.west),
    ):
        assert load_config(path).cluster(alias).control["bootstrap.servers"] == cluster.bootstrap


def test_nothing_to_look_up_is_no_success(old_copy: OldCopy) -> None:
    assert old_copy.ask().code == 4  # nobody reads
    with ClusterClient(old_copy.mirrored.config.cluster("west")) as client:
        delete_topics(client, [old_copy.name])
    assert old_copy.ask().code == 4
