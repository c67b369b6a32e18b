"""Where the tail of a log can be cut off: where a batch ends and no transaction is open. Pure: it looks at headers.

Kafka keeps logs in batches, so none ends inside of one. A log that ends inside of a transaction has its records, but
will never have its marker: its last stable offset stands still, and its coordinator believes that all is done (KIP-890
calls such a transaction hanging). Going back to the first record of whatever is open is not enough, for other
transactions may be open there. So the point is found on the way: the last end of a batch where none was open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from mirror_core.model.names import Offset
from mirror_core.wire.batch import CONTROL, TRANSACTIONAL, BatchHeader

NONE_OPEN: Final[Mapping[int, Offset]] = MappingProxyType({})
"""Of each open transaction the producer's id and the offset of its first batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPoint:
    """Where a log can end that is targets to end at an offset. Each is the log end that brokers would show."""

    boundary: Offset
    """Where the last batch that is wholly below the target ends."""
    offset: Offset | None
    """The same, or lower: no transaction is open here. None when one that had begun before the walk is open at all
    places that were seen: walk from further below."""
    open: Mapping[int, Offset]
    """What is open at the boundary."""


def cut_point(
    batches: Iterable[BatchHeader], target: Offset, start: Offset, open_before: Mapping[int, Offset] = NONE_OPEN
) -> CutPoint:
    """The highest place at or below `target` where the log can be cut.

    `batches`: all of the log from `start` on, control batches and aborted transactions' included; no more of them are
    asked for than are needed. `start`: where the log would end if none of them were left, at or below the target.
    `open_before`: what is open there.
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
    """What is open behind this batch, too. As brokers learn it when they load a log."""
    if header.attributes & CONTROL:
        # An empty one is what compaction leaves of a transaction that is gone as a whole.
        if header.record_count:
            under_way.pop(header.producer_id, None)
    elif header.attributes & TRANSACTIONAL:
        under_way.setdefault(header.producer_id, Offset(header.base_offset))
