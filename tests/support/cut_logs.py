"""Cut logs, shared by tests."""

from __future__ import annotations

from hypothesis import strategies as st

from mirror_core.wire.batch import CONTROL, TRANSACTIONAL, BatchHeader

PRODUCERS = st.integers(1, 3)


def data(base: int, last: int, producer: int | None = None) -> BatchHeader:
    """Records; of this producer's transaction, if one is named."""
    bits = 0 if producer is None else TRANSACTIONAL
    return BatchHeader(base, 100, 0, 2, 0, bits, last - base, 1, 2, -1 if producer is None else producer, 0, 0, 1)


def marker(base: int, producer: int, count: int = 1) -> BatchHeader:
    return BatchHeader(base, 66, 0, 2, 0, TRANSACTIONAL | CONTROL, 0, 1, 2, producer, 0, -1, count)


@st.composite
def logs(draw: st.DrawFn) -> list[BatchHeader]:
    """Transactions of several producers, mixed with other records; with holes, as compaction leaves them."""
    found: list[BatchHeader] = []
    at = draw(st.integers(0, 5))
    for _ in range(draw(st.integers(0, 25))):
        at += draw(st.sampled_from((0, 0, 0, 4)))
        kind, producer = draw(st.sampled_from(("plain", "data", "data", "marker", "empty"))), draw(PRODUCERS)
        if kind in ("marker", "empty"):
            found.append(marker(at, producer, int(kind == "marker")))
        else:
            found.append(data(at, at + draw(st.integers(0, 4)), producer if kind == "data" else None))
        at = found[-1].next_offset
    return found
