"""What the product decides of a failback in this world: its own decision, asked with views of it."""

from __future__ import annotations

from typing import Any

from mirror_core.decide import failback_plan, truncation
from mirror_core.decide.failback_plan import FailbackSnapshot, NewPrimary, OldSource
from mirror_core.decide.mirror_snapshot import ClusterTopic, UnseenCluster
from mirror_core.decide.steps import HoldingRun
from mirror_core.model.mirror import DesiredState, PartitionState
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import RunKind
from tests.explored.deciding import active, numbered
from tests.explored.world import (
    ACLS,
    Debt,
    World,
    cached,
    debt_of,
    destination,
    fence_of,
    mirror_of,
    name_of,
    offset,
    partition_of,
    run_id,
    source,
    status_of,
    topic_of,
)


def failback_view(world: World, link: int) -> FailbackSnapshot:
    return _failback_view(*_failback_key(world, link))


def _failback_key(world: World, link: int) -> tuple[Any, ...]:
    """What a failback's plan is made from, and no more."""
    rec = world.recs[link]
    fenced = fence_of(link) in ACLS.values(world.acls[source(link)])
    holding = tuple(one and (one.id, one.kind) for one in (active(rec), active(world.recs[link + 1])))
    return (
        link,
        rec.desired,
        rec.state,
        rec.lmo,
        rec.failed,
        rec.debt,
        world.up,
        world.extra[link // 2],
        fenced,
        holding,
    )


@cached
def _failback_view(
    link: int,
    desired: DesiredState | None,
    state: PartitionState,
    lmo: int | None,
    failed: bool,
    debt: Debt | None,
    up: tuple[bool, bool],
    extra: tuple[int, int],
    fenced: bool,
    holding: tuple[tuple[int, RunKind] | None, ...],
) -> FailbackSnapshot:
    part, topic = partition_of(link), topic_of(link)
    src, dst = source(link), destination(link)
    status = status_of(link, state, lmo, failed)
    return FailbackSnapshot(
        mirror=mirror_of(link, desired or DesiredState.STOPPED),
        statuses={part: status},
        old_source=OldSource(
            cluster_id=f"id-{src}",
            topics={topic: ClusterTopic(id=status.source_topic_id, partitions=1)},
            log_ends={part: offset(extra[src])},
            fenced=fenced,
        )
        if up[src]
        else UnseenCluster("silent"),
        new_primary=NewPrimary(
            cluster_id=f"id-{dst}",
            topics={topic: ClusterTopic(id=status.destination_topic_id, partitions=1)},
            log_ends={part: offset(extra[dst])},
        )
        if up[dst]
        else UnseenCluster("silent"),
        active_runs=tuple(
            HoldingRun(run_id(at, one[1], one[0]), one[1], name_of(at), ())
            for at, one in zip((link, link + 1), holding, strict=True)
            if one
        ),
        reverse_unknown=None if up[src] else UnseenCluster("silent"),
        pending_fence=debt_of(link, debt) if debt else None,
    )


def plan_failback(world: World, link: int) -> tuple[int, bool]:
    """The plan's number, and whether it may be run."""
    return _planned_back(*_failback_key(world, link))


@cached
def _planned_back(*key: Any) -> tuple[int, bool]:
    return numbered(failback_plan.decide_failback(_failback_view(*key)))


def tails_of(world: World, link: int) -> dict[Partition, tuple[Offset, Offset]]:
    view = failback_view(world, link)
    assert isinstance(view.old_source, OldSource)
    return truncation.find_divergent_tails(view.statuses, view.old_source.topics, view.old_source.log_ends)
