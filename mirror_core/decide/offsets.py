"""Which offset of a consumer group to commit on the destination.

Rules, in the order of their weight:
1. Inside the destination's log, always: max(log start, min(source's commit, log end)). A group can then only read
   again, never skip, and never starts from an offset that is not there.
2. A group with members on the destination is not touched.
3. The source owns a group while the mirror runs, so the destination's commit follows it forwards *and* backwards: a
   group that was set back on the source to do its work again must not skip that work after a failover.
4. But nobody's progress on the destination is taken back. A commit there with a leader epoch (0 or more) was made by a
   consumer that read there; a sync commits -1. Where such a commit is ahead of the source's, it stays, and a person
   is told. (Consumers that know no leader epochs also commit -1: they are followed by rule 3, and may read again.)
   On a way home that would be wrong for what was committed before the failover, when the destination was a primary:
   such commits lose their leader epochs before the first sync (`sync.homecoming`), so the rule needs no exception.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    *, source: Offset, start: Offset, end: Offset, destination: Offset | None, destination_epoch: int = -1
) -> Commit | Leave:
    """What to do for one partition of a group without members on the destination.

    `source` and `destination` are committed offsets (next to be read), the latter None when there is none; `start` and
    `end` are the destination's log start and log end.
    """
    offset = clamp(source, start, end)
    if destination == offset:
        return Leave("", equal=True)
    if destination is not None and destination_epoch >= 0 and offset < destination <= end:
        return Leave(
            f"a consumer on the destination has committed {destination}, which is ahead; to follow the source, "
            "delete the group's offset there"
        )
    return Commit(offset, clamped=offset != source)
