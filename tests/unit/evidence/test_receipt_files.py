"""Receipts come back as they were written."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mirror_core.evidence import receipt_files
from mirror_core.evidence.file_store import LocalFolder
from mirror_core.model.names import Partition
from mirror_core.model.task_messages import Receipt
from tests.support.receipt_files import holes, rows
from tests.support.sample_receipts import MIRROR, NOON_MS, receipt


def stored(folder: Path, generation: int, epoch: int, *told: Receipt) -> Path:
    name = receipt_files.write_receipts(
        LocalFolder(folder), MIRROR, receipt_files.pack_receipts(generation, epoch, told)
    )
    return folder / name


def test_receipts_come_back_as_they_were_written(tmp_path: Path) -> None:
    other = Partition("päymentś", 0)
    path = stored(tmp_path, 7, 0, receipt(0, 10), receipt(4, 9, task=1, partition=other))
    receipt_files.write_receipts(
        LocalFolder(tmp_path), MIRROR, receipt_files.pack_receipts(7, 1, [receipt(10, 30, epoch=1, gaps=2)])
    )

    assert path.parent.name == "date=2026-09-21"
    assert path.name == "epoch-00000007-0000000000.parquet"
    found = rows(LocalFolder(tmp_path), MIRROR)
    assert [(row["topic"], row["first"], row["next"], row["source_end"]) for row in found] == [
        ("orders", 0, 10, None),
        ("orders", 10, 30, 35),
        ("päymentś", 4, 9, None),
    ]
    assert found[1] == {
        "generation": 7,
        "epoch": 1,
        "task": 0,
        "topic": "orders",
        "partition": 3,
        "first": 10,
        "next": 30,
        "records": 18,
        "gaps": 2,
        "batches": 1,
        "bytes": 2000,
        "pieces": [{"first": 10, "next": 30, "records": 18, "digest": "00ff" * 8}],
        "source_topic_id": "5" * 32,
        "destination_topic_id": "d" * 32,
        "source_end": 35,
        "started": datetime.fromtimestamp((NOON_MS + 30_000) / 1000, UTC),
        "ended": datetime.fromtimestamp((NOON_MS + 59_999) / 1000, UTC),
    }
    assert holes(found) == []


def test_an_epoch_over_midnight_lies_in_the_day_in_which_it_began(tmp_path: Path) -> None:
    midnight = 1_790_035_200_000
    around = [replace(receipt(0, 5), started_ms=midnight + 5), replace(receipt(5, 9), started_ms=midnight - 1)]
    path = stored(tmp_path, 1, 0, *around)
    assert path.parent.name == "date=2026-09-21"


def test_columns_are_null_only_where_nothing_may_be_known(tmp_path: Path) -> None:
    path = stored(tmp_path, 1, 0, receipt(0, 10))
    assert [field.name for field in pq.read_schema(path) if field.nullable] == [
        "gaps",
        "pieces",
        "source_topic_id",
        "destination_topic_id",
        "source_end",
    ]


def test_a_file_is_on_disk_before_it_has_its_name_and_its_name_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power cut leaves is whole. `fsync` of a folder is what keeps a rename."""
    actions: list[tuple[str, str, int]] = []

    def named(handle: int) -> tuple[str, int]:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        return path.name, path.stat().st_size

    def sync(handle: int) -> None:
        name, size = named(handle)
        actions.append(("sync", name, size))

    def rename(source: Path, target: Path) -> None:
        actions.append(("rename", source.name, target.stat().st_size if target.exists() else 0))
        source.rename(target)

    monkeypatch.setattr("os.fsync", sync)
    monkeypatch.setattr("os.replace", rename)
    path = stored(tmp_path, 1, 0, receipt(0, 10))
    (first, half, size), (second, also, _), (third, folder, _) = actions
    assert (first, second, third) == ("sync", "rename", "sync")
    assert half == also
    assert size == path.stat().st_size, "all of it"
    assert folder == path.parent.name


def test_half_written_files_are_not_read(tmp_path: Path) -> None:
    path = stored(tmp_path, 1, 0, receipt(0, 10))
    path.with_name("_epoch-00000001-0000000001.parquet.1").write_bytes(b"PAR1")
    assert len(rows(LocalFolder(tmp_path), MIRROR)) == 1
    # As others read it, too: Spark and pyarrow's datasets skip the same names.
    assert pq.read_table(path.parent.parent).num_rows == 1
