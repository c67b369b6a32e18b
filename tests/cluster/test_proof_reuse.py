"""What was proved is not read again: by the next comparison, nor by a failover."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import Result

from mirror_core.decide import verification as decide_proof
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.topics import NewTopic, create_topics, delete_records, wait_for_leaders
from mirror_core.mirrors import incremental_verification
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ParityRange, ParityResult
from mirror_core.model.run import RunMode, RunState
from mirror_core.parity.check import LocalParity, OnParityProgress
from mirror_core.parity.comparable_ranges import read_parity_scope
from mirror_core.state.writer import StateWriter, make_control_id
from tests.support.broker_faults import suspended
from tests.support.cli_process import invoked
from tests.support.cluster_admin import broker_setting
from tests.support.compacted_comparisons import keyed
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client, new_topic, produce, read_all
from tests.support.log_cutting import batch_of_100, lose_tails
from tests.support.log_shapes import HOUR_MS, await_cleaner
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.parity_topics import START_MS, Content, content, send
from tests.support.sentences import format_sentence
from tests.support.unplanned_runs import begin
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


@pytest.fixture
def mirrored(pair: Pair, tmp_path: Path) -> Mirrored:
    """Of one topic with two partitions of 100 records, caught up."""
    topic = new_topic(pair.east, 2)
    made = new_mirror(pair, tmp_path / "evidence", topic)
    more(made, topic, 100)
    return made


def more(mirrored: Mirrored, topic: str, count: int) -> None:
    for partition in (0, 1):
        produce(mirrored.pair.east, topic, count, partition=partition)
    mirrored.copy()


def topic_of(mirrored: Mirrored) -> str:
    return mirrored.link.mirror.topics[0]


def parity(mirrored: Mirrored, *options: str) -> Result:
    out = str(mirrored.evidence / "parity")
    command = ["parity", mirrored.name, "--runner", "local", "--config", str(mirrored.config.path), "--output", out]
    return invoked(*command, "--json", *options)


def compared(mirrored: Mirrored, *options: str) -> int:
    said = parity(mirrored, *options)
    assert said.exit_code == 0, said.output
    records = json.loads(said.stdout)["records"]
    assert isinstance(records, int)
    return records


def proved(mirrored: Mirrored) -> dict[Partition, tuple[int, int]]:
    """Next offset after the last one proved, and records, by what still holds."""
    with ClusterClient(mirrored.link.destination) as client:
        holding = incremental_verification.read_basis(mirrored.link, mirrored.state, client).valid
    return {partition: (one.end, one.records) for partition, one in holding.items()}


def test_the_next_comparison_reads_what_is_new(mirrored: Mirrored) -> None:
    topic = topic_of(mirrored)
    first, second = Partition(topic, 0), Partition(topic, 1)
    assert compared(mirrored) == 200
    assert proved(mirrored) == {first: (100, 100), second: (100, 100)}
    more(mirrored, topic, 30)
    assert compared(mirrored) == 60
    assert proved(mirrored) == {first: (130, 130), second: (130, 130)}
    assert compared(mirrored) == 260, "nothing is new, and a look at nothing is no proof: the ends, again"
    assert proved(mirrored) == {first: (130, 130), second: (130, 130)}
    assert compared(mirrored, "--whole") == 260


@pytest.mark.slow
def test_an_idle_mirror_whose_logs_end_with_gaps_is_proved_all_the_same(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide_proof, "RECHECKED_OFFSETS", 6)
    topic = new_topic(pair.east, retention_ms="-1")
    mirrored = new_mirror(pair, tmp_path / "evidence", topic)
    aborted = [replace(one, aborted=True) for one in content(4)]
    send(pair.east, topic, [*content(30), *aborted])
    mirrored.copy()
    assert compared(mirrored) == 30
    assert compared(mirrored) == 30, "the last eight offsets hold no record"
    send(pair.east, topic, aborted[:1])
    mirrored.copy()
    assert compared(mirrored) == 30, "what is new holds none"
    assert proved(mirrored) == {Partition(topic, 0): (40, 30)}


def test_where_no_record_was_ever_seen_nothing_is_proved(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east, retention_ms="-1")
    mirrored = new_mirror(pair, tmp_path / "evidence", topic)
    send(pair.east, topic, [replace(one, aborted=True) for one in content(2)])
    mirrored.copy()
    for _ in range(2):
        found = parity(mirrored)
        assert (found.exit_code, json.loads(found.stdout)["verdict"]) == (4, "indeterminate")


def test_a_topic_that_was_made_anew_was_never_compared(mirrored: Mirrored) -> None:
    topic = topic_of(mirrored)
    assert compared(mirrored) == 200
    admin = admin_client(mirrored.pair.west)
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    # The controller answers; the broker that is asked for the topic learns of it later.
    wait_until(lambda: proved(mirrored) == {}, timeout_s=TIMEOUT_S, why="nothing is proved of a topic that is gone")
    twin = new_topic(mirrored.pair.west, 2)
    assert twin != topic


def test_what_was_deleted_on_the_destination_since_is_found(mirrored: Mirrored) -> None:
    topic = topic_of(mirrored)
    assert compared(mirrored) == 200
    with ClusterClient(mirrored.link.destination) as client:
        delete_records(client, {Partition(topic, 1): Offset(40)})
    found = parity(mirrored)
    assert found.exit_code == 1, found.output
    assert format_sentence("destination_starts_later_than_source", 40, 0) in found.output
    assert set(proved(mirrored)) == {Partition(topic, 0)}


@pytest.mark.slow
def test_what_the_source_has_lost_and_grown_anew_since_is_found(pair: Pair, tmp_path: Path) -> None:
    """Where nobody copies who would find it: the mirror is paused, or its data plane is dead."""
    well, cut = topics = sorted(new_topic(pair.east, retention_ms="-1") for _ in range(2))
    for topic in topics:
        for first in range(0, 500, 100):
            batch_of_100(pair.east, topic, first)
    mirrored = new_mirror(pair, tmp_path / "evidence", *topics)
    mirrored.copy()
    assert compared(mirrored) == 1_000
    lose_tails(pair.east, {cut: 300})
    produce(pair.east, cut, 700)
    found = parity(mirrored)
    assert found.exit_code == 1, found.output
    assert {p: end for p, (end, _) in proved(mirrored).items()} == {Partition(well, 0): 500, Partition(cut, 0): 300}
    assert json.loads(found.stdout)["findings"][0]["offset"] == 300


def test_another_topic_of_the_same_name_on_the_source_was_never_compared(mirrored: Mirrored) -> None:
    """Its log is as long, and its leader's epochs are the same."""
    topic = topic_of(mirrored)
    compared(mirrored)
    admin = admin_client(mirrored.pair.east)
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    with ClusterClient(mirrored.link.source) as client:
        wait_until(lambda: topic not in client.metadata([topic]).topics, timeout_s=TIMEOUT_S, why="it is gone")
        create_topics(client, [NewTopic(name=topic, partitions=2, replication_factor=1)])
        wait_for_leaders(client, [topic])
    for partition in (0, 1):
        produce(mirrored.pair.east, topic, 100, partition=partition)
    found = parity(mirrored)
    assert found.exit_code == 1, found.output
    assert proved(mirrored) == {}


