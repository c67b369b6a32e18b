"""Whose word on leaders did not hold: whom to ask next, and whom to connect to for it."""

from __future__ import annotations

from mirror_core.kafka.doubts import Address, Doubts

MANY: list[Address] = [("broker", number) for number in range(500)]


def asked_in_turn(known: list[Address], times: int) -> tuple[list[Address], set[Address]]:
    """Whom each question goes to when no answer holds; and who is connected in the end."""
    doubts, connected, asked = Doubts(), {known[0]: ""}, list[Address]()
    for now in range(times):
        connected |= dict.fromkeys(doubts.to_open(known, connected, float(now)), "")
        address, _ = doubts.in_order(connected)[0]
        asked.append(address)
        doubts.told(address)
        doubts.doubt()
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
    doubts = Doubts()
    doubts.told(MANY[0])
    assert doubts.to_open(MANY, {MANY[0]}, 0.0) == []
    assert [address for address, _ in doubts.in_order(dict.fromkeys(MANY[:3]))] == MANY[:3]


def test_others_are_connected_to_now_and_then_whatever_those_say() -> None:
    doubts, connected, opened = Doubts(), {MANY[0]: ""}, list[int]()
    doubts.told(MANY[0])
    for now in range(20):
        doubts.doubt()
        if some := doubts.to_open(MANY, connected, float(now)):
            connected |= dict.fromkeys(some[:1], "")
            opened.append(now)
        doubts.told(doubts.in_order(connected)[0][0])
    assert opened == [0, 10]


def test_where_no_other_answers_they_are_not_tried_each_time() -> None:
    doubts, tried = Doubts(), list[float]()
    for now in range(30):
        doubts.told(MANY[0])
        doubts.doubt()
        if doubts.to_open(MANY[:3], {MANY[0]}, float(now)):
            tried.append(now)
    assert tried == [0, 10, 20]
