"""How a canary is judged."""

from __future__ import annotations

import pytest

from mirror_core.decide.canary_result import (
    BrokerAvailability,
    CanaryKind,
    CanaryOutcome,
    CanaryTrial,
    build_canary_evidence,
    is_untried,
    list_canary_problems,
)
from mirror_core.model.names import Partition

ORDERS = Partition("orders", 0)


def standing(
    away: tuple[int, ...] = (), led: tuple[int, ...] = (1,), lost: tuple[Partition, ...] = ()
) -> BrokerAvailability:
    return BrokerAvailability(
        available=(1, 3), unavailable=away, led_partitions=dict.fromkeys(led, ORDERS), offline_partitions=lost
    )


def trial(
    kind: CanaryKind, outcome: CanaryOutcome = CanaryOutcome.PASSED, broker: int = 1, seconds: float = 0.1
) -> CanaryTrial:
    reason = "" if outcome is CanaryOutcome.PASSED else f"{outcome} it is"
    return CanaryTrial(kind=kind, broker=broker, outcome=outcome, seconds=seconds, reason=reason)


ALL = [trial(kind) for kind in CanaryKind]


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (standing(), []),
        (standing(away=(2,)), []),
        (standing(away=(2,), led=(1, 2)), ["broker 2 leads orders-0 and does not answer"]),
        (standing(lost=(ORDERS,)), []),
    ],
)
def test_a_silent_broker_fails_the_canary_only_when_it_leads_what_is_mirrored(
    seen: BrokerAvailability, said: list[str]
) -> None:
    assert list(list_canary_problems(seen, ALL)) == said


def test_brokers_and_partitions_that_do_not_count_are_named() -> None:
    shown = build_canary_evidence(standing(away=(2,), lost=(ORDERS,)), ALL)
    assert shown["brokers"] == "1, 3"
    assert str(shown["brokers that do not answer"]).startswith("2;")
    assert shown["partitions without a leader"] == "orders-0"


def test_a_failure_names_broker_and_kind() -> None:
    trials = [*ALL, trial(CanaryKind.IDEMPOTENT, CanaryOutcome.FAILED, broker=3)]
    assert list(list_canary_problems(standing(), trials)) == ["broker 3, idempotent producer: failed it is"]


def test_what_may_not_be_tried_is_never_called_passed() -> None:
    trials = [
        trial(CanaryKind.PLAIN),
        trial(CanaryKind.TRANSACTIONAL),
        trial(CanaryKind.TRANSACTIONAL, CanaryOutcome.DENIED, broker=3),
    ]
    assert list(list_canary_problems(standing(), trials)) == []
    assert build_canary_evidence(standing(), trials)[CanaryKind.TRANSACTIONAL] == "not tried: denied it is"
    assert not is_untried(trials)
    assert is_untried(trials[2:])


def test_each_kind_shows_its_slowest_broker() -> None:
    shown = build_canary_evidence(
        standing(), [trial(CanaryKind.PLAIN, seconds=0.2), trial(CanaryKind.PLAIN, broker=3, seconds=1.3)]
    )
    assert shown[CanaryKind.PLAIN] == "passed in 1.3 s"
