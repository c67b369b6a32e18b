"""Sample receipts, shared by tests."""

from __future__ import annotations

from collections.abc import Callable

from mirror_core.evidence.file_store import Folder
from mirror_core.evidence.receipt_files import ReceiptRow, spill_receipts
from mirror_core.evidence.receipt_index import CheckedReceipts, ReceiptHeads
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.task_messages import Receipt, ReceiptPiece

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
        pieces=(ReceiptPiece(first=Offset(first), next=Offset(end), records=end - first - gaps, digest="00ff" * 8),)
        if end > first
        else (),
        source_topic_id="5" * 32,
        destination_topic_id="d" * 32,
        source_end=Offset(end + 5) if epoch else None,
        started_ms=NOON_MS + epoch * 30_000,
        ended_ms=NOON_MS + epoch * 30_000 + 29_999,
    )


def read_receipts(
    folder: Folder, mirror: MirrorName, read_heads: Callable[[], ReceiptHeads]
) -> tuple[CheckedReceipts, list[ReceiptRow]]:
    with spill_receipts(folder, mirror, read_heads) as (_, checked, buckets):
        return checked, [row for rows in buckets for row in rows]
