"""Receipts as their heads tell of them: what was lost, altered or put there by others is known, and not read."""

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
"""What is put together while it is read is read anew; nobody does that three times in a row."""


@dataclass(frozen=True, slots=True)
class Found:
    """What there is of one mirror's receipts, and what is told of it."""

    heads: Heads
    checked: Checked
    tables: dict[str, pa.Table]
    """The rows of each file that is good, by its path."""

    def rows(self) -> pa.Table:
        return pa.concat_tables([SCHEMA.empty_table(), *self.tables.values()])


def found(folder: Folder, mirror: MirrorName, look: Callable[[], Heads]) -> Found:
    """`look` reads the heads, whenever it is called. Indeterminate when a file is there and cannot be read."""
    for again in reversed(range(_LOOKS)):
        # In this order: a file that is there now was told of before. What is told of later is asked for by its name.
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
    """What is known without reading a file: none is altered, as far as that goes."""
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
