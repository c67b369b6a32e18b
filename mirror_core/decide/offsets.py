"""Which offset of a consumer group to commit on the destination.

Rules, the weightiest first:
1. Always inside the destination's log: max(log start, min(source's commit, log end)). A group may read again, never
   skip, and never starts at an offset that is not there.
2. A group with members on the destination is not touched.
3. The source owns a group while the mirror runs, so the commit follows it forwards and backwards: a group that was
   reset on the source must not skip that work after a failover.
4. Progress made on the destination is never undone. A mirror knows its own commits (`model.groups.GroupOffsets`)
   whatever their leader epoch: commits by librdkafka, kafkajs and administrators carry none. Any other offset ahead of
   the source's is somebody's progress: it stays, and people are told. Once the source reaches it, the commit counts as
   the mirror's own.

On a reverse mirror, everything committed before the failover, when its destination was the primary, counts as its own,
so rule 4 needs no exception.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from mirror_core.model.groups import Uncommitted
from mirror_core.model.names import Offset


@dataclass(frozen=True, slots=True)
class Commit:
    offset: Offset
    clamped: bool
    """Differs from the source's own offset."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Commit nothing. `equal`: the destination has this offset already."""

    reason: str
    equal: bool = False


def clamp(source: Offset, start: Offset, end: Offset) -> Offset:
    return max(start, min(source, end))


def decide(
    *, source: Offset, start: Offset, end: Offset, destination: Offset | None, own: Collection[Offset] = ()
) -> Commit | Leave:
    """For one partition of a group without members on the destination.

    `source`, `destination`: committed offsets (next to read); `start`, `end`: log bounds on the destination; `own`:
    what the mirror committed there last.
    """
    offset = clamp(source, start, end)
    if destination == offset:
        return Leave("", equal=True)
    if destination is not None and destination not in own and offset < destination <= end:
        return Leave(
            f"somebody on the destination has committed {destination}, which is ahead; to follow the source, delete "
            "the group's offset there"
        )
    return Commit(offset, clamped=offset != source)


START: Final = "where auto.offset.reset says"
"""With `latest`, the default, a group without an offset skips what is there."""


def in_words(left: Uncommitted) -> str:
    where = f"{left.group} {left.partition}" if left.partition else left.group
    stands = "" if left.stands is None else f" (stays at {left.stands})"
    return f"{where}{stands}: {left.reason}"


def left_in_words(left: Iterable[Uncommitted], most: int = 10) -> str:
    found = list(left)
    without = [in_words(one) for one in found if one.stands is None]
    behind = [in_words(one) for one in found if one.stands is not None]
    parts = [
        (f"{len(without)} without an offset on the destination, so that the group starts {START}", without),
        (f"{len(behind)} that another offset stays in place of", behind),
    ]
    return "; ".join(f"{what}: {_some(lines, most)}" for what, lines in parts if lines)


def _some(lines: list[str], most: int) -> str:
    more = f" and {len(lines) - most} more" if len(lines) > most else ""
    return ", ".join(lines[:most]) + more
