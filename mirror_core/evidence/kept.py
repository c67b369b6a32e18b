"""Reads receipts by their heads. Lost, altered and foreign files are known and not read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from mirror_core.evidence.folders import Folder
from mirror_core.evidence.heads import Checked, Heads, checked, listed
from mirror_core.evidence.receipts import SCHEMA, mirror_folder, parsed
from mirror_core.model.errors import Indeterminate
from mirror_core.model.names import MirrorName

_LOOKS: Final = 3


@dataclass(frozen=True, slots=True)
class Found:
    heads: Heads
    checked: Checked
    tables: dict[str, pa.Table]

    def rows(self) -> pa.Table:
        return pa.concat_tables([SCHEMA.empty_table(), *self.tables.values()])


def found(folder: Folder, mirror: MirrorName, look: Callable[[], Heads]) -> Found:
    """Raises Indeterminate if an existing file is unreadable. Read again after a compaction."""
    for again in reversed(range(_LOOKS)):
        # List before reading heads: an existing file has a head already. Files of later heads are read by name.
        names = set(_paths(folder, mirror))
        heads = look()
        told = {path: one.sha256 for path, one in listed(heads).items()} if heads else dict.fromkeys(names)
        tables, seen = dict[str, pa.Table](), dict.fromkeys(names, "")
        for path in sorted(told):
            content = _content(folder, mirror, path)
            if content is None:
                seen.pop(path, None)
                continue
            seen[path] = hashlib.sha256(content).hexdigest()
            if told[path] in (seen[path], None):
                tables[path] = _table(folder, path, content)
        result = Found(heads, checked(heads, seen), tables)
        if result.checked.sound or not again or look() == heads:
            return result
    raise AssertionError


def by_names(folder: Folder, mirror: MirrorName, heads: Heads) -> Checked:
    """Checked without reading files, so alterations stay undetected."""
    told = listed(heads)
    return checked(heads, {path: told[path].sha256 if path in told else "" for path in _paths(folder, mirror)})


def _paths(folder: Folder, mirror: MirrorName) -> Iterator[str]:
    for name in folder.names(mirror_folder(mirror)):
        if name.endswith(".parquet"):
            yield name.removeprefix(f"{mirror_folder(mirror)}/")


def _content(folder: Folder, mirror: MirrorName, path: str) -> bytes | None:
    try:
        return folder.read(f"{mirror_folder(mirror)}/{path}")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(folder, path, error) from error


def _table(folder: Folder, path: str, content: bytes) -> pa.Table:
    try:
        return parsed(content)
    except (OSError, pa.ArrowInvalid) as error:
        raise _unreadable(folder, path, error) from error


def _unreadable(folder: Folder, path: str, error: Exception) -> Indeterminate:
    return Indeterminate(f"{folder.where}: receipts cannot be read: {path}: {type(error).__name__}: {error}")
