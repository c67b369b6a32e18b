"""Which offset of a consumer group to commit on the destination.

Rules, the weightiest first:
1. Always inside the destination's log: max(log start, min(source's commit, log end)). A group may read again, never
   skip, and never starts at an offset that is not there.
2. A group with members on the destination is not touched.
3. The source owns a group while the mirror runs, so the commit follows it forwards and backwards: a group that was
   reset on the source must not skip that work after a failover.
4. Progress made on the destination is never undone. A mirror knows its own commits (`model.sync_state.OwnGroupOffsets`)
   whatever their leader epoch: commits by librdkafka, kafkajs and administrators carry none. Any other offset ahead of
   the source's is somebody's progress: it stays, and people are told. Once the source reaches it, the commit counts as
   the mirror's own.

On a reverse mirror, everything committed before the failover, when its destination was the primary, counts as its own,
so rule 4 needs no exception.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from mirror_core.model.names import Offset


@dataclass(frozen=True, slots=True)
class CommitOffset:
    offset: Offset
    is_clamped: bool
    """Differs from the source's own offset."""


@dataclass(frozen=True, slots=True)
class KeepOffset:
    """Commit nothing. `is_equal`: the destination has this offset already."""

    reason: str
    is_equal: bool = False


def clamp_offset(source: Offset, start: Offset, end: Offset) -> Offset:
    return max(start, min(source, end))


def decide_group_offset(
    *, source: Offset, start: Offset, end: Offset, destination: Offset | None, own_commits: Collection[Offset] = ()
) -> CommitOffset | KeepOffset:
    """For one partition of a group without members on the destination.

    `source`, `destination`: committed offsets (next to read); `start`, `end`: log bounds on the destination;
    `own_commits`: what the mirror committed there last.
    """
    offset = clamp_offset(source, start, end)
    if destination == offset:
        return KeepOffset("", is_equal=True)
    if destination is not None and destination not in own_commits and offset < destination <= end:
        return KeepOffset(
            f"somebody on the destination has committed {destination}, which is ahead; to follow the source, delete "
            "the group's offset there"
        )
    return CommitOffset(offset, is_clamped=offset != source)


RESET_POLICY_TEXT: Final = "where auto.offset.reset says"
"""With `latest`, the default, a group without an offset skips what is there."""
