"""The right to fill a partition's gaps. The writer of the newest marker owns it while all its markers
are acknowledged.

Any other task waits until the log has been quiet for a while, and then fences the last owner.
"""

from __future__ import annotations

import math
from typing import Final

from mirror_core.decide.gaps import NO_MARKER

QUIET_S: Final = 1.0
QUIET_ROUND_TRIPS: Final = 4
"""How long the log end must not move (both together) before another owner's gap is filled in one's
turn. An owner at this distance needs two and a half round trips from its probe to its marker."""
CERTAIN_S: Final = 0.8
"""How long an owner may go without checking the log end. Acknowledged data does not count: a duplicate
of another copier's batch is acknowledged, too, and the gap after it is not visible."""


class GapClaim:
    __slots__ = ("_confirmed_at", "_received_epoch", "_own_epoch", "_quiet_at", "_quiet_until", "newest_epoch")

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
        """The leader has forgotten newer markers, and would accept any; also when its log lost its end. Nobody
        owns them."""
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
        """Whether the log has ended at `log_end` for long enough, by a probe sent at `asked`."""
        if self._quiet_at != log_end:
            self._quiet_at, self._quiet_until = log_end, now + QUIET_S + QUIET_ROUND_TRIPS * round_trip_s
            return False
        return requested_at >= self._quiet_until
