"""May a cluster's brokers open to applications before it is fenced? Decided by what other clusters
recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from mirror_core.decide.standing import FenceState, find_fence_state, format_time, has_failed_over
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import ClusterName, MirrorName, get_base_name
from mirror_core.model.standing import PendingFence


class BrokerStartGate(StrEnum):
    OPEN = "open"
    """No failover left it, or every broker was seen with its fence, which brokers keep."""
    BLOCKED = "shut"
    """A failover left it, and its fence is pending."""
    UNKNOWN = "silent"


@dataclass(frozen=True, slots=True)
class BrokerStartDecision:
    gate: BrokerStartGate
    text: str


@dataclass(frozen=True, slots=True)
class RecordedMirrors:
    mirrors: tuple[Mirror, ...]
    pending_fences: Mapping[MirrorName, PendingFence]


def decide_broker_start(
    cluster: ClusterName, name: MirrorName, others: Mapping[ClusterName, RecordedMirrors | str]
) -> BrokerStartDecision:
    """About one cluster of a mirror, either end. `others`: all other clusters, or why one is unknown.

    A pending fence outweighs everything. A mirror's record counts on its own destination only.
    """
    mirror_fences = [
        (mirror, recorded.pending_fences.get(mirror.name))
        for other, recorded in sorted(others.items())
        if isinstance(recorded, RecordedMirrors)
        for mirror in recorded.mirrors
        if (mirror.source, mirror.destination, get_base_name(mirror.name)) == (cluster, other, get_base_name(name))
    ]
    for mirror, pending_fence in mirror_fences:
        if pending_fence is not None and has_failed_over(pending_fence) and pending_fence.applied_at_ms is None:
            return BrokerStartDecision(BrokerStartGate.BLOCKED, _format_blocked(mirror, pending_fence))
    if not mirror_fences:
        return BrokerStartDecision(BrokerStartGate.UNKNOWN, " ".join(_format_unknown(cluster, name, others)))
    return BrokerStartDecision(
        BrokerStartGate.OPEN, " ".join(_format_open(mirror, pending_fence) for mirror, pending_fence in mirror_fences)
    )


def _format_blocked(mirror: Mirror, pending_fence: PendingFence) -> str:
    name, source = mirror.name, mirror.source
    head = (
        f"cluster {source} must not open to applications: run {pending_fence.run} moved those of mirror {name} to "
        f"{mirror.destination} at {format_time(pending_fence.since_ms)}, and {source} "
    )
    if find_fence_state(pending_fence) is FenceState.WATCHED_ONLY:
        return f"{head}cannot be fenced by Mirrorbook. Keep applications off its listeners, then start it unchecked"
    return (
        f"{head}is not seen to be fenced. `mirrorbook mirror fence {name} --bootstrap-controller HOST:PORT` prints the "
        "lines that fence it through its controllers, before a broker runs; or keep applications off its listeners. "
        f"Then start it unchecked, and `mirrorbook mirror watch {name} --once` makes this check pass from then on"
    )


def _format_open(mirror: Mirror, pending_fence: PendingFence | None) -> str:
    head = f"cluster {mirror.source} may open: {mirror.destination} remembers"
    if pending_fence is None or not has_failed_over(pending_fence):
        return f"{head} no failover of mirror {mirror.name}."
    seen_text = f"each broker of {mirror.source} had its fence at {format_time(pending_fence.applied_at_ms or 0)}"
    if pending_fence.by_command:
        seen_text = f"its fence_command closed {mirror.source} at {format_time(pending_fence.applied_at_ms or 0)}, which holds while that does"
    return f"{head} a failover of mirror {mirror.name}, and that {seen_text}."


def _format_unknown(
    cluster: ClusterName, name: MirrorName, others: Mapping[ClusterName, RecordedMirrors | str]
) -> Iterator[str]:
    yield f"nobody who answered knows of mirror {name} away from cluster {cluster}."
    for other, recorded in sorted(others.items()):
        if isinstance(recorded, str):
            yield f"{other}: {recorded}."
        else:
            names = ", ".join(sorted(m.name for m in recorded.mirrors)) or "none"
            yield f"{other} answered; mirrors that lead there: {names}."
