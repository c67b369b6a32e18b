"""What an administrator may still remove excuses only what his removal mends."""

from __future__ import annotations

from mirror_core.model.acl import AclPurpose, LedgerEntry
from tests.explored.deciding import named
from tests.explored.invariants import wrong_world
from tests.explored.start import started
from tests.explored.world import ACLS, CLUSTERS, EAST, LEDGER, WEST, World, fence_of, name_of


def closed_by_a_fence_that_was_left(world: World, lifted: int) -> World:
    fence = fence_of(0)
    left = LedgerEntry(mirror=name_of(0), cluster=CLUSTERS[EAST], acl=fence, purpose=AclPurpose.FENCE)
    masks = list(world.acls)
    masks[EAST] |= ACLS.mask({fence})
    if lifted:
        masks[WEST] |= ACLS.mask({fence})
    recs = (world.recs[0]._replace(ledger=world.recs[0].ledger | LEDGER.mask({left}), lifted=lifted), *world.recs[1:])
    return world._replace(acls=(masks[EAST], masks[WEST]), recs=recs)


def test_what_was_lifted_on_the_other_cluster_hides_no_fence_that_was_left() -> None:
    old = LedgerEntry(mirror=name_of(0), cluster=CLUSTERS[WEST], acl=fence_of(0), purpose=AclPurpose.FENCE)
    bare, beside = (closed_by_a_fence_that_was_left(started(), mask) for mask in (0, LEDGER.mask({old})))
    assert any("nowhere" in words for words in wrong_world(bare))
    assert named(beside, 0, WEST) == {fence_of(0)}
    assert any("nowhere" in words for words in wrong_world(beside))
