"""How much of the world is explored."""

from __future__ import annotations

from typing import NamedTuple

from tests.explored.world import World


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
