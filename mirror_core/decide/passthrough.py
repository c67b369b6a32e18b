"""How a source batch crosses. Pure: a header and a position in, a treatment out."""

from __future__ import annotations

from enum import Enum
from typing import Final

from mirror_core.wire.batch import DELETE_HORIZON, NEWEST, TRANSACTIONAL, BatchHeader
from mirror_core.wire.reencode import crosses_whole


class Treatment(Enum):
    AS_IT_IS = "as it is"
    CLEARED = "cleared"
    """As it is, but for bits of its header: it was part of a transaction, or has a delete horizon."""
    ENCODED = "encoded"
    """Its records are encoded anew: some are gone, or were copied before, or only the broker knows their time."""
    NOTHING = "nothing"
    """No reader sees a record in it: a control batch, aborted data, hidden records, or what the cleaner left."""
    OLD_FORMAT = "old format"
    """A message of magic 0 or 1, which brokers still give and no longer take: encoded anew."""


_CLEARED: Final = TRANSACTIONAL | DELETE_HORIZON


def treatment(header: BatchHeader, position: int, *, visible: bool) -> Treatment:
    """What is done with a batch that reaches beyond `position`, the next offset to copy. `visible`: to a reader of
    committed records (`wire.committed`).
    """
    if header.magic < NEWEST:
        return Treatment.OLD_FORMAT
    if not visible:
        return Treatment.NOTHING
    if not crosses_whole(header, position):
        return Treatment.ENCODED
    return Treatment.CLEARED if header.attributes & _CLEARED else Treatment.AS_IT_IS
