"""What a canary tested on a cluster, and whether it passed.

Every broker that answers must pass every kind that may be tried. A listed broker that does not answer fails the canary
only if it leads mirror partitions: applications cannot write there until it answers or leadership moves. If it leads
none it is only named, as are offline partitions: waiting for a broker that is gone for good would keep the run open for
ever.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from mirror_core.decide.view import some
from mirror_core.model.names import Partition
from mirror_core.model.run import Evidence


class Kind(StrEnum):
    """A way in which applications use a cluster."""

    PLAIN = "plain producer"
    IDEMPOTENT = "idempotent producer"
    TRANSACTIONAL = "transactional producer"
    GROUP = "consumer group"


class Outcome(StrEnum):
    PASSED = "passed"
    DENIED = "denied"
    """Our principal may not do it, which says nothing about applications."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    kind: Kind
    broker: int | None
    outcome: Outcome
    seconds: float
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    answering: tuple[int, ...]
    away: tuple[int, ...]
    led: Mapping[int, Partition]
    leaderless: tuple[Partition, ...]

    @property
    def missed(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.away if broker in self.led)


def problems(standing: Standing, trials: Sequence[Trial]) -> Iterator[str]:
    for broker in standing.missed:
        yield f"broker {broker} leads {standing.led[broker]} and does not answer"
    for trial in trials:
        if trial.outcome is Outcome.FAILED:
            where = "" if trial.broker is None else f"broker {trial.broker}, "
            yield f"{where}{trial.kind}: {trial.reason}"


def untried(trials: Collection[Trial]) -> bool:
    """Whether our principal was denied every trial: that is no canary."""
    return all(trial.outcome is Outcome.DENIED for trial in trials)


def evidence(standing: Standing, trials: Sequence[Trial]) -> Evidence:
    found: dict[str, str] = {"brokers": some(standing.answering)}
    if standing.away:
        found["brokers that do not answer"] = f"{some(standing.away)}; they lead no mirror partition"
    if standing.leaderless:
        found["partitions without a leader"] = some(standing.leaderless)
    for kind in Kind:
        mine = [trial for trial in trials if trial.kind is kind]
        denied = [trial for trial in mine if trial.outcome is Outcome.DENIED]
        if denied:
            found[kind] = f"not tried: {denied[0].reason}"
        elif mine:
            found[kind] = f"passed in {max(trial.seconds for trial in mine):.1f} s"
    return found
