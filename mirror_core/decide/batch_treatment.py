"""How a source batch crosses: from its header and the position."""

from __future__ import annotations

from enum import Enum
from typing import Final

from mirror_core.wire.batch import CURRENT_MAGIC, DELETE_HORIZON, TRANSACTIONAL, BatchHeader
from mirror_core.wire.reencode import can_copy_whole


class BatchTreatment(Enum):
    AS_IS = "as it is"
    CLEARED = "cleared"
    """As it is, without header bits: it was in a transaction, or has a delete horizon."""
    REENCODED = "encoded"
    """Records are encoded again: some are gone or already copied, or only the broker knows their time."""
    DROPPED = "nothing"
    """No reader sees a record in it: control batch, aborted data, hidden records, or compacted away."""
    OLD_FORMAT = "old format"


_CLEARED_BITS: Final = TRANSACTIONAL | DELETE_HORIZON


def choose_treatment(header: BatchHeader, position: int, *, is_visible: bool) -> BatchTreatment:
    """For a batch that ends beyond `position`, the next offset to copy. `is_visible`: to a read_committed consumer."""
    if header.magic < CURRENT_MAGIC:
        return BatchTreatment.OLD_FORMAT
    if not is_visible:
        return BatchTreatment.DROPPED
    if not can_copy_whole(header, position):
        return BatchTreatment.REENCODED
    return BatchTreatment.CLEARED if header.attributes & _CLEARED_BITS else BatchTreatment.AS_IS
