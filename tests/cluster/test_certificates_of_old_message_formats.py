"""Receipts of copies of logs that hold messages of the formats 0 and 1, which a copy holds in format 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_core.evidence.file_store import LocalFolder
from mirror_core.kafka.topics import delete_records
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ALTERED_KIND, ParityVerdict
from tests.cluster.copied import Copied, unproved
from tests.support.broker_faults import alter, in_place_of, later_by_one_ms
from tests.support.cluster_admin import as_admin
from tests.support.data_errors import about_data
from tests.support.kafka_clients import Pair, new_topic
from tests.support.mirrored_topics import new_mirror
from tests.support.old_message_formats import old_logs, put_in_place

pytestmark = pytest.mark.cluster

INSIDE = 41
"""Where a log begins in the midst of a compressed set."""


@about_data()
def test_copies_of_old_formats_are_proved_and_what_is_altered_in_them_is_found(pair: Pair, tmp_path: Path) -> None:
    logs = {new_topic(pair.east, retention_ms="-1"): log for log in old_logs().values()}
    put_in_place(pair.east, logs)
    zero, one, mixed = (Partition(topic, 0) for topic in logs)
    ends = {zero: 110, one: 173, mixed: 283}
    with as_admin(pair.east) as client:
        delete_records(client, {one: Offset(INSIDE)})
    records = sum(topic != one.topic or found.offset >= INSIDE for topic, log in logs.items() for found in log.records)
    mirrored, receipts = new_mirror(pair, tmp_path, *logs), LocalFolder(tmp_path / "receipts")
    mirrored.copy(str(receipts.path))
    made = Copied(mirrored, "", receipts)
    found = made.proved()
    assert (found.verdict, found.reasons, found.records, found.verified_ends) == (
        ParityVerdict.PASSED,
        (),
        records,
        ends,
    )

    for path in receipts.path.rglob("*.parquet"):
        path.unlink()
    assert unproved(made.scope) == {zero: [(0, 110)], one: [(INSIDE, 173)], mixed: [(0, 283)]}
    assert (made.rebuilt().uncovered, made.proved().verdict) == ({}, ParityVerdict.PASSED), (
        "and compared with their sources"
    )
    assert made.proved().records == records

    alter(pair.west, zero, 20, in_place_of(b"v20 v20", b"v20 v21"))
    alter(pair.west, one, 51, later_by_one_ms)
    found = made.proved()
    assert (found.verdict, found.verified_ends) == (ParityVerdict.FAILED, {zero: 0, one: INSIDE, mixed: 283})
    assert {(finding.partition, finding.kind) for finding in found.findings} == {
        (zero, ALTERED_KIND),
        (one, ALTERED_KIND),
    }
