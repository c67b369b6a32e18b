"""How much of the world is explored, and what is left out of it."""

from __future__ import annotations

from typing import Final, NamedTuple

from tests.explored.world import World

HOLES: Final[set[str]] = {
    # Who wakes up right before he puts up a denial that is not wanted any more is killed right after it. The next run
    # takes it for somebody else's, and nobody ever lifts it. Until that has promoted, the first run's file lifts it.
    # To remember in the ledger what was taken away does not close it: whoever acted by that would also lift an equal
    # denial that an administrator has made since, and Kafka does not tell who made one. What would close it: an entry
    # of the run's own name, created by the same request (KRaft writes those of one request as one batch). Who finds it
    # after that run has ended knows whose the denials beside it are.
    "woken and killed",
}
"""What the code as it is lets happen: left out, so that nothing else hides behind it. A test shows that each is a hole
still: who mends one takes its name from here."""


class Limits(NamedTuple):
    """How much of the world is explored."""

    processes: int = 1
    kills: bool = True
    airflow: bool = False
    outages: tuple[int, ...] = (0, 1)
    """Clusters that fall silent."""
    revoked: bool = False
    hours: bool = True
    """Time passes: approvals grow old."""
    verbs: bool = True
    """`stop` and `start`."""
    unplanned: bool = True
    writes: bool = True
    files: bool = True
    failbacks: bool = True


class Move(NamedTuple):
    label: str
    world: World
    good: bool = True
    """Nothing breaks by it, and nobody has to be unlucky."""
    by: int | None = None
    """The link that acted."""
