"""What a canary has tried of a cluster, and what that says. Pure.

The rule, for a cluster that may be short of a broker: every broker that answers must pass every kind that may be tried.
One that the cluster still lists and that does not answer fails the canary only if it leads mirror partitions: until it
answers, or the cluster gives them to others, applications cannot write there. If it leads none it is named, and so are
partitions that nobody leads: no write is tried there, and waiting for a broker that is gone for good would keep a run
open for ever.
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
    """Our principal may not do it, which says nothing of applications."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One kind, tried once."""

    kind: Kind
    broker: int | None
    """The one that leads the partition; None: all of them."""
    outcome: Outcome
    seconds: float
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Who is there, by one broker's metadata and by asking each."""

    answering: tuple[int, ...]
    away: tuple[int, ...]
    """Listed, and silent."""
    led: Mapping[int, Partition]
    """By broker: the first mirror partition that it leads."""
    leaderless: tuple[Partition, ...]

    @property
    def missed(self) -> tuple[int, ...]:
        """Silent, and applications need them."""
        return tuple(broker for broker in self.away if broker in self.led)


def problems(standing: Standing, trials: Sequence[Trial]) -> Iterator[str]:
    """Why the canary has failed; nothing when it has not."""
    for broker in standing.missed:
        yield f"broker {broker} leads {standing.led[broker]} and does not answer"
    for trial in trials:
        if trial.outcome is Outcome.FAILED:
            where = "" if trial.broker is None else f"broker {trial.broker}, "
            yield f"{where}{trial.kind}: {trial.reason}"


def untried(trials: Collection[Trial]) -> bool:
    """Whether our principal was not even let try: that is no canary."""
    return all(trial.outcome is Outcome.DENIED for trial in trials)


def evidence(standing: Standing, trials: Sequence[Trial]) -> Evidence:
    """What was tried, how long each kind took at its slowest broker, and what was not tried and why."""
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
