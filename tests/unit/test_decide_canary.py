"""How a canary is judged."""

from __future__ import annotations

import pytest

from mirror_core.decide.canary import Kind, Outcome, Standing, Trial, evidence, problems, untried
from mirror_core.model.names import Partition

ORDERS = Partition("orders", 0)


def standing(away: tuple[int, ...] = (), led: tuple[int, ...] = (1,), lost: tuple[Partition, ...] = ()) -> Standing:
    return Standing(answering=(1, 3), away=away, led=dict.fromkeys(led, ORDERS), leaderless=lost)


def trial(kind: Kind, outcome: Outcome = Outcome.PASSED, broker: int = 1, seconds: float = 0.1) -> Trial:
    reason = "" if outcome is Outcome.PASSED else f"{outcome} it is"
    return Trial(kind=kind, broker=broker, outcome=outcome, seconds=seconds, reason=reason)


ALL = [trial(kind) for kind in Kind]


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (standing(), []),
        (standing(away=(2,)), []),
        (standing(away=(2,), led=(1, 2)), ["broker 2 leads orders-0 and does not answer"]),
        (standing(lost=(ORDERS,)), []),
    ],
)
def test_a_silent_broker_fails_the_canary_only_when_it_leads_what_is_mirrored(seen: Standing, said: list[str]) -> None:
    assert list(problems(seen, ALL)) == said


def test_brokers_and_partitions_that_do_not_count_are_named() -> None:
    shown = evidence(standing(away=(2,), lost=(ORDERS,)), ALL)
    assert shown["brokers"] == "1, 3"
    assert str(shown["brokers that do not answer"]).startswith("2;")
    assert shown["partitions without a leader"] == "orders-0"


def test_a_failure_names_broker_and_kind() -> None:
    trials = [*ALL, trial(Kind.IDEMPOTENT, Outcome.FAILED, broker=3)]
    assert list(problems(standing(), trials)) == ["broker 3, idempotent producer: failed it is"]


def test_what_may_not_be_tried_is_never_called_passed() -> None:
    trials = [trial(Kind.PLAIN), trial(Kind.TRANSACTIONAL), trial(Kind.TRANSACTIONAL, Outcome.DENIED, broker=3)]
    assert list(problems(standing(), trials)) == []
    assert evidence(standing(), trials)[Kind.TRANSACTIONAL] == "not tried: denied it is"
    assert not untried(trials)
    assert untried(trials[2:])


def test_each_kind_shows_its_slowest_broker() -> None:
    shown = evidence(standing(), [trial(Kind.PLAIN, seconds=0.2), trial(Kind.PLAIN, broker=3, seconds=1.3)])
    assert shown[Kind.PLAIN] == "passed in 1.3 s"
