"""Clocks, and limits of liveness and silence.

Measure intervals with `time.monotonic`, or `read_steady_s` where a process may sleep: people and NTP set the wall
clock, `now_ms`. A run's times are those of `StateWriter.now_ms`.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, field, fields
from typing import Final

MAX_FRESH_AGE_S: Final = 10.0
"""Older heartbeats mean a lost owner; older observations are unknown now."""
CONDUCTOR_TIMEOUT_S: Final = 30.0
"""Conductors beat every 10 s; then another may take over."""
CLOCK_TIMEOUT_S: Final = 2.0
"""For a cluster's response with its clock."""

UNKNOWN_NOW_MS: Final = 0
"""Where clocks contradict each other: all that is recorded is in its future, of unknown age."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class SteadyClock:
    """A wall clock as of its creation. Setting it changes nothing; sleep counts."""

    def __init__(self, start_ms: int | None = None) -> None:
        self._start_minus_boot_s = (now_ms() if start_ms is None else start_ms) / 1000 - read_steady_s()

    def __call__(self) -> float:
        return read_steady_s() + self._start_minus_boot_s

    def now_ms(self) -> int:
        return round(self() * 1000)

    def advance_to(self, at_ms: int) -> None:
        self._start_minus_boot_s = max(self._start_minus_boot_s, at_ms / 1000 - read_steady_s())


_BOOT_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""macOS: its monotonic clock counts sleep."""


def read_steady_s() -> float:
    """Since a moment that only this machine knows, until it restarts. Sleep counts."""
    return time.clock_gettime(_BOOT_CLOCK)


@dataclass(frozen=True, slots=True)
class Moment:
    _ticks_s: float = field(default_factory=lambda: time.monotonic())
    _wall_ms: int = field(default_factory=lambda: now_ms())

    @property
    def age_s(self) -> float:
        """By the clock that advanced more."""
        return max(time.monotonic() - self._ticks_s, (now_ms() - self._wall_ms) / 1000)


SCALE_VARIABLE: Final = "MIRRORBOOK_PATIENCE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds."""

    plan_response_s: float = 2.5
    """One response to a plan: the cluster is unseen."""
    plan_cluster_idle_s: float = 4.0
    plan_cluster_total_s: float = 60.0
    plan_state_s: float = 3.0
    """Without the state topic there is no plan."""
    plan_groups_s: float = 1.0
    plan_heartbeats_s: float = 2.0
    """One response with heartbeats: none are known."""
    new_leader_s: float = 1.0
    """A new leader without offsets yet: the partition is offline."""
    liveness_probe_s: float = 5.0
    lost_source_s: float = 2.0
    """One response of a source that was given up: its fence stays pending."""
    silent_source_s: float = 3.0
    """One response of a source that may be dead, while applications wait: the request becomes pending."""
    promotion_probe_max_age_s: float = 30.0
    """From the last source probe to the first right granted. A process that slept probes again."""
    announce_destination_s: float = 10.0
    """The destination's response: its announcement is pending."""
    announce_remote_s: float = 60.0
    """All responses of a remote, living cluster: not announced."""
    canary_broker_s: float = 3.0
    canary_missing_broker_s: float = 15.0
    """Brokers that are down. Clusters drop a dead one after 9 s by default."""
    canary_trial_s: float = 30.0
    pending_fence_probe_s: float = 1.0
    old_source_response_s: float = 3.0
    other_cluster_s: float = 4.0
    mirror_lookup_s: float = 4.0
    completion_s: float = 2.0
    describe_response_s: float = 3.0
    estimate_response_s: float = 5.0
    recovery_response_s: float = 5.0
    cached_state_s: float = 2.0
    """One response to a cached reader; then the topic is read again in full."""
    monitor_response_s: float = 3.0
    """One response to the source monitor or heartbeat writer."""
    copy_leader_s: float = 2.0
    """A new leader without offsets yet: the epoch goes on as if nothing was known."""
    transaction_marker_s: float = 5.0
    sandbox_broker_s: float = 2.0

    @classmethod
    def scaled(cls, factor: float) -> Timeouts:
        defaults = cls()
        return cls(**{field.name: getattr(defaults, field.name) * factor for field in fields(cls)})


def parse_scale_factor(value: str) -> float:
    """ValueError unless positive."""
    try:
        factor = float(value)
    except ValueError:
        factor = math.nan
    if not (math.isfinite(factor) and factor > 0):
        raise ValueError(f"environment variable {SCALE_VARIABLE} is {value!r}: it must be a positive number, such as 3")
    return factor


SCALE_FACTOR: Final = parse_scale_factor(os.environ.get(SCALE_VARIABLE, "1"))
TIMEOUTS: Final = Timeouts.scaled(SCALE_FACTOR)
"""Only tests set the variable, on slow machines."""
