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

NONE_OPEN: Final[Mapping[int, Offset]] = MappingProxyType({})
"""Producer id to the offset of its open transaction's first batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPoint:
    boundary: Offset
    offset: Offset | None
    """Here or below, where no transaction is open. None: one that began before the walk is open
    everywhere: start lower.
    """
    open: Mapping[int, Offset]
    """Open transactions at the boundary."""


def cut_point(
    batches: Iterable[BatchHeader], target: Offset, start: Offset, open_before: Mapping[int, Offset] = NONE_OPEN
) -> CutPoint:
    """The highest place at or below `target` where the log can be cut.

    `batches`: the whole log from `start` on, with control batches and aborted data; read no further than needed.
    `start`: a log end at or below the target; `open_before`: open transactions there.
    """
    boundary = start
    under_way = dict(open_before)
    safe = None if under_way else start
    for header in batches:
        if header.next_offset > target:
            break
        boundary = Offset(header.next_offset)
        follow(under_way, header)
        if not under_way:
            safe = boundary
    return CutPoint(boundary=boundary, offset=safe, open=under_way)


def follow(under_way: dict[int, Offset], header: BatchHeader) -> None:
    if header.attributes & CONTROL:
        # An empty one is what compaction leaves of a transaction that is gone as a whole.
        if header.record_count:
            under_way.pop(header.producer_id, None)
    elif header.attributes & TRANSACTIONAL:
        under_way.setdefault(header.producer_id, Offset(header.base_offset))
