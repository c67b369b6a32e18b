"""How often what a comparison has shown so far is told: nearly at once, and never so often that it costs much."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mirror_core.decide.parity_result import LEVEL_RECORDS
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ParityRange, ParityResult
from mirror_core.parity import check
from mirror_core.parity.check import PARTITIONS_PER_S, PROGRESS_COST_FACTOR, PROGRESS_INTERVAL_S, ParityProgress
from tests.support.parity_rows import SIZE, chunk, ends, finding, partition, wanted


class Told:
    """What was told, by a clock that stands still until a test moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ranges: list[ParityRange], took_s: float = 0.0) -> None:
        self.now, self.took_s = 1_000.0, took_s
        monkeypatch.setattr(check, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.results = list[ParityResult]()
        self.telling = ParityProgress(self.tell, ranges, LEVEL_RECORDS, ends(0, 6))

    def tell(self, result: ParityResult) -> None:
        self.results.append(result)
        self.now += self.took_s

    @property
    def proven(self) -> list[int]:
        return [one.verified_ends[partition(0)] for one in self.results]


def test_what_came_is_told_a_few_seconds_later_though_nothing_else_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch, [wanted(0, 6 * SIZE)])
    told.telling.add([chunk(0, 0)])
    assert not told.results, "a short comparison is told of at its end only"
    told.now += PROGRESS_INTERVAL_S
    told.telling.add(())
    told.telling.add([chunk(0, 1)])
    told.now += PROGRESS_INTERVAL_S / 2
    told.telling.add([chunk(0, 2)])
    assert told.proven == [SIZE]
    told.now += PROGRESS_INTERVAL_S / 2
    told.telling.add(())
    told.now += PROGRESS_INTERVAL_S
    told.telling.add(())
    assert told.proven == [SIZE, 3 * SIZE], "once more, and not again while nothing is new"


def test_each_of_slow_chunks_is_told_of_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch, [wanted(0, 6 * SIZE)])
    for at in range(5):
        told.now += PROGRESS_INTERVAL_S
        told.telling.add([chunk(0, at)])
    assert told.proven == [SIZE * (at + 1) for at in range(5)]


@pytest.mark.parametrize(
    ("partitions", "took_s", "pause_s"), [(1, 3.0, PROGRESS_COST_FACTOR * 3.0), (50_000, 1.0, 100.0)]
)
def test_what_costs_more_is_told_more_seldom(
    monkeypatch: pytest.MonkeyPatch, partitions: int, took_s: float, pause_s: float
) -> None:
    empty = [ParityRange(partition=Partition("many", n), start=Offset(0), end=Offset(0)) for n in range(1, partitions)]
    told = Told(monkeypatch, [wanted(0, 6 * SIZE), *empty], took_s)
    told.now += max(PROGRESS_INTERVAL_S, partitions / PARTITIONS_PER_S)
    told.telling.add([chunk(0, 0)])
    assert told.proven == [SIZE]
    told.now += pause_s - 0.1
    told.telling.add([chunk(0, 1)])
    assert told.proven == [SIZE]
    told.now += 0.2
    told.telling.add([chunk(0, 2)])
    assert told.proven == [SIZE, 3 * SIZE]


def test_what_differs_and_what_is_not_read_is_told_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch, [wanted(0, 6 * SIZE)])
    unlike = chunk(0, 1, dst_digest="other", differing=1, findings=(finding(0, 13),), level=LEVEL_RECORDS)
    unread = chunk(0, 2, error="damaged", damaged=(finding(0, 25),))
    for rows in ([chunk(0, 0), unlike], [unread], [chunk(0, 3)]):
        told.now += PROGRESS_INTERVAL_S
        told.telling.add(rows)
    assert told.proven == [13, 13, 13]
    assert [one.findings for one in told.results] == [(finding(0, 13),)] * 3
    assert [one.damage_findings for one in told.results] == [(), (finding(0, 25),), (finding(0, 25),)]
