"""State of one partition's gap during a gap round.

A round takes several turns of the task's loop. It works on copies, so the loop cannot change what the round relies on;
the loop applies the result at the end (`PartitionReplicator.finish_gap_round`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from mirror_core.copy.ownership import GapClaim
from mirror_core.copy.place import PartitionProgress
from mirror_core.decide.gaps import choose_marker_epoch, count_filled, limit_markers_in_flight
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Partition


class GapRefusal(NamedTuple):
    reason: str
    offset: int
    kind: FailureKind


class GapFillState:
    __slots__ = (
        "_clock",
        "acknowledged",
        "end",
        "is_end_final",
        "filled_offsets",
        "filled_at",
        "gap_claim",
        "end_confirmed_at",
        "lost_reason",
        "partition",
        "refusal",
        "has_sent",
        "sequence",
    )

    def __init__(
        self,
        partition: Partition,
        progress: PartitionProgress,
        gap_claim: GapClaim,
        end: int,
        *,
        is_end_final: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.partition = partition
        self.acknowledged = progress.acknowledged
        self.sequence = progress.acknowledged_sequence
        self.end_confirmed_at = progress.end_confirmed_at
        self.gap_claim = gap_claim.copy()
        self.end = end
        self.is_end_final = is_end_final
        """Nobody can have started to fill it further."""
        self.has_sent = False
        self.filled_offsets = 0
        self.filled_at = -math.inf
        self.lost_reason = ""
        self.refusal: GapRefusal | None = None
        self._clock = clock

    @property
    def is_open(self) -> bool:
        return not self.lost_reason and self.refusal is None and self.acknowledged < self.end

    def can_fill(self, requested_at: float, round_trip_s: float) -> bool:
        if self.gap_claim.is_owned:
            return True
        return (
            self.gap_claim.is_quiet(self.acknowledged, requested_at, self._clock(), round_trip_s) and self.is_end_final
        )

    def next_markers(self, max_markers: int) -> tuple[int, int] | None:
        """Number and coordinator epoch of the next markers; None: the numbers are used up."""
        owned = self.gap_claim.is_owned
        epoch = choose_marker_epoch(count_filled(self.end, self.sequence), self.gap_claim.newest_epoch, is_owned=owned)
        if epoch is None:
            return None
        # A newcomer sends one marker, which fences the last owner, and probes.
        number = min(max_markers, limit_markers_in_flight(self.end - self.acknowledged)) if owned else 1
        return number, epoch

    def mark_sending(self, coordinator_epoch: int) -> None:
        self.has_sent = True
        self.gap_claim.mark_sending(coordinator_epoch)

    def confirm_end(self, requested_at: float) -> None:
        self.end_confirmed_at = requested_at
        self.gap_claim.confirm(requested_at)

    def add_filled(self, offsets: int, coordinator_epoch: int) -> None:
        self.gap_claim.mark_landed(coordinator_epoch)
        self.acknowledged += offsets
        self.filled_offsets += offsets
        self.filled_at = self._clock()

    def mark_lost(self, reason: str) -> None:
        self.lost_reason = reason

    def refuse(self, reason: str, kind: FailureKind) -> None:
        self.refusal = GapRefusal(reason, self.acknowledged, kind)
