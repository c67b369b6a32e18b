"""Partitions that have had so many gaps filled that soon no more can be (`decide.gaps`): then they are FAILED. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mirror_core.decide.gaps import FILLED_MASK
from mirror_core.decide.view import some
from mirror_core.model.mirror import PartitionState, PartitionStatus

STEP: Final = 1 << 24
"""Offsets. In these steps it is recorded: sixteen times in a partition's life."""
NEAR: Final = 12 * STEP
"""Of sixteen: time enough to choose a quiet hour."""


def in_steps(filled: int) -> int:
    """As it is recorded: rounded down."""
    return filled - filled % STEP


def in_words(statuses: Iterable[PartitionStatus]) -> str:
    """Which are near the end, and what to do; empty when none is."""
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
