"""May a cluster's brokers open to applications before it is fenced? Decided by what other clusters
recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from mirror_core.decide.standing import Standing, failed_over, standing_of, when
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import ClusterName, MirrorName, base_name
from mirror_core.model.standing import Debt


class Gate(StrEnum):
    OPEN = "open"
    """No failover left it, or every broker was seen with its fence, which brokers keep."""
    SHUT = "shut"
    """A failover left it, and its fence is pending."""
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Guarded:
    gate: Gate
    words: str


@dataclass(frozen=True, slots=True)
class Remembered:
    mirrors: tuple[Mirror, ...]
    debts: Mapping[MirrorName, Debt]


def guard(cluster: ClusterName, name: MirrorName, others: Mapping[ClusterName, Remembered | str]) -> Guarded:
    """About one cluster of a mirror, either end. `others`: all other clusters, or why one is unknown.

    A pending fence outweighs everything. A mirror's record counts on its own destination only.
    """
    known = [
        (mirror, there.debts.get(mirror.name))
        for other, there in sorted(others.items())
        if isinstance(there, Remembered)
        for mirror in there.mirrors
        if (mirror.source, mirror.destination, base_name(mirror.name)) == (cluster, other, base_name(name))
    ]
    for mirror, debt in known:
        if debt is not None and failed_over(debt) and debt.paid_ms is None:
            return Guarded(Gate.SHUT, _shut(mirror, debt))
    if not known:
        return Guarded(Gate.SILENT, " ".join(_silent(cluster, name, others)))
    return Guarded(Gate.OPEN, " ".join(_open(mirror, debt) for mirror, debt in known))


def _shut(mirror: Mirror, debt: Debt) -> str:
    name, source = mirror.name, mirror.source
    head = (
        f"cluster {source} must not open to applications: run {debt.run} moved those of mirror {name} to "
        f"{mirror.destination} at {when(debt.since_ms)}, and {source} "
    )
    if standing_of(debt) is Standing.WATCHED:
        return f"{head}cannot be fenced by Mirrorbook. Keep applications off its listeners, then start it unchecked"
    return (
        f"{head}is not seen to be fenced. `mirrorbook mirror fence {name} --bootstrap-controller HOST:PORT` prints the "
        "lines that fence it through its controllers, before a broker runs; or keep applications off its listeners. "
        f"Then start it unchecked, and `mirrorbook mirror watch {name} --once` makes this check pass from then on"
    )


def _open(mirror: Mirror, debt: Debt | None) -> str:
    head = f"cluster {mirror.source} may open: {mirror.destination} remembers"
    if debt is None or not failed_over(debt):
        return f"{head} no failover of mirror {mirror.name}."
    seen = f"each broker of {mirror.source} had its fence at {when(debt.paid_ms or 0)}"
    if debt.by_command:
        seen = f"its fence_command closed {mirror.source} at {when(debt.paid_ms or 0)}, which holds while that does"
    return f"{head} a failover of mirror {mirror.name}, and that {seen}."


def _silent(cluster: ClusterName, name: MirrorName, others: Mapping[ClusterName, Remembered | str]) -> Iterator[str]:
    yield f"nobody who answered knows of mirror {name} away from cluster {cluster}."
    for other, there in sorted(others.items()):
        if isinstance(there, str):
            yield f"{other}: {there}."
        else:
            names = ", ".join(sorted(m.name for m in there.mirrors)) or "none"
            yield f"{other} answered; mirrors that lead there: {names}."
