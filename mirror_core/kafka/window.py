"""Limit of bytes in flight to a broker. Pure."""

from __future__ import annotations

from typing import Final

LEAST_WINDOW: Final = 4 << 20
_TRIPS: Final = 4
_MEASURED_S: Final = 0.05
_BROKER_S: Final = 0.005
"""Added to the round trip."""


class Window:
    """Four times what the broker accepts within the shortest round trip.

    So a faster link shows, and slow appends do no harm. No more: an epoch's end waits for everything in flight.
    """

    def __init__(self, round_trip_s: float, most: int) -> None:
        self.bytes = min(LEAST_WINDOW, most)
        self._trip_s = round_trip_s + _BROKER_S
        self._most = most
        self._came = 0
        self._since = 0.0

    def acknowledged(self, size: int, now: float) -> None:
        self._came += size
        passed = now - self._since
        if passed < max(self._trip_s, _MEASURED_S):
            return
        wanted = min(self._most, int(_TRIPS * self._trip_s * self._came / passed))
        # Decays slowly: a pause of the source must not reset it.
        self.bytes = max(min(LEAST_WINDOW, self._most), wanted, self.bytes * 7 // 8)
        self._came, self._since = 0, now
