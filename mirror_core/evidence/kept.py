"""Reads receipts by their heads. Lost, altered and foreign files are known and not read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from mirror_core.evidence.folders import Folder
from mirror_core.evidence.heads import CheckedReceipts, ReceiptHeads, check_receipts, list_receipt_files
from mirror_core.evidence.receipts import RECEIPTS_SCHEMA, format_mirror_folder, parse_receipts
from mirror_core.model.errors import Indeterminate
from mirror_core.model.names import MirrorName

_MAX_READS: Final = 3


@dataclass(frozen=True, slots=True)
class StoredReceipts:
    heads: ReceiptHeads
    checked: CheckedReceipts
    tables: dict[str, pa.Table]

    def rows(self) -> pa.Table:
        return pa.concat_tables([RECEIPTS_SCHEMA.empty_table(), *self.tables.values()])


def read_receipts(folder: Folder, mirror: MirrorName, read_heads: Callable[[], ReceiptHeads]) -> StoredReceipts:
    """Raises Indeterminate if an existing file is unreadable. Read again after a compaction."""
    for reads_left in reversed(range(_MAX_READS)):
        # List before reading heads: an existing file has a head already. Files of later heads are read by name.
        paths = set(_list_paths(folder, mirror))
        heads = read_heads()
        expected_hashes = (
            {path: receipt_file.sha256 for path, receipt_file in list_receipt_files(heads).items()}
            if heads
            else dict.fromkeys(paths)
        )
        tables, found_hashes = dict[str, pa.Table](), dict.fromkeys(paths, "")
        for path in sorted(expected_hashes):
            content = _read_content(folder, mirror, path)
            if content is None:
                found_hashes.pop(path, None)
                continue
            found_hashes[path] = hashlib.sha256(content).hexdigest()
            if expected_hashes[path] in (found_hashes[path], None):
                tables[path] = _read_table(folder, path, content)
        result = StoredReceipts(heads, check_receipts(heads, found_hashes), tables)
        if result.checked.is_sound or not reads_left or read_heads() == heads:
            return result
    raise AssertionError


def check_by_names(folder: Folder, mirror: MirrorName, heads: ReceiptHeads) -> CheckedReceipts:
    """Checked without reading files, so alterations stay undetected."""
    expected_files = list_receipt_files(heads)
    return check_receipts(
        heads,
        {path: expected_files[path].sha256 if path in expected_files else "" for path in _list_paths(folder, mirror)},
    )


def _list_paths(folder: Folder, mirror: MirrorName) -> Iterator[str]:
    for name in folder.names(format_mirror_folder(mirror)):
        if name.endswith(".parquet"):
            yield name.removeprefix(f"{format_mirror_folder(mirror)}/")


def _read_content(folder: Folder, mirror: MirrorName, path: str) -> bytes | None:
    try:
        return folder.read(f"{format_mirror_folder(mirror)}/{path}")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _make_unreadable_error(folder, path, error) from error


def _read_table(folder: Folder, path: str, content: bytes) -> pa.Table:
    try:
        return parse_receipts(content)
    except (OSError, pa.ArrowInvalid) as error:
        raise _make_unreadable_error(folder, path, error) from error


def _make_unreadable_error(folder: Folder, path: str, error: Exception) -> Indeterminate:
    return Indeterminate(f"{folder.where}: receipts cannot be read: {path}: {type(error).__name__}: {error}")
