"""How a source batch crosses. Pure: a header and a position in, a way out."""

from __future__ import annotations

from enum import Enum
from typing import Final

from mirror_core.wire.batch import CONTROL, DELETE_HORIZON, LOG_APPEND_TIME, TRANSACTIONAL, BatchHeader


class Way(Enum):
    AS_IT_IS = "as it is"
    CLEARED = "cleared"
    """As it is, but for bits of its header: it was part of a transaction, or has a delete horizon."""
    ENCODED = "encoded"
    """Its records are encoded anew: some are gone, or were copied before, or only the broker knows their time."""
    NOTHING = "nothing"
    """No reader sees a record in it: a control batch, aborted data, hidden records, or what the cleaner left."""
    OLD_FORMAT = "old format"
    """A message of magic 0 or 1, which brokers still give and no longer take: encoded anew."""
    PAST = "past"
    """All of it lies before the position."""


_CLEARED: Final = TRANSACTIONAL | DELETE_HORIZON


def way_of(header: BatchHeader, position: int, *, aborted: bool, hidden: bool) -> Way:
    """The way of a batch when `position` is the next offset to copy. `aborted`: its transaction was. `hidden`: a mirror
    wrote it, of hidden records.
    """
    if header.last_offset < position:
        return Way.PAST
    if header.magic < 2:
        return Way.OLD_FORMAT
    if aborted or hidden or header.attributes & CONTROL or not header.record_count:
        return Way.NOTHING
    dense = header.record_count == header.last_offset_delta + 1
    if not dense or header.base_offset < position or header.attributes & LOG_APPEND_TIME:
        return Way.ENCODED
    return Way.CLEARED if header.attributes & _CLEARED else Way.AS_IT_IS
