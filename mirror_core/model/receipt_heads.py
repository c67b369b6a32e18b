"""Index of receipt files, so that lost or changed ones are detected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from mirror_core.model.files import has_password
from mirror_core.model.names import MirrorName


class ReceiptFileEntry(NamedTuple):
    name: str
    sha256: str
    """Hexadecimal; recorded before the file is written."""
    pieces: int
    stored: bool
    """Until then the writer may have died before writing it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptsHead:
    """Files of one mirror and day by one writer."""

    mirror: MirrorName
    part: str
    """`2026-11-24T07`: epochs begun in this hour (UTC). `2026-11-24-rebuilt`: rebuilt. `2026-11-24`: the compacted
    day.
    """
    files: tuple[ReceiptFileEntry, ...]
    abandoned_files: tuple[str, ...] = ()
    """Lost, changed or foreign files, whose offsets were verified again."""
    location: str = ""
    """Folder or URL. Empty: unknown, or the URL holds a password."""

    def __post_init__(self) -> None:
        if has_password(self.location):
            object.__setattr__(self, "location", "")

    @property
    def day(self) -> str:
        return self.part[:10]

    @property
    def is_whole_day(self) -> bool:
        """No other file of the day is read."""
        return len(self.part) == len("2026-11-24")

    def get_file_path(self, name: str) -> str:
        return f"date={self.day}/{name}"
