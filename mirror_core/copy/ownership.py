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
SURE_S: Final = 0.8
"""How long an owner may go without checking the log end. Acknowledged data does not count: a duplicate
of another copier's batch is acknowledged, too, and the gap after it is not visible."""


class GapOwnership:
    __slots__ = ("_confirmed_at", "_handed", "_mine", "_quiet_at", "_quiet_until", "newest")

    def __init__(self) -> None:
        self.newest = NO_MARKER
        self._mine = NO_MARKER
        self._handed = NO_MARKER
        self._confirmed_at = -math.inf
        self._quiet_at = -1
        self._quiet_until = 0.0

    @property
    def owned(self) -> bool:
        return self.newest != NO_MARKER and self.newest in (self._mine, self._handed)

    @property
    def marked(self) -> bool:
        return self.newest != NO_MARKER

    def seen(self, coordinator_epoch: int) -> None:
        self.newest = max(self.newest, coordinator_epoch)

    def forget(self, newest: int = NO_MARKER) -> None:
        """The leader has forgotten newer markers, and would accept any; also when its log lost its end. Nobody
        owns them."""
        self.newest, self._mine, self._handed = newest, NO_MARKER, NO_MARKER
        self._quiet_at = -1  # that was another log

    def handed(self, coordinator_epoch: int) -> None:
        self._handed = coordinator_epoch

    def sending(self, coordinator_epoch: int) -> None:
        self.seen(coordinator_epoch)
        self._mine = self._handed = NO_MARKER

    def landed(self, coordinator_epoch: int) -> None:
        self._mine = coordinator_epoch

    def take_in(self, found: GapOwnership, *, sent: bool) -> None:
        """Applies a round's copy. A claim that arrived meanwhile is void once the round has sent markers."""
        handed = found._handed if sent else self._handed
        self._become(found)
        self._handed = handed

    def copied(self) -> GapOwnership:
        made = GapOwnership()
        made._become(self)
        return made

    def _become(self, other: GapOwnership) -> None:
        self.newest, self._mine, self._handed = other.newest, other._mine, other._handed
        self._confirmed_at, self._quiet_at, self._quiet_until = other._confirmed_at, other._quiet_at, other._quiet_until

    def confirmed(self, at: float) -> None:
        self._confirmed_at = at

    def sure(self, now: float) -> bool:
        return self.owned and now - self._confirmed_at < SURE_S

    def quiet(self, log_end: int, asked: float, now: float, round_trip_s: float) -> bool:
        """Whether the log has ended at `log_end` for long enough, by a probe sent at `asked`."""
        if self._quiet_at != log_end:
            self._quiet_at, self._quiet_until = log_end, now + QUIET_S + QUIET_ROUND_TRIPS * round_trip_s
            return False
        return asked >= self._quiet_until
