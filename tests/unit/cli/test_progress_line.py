"""The line a person watches: complete, short, and honest about what is unknown."""

from __future__ import annotations

import io

import pytest

from mirror_core.cli import replicate as shown_progress
from mirror_core.cli.replicate import format_totals, show_progress
from mirror_core.dataplane.progress import ProgressTotals, TaskProgress
from tests.support.waiting import wait_until


def totals(**changes: float | None) -> ProgressTotals:
    values = {
        "partitions": 1204,
        "unknown": 0,
        "lag": 15_300,
        "seeding": 0,
        "to_seed": 0,
        "worst_time_lag_s": 75.4,
        "records": 2_000_000,
        "bytes": 2_048_000_000,
        "records_per_s": 310_000.4,
        "bytes_per_s": 317_440_000.0,
    }
    return ProgressTotals(**{**values, **changes})  # type: ignore[arg-type]  # the table mixes int and float on purpose


def test_all_figures_are_there() -> None:
    assert format_totals(totals()) == (
        "1,204 partitions, lag 15,300, 1 min 15 s behind; 310,000 records/s, 317.4 MB/s; "
        "2,000,000 records, 2.0 GB in all"
    )


@pytest.mark.parametrize(
    ("unknown", "said"), [(1204, "lag unknown, "), (3, "lag 15,300 + unknown of 3 partitions, "), (0, "lag 15,300, ")]
)
def test_an_unknown_lag_is_said(unknown: int, said: str) -> None:
    assert said in format_totals(totals(unknown=unknown))


def test_an_unknown_time_lag_is_left_to_the_offsets() -> None:
    assert "behind" not in format_totals(totals(worst_time_lag_s=None))


def test_what_is_seeded_is_said_while_it_is() -> None:
    said = format_totals(totals(seeding=2, to_seed=1_800_000))
    assert "1 min 15 s behind; seeding 2 partitions, 1,800,000 offsets left; 310,000 records/s" in said


def test_off_a_terminal_lines_are_plain_and_stop_when_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown_progress, "_PLAIN_S", 0.01)
    out = io.StringIO()
    with show_progress(out) as progress:
        progress.update(TaskProgress(task=0, t=4e9, rows=[("orders", 0, 10, 12, 10, 1000, 0, 0)]), 1)
        wait_until(lambda: "lag 2" in out.getvalue(), timeout_s=10, why="a line is printed")
    printed = out.getvalue()
    assert "\x1b" not in printed
    assert "1 partitions, lag 2; " in printed
