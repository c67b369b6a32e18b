"""Which offset of a consumer group to commit on the destination.

Rules, in the order of their weight:
1. Inside the destination's log, always: max(log start, min(source's commit, log end)). A group can then only read
   again, never skip, and never starts from an offset that is not there.
2. A group with members on the destination is not touched.
3. The source owns a group while the mirror runs, so the destination's commit follows it forwards *and* backwards: a
   group that was set back on the source to do its work again must not skip that work after a failover.
4. But nobody's progress on the destination is taken back. A mirror knows what it has committed there itself
   (`model.groups.GroupOffsets`), whatever leader epoch a commit carries: librdkafka's, kafkajs' and others' explicit
   commits carry none, as an administrator's do. Any other offset that is ahead of the source's is somebody's own
   progress: it stays, and a person is told. Once the source has come to it, or passed it, the group is the source's
   again: the mirror then counts it as committed by itself.
   On a way home everything that was committed before the failover, when the destination was a primary, counts as the
   mirror's own (`sync.homecoming`), so the rule needs no exception.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from mirror_core.model.groups import Uncommitted
from mirror_core.model.names import Offset


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit this offset (next to be read)."""

    offset: Offset
    clamped: bool
    """It is not the source's own number."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Commit nothing; `equal` when the destination says the same already."""

    reason: str
    equal: bool = False


def clamp(source: Offset, start: Offset, end: Offset) -> Offset:
    """The source's commit, moved into the destination's log [start, end]."""
    return max(start, min(source, end))


def decide(
    *, source: Offset, start: Offset, end: Offset, destination: Offset | None, own: Collection[Offset] = ()
) -> Commit | Leave:
    """What to do for one partition of a group without members on the destination.

    `source` and `destination` are committed offsets (next to be read), the latter None when there is none; `start` and
    `end` are the destination's log start and log end; `own`: what the mirror has committed on the destination last.
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
"""Where a group without an offset begins: with `latest`, the default, it skips what is there already."""


def in_words(left: Uncommitted) -> str:
    """Which offset, where the group stands instead, and why."""
    where = f"{left.group} {left.partition}" if left.partition else left.group
    stands = "" if left.stands is None else f" (stays at {left.stands})"
    return f"{where}{stands}: {left.reason}"


def left_in_words(left: Iterable[Uncommitted], most: int = 10) -> str:
    """All of them: those without an offset first. Empty: there are none."""
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
