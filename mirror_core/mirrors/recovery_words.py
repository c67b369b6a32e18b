from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mirror_core.decide.recovery import DOES, OWN_RECORDS, REMEDIES, Action
from mirror_core.mirrors.recovery_plan import Cost, Proposal, RecoveryPlan
from mirror_core.model.mirror import Mirror


def proposed(mirror: Mirror, seen: RecoveryPlan, salvage: Path | None) -> Iterator[str]:
    for proposal in seen.proposals:
        yield from _partition(mirror, proposal)
    for cost in seen.costs:
        yield from _cost(mirror, cost)
        for own in (r for r in seen.own_records if r.partition.topic == cost.topic):
            yield (
                f"  lost by it, too: {own.end - own.start} offsets of {own.partition} from offset {own.start} on, "
                f"which only cluster {mirror.destination} has"
            )
    if salvage is not None:
        saved = ", ".join(f"{r.partition} [{r.start}, {r.end})" for r in seen.lost) or "nothing"
        yield f"saved to {salvage} before anything is deleted: {saved}"


def left(seen: RecoveryPlan) -> list[str]:
    return [f"{p.partition}: {reason}" for p in seen.proposals for reason in p.blockers]


def question(seen: RecoveryPlan) -> str:
    words = {
        Action.RETRY: "Try {} partition(s) again",
        Action.ACCEPT: "Let go of {} partition(s)",
        Action.RECOPY: "Delete and copy anew topic(s) {}",
    }
    topics = ", ".join(sorted({p.partition.topic for p in seen.agreed if p.action is Action.RECOPY}))
    counts = {action: sum(p.action is action for p in seen.agreed) for action in Action}
    return "; ".join(
        words[action].format(topics if action is Action.RECOPY else count) for action, count in counts.items() if count
    )


def done(seen: RecoveryPlan) -> Iterator[str]:
    """Recopies are reported as they go."""
    for action, words in (
        (Action.RETRY, "partitions will be looked at anew in the next epoch"),
        (Action.ACCEPT, "partitions are no longer the mirror's"),
    ):
        if count := sum(p.action is action for p in seen.agreed):
            yield f"{count} {words}"
    for line in left(seen):
        yield f"left: {line}"


def _partition(mirror: Mirror, proposal: Proposal) -> Iterator[str]:
    status = proposal.status
    where = "" if status.failed_at is None else f" at offset {status.failed_at}"
    yield f"{proposal.partition}: {proposal.kind}{where}: {status.reason}"
    remedy = REMEDIES[proposal.kind]
    yield f"  first: {remedy.first}"
    yield f"  {proposal.action}: {DOES[proposal.action]}"
    if proposal.action is Action.RETRY and proposal.position is not None:
        yield f"  position: {proposal.position}"
    if proposal.action is Action.RECOPY and proposal.kind in OWN_RECORDS and status.failed_at is not None:
        own = max(0, (proposal.position or 0) - status.failed_at)
        where = f"from offset {status.failed_at} on, which only cluster {mirror.destination} has"
        yield f"  lost by it: {own} offsets {where}"
    for reason in proposal.blockers:
        yield f"  not now: {reason}"


def _cost(mirror: Mirror, cost: Cost) -> Iterator[str]:
    yield (
        f"recopy of topic {cost.topic}: deletes {cost.deleted} offsets{_bytes(cost.deleted_bytes)} on cluster "
        f"{mirror.destination}, copies {cost.copied} offsets{_bytes(cost.copied_bytes)} of {cost.partitions} "
        f"partition(s) from cluster {mirror.source}; until then a failover has only what is copied so far"
    )
    if cost.groups is None:
        yield "  groups: unknown; their committed offsets on it go with the topic, and are synced again"
    elif cost.groups:
        names = ", ".join(cost.groups)
        yield f"  groups whose committed offsets on it go with the topic, and are synced again: {names}"
    if cost.joined:
        yield (
            f"  stop first, or they may commit an old position on the new topic: {', '.join(cost.joined)} "
            f"(has members on cluster {mirror.destination})"
        )


def _bytes(count: int | None) -> str:
    return " (bytes unknown)" if count is None else f" ({count:,} bytes)"
