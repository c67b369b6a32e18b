"""How old recorded times are, and whether this machine's clock is comparable.

`now_ms`: this machine's clock, which is ahead of the brokers' by `ahead_ms`. `appended_ms`: when a record was appended,
by a broker's clock. None: unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from mirror_core.model.findings import Finding
from mirror_core.model.mirror import GroupSyncTime, Lease, Mirror
from mirror_core.model.names import ClusterName
from mirror_core.model.source_observation import Heartbeat, SourceObservation
from mirror_core.model.timing import UNKNOWN_NOW_MS

MAX_CLOCK_SKEW_MS: Final = 1_000
"""NTP keeps clocks closer than this."""
_MAX_IN_FLIGHT_MS: Final = 10_000
UNKNOWN_TIME_TEXT: Final = "at an unknown time (clocks differ)"


def compute_age_s(now_ms: int, at_ms: int) -> float | None:
    """None if unknown, as when the time is in this clock's future."""
    return None if now_ms - at_ms < -MAX_CLOCK_SKEW_MS else max(0, now_ms - at_ms) / 1000


def format_ago(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.1f} s ago"


def format_since(now_ms: int, at_ms: int | None) -> str:
    seconds = None if at_ms is None else compute_age_s(now_ms, at_ms)
    return UNKNOWN_TIME_TEXT if seconds is None and at_ms is not None else format_ago(seconds)


def to_owner_clock_ms(now_ms: int, ahead_ms: int | None, lease: Lease | None, appended_ms: int | None) -> int:
    """Now, by the clock of the lease's owner.

    `appended_ms`: of the newest heartbeat. Unknown differences, those that NTP leaves, and seconds in flight count as
    none.
    """
    if ahead_ms is None:
        return now_ms
    return to_broker_clock_ms(now_ms, ahead_ms) + compute_writer_ahead_ms(
        lease.heartbeat_ms if lease else None, appended_ms
    )


def find_leader_ahead_ms(now_ms: int, ahead_ms: int | None, appended_ms: Iterable[int]) -> int | None:
    """How far, at least, the clock of the state topic's leader is ahead of the controller's; None: not seen to be.

    Ages are unknown then. `appended_ms`: by the leader's clock. A slow response makes the controller's clock look
    seconds behind.
    """
    newest_ms = max(appended_ms, default=None)
    if ahead_ms is None or newest_ms is None:
        return None
    leader_ahead_ms = newest_ms - (now_ms - ahead_ms)
    return leader_ahead_ms if leader_ahead_ms > _MAX_IN_FLIGHT_MS else None


def find_leader_ahead(cluster: str, leader_ahead_ms: int | None) -> Finding | None:
    if leader_ahead_ms is None:
        return None
    return Finding("state_leader_ahead", cluster, ahead_s=leader_ahead_ms / 1000)


def from_owner_clock_ms(owner_ms: int, lease: Lease | None, appended_ms: int | None) -> int:
    """By the brokers' clock. `appended_ms`: of the newest heartbeat."""
    return owner_ms - compute_writer_ahead_ms(lease.heartbeat_ms if lease else None, appended_ms)


def to_broker_clock_ms(now_ms: int, ahead_ms: int | None) -> int:
    return now_ms if ahead_ms is None or abs(ahead_ms) <= MAX_CLOCK_SKEW_MS else now_ms - ahead_ms


def to_local_clock_ms(written_ms: int, ahead_ms: int | None, appended_ms: int | None) -> int:
    """A record's time. `written_ms`: by the writer's clock; `appended_ms` None: that is the brokers', too."""
    if ahead_ms is None:
        return written_ms
    ahead_of_broker_ms = 0 if abs(ahead_ms) <= MAX_CLOCK_SKEW_MS else ahead_ms
    return written_ms - compute_writer_ahead_ms(written_ms, appended_ms) + ahead_of_broker_ms


def compute_writer_ahead_ms(written_ms: int | None, appended_ms: int | None) -> int:
    """How far a record's writer is ahead of the brokers' clock, by the times that both gave the record."""
    ahead_ms = 0 if written_ms is None or appended_ms is None else written_ms - appended_ms
    return 0 if -_MAX_IN_FLIGHT_MS < ahead_ms <= MAX_CLOCK_SKEW_MS else ahead_ms


def compute_observer_ahead_ms(observed_ms: int | None, appended_ms: int | None) -> int:
    """As `compute_writer_ahead_ms`, and never too little, however long the record was in flight.

    An observed time less this is never later than it was by the brokers' clock.
    """
    ahead_ms = compute_writer_ahead_ms(observed_ms, appended_ms)
    return ahead_ms + _MAX_IN_FLIGHT_MS if ahead_ms else 0


def compute_writers_left_ms(now_ms: int, ahead_ms: int | None, lease: Lease, appended_ms: int | None) -> int:
    """How long the owner's tasks may still write.

    Negative: the time since they had to stop. From the owner's newest heartbeat, by the brokers' clock where it is
    known. The broker that stored it may be behind the one that tells the time: a smaller age by the owner's clock
    counts, unless that one is ahead.
    """
    age_ms = to_broker_clock_ms(now_ms, ahead_ms) - lease.heartbeat_ms
    if ahead_ms is not None and appended_ms is not None:
        stored_age_ms = now_ms - ahead_ms - appended_ms
        age_ms = stored_age_ms if age_ms < -_MAX_IN_FLIGHT_MS else min(age_ms, stored_age_ms)
    return lease.writers_until_ms - lease.heartbeat_ms - max(0, age_ms)


def find_clock_difference(cluster: str, ahead_ms: int, *, in_plan: bool = False) -> Finding | None:
    if abs(ahead_ms) <= MAX_CLOCK_SKEW_MS:
        return None
    return Finding("clock_differs", cluster, ahead_s=ahead_ms / 1000, in_plan=in_plan)


MAX_DESTINATION_BEHIND_MS: Final = 3_600_000
"""Brokers' default for `message.timestamp.after.max.ms` (KIP-937)."""


def find_destination_clock_behind(mirror: Mirror, ahead_ms: Mapping[ClusterName, int]) -> Finding | None:
    """Found if promoted topics would refuse records with current timestamps. None also if a clock is unknown."""
    if not {mirror.source, mirror.destination} <= ahead_ms.keys():
        return None
    behind_ms = ahead_ms[mirror.destination] - ahead_ms[mirror.source]
    if behind_ms <= MAX_DESTINATION_BEHIND_MS:
        return None
    return Finding("destination_clock_behind", mirror.destination, source=mirror.source, behind_s=behind_ms / 1000)


def find_clock_behind_s(
    now_ms: int,
    lease: Lease | None,
    observation: SourceObservation | None,
    groups: GroupSyncTime | None,
    heartbeats: Iterable[Heartbeat],
) -> float | None:
    """Least time by which this clock is behind; None: nothing was recorded in its future.

    A clock that is ahead cannot be seen: everything just looks older. Nothing is seen at an unknown time.
    """
    if now_ms == UNKNOWN_NOW_MS:
        return None
    written_ms = [beat.at_ms for beat in heartbeats]
    written_ms += [lease.heartbeat_ms] if lease else []
    written_ms += [observation.at_ms] if observation else []
    written_ms += [groups.synced_ms] if groups else []
    ahead = max(written_ms, default=0) - now_ms
    return ahead / 1000 if ahead > MAX_CLOCK_SKEW_MS else None


def explain_clock_behind(mirror: str, clock_behind_s: float) -> Finding:
    return Finding("clock_behind", mirror, behind_s=clock_behind_s)
