"""What is saved before a log is taken back may be the only copy: it survives a power cut."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ParityRange
from mirror_core.parity import salvage as salvaging
from mirror_core.parity.salvage import MANIFEST, SCHEMA, SalvageTask, salvage_records
from tests.support.resume_decisions import EAST

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
    saved = salvage_records(config, EAST, wanted, out, write=write)
    assert saved[PARTITION].records == 1
    assert synced == {
        one.stat().st_ino for one in (out, out / "part", out / "part/0.parquet", out / MANIFEST, tmp_path)
    }
    synced.clear()
    assert salvage_records(config, EAST, wanted, out, write=write) == saved, (
        "who moved it may have been killed in that moment"
    )
    assert synced == {tmp_path.stat().st_ino}
