"""Cuts what is to be compared into spans of about as many bytes, one task's smallest unit."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mirror_core.decide.parity_result import split_chunks
from mirror_core.model.names import Partition
from mirror_core.model.parity_verdict import ParityRange

SPAN_BYTES: Final = 256 << 20
ASSUMED_BYTES_PER_OFFSET: Final = 1_000.0  # where brokers do not say how large a log is
SPAN_COST_BYTES: Final = 256 << 10  # an empty span takes about as long as reading this much


@dataclass(frozen=True, slots=True, kw_only=True)
class ParitySpan:
    id: str
    range: ParityRange
    size_bytes: int
    """An estimate, of one side."""


def cut_spans(
    ranges: Iterable[ParityRange], bytes_per_offset: Mapping[Partition, float], chunk: int, target: int = SPAN_BYTES
) -> tuple[ParitySpan, ...]:
    """Cut between chunks where a chunk is not larger than `target` bytes.

    A compacted partition stays whole: for each span that differs its logs are read to their ends.
    """
    return tuple(span for parity_range in ranges for span in _cut_range(parity_range, bytes_per_offset, chunk, target))


def _cut_range(
    parity_range: ParityRange, bytes_per_offset: Mapping[Partition, float], chunk: int, target: int
) -> Iterator[ParitySpan]:
    mean = bytes_per_offset.get(parity_range.partition, ASSUMED_BYTES_PER_OFFSET)
    length = parity_range.end - parity_range.start
    count = 1 if parity_range.compacted else max(1, -(-int(length * mean) // target))
    size = max(1, -(-length // count))
    size = -(-size // chunk) * chunk if size >= chunk else size
    pieces = [parity_range] if parity_range.compacted else split_chunks(parity_range, size)
    for piece in pieces:
        if piece.start < piece.end:
            yield ParitySpan(
                id=f"{piece.partition}@{piece.start}", range=piece, size_bytes=int((piece.end - piece.start) * mean)
            )


def pack_spans(spans: Sequence[ParitySpan], tasks: int | None = None) -> list[tuple[ParitySpan, ...]]:
    """Tasks of about as many bytes each, the largest first. `tasks` None: as many as make `SPAN_BYTES` each."""
    if not spans:
        return []
    costs = {span.id: span.size_bytes + SPAN_COST_BYTES for span in spans}
    count = min(len(spans), tasks or -(-sum(costs.values()) // SPAN_BYTES))
    loads: list[tuple[int, int]] = [(0, number) for number in range(count)]
    packed: list[list[ParitySpan]] = [[] for _ in range(count)]
    for span in sorted(spans, key=lambda span: (-costs[span.id], span.id)):
        load, number = heapq.heappop(loads)
        packed[number].append(span)
        heapq.heappush(loads, (load + costs[span.id], number))
    tasks_by_load = [packed[number] for _, number in sorted(loads, reverse=True)]
    return [tuple(sorted(task, key=lambda span: (span.range.partition, span.range.start))) for task in tasks_by_load]
