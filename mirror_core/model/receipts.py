"""What the state topic knows of the files in which receipts are kept: so that a lost or altered one is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from mirror_core.model.files import holds_password
from mirror_core.model.names import MirrorName


class Kept(NamedTuple):
    """One file of receipts; short in the record, since a day without compaction has 2,880 of them."""

    name: str
    sha256: str
    """Of its bytes, 64 hexadecimal digits: known before the file is written."""
    pieces: int
    stored: bool
    """Known to be there. Until then it may never have been written: its writer may have died before that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptsHead:
    """Files of one mirror and day that are told by the same writer."""

    mirror: MirrorName
    part: str
    """`2026-11-24T07`: of epochs that began in this hour (UTC), told by the data plane. `2026-11-24-rebuilt`: stored
    anew. `2026-11-24`: all of the day, put together. The folder of the files is named by the day."""
    files: tuple[Kept, ...]
    instead: tuple[str, ...] = ()
    """Paths of files, of any day, that were lost, altered or not ours, and are not asked for any more: what they may
    have vouched for was looked at again."""
    where: str = ""
    """The folder or the URL in which the newest of them is, as its writer was given it; empty: not told, as a URL that
    holds a password never is, also where an older version has told it."""

    def __post_init__(self) -> None:
        if holds_password(self.where):
            object.__setattr__(self, "where", "")

    @property
    def day(self) -> str:
        """ISO 8601."""
        return self.part[:10]

    @property
    def whole(self) -> bool:
        """Whether the day was put together: then no other file of it is read."""
        return len(self.part) == len("2026-11-24")

    def path(self, name: str) -> str:
        """Below the mirror's folder."""
        return f"date={self.day}/{name}"
