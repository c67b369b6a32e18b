"""What was copied is proved from its receipts: with the source gone, and whatever was done to the copy or to them."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import TopicPartition

from mirror_core.evidence.file_store import LocalFolder
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import load_config
from mirror_core.mirrors import mirror_commands
from mirror_core.model.mirror import GapFilling, PartitionState
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ParityVerdict
from mirror_core.model.run import RunMode, RunState
from mirror_core.parity.certificate_check import (
    CertificateScope,
    LocalCertificateRunner,
    check_certificates,
    read_certificate_scope,
)
from tests.cluster.copied import Copied, copied, mixed, unproved
from tests.support.broker_faults import suspended
from tests.support.cli_process import invoked
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client, new_topic
from tests.support.mirrored_topics import new_mirror
from tests.support.parity_topics import Content, content, send, twin_topics
from tests.support.sentences import format_sentence
from tests.support.unplanned_runs import begin

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("gaps", [GapFilling.MARKERS, pytest.param(GapFilling.HIDDEN, marks=pytest.mark.slow)])
def test_what_was_copied_is_proved_and_nothing_else(pair: Pair, tmp_path: Path, gaps: GapFilling) -> None:
    made = copied(pair, tmp_path, mixed(200), mixed(50), gaps=gaps, partitions=2)
    found = made.proved()
    assert (found.verdict, found.findings, found.reasons) == (ParityVerdict.PASSED, (), ())
    ends = {partition: end for partition, (_, end) in made.scope.ends.items()}
    assert found.records == 2 * (250 - 2 - 1)
    assert found.verified_ends == ends
    assert made.scope.left_out == {}


def test_with_the_source_deleted_and_dead_the_command_proves_the_copy(pair: Pair, tmp_path: Path) -> None:
    made = copied(pair, tmp_path, content(100))
    mirror_commands.run_sync(made.mirrored.link)
    admin = admin_client(pair.east)
    admin.delete_topics([made.topic])[made.topic].result(TIMEOUT_S)
    command = ["parity", made.mirrored.name, "--against", "certificates", "--receipts", str(made.receipts.path)]
    command += ["--runner", "local", "--config", str(pair.config_path), "--output", str(tmp_path / "out"), "--json"]
    with suspended(pair.east):
        said = invoked(*command)
    assert said.exit_code == 0, said.output
    answer = json.loads(said.stdout)
    assert (answer["verdict"], answer["records"], answer["left_out"]) == ("passed", 100, [])
    assert answer["proven"] == [{"topic": made.topic, "partition": 0, "offset": 100}]
    assert "receipts in" in Path(answer["report"]).read_text()


def seeded(records: list[Content]) -> dict[str, list[Content]]:
    """What somebody else may have made of a log."""
    before, one, behind = records[:40], records[40], records[41:]
    return {
        "missing": [*before, *behind, content(101)[100]],
        "duplicated": [*before, one, one, *behind[1:]],
        "reordered": [*before, behind[0], one, *behind[1:]],
        "shifted": [records[0], *records[:-1]],
        "key": [*before, replace(one, key=b"other"), *behind],
        "value": [*before, replace(one, value=b"\xfe value 41"), *behind],
        "headers": [*before, replace(one, headers=(("n", b"41"), ("null", None))), *behind],
        "timestamp": [*before, replace(one, timestamp_ms=one.timestamp_ms + 1), *behind],
        "all timestamps": [replace(r, timestamp_ms=r.timestamp_ms + 1) for r in records],
        "tombstone": [*records[:10], replace(records[10], value=b""), *records[11:]],
        "truncated": records[:60],
        "nothing": records,
    }


def test_a_copy_that_is_not_what_was_acknowledged_is_found_whatever_was_done_to_it(pair: Pair, tmp_path: Path) -> None:
    """The same certificate, held against logs that somebody else wrote."""
    records = content(100)
    made = copied(pair, tmp_path, records)
    [vouched] = made.scope.certified.values()
    logs = seeded(records)
    topic = twin_topics(pair, len(logs))
    others = {what: Partition(topic, number) for number, what in enumerate(logs)}
    for what, sent in logs.items():
        send(pair.west, topic, sent, others[what].index)
    ends = {others[what]: (Offset(0), Offset(len(sent))) for what, sent in logs.items()}
    with ClusterClient(made.mirrored.link.destination) as west:
        ids = {topic: west.metadata([topic]).topics[topic].id}
    vouching = dict.fromkeys(others.values(), vouched)
    found = made.proved(CertificateScope("here", ends, vouching, frozenset(), {}, topic_ids=ids))
    assert found.verdict is ParityVerdict.FAILED
    words = {finding.partition: finding.detail for finding in found.findings}
    fine = others.pop("nothing")
    assert fine not in words, "and it is no matter of who wrote it"
    assert found.verified_ends[fine] == 100
    assert "[60, 100) was copied, and is missing there" in words[others.pop("truncated")]
    for what, partition in others.items():
        assert "One of the two was altered" in words[partition], what
        assert found.verified_ends[partition] == 0, what


def test_a_certificate_that_was_changed_by_hand_is_found_and_named(pair: Pair, tmp_path: Path) -> None:
    made = copied(pair, tmp_path, content(100), content(30))
    assert made.scope.checked.is_sound
    altered = made.receipts.names()[0]
    path = made.receipts.path / altered
    rows = pq.read_table(path).to_pylist()
    for row in rows:
        for piece in row["pieces"]:
            piece["digest"] = piece["digest"][:-1] + ("0" if piece["digest"][-1] != "0" else "1")
    pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(path)), path)
    found = made.proved()
    assert found.verdict is ParityVerdict.FAILED
    assert found.reasons[0].startswith(f"receipts are altered: {altered.partition('/')[2]} is not as it was written")
    assert found.records == 30, "nothing that it says is believed"


def test_what_no_receipt_vouches_for_is_named_and_never_passes_for_proved(pair: Pair, tmp_path: Path) -> None:
    made = copied(pair, tmp_path, content(100), content(30), content(20))
    files = made.receipts.names()
    (made.receipts.path / files[1]).unlink()
    partition = Partition(made.topic, 0)
    found = made.proved()
    assert (found.verdict, found.records) == (ParityVerdict.INDETERMINATE, 120)
    assert found.verified_ends == {partition: 100}
    lost, much, hole = found.reasons
    assert lost.startswith(f"receipts are lost: {files[1].partition('/')[2]} was written, and is not there: ")
    assert much.startswith("of 1 of 1 partitions not all is vouched for, 30 offsets together: ")
    assert hole.startswith(format_sentence("no_receipt_vouches", partition, "[100, 130)"))
    (made.receipts.path / files[2]).unlink()
    assert unproved(made.scope) == {partition: [(100, 150)]}
    found = made.proved()
    assert (found.verdict, found.verified_ends) == (ParityVerdict.INDETERMINATE, {partition: 100}), (
        "what has an end is not whole"
    )
    (made.receipts.path / files[0]).unlink()
    assert unproved(made.scope) == {partition: [(0, 150)]}
    nothing = made.proved()
    assert (nothing.verdict, nothing.records) == (ParityVerdict.INDETERMINATE, 0)
    assert "(and 2 more such files)" in nothing.reasons[0]


def test_a_proof_of_one_partition_is_none_of_the_mirror(pair: Pair, tmp_path: Path) -> None:
    """Receipts begin late: an older version's process, or one that stored none, had copied before."""
    topic = new_topic(pair.east, 3, retention_ms="-1")
    mirrored = new_mirror(pair, tmp_path, topic)
    for index in (0, 1):
        send(pair.east, topic, content(100), index)
    mirrored.copy()
    send(pair.east, topic, content(10), 1)
    send(pair.east, topic, content(20), 2)
    receipts = LocalFolder(tmp_path / "receipts")
    mirrored.copy(str(receipts.path))
    made = Copied(mirrored, topic, receipts)
    first, second, third = (Partition(topic, index) for index in range(3))
    found = made.proved()
    assert (found.verdict, found.records) == (ParityVerdict.INDETERMINATE, 30)
    assert found.reasons[0].startswith("of 2 of 3 partitions not all is vouched for, 200 offsets together")
    assert {p: found.verified_ends.get(p) for p in (first, second, third)} == {first: None, second: 0, third: 20}
    command = ["parity", mirrored.name, "--against", "certificates", "--receipts", str(receipts.path), "--json"]
    command += ["--runner", "local", "--config", str(pair.config_path), "--output", str(tmp_path / "out")]
    said = invoked(*command)
    assert (said.exit_code, json.loads(said.stdout)["verdict"]) == (4, "indeterminate")
    assert made.rebuilt().uncovered == {}
    assert (made.proved().verdict, made.proved().records) == (ParityVerdict.PASSED, 230)


