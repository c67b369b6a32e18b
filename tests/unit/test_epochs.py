"""When epochs begin, by a clock of the test's."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.dataplane import driver
from mirror_core.dataplane.driver import LEAD_S, Options, Replication
from mirror_core.model.errors import Unwritten

EPOCH_S = 30.0


class Clock:
    """Wall clock, milliseconds."""

    now = 1_000_000

    def __call__(self) -> int:
        return self.now


def driven(
    monkeypatch: pytest.MonkeyPatch, *, look_s: float, epochs: int, unwritten: int | None = None
) -> list[tuple[int, int, int]]:
    """The time when each epoch was handed out, and its start and stop. Each look at the clusters takes so long;
    `unwritten`: before this epoch the state topic takes nothing for a while."""
    clock, found, stop, refused = Clock(), list[tuple[int, int, int]](), threading.Event(), list[int]()
    link: Any = SimpleNamespace(mirror=SimpleNamespace(name="m"), destination=None)
    one = Replication(link, SimpleNamespace, Options(epoch_s=EPOCH_S), stop=stop, say=lambda line: None)

    def submit(lease: Any, work: Any, until: Any, start_ms: int, stop_ms: int) -> None:
        if len(found) == unwritten and len(refused) < 3:
            refused.append(clock.now)
            raise Unwritten("not now")
        found.append((clock.now, start_ms, stop_ms))
        if len(found) == epochs:
            stop.set()

    def tend(lease: Any, stop_ms: int, lead_s: float) -> int:
        clock.now = max(clock.now, stop_ms - int(lead_s * 1000))
        return stop_ms

    def look(*asked: Any) -> Any:
        clock.now += int(look_s * 1000)
        return SimpleNamespace(partitions={"t-0": None})

    def wait(lease: Any) -> None:
        clock.now += 20_000

    monkeypatch.setattr(driver, "now_ms", clock)
    monkeypatch.setattr(driver, "refuse_to_run", lambda state, link: None)
    for name, instead in (("_submit", submit), ("_tend", tend), ("_plan", look), ("_await_writes", wait)):
        monkeypatch.setattr(one, name, instead)
    monkeypatch.setattr(one, "_follow_log_start", lambda *asked: None)
    monkeypatch.setattr(one, "_patience", SimpleNamespace(until_done=lambda lease, work, until_ms: work()))
    lease: Any = SimpleNamespace(
        read=lambda: None, know=lambda state: state, lease=SimpleNamespace(writers_until_ms=clock.now)
    )
    planner: Any = SimpleNamespace(hanging=str)
    one._go_on(planner, lease, look(), 0.0)
    return found


@pytest.mark.parametrize("look_s", [0.1, 10.0, 40.0, 300.0])
def test_an_epoch_copies_for_its_whole_length_however_long_the_plan_took(
    monkeypatch: pytest.MonkeyPatch, look_s: float
) -> None:
    for at, start_ms, stop_ms in driven(monkeypatch, look_s=look_s, epochs=4):
        assert start_ms >= at, "it began before it was handed out"
        assert stop_ms - start_ms == EPOCH_S * 1000


def test_epochs_follow_each_other_without_a_break_where_the_plan_fits_into_the_lead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = driven(monkeypatch, look_s=LEAD_S / 4, epochs=4)
    assert [start for _, start, _ in found[1:]] == [stop for _, _, stop in found[:-1]]


def test_what_could_not_begin_begins_when_the_state_topic_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = driven(monkeypatch, look_s=1.0, epochs=3, unwritten=1)
    assert len(found) == 3
    for at, start_ms, stop_ms in found:
        assert start_ms >= at
        assert stop_ms - start_ms == EPOCH_S * 1000
