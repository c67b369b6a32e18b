"""Receipts come back as they were written, and what no receipt covers is named."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.evidence import receipts
from mirror_core.evidence.folders import LocalFolder
from mirror_core.evidence.receipts import Hole
from mirror_core.model.copying import Piece, Receipt
from mirror_core.model.errors import Indeterminate
from mirror_core.model.names import MirrorName, Offset, Partition

MIRROR = MirrorName("east/west copy")  # a slash must not become a folder
ORDERS = Partition("orders", 3)
NOON_MS = 1_790_000_000_123


def receipt(
    first: int, end: int, *, epoch: int = 0, task: int = 0, partition: Partition = ORDERS, gaps: int = 0
) -> Receipt:
    return Receipt(
        mirror=MIRROR,
        partition=partition,
        epoch=epoch,
        task=task,
        first=Offset(first),
        next=Offset(end),
        records=end - first - gaps,
        gaps=gaps,
        batches=1 if end > first else 0,
        bytes=100 * (end - first),
        pieces=(Piece(first=Offset(first), next=Offset(end), records=end - first - gaps, digest="00ff" * 8),)
        if end > first
        else (),
        source_topic_id="5" * 32,
        destination_topic_id="d" * 32,
        source_end=Offset(end + 5) if epoch else None,
        started_ms=NOON_MS + epoch * 30_000,
        ended_ms=NOON_MS + epoch * 30_000 + 29_999,
    )


def stored(folder: Path, generation: int, epoch: int, *told: Receipt) -> Path:
    name = receipts.write(LocalFolder(folder), MIRROR, receipts.packed(generation, epoch, told))
    return folder / name


def test_receipts_come_back_as_they_were_written(tmp_path: Path) -> None:
    other = Partition("päymentś", 0)
    path = stored(tmp_path, 7, 0, receipt(0, 10), receipt(4, 9, task=1, partition=other))
    receipts.write(LocalFolder(tmp_path), MIRROR, receipts.packed(7, 1, [receipt(10, 30, epoch=1, gaps=2)]))

    assert path.parent.name == "date=2026-09-21"
    assert path.name == "epoch-00000007-0000000000.parquet"
    rows = receipts.read(LocalFolder(tmp_path), MIRROR).to_pylist()
    assert [(row["topic"], row["first"], row["next"], row["source_end"]) for row in rows] == [
        ("orders", 0, 10, None),
        ("orders", 10, 30, 35),
        ("päymentś", 4, 9, None),
    ]
    assert rows[1] == {
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
        "inferred": False,
    }
    summary = receipts.summarize(LocalFolder(tmp_path), MIRROR)
    assert (summary.files, summary.receipts, summary.partitions) == (2, 3, 2)
    assert (summary.records, summary.gaps, summary.batches, summary.bytes) == (33, 2, 3, 3500)
    assert (summary.first_ms, summary.last_ms) == (NOON_MS, NOON_MS + 59_999)
    assert summary.holes == ()


def test_a_lost_attempt_shows_as_an_inferred_row(tmp_path: Path) -> None:
    receipts.write(LocalFolder(tmp_path), MIRROR, receipts.packed(7, 0, [receipt(0, 10)]))
    receipts.write(
        LocalFolder(tmp_path), MIRROR, receipts.packed(7, 1, [receipt(25, 40, epoch=1)])
    )  # a killed attempt had copied [10, 25)

    assert receipts.summarize(LocalFolder(tmp_path), MIRROR).holes == (Hole(ORDERS, Offset(10), Offset(25)),)
    rows = receipts.read(LocalFolder(tmp_path), MIRROR).to_pylist()
    assert [(row["first"], row["next"], row["inferred"], row["records"]) for row in rows] == [
        (0, 10, False, 10),
        (10, 25, True, 0),
        (25, 40, False, 15),
    ]


def test_an_inferred_row_claims_nothing_but_its_offsets(tmp_path: Path) -> None:
    receipts.write(LocalFolder(tmp_path), MIRROR, receipts.packed(7, 0, [receipt(0, 10)]))
    receipts.write(LocalFolder(tmp_path), MIRROR, receipts.packed(7, 1, [receipt(25, 40, epoch=1, task=3, gaps=2)]))
    receipts.write(
        LocalFolder(tmp_path),
        MIRROR,
        receipts.packed(8, 2, [receipt(40, 50, epoch=2), receipt(25, 40, epoch=2, task=4)]),
    )
    (inferred,) = (row for row in receipts.read(LocalFolder(tmp_path), MIRROR).to_pylist() if row["inferred"])
    assert inferred == {
        # Of the one behind the hole:
        "generation": 7,
        "epoch": 1,
        "task": 3,
        "topic": "orders",
        "partition": 3,
        "source_topic_id": "5" * 32,
        "destination_topic_id": "d" * 32,
        "started": datetime.fromtimestamp((NOON_MS + 30_000) / 1000, UTC),
        "ended": datetime.fromtimestamp((NOON_MS + 59_999) / 1000, UTC),
        # Its own:
        "first": 10,
        "next": 25,
        "records": 0,
        "gaps": 0,
        "batches": 0,
        "bytes": 0,
        "pieces": [],
        "source_end": None,
        "inferred": True,
    }


def test_each_hole_is_dated_by_the_receipt_right_behind_it(tmp_path: Path) -> None:
    spans = [receipt(0, 10), receipt(20, 30, epoch=1), receipt(40, 50, epoch=2), receipt(60, 70, epoch=3)]
    for number, one in enumerate(spans):
        receipts.write(LocalFolder(tmp_path), MIRROR, receipts.packed(1, number, [one]))
    rows = receipts.read(LocalFolder(tmp_path), MIRROR).to_pylist()
    assert [(row["first"], row["epoch"]) for row in rows if row["inferred"]] == [(10, 1), (30, 2), (50, 3)]


def test_an_epoch_over_midnight_lies_in_the_day_in_which_it_began(tmp_path: Path) -> None:
    midnight = 1_790_035_200_000
    around = [replace(receipt(0, 5), started_ms=midnight + 5), replace(receipt(5, 9), started_ms=midnight - 1)]
    path = stored(tmp_path, 1, 0, *around)
    assert path.parent.name == "date=2026-09-21"


def test_columns_are_null_only_where_nothing_may_be_known(tmp_path: Path) -> None:
    path = stored(tmp_path, 1, 0, receipt(0, 10))
    for table in (pq.read_schema(path), receipts.read(LocalFolder(tmp_path), MIRROR).schema):
        assert [field.name for field in table if field.nullable] == [
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


def test_an_epoch_that_ends_after_its_successor_leaves_no_hole(tmp_path: Path) -> None:
    receipts.write(LocalFolder(tmp_path), MIRROR, receipts.packed(7, 1, [receipt(25, 40, epoch=1)]))
    assert receipts.summarize(LocalFolder(tmp_path), MIRROR).holes == ()
    receipts.write(LocalFolder(tmp_path), MIRROR, receipts.packed(7, 2, [receipt(60, 60, epoch=2)]))
    assert receipts.summarize(LocalFolder(tmp_path), MIRROR).holes == (Hole(ORDERS, Offset(40), Offset(60)),)
    receipts.write(LocalFolder(tmp_path), MIRROR, receipts.packed(7, 0, [receipt(38, 60, epoch=0)]))
    assert receipts.summarize(LocalFolder(tmp_path), MIRROR).holes == ()


def test_without_receipts_nothing_is_said(tmp_path: Path) -> None:
    summary = receipts.summarize(LocalFolder(tmp_path), MIRROR)
    assert (summary.receipts, summary.first_ms, summary.holes) == (0, None, ())
    assert receipts.read(LocalFolder(tmp_path), MIRROR).num_rows == 0


def test_half_written_files_are_not_read(tmp_path: Path) -> None:
    path = stored(tmp_path, 1, 0, receipt(0, 10))
    path.with_name("_epoch-00000001-0000000001.parquet.1").write_bytes(b"PAR1")
    assert receipts.summarize(LocalFolder(tmp_path), MIRROR).files == 1
    # As others read it, too: Spark and pyarrow's datasets skip the same names.
    assert pq.read_table(path.parent.parent).num_rows == 1


def test_a_damaged_file_is_named_and_nothing_is_concluded(tmp_path: Path) -> None:
    path = stored(tmp_path, 1, 0, receipt(0, 10))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(Indeterminate, match=path.name):
        receipts.summarize(LocalFolder(tmp_path), MIRROR)


def test_days_before_since_are_left_out(tmp_path: Path) -> None:
    receipts.write(LocalFolder(tmp_path), MIRROR, receipts.packed(1, 0, [receipt(0, 10)]))
    receipts.write(LocalFolder(tmp_path), MIRROR, receipts.packed(1, 2880, [receipt(10, 20, epoch=2880)]))
    since = datetime.fromtimestamp(NOON_MS / 1000 + 86_400, UTC).date()
    assert receipts.summarize(LocalFolder(tmp_path), MIRROR, since).records == 10
    assert receipts.summarize(LocalFolder(tmp_path), MIRROR).records == 20


@given(
    spans=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda s: (s[0], s[0] + s[1])), min_size=1),
    seed=st.integers(0, 3),
)
def test_holes_are_exactly_what_no_span_covers(spans: list[tuple[int, int]], seed: int) -> None:
    random.Random(seed).shuffle(spans)
    low, high = min(first for first, _ in spans), max(end for _, end in spans)
    covered = {offset for first, end in spans for offset in range(first, end)}
    holes = receipts._holes(ORDERS, spans)
    assert [offset for hole in holes for offset in range(hole.first, hole.next)] == [
        offset for offset in range(low, high) if offset not in covered
    ]
