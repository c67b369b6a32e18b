"""Warns of partitions near the limit of filled gap offsets, where they become FAILED (gap-limit)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mirror_core.decide.gaps import FILLED_MASK
from mirror_core.decide.view import join_limited
from mirror_core.model.mirror import PartitionState, PartitionStatus

FILLED_STEP_OFFSETS: Final = 1 << 24
"""Offsets. The count is recorded in these steps: sixteen times in a partition's life."""
NEAR_LIMIT_OFFSETS: Final = 12 * FILLED_STEP_OFFSETS


def round_filled(filled: int) -> int:
    return filled - filled % FILLED_STEP_OFFSETS


def format_gap_limit_warning(statuses: Iterable[PartitionStatus]) -> str:
    near = [
        status
        for status in statuses
        if status.filled_gap_offsets >= NEAR_LIMIT_OFFSETS and status.state is not PartitionState.FAILED
    ]
    if not near:
        return ""
    fullest_first = sorted(near, key=lambda status: (-status.filled_gap_offsets, status.partition))
    listed = join_limited([f"{status.partition} ({status.filled_gap_offsets:,} or more)" for status in fullest_first])
    return (
        f"near the {FILLED_MASK + 1:,} that a partition can have filled, and FAILED there (gap-limit): {listed}. "
        "Choose a quiet hour, delete the mirror topic, and let `mirrorbook mirror recover --action recopy` copy it "
        "anew; a mirror with --gaps hidden has no such limit"
    )