def test_what_has_failed_is_not_proved_and_what_was_deleted_when_it_was_the_applications_is_not_missed(
    pair: Pair, tmp_path: Path
) -> None:
    made = copied(pair, tmp_path, content(40), partitions=2)
    state, partition = made.mirrored.state, Partition(made.topic, 1)
    known = state.partitions[made.mirrored.name]
    ours = known[partition]
    known[partition] = replace(ours, state=PartitionState.FAILED)
    scope = read_certificate_scope(made.mirrored.link, state, made.receipts)
    assert unproved(scope) == {partition: [(0, 40)]}
    assert partition not in scope.ends, "nothing of it is compared, nor rebuilt"
    gone = {n: replace(ours, partition=Partition(made.topic, n), state=PartitionState.STOPPED) for n in (7, 8)}
    known |= {one.partition: replace(one, lmo=Offset(40)) for one in gone.values()}
    known[partition] = ours
    scope = read_certificate_scope(made.mirrored.link, state, made.receipts)
    assert (unproved(scope), sorted(scope.left_out)) == ({}, sorted(one.partition for one in gone.values()))


def test_a_file_that_somebody_put_there_is_named_and_not_believed(pair: Pair, tmp_path: Path) -> None:
    made = copied(pair, tmp_path, content(100))
    [path] = [made.receipts.path / name for name in made.receipts.names()]
    path.with_name("epoch-00000001-0000000999.parquet").write_bytes(path.read_bytes())
    found = made.proved()
    assert (found.verdict, found.records) == (ParityVerdict.INDETERMINATE, 100)
    assert "receipts are not ours: date=" in found.reasons[0]
    assert "epoch-00000001-0000000999.parquet is told of by no head" in found.reasons[0]


