"""Receipts as whoever reads Parquet has them, and the holes between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mirror_core.evidence.file_store import Folder
from mirror_core.evidence.receipt_files import format_mirror_folder, parse_receipts
from mirror_core.model.names import MirrorName, Partition


def rows(folder: Folder, mirror: MirrorName) -> list[dict[str, Any]]:
    """All of a mirror, by partition and offset."""
    found = [
        row
        for name in folder.names(format_mirror_folder(mirror))
        for row in parse_receipts(folder.read(name)).to_pylist()
    ]
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["first"], row["next"], row["epoch"]))


def holes(found: Iterable[Mapping[str, Any]]) -> list[tuple[Partition, int, int]]:
    """Offsets [first, next) between receipts of a partition that none of them covers, of `rows`."""
    between, reached = list[tuple[Partition, int, int]](), dict[Partition, int]()
    for row in found:
        partition = Partition(row["topic"], row["partition"])
        before = reached.get(partition, row["first"])
        if row["first"] > before:
            between.append((partition, before, row["first"]))
        reached[partition] = max(before, row["next"])
    return between
