"""Warns of partitions near the limit of filled gap offsets, where they become FAILED (gap-limit)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mirror_core.decide.gaps import FILLED_MASK
from mirror_core.decide.view import some
from mirror_core.model.mirror import PartitionState, PartitionStatus

STEP: Final = 1 << 24
"""Offsets. The count is recorded in these steps: sixteen times in a partition's life."""
NEAR: Final = 12 * STEP


def in_steps(filled: int) -> int:
    return filled - filled % STEP


def in_words(statuses: Iterable[PartitionStatus]) -> str:
    near = [s for s in statuses if s.filled >= NEAR and s.state is not PartitionState.FAILED]
    if not near:
        return ""
    most = sorted(near, key=lambda s: (-s.filled, s.partition))
    listed = some([f"{s.partition} ({s.filled:,} or more)" for s in most])
    return (
        f"near the {FILLED_MASK + 1:,} that a partition can have filled, and FAILED there (gap-limit): {listed}. "
        "Choose a quiet hour, delete the mirror topic, and let `mirrorbook mirror recover --action recopy` copy it "
        "anew; a mirror with --gaps hidden has no such limit"
    )
