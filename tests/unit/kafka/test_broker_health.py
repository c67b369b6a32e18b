"""Whose word on leaders did not hold: whom to ask next, and whom to connect to for it."""

from __future__ import annotations

from mirror_core.kafka.broker_health import Address, StaleMetadata

MANY: list[Address] = [("broker", number) for number in range(500)]


def asked_in_turn(known: list[Address], times: int) -> tuple[list[Address], set[Address]]:
    """Whom each question goes to when no answer holds; and who is connected in the end."""
    doubts, connected, asked = StaleMetadata(), {known[0]: ""}, list[Address]()
    for now in range(times):
        connected |= dict.fromkeys(doubts.choose_alternatives(known, connected, float(now)), "")
        address, _ = doubts.order_connections(connected)[0]
        asked.append(address)
        doubts.record_response(address)
        doubts.mark_stale()
    return asked, set(connected)


def test_all_of_a_few_are_asked_in_turn() -> None:
    asked, connected = asked_in_turn(MANY[:3], 30)
    assert connected == set(MANY[:3])
    assert all(set(asked[at : at + 4]) == connected for at in range(26))


def test_of_many_some_are_asked_in_turn_and_the_others_left_alone() -> None:
    """What does not hold may be nobody's fault, such as a partition without a leader, and last for days."""
    asked, connected = asked_in_turn(MANY, 1000)
    assert 5 < len(connected) < 12
    assert set(asked) == connected


def test_nobody_is_passed_over_without_a_doubt() -> None:
    doubts = StaleMetadata()
    doubts.record_response(MANY[0])
    assert doubts.choose_alternatives(MANY, {MANY[0]}, 0.0) == []
    assert [address for address, _ in doubts.order_connections(dict.fromkeys(MANY[:3]))] == MANY[:3]


def test_others_are_connected_to_now_and_then_whatever_those_say() -> None:
    doubts, connected, opened = StaleMetadata(), {MANY[0]: ""}, list[int]()
    doubts.record_response(MANY[0])
    for now in range(20):
        doubts.mark_stale()
        if some := doubts.choose_alternatives(MANY, connected, float(now)):
            connected |= dict.fromkeys(some[:1], "")
            opened.append(now)
        doubts.record_response(doubts.order_connections(connected)[0][0])
    assert opened == [0, 10]


def test_where_no_other_answers_they_are_not_tried_each_time() -> None:
    doubts, tried = StaleMetadata(), list[float]()
    for now in range(30):
        doubts.record_response(MANY[0])
        doubts.mark_stale()
        if doubts.choose_alternatives(MANY[:3], {MANY[0]}, float(now)):
            tried.append(now)
    assert tried == [0, 10, 20]
