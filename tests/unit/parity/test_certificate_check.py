"""What certificates cover, as it is read from receipts."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.evidence import receipt_files
from mirror_core.evidence.file_store import LocalFolder
from mirror_core.kafka.log_offsets import OffsetPoint
from mirror_core.model.mirror import Lease, PartitionState, PartitionStatus
from mirror_core.model.names import Offset, Partition
from mirror_core.model.receipt_heads import ReceiptFileEntry, ReceiptsHead
from mirror_core.model.task_messages import Receipt
from mirror_core.parity import certificate_check
from mirror_core.parity.certificate_check import CertificateScope, are_receipts_current, read_certificate_scope
from mirror_core.state.state_records import State
from tests.support.sample_receipts import MIRROR, receipt

FILES, PARTITIONS, OFFSETS = 8, 20, 48_000
PARTITION = Partition("orders", 0)


def status(index: int, state: PartitionState = PartitionState.MIRRORING) -> PartitionStatus:
    return PartitionStatus(
        partition=Partition("orders", index),
        state=state,
        source_topic_id="5" * 32,
        destination_topic_id="d" * 32,
    )


class Certified:
    """A folder of receipts, and a destination whose logs are [0, OFFSETS)."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = LocalFolder(folder)
        self.entries = list[ReceiptFileEntry]()
        self.day = ""
        self.state = State(partitions={MIRROR: {Partition("orders", n): status(n) for n in range(PARTITIONS)}})
        topics = {"orders": SimpleNamespace(id="d" * 32, partitions=range(PARTITIONS))}

        def points(client: object, partitions: list[Partition], wanted: object) -> dict[OffsetPoint, Any]:
            ends = dict.fromkeys(partitions, Offset(OFFSETS))
            return {OffsetPoint.START: dict.fromkeys(partitions, Offset(0)), OffsetPoint.LOG_END: ends}

        doubles: dict[str, Any] = {
            "heads_of": lambda link: self.heads(),
            "ClusterClient": Opened,
            "find_existing_topics": lambda client, names: topics,
            "list_offset_points": points,
            "describe_configs": lambda client, names: {},
            "observe_live_lease": lambda *asked: None,
        }
        for name, double in doubles.items():
            monkeypatch.setattr(certificate_check, name, double)

    def heads(self) -> dict[str, ReceiptsHead]:
        return {"hour": ReceiptsHead(mirror=MIRROR, part=f"{self.day}T07", files=tuple(self.entries), location="")}

    def write(self, generation: int, number: int, receipts: Iterable[Receipt]) -> None:
        file = receipt_files.pack_receipts(generation, number, list(receipts))
        receipt_files.write_receipts(self.folder, MIRROR, file)
        self.day = file.day
        self.entries.append(ReceiptFileEntry(file.name, file.sha256, file.pieces, stored=True))

    def read(self) -> CertificateScope:
        link: Any = SimpleNamespace(mirror=SimpleNamespace(name=MIRROR), destination=None)
        return read_certificate_scope(link, self.state, self.folder)


class Opened:
    def __init__(self, *asked: object) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None: ...


def receipts_of(epochs: Iterable[int], size: int) -> Iterable[Receipt]:
    for epoch in epochs:
        for index in range(PARTITIONS):
            partition = Partition("orders", index)
            # All on one day, whatever the number of epochs.
            yield replace(
                receipt(epoch * size, (epoch + 1) * size, epoch=epoch, partition=partition), started_ms=0, ended_ms=0
            )


def test_memory_does_not_grow_with_the_number_of_receipts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipt_files, "_BUCKET_ROWS", 500)
    peaks, covered = list[int](), list[list[tuple[int, int, int]]]()
    for epochs in (40, 320):
        certified = Certified(tmp_path / str(epochs), monkeypatch)
        a_file = epochs // FILES
        for number in range(FILES):
            certified.write(1, number, receipts_of(range(number * a_file, (number + 1) * a_file), OFFSETS // epochs))
        tracemalloc.start()
        scope = certified.read()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert set(scope.certified) == set(certified.state.partitions[MIRROR])
        assert (scope.uncertified, scope.left_out) == ({}, {})
        assert set(scope.newest_receipts.values()) == {(1, epochs - 1, OFFSETS)}
        covered += [[(p.first, p.next, p.records) for p in one.pieces] for one in scope.certified.values()]
    assert len({tuple(pieces) for pieces in covered}) == 1, "the same logs"
    assert peaks[1] < 2 * peaks[0], peaks


def test_pieces_of_another_topic_of_the_name_and_of_other_partitions_count_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certified = Certified(tmp_path, monkeypatch)
    recorded = {PARTITION: status(0), Partition("orders", 1): status(1, PartitionState.FAILED)}
    recorded[Partition("orders", 2)] = status(2)
    certified.state.partitions[MIRROR] = recorded
    old = replace(receipt(0, 700, partition=PARTITION), destination_topic_id="e" * 32)
    failed, unknown = (receipt(0, 900, epoch=2, partition=Partition("orders", n)) for n in (1, 7))
    certified.write(1, 1, [old, receipt(0, 500, epoch=1, partition=PARTITION), failed, unknown])
    certified.write(2, 1, [receipt(500, 600, epoch=1, partition=PARTITION)])
    scope = certified.read()
    assert {p: (c.start, c.end) for p, c in scope.certified.items()} == {PARTITION: (0, 600)}
    assert set(scope.ends) == {PARTITION, Partition("orders", 2)}, "a log without receipts is compared with none"
    assert scope.newest_receipts == {PARTITION: (2, 1, 600), Partition("orders", 1): (1, 2, 900)}
    gaps = {p: [(gap.start, gap.end) for gap in gaps] for p, gaps in scope.uncertified.items()}
    assert gaps == {
        PARTITION: [(600, OFFSETS)],
        Partition("orders", 1): [(0, OFFSETS)],
        Partition("orders", 2): [(0, OFFSETS)],
    }


@pytest.mark.parametrize("clock_ahead", [timedelta(0), timedelta(hours=2), timedelta(hours=-2)])
@pytest.mark.parametrize(("age", "fresh"), [(timedelta(minutes=1), True), (timedelta(minutes=6), False)])
def test_whether_receipts_are_still_stored_is_judged_by_the_clock_of_the_data_plane(
    clock_ahead: timedelta, age: timedelta, fresh: bool
) -> None:
    """Ahead of this machine's, or behind it."""
    heartbeat = datetime.now(UTC) + clock_ahead
    heartbeat_ms = round(heartbeat.timestamp() * 1000)
    lease = Lease(
        mirror=MIRROR, owner="other/1/aa", generation=3, heartbeat_ms=heartbeat_ms, writers_until_ms=heartbeat_ms
    )
    assert are_receipts_current(lease, 3, heartbeat - age) is fresh
    assert not are_receipts_current(lease, 2, heartbeat), "stored by a data plane before it"
    assert not are_receipts_current(None, 3, heartbeat)
