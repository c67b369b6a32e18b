"""One partition's gap, as a round of filling works on it: what it knows of it, and what it has found out.

A round takes several turns of the task's loop. It works on copies, so nothing that the loop does meanwhile changes what
it goes by; and the loop takes in what has come of it when it has ended (`PartitionReplicator.round_ended`).
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
    """Why a gap cannot be filled."""

    reason: str
    offset: int
    kind: FailureKind


class GapCase:
    """Of one round. Offsets are next offsets."""

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
        """Of the batch that follows what is acknowledged."""
        self.known_at = place.known_at
        """As in `Place`."""
        self.gaps = gaps.copied()
        self.end = end
        self.end_known = end_known
        """Whether that is the gap's true end: nobody can have begun to fill it further."""
        self.sent = False
        """Markers of this round may be in the log, or on their way."""
        self.filled = 0
        """Offsets for which there are markers of this round in the log."""
        self.filled_at = -math.inf
        """Monotonic time at which the newest of them were known to be."""
        self.lost_why = ""
        """Why the log does not end where it should, or nobody knows where it does."""
        self.refusal: Refusal | None = None
        self._clock = clock

    @property
    def open(self) -> bool:
        """Whether anything may be done about it."""
        return not self.lost_why and self.refusal is None and self.acknowledged < self.end

    def may_fill(self, asked: float, round_trip_s: float) -> bool:
        """Whether the gap is ours to fill, by what the log was at `asked` or later."""
        if self.gaps.owned:
            return True
        return self.gaps.quiet(self.acknowledged, asked, self._clock(), round_trip_s) and self.end_known

    def next_markers(self, most: int) -> tuple[int, int] | None:
        """Number and coordinator epoch of the markers to be sent now; None: its numbers are used up."""
        owned = self.gaps.owned
        epoch = marker_epoch(filled(self.end, self.sequence), self.gaps.newest, owned=owned)
        if epoch is None:
            return None
        # A newcomer sends one, and looks: it shuts out whoever was here before.
        number = min(most, at_once(self.end - self.acknowledged)) if owned else 1
        return number, epoch

    def sending(self, coordinator_epoch: int) -> None:
        """Markers are about to be sent."""
        self.sent = True
        self.gaps.sending(coordinator_epoch)

    def ends_there(self, asked: float) -> None:
        """The log was seen to end where what is acknowledged does, at this monotonic time or later."""
        self.known_at = asked
        self.gaps.confirmed(asked)

    def fill(self, offsets: int, coordinator_epoch: int) -> None:
        """So many markers of ours are in the log, and nothing else is behind them."""
        self.gaps.landed(coordinator_epoch)
        self.acknowledged += offsets
        self.filled += offsets
        self.filled_at = self._clock()

    def lose(self, why: str) -> None:
        self.lost_why = why

    def refuse(self, reason: str, kind: FailureKind) -> None:
        self.refusal = Refusal(reason, self.acknowledged, kind)
