"""Receipts that are not there, or are not as they were written, and what a rebuild makes of them."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_core.dataplane.driver import Replication, ReplicationOptions
from mirror_core.dataplane.task_runner import LocalRunner
from mirror_core.evidence.file_store import LocalFolder
from mirror_core.model.files import Unwritable
from mirror_core.model.names import Partition
from mirror_core.model.parity_verdict import ParityVerdict
from tests.cluster.copied import copied, mixed, unproved
from tests.support.broker_faults import suspended
from tests.support.checked_threads import beside
from tests.support.cli_process import invoked
from tests.support.kafka_clients import TIMEOUT_S, Pair
from tests.support.parity_topics import content, send
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def test_a_data_plane_that_ends_between_a_head_and_its_file_leaves_a_hole_and_no_alarm(
    pair: Pair, tmp_path: Path
) -> None:
    made = copied(pair, tmp_path, content(100))
    send(pair.east, made.topic, content(30))

    class Full(LocalFolder):
        def write(self, what: str, name: str, content: bytes, advice: str) -> None:
            raise Unwritable("no space left")

    class Runner(LocalRunner):
        def folder(self, place: str) -> LocalFolder:
            return Full(made.receipts.path)

    options = ReplicationOptions(until_caught_up=True, receipts=str(made.receipts.path))
    Replication(made.mirrored.link, Runner, options, stop=threading.Event(), report_line=lambda line: None).run()
    scope = made.scope
    assert (len(scope.checked.unwritten), scope.checked.is_sound) == (1, True)
    assert unproved(scope) == {Partition(made.topic, 0): [(100, 130)]}
    assert (made.proved(scope).verdict, made.proved(scope).records) == (ParityVerdict.INDETERMINATE, 100)


def test_lost_and_altered_receipts_are_rebuilt_and_prove_the_copy_when_the_source_is_dead(
    pair: Pair, tmp_path: Path
) -> None:
    made = copied(pair, tmp_path, mixed(200), content(30), content(20), partitions=2)
    first, second, _ = [made.receipts.path / name for name in made.receipts.names()]
    first.unlink()
    second.write_bytes(b"PAR1")
    assert made.proved().verdict is ParityVerdict.FAILED
    command = ["receipts", "rebuild", made.mirrored.name, "--receipts", str(made.receipts.path), "--runner", "local"]
    command += ["--config", str(pair.config_path), "--json"]
    said = invoked(*command)
    assert said.exit_code == 0, said.output
    answer = json.loads(said.stdout)
    assert (answer["records"], answer["files"], answer["left"]) == (2 * (200 - 2 + 30), 1, [])
    assert len(answer["settled"]) == 2
    with suspended(pair.east):
        found = made.proved()
    assert (found.verdict, found.reasons, found.records) == (ParityVerdict.PASSED, (), 2 * (200 - 2 + 50))
    assert (made.scope.left_out, made.scope.uncertified) == ({}, {})
    again = json.loads(invoked(*command).stdout)
    assert (again["records"], again["files"], again["settled"]) == (0, 0, []), "and there is nothing left to do"


def test_what_differs_from_the_source_is_not_vouched_for_by_a_rebuild(pair: Pair, tmp_path: Path) -> None:
    """Somebody wrote to the copy, and removed the receipts that would have told."""
    made = copied(pair, tmp_path, content(100))
    send(pair.west, made.topic, content(7))
    send(pair.east, made.topic, [replace(one, value=b"other") for one in content(7)])
    for path in made.receipts.path.rglob("*.parquet"):
        path.unlink()
    found = made.rebuilt()
    partition = Partition(made.topic, 0)
    assert (found.records, found.settled) == (0, ())
    assert "[0, 107): it differs from the source" in found.uncovered[partition][0]
    assert made.proved().verdict is ParityVerdict.INDETERMINATE


def test_beside_a_running_data_plane_no_file_seems_lost_and_those_that_are_can_be_rebuilt(
    pair: Pair, tmp_path: Path
) -> None:
    made = copied(pair, tmp_path, content(100))
    partition, stop = Partition(made.topic, 0), threading.Event()
    options = ReplicationOptions(receipts=str(made.receipts.path), epoch_s=1.0)
    running = Replication(made.mirrored.link, LocalRunner, options, stop=stop, report_line=lambda line: None)
    with beside(running.run, stop.set, timeout_s=TIMEOUT_S):

        def has_told(epochs: int) -> bool:
            scope = made.scope
            assert scope.checked.is_sound, [*scope.checked.format_faults()]
            return scope.newest_receipts[partition][:2] >= (2, epochs)

        wait_until(lambda: has_told(4), timeout_s=TIMEOUT_S, why="several epochs have told")
        shutil.rmtree(made.receipts.path, ignore_errors=True)  # a file may come, or get its name, in the midst of it
        assert made.scope.checked.lost
        wait_until(lambda: partition in made.scope.newest_receipts, timeout_s=TIMEOUT_S, why="an epoch has told anew")
        found = made.rebuilt()
        assert found.uncovered == {}
        assert found.records >= 100, "heartbeats are copied, too"
        wait_until(lambda: has_told(8), timeout_s=TIMEOUT_S, why="more epochs have told")
        assert made.proved().verdict is ParityVerdict.PASSED
