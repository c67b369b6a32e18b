"""Whether a canary passed: each broker that answers must pass every kind that may be tried.

A silent broker fails it only if it leads mirror partitions: it may be gone for good.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from mirror_core.decide.mirror_snapshot import join_limited
from mirror_core.model.names import Partition
from mirror_core.model.run import StepEvidence


class CanaryKind(StrEnum):
    PLAIN = "plain producer"
    IDEMPOTENT = "idempotent producer"
    TRANSACTIONAL = "transactional producer"
    GROUP = "consumer group"


class CanaryOutcome(StrEnum):
    PASSED = "passed"
    DENIED = "denied"
    """Our principal may not do it, which says nothing about applications."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryTrial:
    kind: CanaryKind
    broker: int | None
    outcome: CanaryOutcome
    seconds: float
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAvailability:
    available: tuple[int, ...]
    unavailable: tuple[int, ...]
    led_partitions: Mapping[int, Partition]
    offline_partitions: tuple[Partition, ...]

    @property
    def unavailable_leaders(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.unavailable if broker in self.led_partitions)


def list_canary_problems(availability: BrokerAvailability, trials: Sequence[CanaryTrial]) -> Iterator[str]:
    for broker in availability.unavailable_leaders:
        yield f"broker {broker} leads {availability.led_partitions[broker]} and does not answer"
    for trial in trials:
        if trial.outcome is CanaryOutcome.FAILED:
            broker_text = "" if trial.broker is None else f"broker {trial.broker}, "
            yield f"{broker_text}{trial.kind}: {trial.reason}"


def is_untried(trials: Collection[CanaryTrial]) -> bool:
    return all(trial.outcome is CanaryOutcome.DENIED for trial in trials)


def build_canary_evidence(availability: BrokerAvailability, trials: Sequence[CanaryTrial]) -> StepEvidence:
    canary_evidence: dict[str, str] = {"brokers": join_limited(availability.available)}
    if availability.unavailable:
        canary_evidence["brokers that do not answer"] = (
            f"{join_limited(availability.unavailable)}; they lead no mirror partition"
        )
    if availability.offline_partitions:
        canary_evidence["partitions without a leader"] = join_limited(availability.offline_partitions)
    for kind in CanaryKind:
        kind_trials = [trial for trial in trials if trial.kind is kind]
        denied = [trial for trial in kind_trials if trial.outcome is CanaryOutcome.DENIED]
        if denied:
            canary_evidence[kind] = f"not tried: {denied[0].reason}"
        elif kind_trials:
            canary_evidence[kind] = f"passed in {max(trial.seconds for trial in kind_trials):.1f} s"
    return canary_evidence