def test_a_key_that_the_source_deleted_without_the_copy_hearing_of_it_is_found(pair: Pair, tmp_path: Path) -> None:
    """The copy was behind for longer than `delete.retention.ms`: the tombstone was gone when copying went on."""
    topic = new_topic(
        pair.east,
        cleanup_policy="compact",
        delete_retention_ms="0",
        min_cleanable_dirty_ratio="0.01",
        segment_ms=str(HOUR_MS),
        retention_ms="-1",
    )
    mirrored = new_mirror(pair, tmp_path / "evidence", topic)
    send(pair.east, topic, keyed(100))
    mirrored.copy()
    assert compared(mirrored) == 100
    send(pair.east, topic, [Content(key=b"k7", value=None, timestamp_ms=START_MS + 1_000)])
    with broker_setting(pair.east, "log.cleaner.backoff.ms", "100"):
        for number in (1, 2):  # its second cleaning takes a tombstone
            roller = Content(key=b"roller%d" % number, value=b"", timestamp_ms=START_MS + 2 * number * HOUR_MS)
            send(pair.east, topic, [roller])
            await_cleaner(pair.east, {Partition(topic, 0): 100 + number})
    assert len(read_all(pair.east, topic)) == 101, "neither the record nor what deleted it, and two rollers"
    mirrored.copy()
    found = parity(mirrored)
    assert found.exit_code == 1, found.output
    assert [(one["offset"], one["kind"]) for one in json.loads(found.stdout)["findings"]] == [(7, "extra")]


@pytest.mark.slow
def test_a_comparison_does_not_put_back_what_was_taken_out_of_the_proof_meanwhile(mirrored: Mirrored) -> None:
    """As `mirror recover` does with a partition that had FAILED, and a failback with all of them."""
    topic = topic_of(mirrored)
    compared(mirrored)
    more(mirrored, topic, 10)
    first, second = Partition(topic, 0), Partition(topic, 1)
    link, said = mirrored.link, list[str]()

    def compare(taken: set[Partition], later: int = 0) -> ParityResult:
        def comparing(rest: Sequence[ParityRange], so_far: OnParityProgress) -> ParityResult:
            with StateWriter(link.destination, make_control_id(link.mirror.name)) as writer:
                writer.put(writer.state.verifications[link.mirror.name].forget_partitions(taken))
                mirror = writer.state.mirrors[link.mirror.name]
                writer.put(replace(mirror, producer_id=mirror.producer_id + later))
            found = LocalParity(mirrored.config.path)(mirror.source_identity, mirror.destination_identity, rest, None)
            so_far(found)
            return found

        ranges, state = read_parity_scope(link, mirrored.state).ranges, mirrored.state
        return incremental_verification.compare_and_record(
            link, state, ranges, comparing, compare_all=False, report=said.append
        )

    compare({first})
    assert proved(mirrored) == {second: (110, 110)}
    assert said == ["200 records were proved before, and not compared again"]
    assert compare(set()).records == 110, "all of the first one, from its beginning"
    assert proved(mirrored) == {first: (110, 110), second: (110, 110)}
    compare({first, second}, later=1)
    assert proved(mirrored) == {}
    assert "applications have come home" in said[-2]


