"""How much may be on its way to a broker. Pure; the clock is the caller's."""

from __future__ import annotations

from typing import Final

LEAST_WINDOW: Final = 4 << 20
"""Bytes; what keeps a broker near by at work."""
_TRIPS: Final = 4
_MEASURED_S: Final = 0.05
_BROKER_S: Final = 0.005
"""What an append takes, on top of the way there and back."""


class Window:
    """How many bytes may be on their way to a broker: four times what it takes within the shortest round trip.

    So a link that could take more shows it, and a broker may take its time with an append. No more, since an epoch's
    end has to wait for all that waits in front of a slow link.
    """

    def __init__(self, round_trip_s: float, most: int) -> None:
        """`most`: bytes."""
        self.bytes = min(LEAST_WINDOW, most)
        self._trip_s = round_trip_s + _BROKER_S
        self._most = most
        self._came = 0
        self._since = 0.0

    def acknowledged(self, size: int, now: float) -> None:
        """So many bytes were acknowledged."""
        self._came += size
        passed = now - self._since
        if passed < max(self._trip_s, _MEASURED_S):
            return
        wanted = min(self._most, int(_TRIPS * self._trip_s * self._came / passed))
        # A pause of the source's is no reason to begin anew: what was measured last counts for a while.
        self.bytes = max(min(LEAST_WINDOW, self._most), wanted, self.bytes * 7 // 8)
        self._came, self._since = 0, now
