"""Limit of bytes in flight to a broker. Pure."""

from __future__ import annotations

from typing import Final

MIN_WINDOW_BYTES: Final = 4 << 20
_WINDOW_ROUND_TRIPS: Final = 4
_MIN_SAMPLE_S: Final = 0.05
_APPEND_S: Final = 0.005
"""Added to the round trip."""


class InflightWindow:
    """Four times what the broker accepts within the shortest round trip.

    So a faster link shows, and slow appends do no harm. No more: an epoch's end waits for everything in flight.
    """

    def __init__(self, round_trip_s: float, max_bytes: int) -> None:
        self.window_bytes = min(MIN_WINDOW_BYTES, max_bytes)
        self._round_trip_s = round_trip_s + _APPEND_S
        self._max_bytes = max_bytes
        self._acked_bytes = 0
        self._sample_began_at = 0.0

    def record_ack(self, size: int, now: float) -> None:
        self._acked_bytes += size
        elapsed_s = now - self._sample_began_at
        if elapsed_s < max(self._round_trip_s, _MIN_SAMPLE_S):
            return
        target_bytes = min(
            self._max_bytes, int(_WINDOW_ROUND_TRIPS * self._round_trip_s * self._acked_bytes / elapsed_s)
        )
        # Decays slowly: a pause of the source must not reset it.
        self.window_bytes = max(min(MIN_WINDOW_BYTES, self._max_bytes), target_bytes, self.window_bytes * 7 // 8)
        self._acked_bytes, self._sample_began_at = 0, now
