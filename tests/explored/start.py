"""Where the exploration begins: mirrors that run, and applications at home."""

from __future__ import annotations

from typing import Final

from mirror_core.model.mirror import DesiredState, PartitionState
from tests.explored.canonical import canonical
from tests.explored.deciding import synced
from tests.explored.limits import Limits
from tests.explored.moves import moves
from tests.explored.process import ACTS, put
from tests.explored.world import ACLS, APP, LATE, Rec, World, grant


def led(world: World, *ways: str) -> World:
    """Where these commands and events lead, each taken to its end by a process that nobody disturbs."""
    for way in ways:
        world = canonical(next(move.world for move in moves(world, EVERYTHING) if move.label == way))
        while world.procs:
            after = ACTS[world.procs[0].at](world, world.procs[0])
            assert after is not None, way
            world = canonical(after)
    return world


EVERYTHING: Final = Limits(revoked=True)


def started(mirrors: int = 1) -> World:
    links = range(0, 2 * mirrors, 2)
    east = ACLS.mask(grant(link, user) for link in links for user in (APP, LATE))
    world = World(
        up=(True, True),
        acls=(east, 0),
        extra=((0, 0),) * mirrors,
        recs=(Rec(DesiredState.STARTED, PartitionState.MIRRORING), Rec()) * mirrors,
        files=(None, None) * mirrors,
    )
    for link in links:
        world = put(world, link, ledger=synced(world, link))
    return world
