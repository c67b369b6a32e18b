"""The right to fill a partition's gaps. Whoever wrote the newest marker has it, as long as all of theirs are answered;
anybody else waits until the log has been quiet for a while, and shuts the last owner out.
"""

from __future__ import annotations

import math
from typing import Final

from mirror_core.decide.gaps import NO_MARKER

QUIET_S: Final = 1.0
QUIET_ROUND_TRIPS: Final = 4
"""How long a log end must stand still, both together, before somebody else's gap is filled, when it is the waiting
one's turn. An owner at that distance needs two round trips and a half, from its look to its marker in the log."""
SURE_S: Final = 0.8
"""How long an owner may go without a look at the log: nobody else can have taken a gap up since. Acknowledged data says
nothing of it: another copier's repetition is acknowledged, too, and its gap behind it is not seen."""


class GapOwnership:
    __slots__ = ("_confirmed_at", "_handed", "_mine", "_quiet_at", "_quiet_until", "newest")

    def __init__(self) -> None:
        self.newest = NO_MARKER
        """Highest coordinator epoch known to have been sent to this partition, by anybody."""
        self._mine = NO_MARKER
        """The newest marker of ours that is known to be in the log, with nothing of ours unanswered."""
        self._handed = NO_MARKER
        """The same of the task before us, which has ended (`copy.handover`)."""
        self._confirmed_at = -math.inf
        """Monotonic time at which the log was asked for, or sent markers, and ended where it should."""
        self._quiet_at = -1
        """The log end that is watched."""
        self._quiet_until = 0.0
        """Monotonic time until which it must not have moved."""

    @property
    def owned(self) -> bool:
        return self.newest != NO_MARKER and self.newest in (self._mine, self._handed)

    @property
    def marked(self) -> bool:
        """Whether anybody's markers are known to have been sent."""
        return self.newest != NO_MARKER

    def seen(self, coordinator_epoch: int) -> None:
        """Take in what the leader remembers."""
        self.newest = max(self.newest, coordinator_epoch)

    def forget(self, newest: int = NO_MARKER) -> None:
        """The leader has forgotten all markers that are newer than this one, and would take any that is: also after
        its log has lost its end. They are nobody's own any more."""
        self.newest, self._mine, self._handed = newest, NO_MARKER, NO_MARKER
        self._quiet_at = -1  # what was watched before was another log

    def handed(self, coordinator_epoch: int) -> None:
        """The last owner has ended, and its newest marker was this one."""
        self._handed = coordinator_epoch

    def sending(self, coordinator_epoch: int) -> None:
        """Markers of ours are on their way: nobody knows how many of them will be in the log."""
        self.seen(coordinator_epoch)
        self._mine = self._handed = NO_MARKER

    def landed(self, coordinator_epoch: int) -> None:
        """They are in the log, all of them and nothing else."""
        self._mine = coordinator_epoch

    def take_in(self, found: GapOwnership, *, sent: bool) -> None:
        """What a round of filling has made of its copy. A claim that has come meanwhile is worth nothing to who has
        sent something since."""
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
        """Nobody else has written, as far as was asked at this time."""
        self._confirmed_at = at

    def sure(self, now: float) -> bool:
        """Whether they are ours, and nobody can have taken them up meanwhile."""
        return self.owned and now - self._confirmed_at < SURE_S

    def quiet(self, log_end: int, asked: float, now: float, round_trip_s: float) -> bool:
        """Whether the log has ended at `log_end` for a while, by a look at it that was asked for at `asked`."""
        if self._quiet_at != log_end:
            self._quiet_at, self._quiet_until = log_end, now + QUIET_S + QUIET_ROUND_TRIPS * round_trip_s
            return False
        return asked >= self._quiet_until
