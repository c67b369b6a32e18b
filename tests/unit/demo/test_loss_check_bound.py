"""What the plan said may be missing is not held against it; anything more is lost, and found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mirror_core.model.errors import Indeterminate
from mirror_core.model.figures import FigureKey
from mirrorbook_tools.demo.logs import Entry, Event, value_of
from mirrorbook_tools.demo.loss_check import Bound, as_written, bound_of, covered, judge
from mirrorbook_tools.demo.summary import StoryResult, next_steps, verdict_lines

COPIED = 15
"""Orders 0 to 14 were copied, 15 to 20 were acknowledged by east only, 21 to 29 were written on west."""
LOST = frozenset(range(COPIED, 21))
BOUND = Bound(known=3, looked_ms=18_000)
"""The source was last looked at when order 18 was acknowledged, and three offsets were missing then."""


def acknowledged() -> list[Event]:
    """The orders that west was given begin where the copy ended."""
    east = [Event(n, n % 3, n // 3, "east", 1000 * n) for n in range(21)]
    west = [Event(n, n % 3, (n - 6) // 3, "west", 1000 * n) for n in range(21, 30)]
    return [*east, *west]


def west() -> list[Entry]:
    kept = [e for e in acknowledged() if e.number not in LOST]
    return [entry(e.partition, e.offset, e.number) for e in kept]


def entry(partition: int, offset: int, number: int) -> Entry:
    return Entry(partition, offset, number, ("ts", str(number).encode(), value_of(number), ()))


def told(log: list[Entry], bound: Bound = BOUND, handled: list[Event] | None = None) -> StoryResult:
    events = acknowledged()
    lost = covered(events, log, bound)
    seen = [e for e in events if e.number not in LOST] if handled is None else handled
    return StoryResult(
        verdict=judge(east=map(as_written, log), west=log, acknowledged=events, handled=seen, saved=lost), lost=lost
    )


def test_a_loss_that_the_plan_named_is_exact() -> None:
    found = told(west())

    assert found.lost == LOST
    assert found.verdict.exit_code == 0
    lines = verdict_lines(found)
    assert "lost with east, as the plan said: 6 (numbers 15 to 20)" in lines
    assert {"lost beyond that: 0", "repeated: 0", "offsets equal: yes"} <= set(lines)
    assert lines[-1].startswith("EXACT: ")


def test_nothing_lost_is_exact_too() -> None:
    events = [e for e in acknowledged() if e.number < COPIED]
    log = [entry(e.partition, e.offset, e.number) for e in events]
    found = StoryResult(
        verdict=judge(east=log, west=log, acknowledged=events, handled=events, saved=covered(events, log, BOUND)),
        lost=frozenset(),
    )

    assert found.verdict.exit_code == 0
    assert "West has every order that east had acknowledged." in verdict_lines(found)[-1]


@pytest.mark.parametrize(
    ("bound", "beyond"), [(Bound(2, 18_000), {15}), (Bound(0, 18_000), {15, 16, 17}), (Bound(0, 99_000), LOST)]
)
def test_more_than_the_plan_said_is_lost(bound: Bound, beyond: set[int]) -> None:
    found = told(west(), bound)

    assert found.lost == LOST - beyond
    assert (found.verdict.lost, found.verdict.exit_code) == (len(beyond), 1)
    assert verdict_lines(found)[-1].startswith("NOT EXACT: ")


def test_a_hole_in_what_was_copied_is_lost_however_much_the_plan_allows() -> None:
    found = told([e for e in west() if e.number != 4], Bound(1000, 0))

    assert found.lost == LOST
    assert (found.verdict.lost, found.verdict.exit_code) == (1, 1)


def test_a_record_that_west_lost_of_its_own_is_lost() -> None:
    found = told([e for e in west() if e.number != 29], Bound(1000, 0))

    assert (found.verdict.lost, found.verdict.exit_code) == (1, 1)


def test_a_repeated_record_is_found() -> None:
    last = max(e.offset for e in west() if e.partition == 0)
    found = told([*west(), entry(0, last + 1, 3)])

    assert (found.verdict.duplicated, found.verdict.exit_code) == (1, 1)


def test_a_shifted_partition_is_found() -> None:
    found = told([replace(e, offset=e.offset + 1) if e.partition == 2 else e for e in west()])

    assert found.verdict.lost == 0
    assert found.verdict.shifted > 0
    assert found.verdict.exit_code == 1


def test_a_hole_before_orders_that_east_never_answered_is_lost() -> None:
    """Orders 21 to 23 were on their way when east died; west has them at their offsets, and lacks what is before."""
    unanswered = [Event(n, n % 3, n // 3, "west", 30_000, answered=False) for n in (21, 22, 23)]
    events = [e for e in acknowledged() if e.cluster == "east"] + unanswered
    log = [entry(e.partition, e.offset, e.number) for e in events if e.number not in LOST]

    assert covered(events, log, Bound(1000, 0)) == frozenset()


@pytest.mark.parametrize(
    "content", [("ts", b"4", b"other", ()), ("ts", b"5", value_of(4), ()), ("ts", b"4", value_of(4), ("h",))]
)
def test_an_altered_record_is_found(content: tuple[object, ...]) -> None:
    found = told([replace(e, content=content) if e.number == 4 else e for e in west()])

    assert (found.verdict.shifted, found.verdict.exit_code) == (1, 1)


def test_an_order_that_nobody_read_is_found() -> None:
    found = told(west(), handled=[e for e in acknowledged() if e.number not in LOST | {2}])

    assert (found.verdict.skipped, found.verdict.exit_code) == (1, 1)


def test_nothing_acknowledged_is_no_verdict() -> None:
    found = StoryResult(verdict=judge(east=[], west=[], acknowledged=[], handled=[]), lost=frozenset())

    assert found.verdict.exit_code == 4
    assert verdict_lines(found)[-1].startswith("INDETERMINATE: ")


def figures_of(lost: int, seen_s: float | None) -> dict[str, object]:
    return {FigureKey.LOST_OFFSETS: {"value": lost}, FigureKey.SOURCE_SEEN_S: {"value": seen_s}}


def test_the_plan_bounds_the_loss_by_two_figures() -> None:
    assert bound_of(figures_of(1_204, 14.2), 1_000_000) == Bound(1_204, 985_800)


@pytest.mark.parametrize("sighted", [False, True])
def test_a_plan_that_cannot_bound_the_loss_gives_no_verdict(sighted: bool) -> None:
    figures = figures_of(3, 2.0 if sighted else None)
    if sighted:
        assert bound_of(figures, 10_000) == Bound(3, 8_000)
        with pytest.raises(Indeterminate, match="does not bound"):
            bound_of({**figures, FigureKey.LOST_UNKNOWN_PARTITIONS: {"value": 1}}, 10_000)
    else:
        with pytest.raises(Indeterminate, match="does not bound"):
            bound_of(figures, 10_000)


def test_clusters_that_are_kept_come_with_the_line_that_stops_them() -> None:
    stop = "mirrorbook sandbox down --delete --dir d/sandbox"
    places = (Path("d"), Path("d/mirrorbook.yaml"), Path("d/sandbox"), stop)

    assert f"$ {stop}" in next_steps(*places, kept=True)
    assert f"$ {stop}" not in next_steps(*places, kept=False)
