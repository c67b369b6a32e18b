"""How a source batch crosses: from its header and the position."""

from __future__ import annotations

from enum import Enum
from typing import Final

from mirror_core.wire.batch import DELETE_HORIZON, NEWEST, TRANSACTIONAL, BatchHeader
from mirror_core.wire.reencode import crosses_whole


class Treatment(Enum):
    AS_IT_IS = "as it is"
    CLEARED = "cleared"
    """As it is, without header bits: it was in a transaction, or has a delete horizon."""
    ENCODED = "encoded"
    """Records are encoded again: some are gone or already copied, or only the broker knows their time."""
    NOTHING = "nothing"
    """No reader sees a record in it: control batch, aborted data, hidden records, or compacted away."""
    OLD_FORMAT = "old format"


_CLEARED: Final = TRANSACTIONAL | DELETE_HORIZON


def treatment(header: BatchHeader, position: int, *, visible: bool) -> Treatment:
    """For a batch that ends beyond `position`, the next offset to copy. `visible`: to a read_committed
    consumer.
    """
    if header.magic < NEWEST:
        return Treatment.OLD_FORMAT
    if not visible:
        return Treatment.NOTHING
    if not crosses_whole(header, position):
        return Treatment.ENCODED
    return Treatment.CLEARED if header.attributes & _CLEARED else Treatment.AS_IT_IS
