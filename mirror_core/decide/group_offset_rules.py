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

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from mirror_core.model.names import Offset
from mirror_core.model.sync_state import UncommittedGroupOffset


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


def format_uncommitted(uncommitted: UncommittedGroupOffset) -> str:
    subject = f"{uncommitted.group} {uncommitted.partition}" if uncommitted.partition else uncommitted.group
    standing_text = "" if uncommitted.destination_offset is None else f" (stays at {uncommitted.destination_offset})"
    return f"{subject}{standing_text}: {uncommitted.reason}"


def format_all_uncommitted(uncommitted: Iterable[UncommittedGroupOffset], limit: int = 10) -> str:
    items = list(uncommitted)
    without_offset = [format_uncommitted(item) for item in items if item.destination_offset is None]
    with_other_offset = [format_uncommitted(item) for item in items if item.destination_offset is not None]
    parts = [
        (
            f"{len(without_offset)} without an offset on the destination, so that the group starts {RESET_POLICY_TEXT}",
            without_offset,
        ),
        (f"{len(with_other_offset)} that another offset stays in place of", with_other_offset),
    ]
    return "; ".join(f"{label}: {_join_first(lines, limit)}" for label, lines in parts if lines)


def _join_first(lines: list[str], limit: int) -> str:
    more_text = f" and {len(lines) - limit} more" if len(lines) > limit else ""
    return ", ".join(lines[:limit]) + more_text
