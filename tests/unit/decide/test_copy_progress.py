"""What whoever waits for a comparison or a drain is told of it."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.decide.copy_estimate import count_compared, format_catch_up, format_progress
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ParityRange, ParityResult, ParityVerdict
from mirror_core.runbook import drain, parity_gate
from tests.support.cluster_names import LINK

A, B = Partition("orders", 0), Partition("orders", 1)
RANGES = [
    ParityRange(partition=A, start=Offset(100), end=Offset(300)),
    ParityRange(partition=B, start=Offset(0), end=Offset(50)),
]


class Clock:
    """Seconds that go by when somebody looks."""

    def __init__(self, *times: float) -> None:
        self._times = iter(times)

    def monotonic(self) -> float:
        return next(self._times)


def result(**proven: int) -> ParityResult:
    ends = {Partition("orders", int(name[1:])): Offset(end) for name, end in proven.items()}
    return ParityResult(verdict=ParityVerdict.INDETERMINATE, records=0, chunks=0, verified_ends=ends)


@pytest.mark.parametrize(
    ("proven", "done"),
    [({}, 0), ({A: Offset(150)}, 50), ({A: Offset(300), B: Offset(50)}, 250), ({A: Offset(900), B: Offset(1)}, 201)],
)
def test_only_what_was_asked_for_counts(proven: dict[Partition, Offset], done: int) -> None:
    assert count_compared(RANGES, proven) == (done, 250)
    assert count_compared(RANGES, {A: Offset(7)}) == (0, 250), "below its beginning nothing of it is compared"


@pytest.mark.parametrize(
    ("done", "total", "seconds", "words"),
    [
        (0, 5000, 12.0, "0 of 5,000 offsets, time left not known yet"),
        (3000, 5000, 30.0, "3,000 of 5,000 offsets, about 20 s left"),
        (1, 20, 6.0, "1 of 20 offsets, about 114 s left"),
        (1, 21, 7.0, "1 of 21 offsets, time left not known yet"),  # two seconds of a long one say little
        (40, 80_000, 5.0, "40 of 80,000 offsets, time left not known yet"),
        (1_000, 100_000, 60.0, "1,000 of 100,000 offsets, about 99 min left"),
        (1000, 2000, 119.2, "1,000 of 2,000 offsets, about 2 min left"),
        (10, 100, 1200.0, "10 of 100 offsets, about 3.0 h left"),
        (5000, 5000, 30.0, "5,000 of 5,000 offsets, about 0 s left"),
    ],
)
def test_the_time_that_is_left_is_told_by_the_time_that_it_took(
    done: int, total: int, seconds: float, words: str
) -> None:
    assert format_progress(done, total, seconds) == words


@pytest.mark.parametrize(
    ("lag", "first", "words"),
    [
        (None, (9, 0.0), "an unknown number of offsets left"),
        (5_000, (5_000, 0.0), "5,000 offsets left, time left not known yet"),
        (6_000, (5_000, 0.0), "6,000 offsets left, time left not known yet"),
        (4_000, (5_000, 40.0), "4,000 offsets left, about 4 min"),
        (4_900, (5_000, 95.0), "4,900 offsets left, time left not known yet"),
        (0, (5_000, 40.0), "0 offsets left, about 0 s"),
    ],
)
def test_the_time_until_a_lag_is_gone_is_told_by_how_it_has_shrunk(
    lag: int | None, first: tuple[int, float], words: str
) -> None:
    assert format_catch_up(lag, first, 100.0) == words


def test_a_comparison_is_told_of_every_few_seconds_and_kept_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity_gate, "time", Clock(0.0, 2.0, 6.0, 7.0, 12.0, 13.0))
    kept, said = list[ParityResult](), list[str]()
    told = parity_gate.report_compare_progress(RANGES, kept.append, said.append)
    for end in (120, 150, 160, 200):
        told(result(p0=end))
    assert len(kept) == 4
    assert said == [
        "prove: 250 offsets to compare",
        "prove: 50 of 250 offsets, about 24 s left",
        "prove: 100 of 250 offsets, about 18 s left",
    ]
    parity_gate.report_compare_progress([], kept.append, said.append)
    assert len(said) == 3, "where nothing is new"


def test_a_drain_asks_nobody_before_its_first_round_and_tells_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {A: Offset(300), B: Offset(50)}
    answers = [{A: Offset(100), B: Offset(60)}, {A: Offset(200), B: Offset(60)}]
    heard, said = list[float](), list[str]()

    def listed(client: object, partitions: object, point: object) -> Any:
        assert len(heard) > 1, "applications stand still, and a request is on its way"
        return answers.pop(0)

    monkeypatch.setattr(drain, "time", Clock(10.0, 10.0, 20.0))
    monkeypatch.setattr(drain, "ClusterClient", lambda cluster: nullcontext(SimpleNamespace()))
    monkeypatch.setattr(drain, "list_offsets", listed)
    until = drain.report_drain_progress(LINK, ends, said.append, heard.append)
    for until_ms in (1, 2, 3):
        until(until_ms)
    assert heard == [1, 2, 3]
    assert said == [
        "drain: 0 of 200 offsets, time left not known yet",
        "drain: 100 of 200 offsets, about 10 s left",
    ]
