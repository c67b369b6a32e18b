"""Where the tail of a log can be cut off: at a batch end with no open transaction.

A log that ends inside a transaction never gets its marker: its last stable offset stands still while the coordinator
believes the transaction complete (a hanging transaction, KIP-890). Going back to the first record of every open
transaction is not enough: others may be open there. So the walk remembers the last batch end where none was open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from mirror_core.model.names import Offset
from mirror_core.wire.batch import CONTROL, TRANSACTIONAL, BatchHeader

NO_OPEN_TRANSACTIONS: Final[Mapping[int, Offset]] = MappingProxyType({})
"""Producer id to the offset of its open transaction's first batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPoint:
    boundary: Offset
    offset: Offset | None
    """Here or below, where no transaction is open. None: one that began before the walk is open
    everywhere: start lower.
    """
    open_transactions: Mapping[int, Offset]
    """Open transactions at the boundary."""


def find_cut_point(
    batches: Iterable[BatchHeader],
    target: Offset,
    start: Offset,
    open_before: Mapping[int, Offset] = NO_OPEN_TRANSACTIONS,
) -> CutPoint:
    """The highest place at or below `target` where the log can be cut.

    `batches`: the whole log from `start` on, with control batches and aborted data; read no further than needed.
    `start`: a log end at or below the target; `open_before`: open transactions there.
    """
    boundary = start
    open_transactions = dict(open_before)
    safe_offset = None if open_transactions else start
    for header in batches:
        if header.next_offset > target:
            break
        boundary = Offset(header.next_offset)
        track_transactions(open_transactions, header)
        if not open_transactions:
            safe_offset = boundary
    return CutPoint(boundary=boundary, offset=safe_offset, open_transactions=open_transactions)


def track_transactions(open_transactions: dict[int, Offset], header: BatchHeader) -> None:
    if header.attributes & CONTROL:
        # An empty one is what compaction leaves of a transaction that is gone as a whole.
        if header.record_count:
            open_transactions.pop(header.producer_id, None)
    elif header.attributes & TRANSACTIONAL:
        open_transactions.setdefault(header.producer_id, Offset(header.base_offset))