def test_a_failover_proves_what_is_new_and_goes_by_what_was_proved(mirrored: Mirrored) -> None:
    topic = topic_of(mirrored)
    compared(mirrored)
    more(mirrored, topic, 10)
    run = begin(mirrored.failover, RunMode.PLANNED)
    said = mirrored.failover.run_step(run.id, "prove")
    evidence = mirrored.state.steps[run.id, "prove"].evidence
    assert said is not None
    assert (evidence["records"], evidence["records_proved_before"]) == (20, 200)
    assert proved(mirrored)[Partition(topic, 0)] == (110, 110)
    # The run holds the mirror: a comparison beside it disturbs nobody, and keeps nothing.
    beside = parity(mirrored)
    assert beside.exit_code == 0
    assert "the progress of this comparison is not saved" in beside.stderr
    for name in ("fence", "drain", "final_sync", "parity"):
        mirrored.failover.run_step(run.id, name)
    assert mirrored.state.steps[run.id, "parity"].evidence["records_in_all"] == 220
    mirrored.failover.drive(run.id)


WITH_SMALL_CHUNKS = """
import os, signal, sys
from pathlib import Path
from mirror_core.kafka.config import load_config
from mirror_core.mirrors import incremental_verification
from mirror_core.parity import check as parity_check
from mirror_core.parity.check import LocalParity
from mirror_core.parity.comparable_ranges import read_parity_scope
from mirror_core.state.mirror_link import find_mirror_link
parity_check.PROGRESS_INTERVAL_S = incremental_verification.PROOF_SAVE_INTERVAL_S = 0.0
parity_check.PROGRESS_COST_FACTOR = 0
path, name, dies = Path(sys.argv[1]), sys.argv[2], bool(sys.argv[3:])
link, state = find_mirror_link(load_config(path), name)
check = LocalParity(path, chunk=100, threads=2)
mirror = link.mirror
def compare(rest, on_progress):
    def report(so_far):
        on_progress(so_far)
        if dies and len([*find_mirror_link(load_config(path), name)[1].verifications[name].iterate_partitions()]) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
    return check(mirror.source_identity, mirror.destination_identity, rest, None, report)
ranges = read_parity_scope(link, state).ranges
found = incremental_verification.compare_and_record(link, state, ranges, compare, compare_all=False, report=print)
print(found.records)
"""


@pytest.mark.slow
def test_a_comparison_that_is_killed_is_gone_on_with(mirrored: Mirrored) -> None:
    topic = topic_of(mirrored)
    for _ in range(2):
        more(mirrored, topic, 5_000)
    command = [sys.executable, "-c", WITH_SMALL_CHUNKS, str(mirrored.config.path), mirrored.name]
    killed = subprocess.run([*command, "dies"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, ""), killed.stderr
    assert len(proved(mirrored)) == 2
    before = sum(records for _, records in proved(mirrored).values())
    assert 0 < before < 20_200
    again = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    said, records = again.stdout.splitlines()
    assert said == f"{before} records were proved before, and not compared again"
    assert int(records) == 20_200 - before
    assert set(proved(mirrored).values()) == {(10_100, 10_100)}


@pytest.mark.slow
def test_a_run_without_its_source_says_which_part_of_what_it_promotes_was_ever_compared(mirrored: Mirrored) -> None:
    topic = topic_of(mirrored)
    compared(mirrored)
    more(mirrored, topic, 10)
    with suspended(mirrored.pair.east):
        run = begin(mirrored.failover)
        assert mirrored.failover.drive(run.id).state is RunState.DONE
    evidence = mirrored.state.steps[run.id, "record_lmo"].evidence
    assert (evidence["compared_before_offsets"], evidence["mirrored_offsets"]) == (200, 220)
    assert evidence["never_compared"] == (f"{topic}-0 [100, 110)", f"{topic}-1 [100, 110)")
    assert evidence["receipts"] == "none were stored"
    [page] = mirrored.evidence.rglob("report.html")
    assert format_sentence("offsets_were_compared_equal", 200, 220) in page.read_text()
    left = json.loads(page.with_name("run.json").read_text())["left"]["record_lmo"]
    assert left["ComparedBeforeLoss"]["ends"]["topics"] == [[topic, [[0, 100], [1, 100]]]]