def test_a_piece_that_begins_below_the_log_start_is_left_out_and_said(pair: Pair, tmp_path: Path) -> None:
    made = copied(pair, tmp_path, content(100), content(30))
    partition = Partition(made.topic, 0)
    admin, upto = admin_client(pair.west), TopicPartition(made.topic, 0, 40)
    admin.delete_records([upto], request_timeout=TIMEOUT_S)[upto].result(TIMEOUT_S)
    assert made.scope.left_out == {partition: "[40, 100): in a piece that begins below the log's start"}
    found = made.proved()
    assert (found.verdict, found.records, found.verified_ends) == (ParityVerdict.PASSED, 30, {partition: 130})


def test_receipts_of_a_topic_that_was_there_before_vouch_for_nothing(pair: Pair, tmp_path: Path) -> None:
    made = copied(pair, tmp_path, content(100))
    status = made.mirrored.statuses[Partition(made.topic, 0)]
    state = made.mirrored.state
    state.partitions[made.mirrored.name][status.partition] = replace(status, destination_topic_id=secrets.token_hex(16))
    scope = read_certificate_scope(made.mirrored.link, state, made.receipts)
    assert unproved(scope) == {status.partition: [(0, 100)]}


def test_a_topic_that_the_destination_has_cleaned_is_not_said_to_be_altered(pair: Pair, tmp_path: Path) -> None:
    made = copied(pair, tmp_path, content(100))
    scope = replace(made.scope, compacted_topics=frozenset({made.topic}))
    assert made.proved(scope).verdict is ParityVerdict.PASSED, "it was not cleaned yet"
    [(partition, vouched)] = scope.certified.items()
    piece = replace(vouched.pieces[0], digest="0" * 32)
    found = made.proved(replace(scope, certified={partition: replace(vouched, pieces=(piece,))}))
    assert (found.verdict, found.findings) == (ParityVerdict.INDETERMINATE, ())
    assert "cleaned by key" in found.reasons[0]


@pytest.mark.slow
def test_a_destination_that_does_not_answer_is_indeterminate(pair: Pair, tmp_path: Path) -> None:
    made = copied(pair, tmp_path, content(20))
    scope = made.scope
    config = load_config(pair.config_path)
    identity = made.mirrored.link.mirror.destination_identity
    with suspended(pair.west):
        proof = LocalCertificateRunner()
        found, _ = check_certificates(config.path, identity, scope, None, run=proof.run, tasks=1)
    assert found.verdict is ParityVerdict.INDETERMINATE
    assert f"{made.topic}-0 [0, 20):" in found.reasons[0]


def test_behind_the_promotion_what_was_copied_is_proved_and_what_applications_write_is_theirs(
    pair: Pair, tmp_path: Path
) -> None:
    made = copied(pair, tmp_path, content(100))
    run = begin(made.mirrored.failover, RunMode.UNPLANNED)
    assert made.mirrored.failover.drive(run.id).state is RunState.DONE
    send(pair.west, made.topic, content(7))
    assert made.scope.left_out == {}
    found = made.proved()
    assert (found.verdict, found.records, found.verified_ends) == (
        ParityVerdict.PASSED,
        100,
        {Partition(made.topic, 0): 100},
    )
