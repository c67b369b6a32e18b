from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mirror_core.decide.recovery import ACTION_EFFECTS, DIVERGENT_KINDS, REMEDIES, RecoveryAction
from mirror_core.mirrors.recovery_plan import RecopyCost, RecoveryPlan, RecoveryProposal
from mirror_core.model.mirror import Mirror


def format_proposals(mirror: Mirror, plan: RecoveryPlan, salvage: Path | None) -> Iterator[str]:
    for proposal in plan.proposals:
        yield from _format_proposal(mirror, proposal)
    for cost in plan.costs:
        yield from _format_cost(mirror, cost)
        for own_range in (r for r in plan.destination_only if r.partition.topic == cost.topic):
            yield (
                f"  lost by it, too: {own_range.end - own_range.start} offsets of {own_range.partition} from offset {own_range.start} on, "
                f"which only cluster {mirror.destination} has"
            )
    if salvage is not None:
        saved = ", ".join(f"{r.partition} [{r.start}, {r.end})" for r in plan.lost) or "nothing"
        yield f"saved to {salvage} before anything is deleted: {saved}"


def format_blocked(plan: RecoveryPlan) -> list[str]:
    return [f"{p.partition}: {reason}" for p in plan.proposals for reason in p.blockers]


def format_question(plan: RecoveryPlan) -> str:
    templates = {
        RecoveryAction.RETRY: "Try {} partition(s) again",
        RecoveryAction.ACCEPT: "Let go of {} partition(s)",
        RecoveryAction.RECOPY: "Delete and copy anew topic(s) {}",
    }
    topics = ", ".join(sorted({p.partition.topic for p in plan.actionable if p.action is RecoveryAction.RECOPY}))
    counts = {action: sum(p.action is action for p in plan.actionable) for action in RecoveryAction}
    return "; ".join(
        templates[action].format(topics if action is RecoveryAction.RECOPY else count)
        for action, count in counts.items()
        if count
    )


def format_done(plan: RecoveryPlan) -> Iterator[str]:
    """Recopies are reported as they go."""
    for action, text in (
        (RecoveryAction.RETRY, "partitions will be looked at anew in the next epoch"),
        (RecoveryAction.ACCEPT, "partitions are no longer the mirror's"),
    ):
        if count := sum(p.action is action for p in plan.actionable):
            yield f"{count} {text}"
    for line in format_blocked(plan):
        yield f"left: {line}"


def _format_proposal(mirror: Mirror, proposal: RecoveryProposal) -> Iterator[str]:
    status = proposal.status
    offset_text = "" if status.failed_at is None else f" at offset {status.failed_at}"
    yield f"{proposal.partition}: {proposal.kind}{offset_text}: {status.reason}"
    remedy = REMEDIES[proposal.kind]
    yield f"  first: {remedy.first_step}"
    yield f"  {proposal.action}: {ACTION_EFFECTS[proposal.action]}"
    if proposal.action is RecoveryAction.RETRY and proposal.position is not None:
        yield f"  position: {proposal.position}"
    if proposal.action is RecoveryAction.RECOPY and proposal.kind in DIVERGENT_KINDS and status.failed_at is not None:
        own_offsets = max(0, (proposal.position or 0) - status.failed_at)
        offset_text = f"from offset {status.failed_at} on, which only cluster {mirror.destination} has"
        yield f"  lost by it: {own_offsets} offsets {offset_text}"
    for reason in proposal.blockers:
        yield f"  not now: {reason}"


def _format_cost(mirror: Mirror, cost: RecopyCost) -> Iterator[str]:
    yield (
        f"recopy of topic {cost.topic}: deletes {cost.deleted} offsets{_format_bytes(cost.deleted_bytes)} on cluster "
        f"{mirror.destination}, copies {cost.copied} offsets{_format_bytes(cost.copied_bytes)} of {cost.partitions} "
        f"partition(s) from cluster {mirror.source}; until then a failover has only what is copied so far"
    )
    if cost.groups is None:
        yield "  groups: unknown; their committed offsets on it go with the topic, and are synced again"
    elif cost.groups:
        names = ", ".join(cost.groups)
        yield f"  groups whose committed offsets on it go with the topic, and are synced again: {names}"
    if cost.active_groups:
        yield (
            f"  stop first, or they may commit an old position on the new topic: {', '.join(cost.active_groups)} "
            f"(has members on cluster {mirror.destination})"
        )


def _format_bytes(count: int | None) -> str:
    return " (bytes unknown)" if count is None else f" ({count:,} bytes)"
