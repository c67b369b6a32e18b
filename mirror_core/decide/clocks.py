"""How old recorded times are, and whether this machine's clock can be compared with theirs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from mirror_core.decide.view import DestinationView, View
from mirror_core.model.mirror import GroupsSeen, Lease
from mirror_core.model.sighting import Heartbeat, Sighting

TOLERATED_MS: Final = 1_000
"""NTP keeps clocks closer than this."""
_ON_ITS_WAY_MS: Final = 10_000
UNKNOWN_TIME: Final = "at an unknown time (clocks differ)"


def age_s(now_ms: int, at_ms: int) -> float | None:
    """None: unknown, the time is in the future of this clock."""
    return None if now_ms - at_ms < -TOLERATED_MS else max(0, now_ms - at_ms) / 1000


def ago(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.1f} s ago"


def since(now_ms: int, at_ms: int | None) -> str:
    seconds = None if at_ms is None else age_s(now_ms, at_ms)
    return UNKNOWN_TIME if seconds is None and at_ms is not None else ago(seconds)


def now_of_owner(now_ms: int, ahead_ms: int | None, lease: Lease | None, appended_ms: int | None) -> int:
    """Now, by the clock of the lease's owner.

    `now_ms`: this machine's clock, which is ahead of the destination's by `ahead_ms`. `appended_ms`: when the newest
    heartbeat was appended, by the destination's clock. Unknown differences, those that NTP leaves, and seconds in
    flight count as none.
    """
    if ahead_ms is None:
        return now_ms
    ours = ahead_ms if abs(ahead_ms) > TOLERATED_MS else 0
    theirs = 0 if lease is None or appended_ms is None else lease.beat_ms - appended_ms
    return now_ms - ours + (0 if -_ON_ITS_WAY_MS < theirs <= TOLERATED_MS else theirs)


def differing(cluster: str, ahead_ms: int) -> str:
    if abs(ahead_ms) <= TOLERATED_MS:
        return ""
    way = "ahead of" if ahead_ms > 0 else "behind"
    return f"the clock here is {abs(ahead_ms) / 1000:,.0f} s {way} that of {cluster}'s brokers. Set the clock (NTP)"


def behind_s(
    now_ms: int,
    lease: Lease | None,
    sighting: Sighting | None,
    groups: GroupsSeen | None,
    heartbeats: Iterable[Heartbeat],
) -> float | None:
    """Least time by which this clock is behind; None: nothing was recorded in its future.

    That this clock is ahead cannot be seen: everything just looks older.
    """
    written = [beat.at_ms for beat in heartbeats]
    written += [lease.beat_ms] if lease else []
    written += [sighting.at_ms] if sighting else []
    written += [groups.synced_ms] if groups else []
    ahead = max(written, default=0) - now_ms
    return ahead / 1000 if ahead > TOLERATED_MS else None


def words(mirror: str, behind: float) -> str:
    return (
        f"the clock here is at least {behind:.0f} s behind that of whoever mirrors {mirror}: ages shown here are "
        "unknown, or too small by as much. Set the clock, look again"
    )


def behind_of(view: View) -> float | None:
    there = view.destination.heartbeats if isinstance(view.destination, DestinationView) else ()
    return behind_s(view.now_ms, view.lease, view.sighting, view.groups, there)


def warning(view: View) -> Iterator[str]:
    for cluster, ahead_ms in sorted(view.clocks_ahead_ms.items()):
        if words_of_it := differing(cluster, ahead_ms):
            yield f"{words_of_it}: ages in this plan go by the brokers' clock"
    if (behind := behind_of(view)) is not None:
        yield words(view.mirror.name, behind)
