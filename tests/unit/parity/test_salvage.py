"""What is saved before a log is taken back may be the only copy: it survives a power cut."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mirror_core.model.names import ClusterIdentity, Offset, Partition
from mirror_core.model.parity_verdict import ParityRange, SalvageMatch
from mirror_core.parity import salvage as salvaging
from mirror_core.parity.record_scan import estimate_row_bytes
from mirror_core.parity.salvage import MANIFEST, SCHEMA, SalvageIncomplete, SalvageTask, salvage_records, write_locally
from mirror_core.wire.records import MAX_HEADERS, Record
from tests.support.resume_decisions import EAST

IDENTITY = ClusterIdentity(EAST, "id-of-east")
PARTITION = Partition("orders", 0)
ROW = {"topic": "orders", "partition": 0, "offset": 4, "timestamp_ms": 0, "timestamp_type": "CreateTime", "headers": []}


def write(tasks: Sequence[SalvageTask], folder: Path) -> None:
    """One record, as Spark lays it down."""
    inside = folder / "part"
    inside.mkdir()
    pq.write_table(pa.Table.from_pylist([ROW], schema=SCHEMA), inside / "0.parquet")


def test_all_of_it_is_on_the_disk_before_anything_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "mirrorbook.yaml"
    config.write_text(f"clusters: {{{EAST}: {{bootstrap.servers: 'localhost:1'}}}}")
    monkeypatch.setattr(salvaging, "list_offsets", lambda *_: {PARTITION: Offset(0)})
    monkeypatch.setattr(salvaging, "count_records", lambda task: 1)
    synced, fsync, out = set[int](), os.fsync, tmp_path / "saved"

    def noting(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noting)
    wanted = [ParityRange(partition=PARTITION, start=Offset(4), end=Offset(5))]
    saved = salvage_records(config, IDENTITY, wanted, out, write=write)
    assert saved[PARTITION].records == 1
    assert synced == {
        one.stat().st_ino for one in (out, out / "part", out / "part/0.parquet", out / MANIFEST, tmp_path)
    }
    synced.clear()
    assert salvage_records(config, IDENTITY, wanted, out, write=write) == saved, (
        "who moved it may have been killed in that moment"
    )
    assert synced == {tmp_path.stat().st_ino}


def test_empty_headers_count_for_what_they_take_in_memory() -> None:
    record = Record(0, 0, b"key", None, ((b"", None),) * MAX_HEADERS)
    assert estimate_row_bytes(record) > 16 << 20, "a batch of rows ends behind it"
    assert estimate_row_bytes(record._replace(headers=((b"name", b"value"),))) < 400


@pytest.mark.parametrize("read_offsets", [[6], [5, 6], []])
def test_a_log_that_changes_between_comparing_and_saving_ends_the_salvage(
    monkeypatch: pytest.MonkeyPatch, read_offsets: list[int]
) -> None:
    task = SalvageTask(
        config_path="", cluster=IDENTITY, range=ParityRange(partition=PARTITION, start=Offset(5), end=Offset(7))
    )

    def read(task: SalvageTask, find_match: Callable[[Record], SalvageMatch]) -> Iterator[SalvageMatch]:
        return (find_match(Record(offset, 0, b"key", None, ())) for offset in read_offsets)

    monkeypatch.setattr(salvaging, "read_record_batches", read)
    compared: list[dict[str, object]] = [
        {"offset": -1, "match": None, "payload": msgspec.json.encode(task)},
        {"offset": 5, "match": "missing", "payload": None},
    ]
    with pytest.raises(SalvageIncomplete, match=r"orders-0, offset [56]: the log changed"):
        list(salvaging.read_matched_records(iter(compared)))


def test_topics_of_the_longest_names_are_saved_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their partitions would be file names of more than 255 bytes."""
    monkeypatch.setattr(salvaging, "read_record_batches", lambda task: iter(()))
    partitions = [Partition("t" * 248 + last, 0) for last in "ab"]
    ranges = [ParityRange(partition=partition, start=Offset(0), end=Offset(1)) for partition in partitions]
    write_locally([SalvageTask(config_path="", cluster=IDENTITY, range=one) for one in ranges], tmp_path)
    assert len([*tmp_path.glob("*.parquet")]) == 2
