"""The demo's verdict finds each defect that it claims to look for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mirrorbook_tools.demo.logs import Entry, Event, read_events
from mirrorbook_tools.demo.loss_check import Verdict, judge

COUNT = 30


def entries() -> list[Entry]:
    return [Entry(n % 3, n // 3, n, ("ts", b"k", b"v")) for n in range(COUNT)]


def events() -> list[Event]:
    return [Event(n, n % 3, n // 3, "east" if n < 15 else "west", 1000 * n) for n in range(COUNT)]


def verdict(
    east: list[Entry] | None = None,
    west: list[Entry] | None = None,
    acknowledged: list[Event] | None = None,
    handled: list[Event] | None = None,
) -> Verdict:
    return judge(
        east=entries() if east is None else east,
        west=entries() if west is None else west,
        acknowledged=events() if acknowledged is None else acknowledged,
        handled=events() if handled is None else handled,
    )


def test_equal_logs_and_a_complete_consumer_pass() -> None:
    found = verdict()

    assert found.exit_code == 0
    assert found.seconds_without_writes == (("east", "west", "nobody known", 1.0),)
    assert {"acknowledged: 30", "consumed: 30", "lost: 0", "duplicated: 0", "out of order: 0"} <= set(found.lines())
    assert "offsets equal: yes" in found.lines()


def test_nothing_acknowledged_is_indeterminate() -> None:
    assert verdict([], [], [], []).exit_code == 4


def test_an_order_missing_on_one_side_is_lost() -> None:
    found = verdict(west=entries()[:-1])

    assert (found.lost, found.shifted, found.exit_code) == (1, 1, 1)


def test_orders_that_the_dead_cluster_took_along_are_given_up_only_if_they_were_saved() -> None:
    """Order 14 was acknowledged last on east; west gave its place to another one."""
    rest = [entry for entry in entries() if entry.number != 14]
    acknowledged = [event for event in events() if event.number != 14]
    taken = [*acknowledged, Event(14, 0, 5, "east", 14_000)]
    logs = {"east": rest, "west": rest, "acknowledged": taken, "handled": acknowledged}

    saved, unsaved = judge(**logs, saved={14}), judge(**logs)  # type: ignore[arg-type]

    assert (saved.given_up, saved.lost, saved.skipped, saved.shifted, saved.exit_code) == (1, 0, 0, 0, 0)
    assert saved.acknowledged == COUNT
    assert (unsaved.given_up, unsaved.lost, unsaved.exit_code) == (0, 1, 1)
    assert judge(**logs, saved={14, 3}).given_up == 1, "what is in both logs was not given up"  # type: ignore[arg-type]


def test_an_order_twice_in_a_log_is_duplicated() -> None:
    doubled = [*entries(), Entry(0, COUNT // 3, 27, ("ts", b"k", b"v"))]

    found = verdict(doubled, doubled)

    assert (found.duplicated, found.shifted, found.exit_code) == (1, 0, 1)


def test_orders_that_changed_places_on_both_sides_are_out_of_order() -> None:
    swapped = entries()
    swapped[0], swapped[3] = replace(swapped[0], offset=1), replace(swapped[3], offset=0)

    found = verdict(swapped, swapped)

    assert found.out_of_order == 1
    assert found.shifted == 2, "the producer was told other offsets"


def test_an_altered_value_on_one_side_differs() -> None:
    altered = entries()
    altered[4] = replace(altered[4], content=("ts", b"k", b"other"))

    assert verdict(east=altered).shifted == 1


def test_shifted_offsets_on_one_side_are_found() -> None:
    shifted = [replace(entry, offset=entry.offset + 1) if entry.partition == 2 else entry for entry in entries()]

    found = verdict(west=shifted)

    assert found.lost == 0
    assert found.shifted == 11
    assert found.exit_code == 1


def test_an_order_never_handled_is_skipped_and_one_handled_twice_is_counted_only() -> None:
    assert verdict(handled=events()[1:]).skipped == 1
    assert verdict(handled=events()[1:]).exit_code == 1
    again = verdict(handled=[*events(), events()[0]])
    assert (again.read_again, again.exit_code) == (1, 0)


def test_a_write_found_by_reading_is_no_accepted_write() -> None:
    seen = events()
    seen[15] = replace(seen[15], answered=False)

    assert verdict(acknowledged=seen).seconds_without_writes == (("east", "west", "nobody known", 2.0),)


@pytest.mark.parametrize("half", ["31\t1\t1", "31\t1\t10\teast\t31000\t1"])
def test_half_a_line_of_an_application_is_not_read(tmp_path: Path, half: str) -> None:
    path = tmp_path / "acknowledged.tsv"
    path.write_text("".join(event.line() for event in events()) + half, encoding="ascii")

    assert read_events(path) == events()
