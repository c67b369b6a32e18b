"""State of one partition's gap during a gap round.

A round takes several turns of the task's loop. It works on copies, so the loop cannot change what the round relies on;
the loop applies the result at the end (`PartitionReplicator.finish_gap_round`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from mirror_core.copy.ownership import GapOwnership
from mirror_core.copy.place import Place
from mirror_core.decide.gaps import at_once, filled, marker_epoch
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Partition


class Refusal(NamedTuple):
    reason: str
    offset: int
    kind: FailureKind


class GapCase:
    __slots__ = (
        "_clock",
        "acknowledged",
        "end",
        "end_known",
        "filled",
        "filled_at",
        "gaps",
        "known_at",
        "lost_why",
        "partition",
        "refusal",
        "sent",
        "sequence",
    )

    def __init__(
        self,
        partition: Partition,
        place: Place,
        gaps: GapOwnership,
        end: int,
        *,
        end_known: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.partition = partition
        self.acknowledged = place.acknowledged
        self.sequence = place.acknowledged_sequence
        self.known_at = place.known_at
        self.gaps = gaps.copied()
        self.end = end
        self.end_known = end_known
        """Nobody can have started to fill it further."""
        self.sent = False
        self.filled = 0
        self.filled_at = -math.inf
        self.lost_why = ""
        self.refusal: Refusal | None = None
        self._clock = clock

    @property
    def open(self) -> bool:
        return not self.lost_why and self.refusal is None and self.acknowledged < self.end

    def may_fill(self, asked: float, round_trip_s: float) -> bool:
        if self.gaps.owned:
            return True
        return self.gaps.quiet(self.acknowledged, asked, self._clock(), round_trip_s) and self.end_known

    def next_markers(self, most: int) -> tuple[int, int] | None:
        """Number and coordinator epoch of the next markers; None: the numbers are used up."""
        owned = self.gaps.owned
        epoch = marker_epoch(filled(self.end, self.sequence), self.gaps.newest, owned=owned)
        if epoch is None:
            return None
        # A newcomer sends one marker, which fences the last owner, and probes.
        number = min(most, at_once(self.end - self.acknowledged)) if owned else 1
        return number, epoch

    def sending(self, coordinator_epoch: int) -> None:
        self.sent = True
        self.gaps.sending(coordinator_epoch)

    def ends_there(self, asked: float) -> None:
        self.known_at = asked
        self.gaps.confirmed(asked)

    def fill(self, offsets: int, coordinator_epoch: int) -> None:
        self.gaps.landed(coordinator_epoch)
        self.acknowledged += offsets
        self.filled += offsets
        self.filled_at = self._clock()

    def lose(self, why: str) -> None:
        self.lost_why = why

    def refuse(self, reason: str, kind: FailureKind) -> None:
        self.refusal = Refusal(reason, self.acknowledged, kind)
