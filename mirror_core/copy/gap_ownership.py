"""The right to fill a partition's gaps.

The newest marker's writer has it while all its markers are acknowledged. Any other task waits until the log end stands
still although a gap is due, then fences the owner. A round works on copies, since the loop goes on meanwhile;
`PartitionReplicator.finish_gap_round` applies them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from mirror_core.copy.partition_progress import PartitionProgress
from mirror_core.decide.gaps_and_resume import NO_MARKER, choose_marker_epoch, count_filled, limit_markers_in_flight
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Partition

QUIET_S: Final = 1.0
QUIET_ROUND_TRIPS: Final = 4
"""How long the log end must not move (both together) before another owner's gap is filled in one's turn. An owner at
this distance needs two and a half round trips from its probe to its marker.
"""
CERTAIN_S: Final = 0.8
"""How long an owner may go without checking the log end. Acknowledged data does not count: a duplicate of another
copier's batch is acknowledged, too, and hides the gap after it.
"""


class GapClaim:
    __slots__ = ("_confirmed_at", "_own_epoch", "_quiet_at", "_quiet_until", "_received_epoch", "newest_epoch")

    def __init__(self) -> None:
        self.newest_epoch = NO_MARKER
        self._own_epoch = NO_MARKER
        self._received_epoch = NO_MARKER
        self._confirmed_at = -math.inf
        self._quiet_at = -1
        self._quiet_until = 0.0

    @property
    def is_owned(self) -> bool:
        return self.newest_epoch != NO_MARKER and self.newest_epoch in (self._own_epoch, self._received_epoch)

    @property
    def has_markers(self) -> bool:
        return self.newest_epoch != NO_MARKER

    def note_epoch(self, coordinator_epoch: int) -> None:
        self.newest_epoch = max(self.newest_epoch, coordinator_epoch)

    def forget(self, newest_epoch: int = NO_MARKER) -> None:
        """The leader has forgotten newer markers, and would accept any; also when its log lost its end."""
        self.newest_epoch, self._own_epoch, self._received_epoch = newest_epoch, NO_MARKER, NO_MARKER
        self._quiet_at = -1  # that was another log

    def receive(self, coordinator_epoch: int) -> None:
        self._received_epoch = coordinator_epoch

    def mark_sending(self, coordinator_epoch: int) -> None:
        self.note_epoch(coordinator_epoch)
        self._own_epoch = self._received_epoch = NO_MARKER

    def mark_landed(self, coordinator_epoch: int) -> None:
        self._own_epoch = coordinator_epoch

    def merge(self, other: GapClaim, *, sent: bool) -> None:
        """Applies a round's copy. A claim that arrived meanwhile is void once the round has sent markers."""
        received_epoch = other._received_epoch if sent else self._received_epoch
        self._assign(other)
        self._received_epoch = received_epoch

    def copy(self) -> GapClaim:
        claim = GapClaim()
        claim._assign(self)
        return claim

    def _assign(self, other: GapClaim) -> None:
        self.newest_epoch, self._own_epoch, self._received_epoch = (
            other.newest_epoch,
            other._own_epoch,
            other._received_epoch,
        )
        self._confirmed_at, self._quiet_at, self._quiet_until = other._confirmed_at, other._quiet_at, other._quiet_until

    def confirm(self, confirmed_at: float) -> None:
        self._confirmed_at = confirmed_at

    def is_certain(self, now: float) -> bool:
        return self.is_owned and now - self._confirmed_at < CERTAIN_S

    def is_quiet(self, log_end: int, requested_at: float, now: float, round_trip_s: float) -> bool:
        """The log has ended at `log_end` for long enough, by a probe sent at `requested_at`."""
        if self._quiet_at != log_end:
            self._quiet_at, self._quiet_until = log_end, now + QUIET_S + QUIET_ROUND_TRIPS * round_trip_s
            return False
        return requested_at >= self._quiet_until


class GapRefusal(NamedTuple):
    reason: str
    offset: int
    kind: FailureKind


class GapFillState:
    __slots__ = (
        "_clock",
        "acknowledged",
        "end",
        "end_confirmed_at",
        "filled_at",
        "filled_offsets",
        "gap_claim",
        "has_sent",
        "is_end_final",
        "lost_reason",
        "partition",
        "refusal",
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
        """No other task can have started to fill it further."""
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
        """Number and coordinator epoch. None: the numbers are used up."""
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
