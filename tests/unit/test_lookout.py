"""How often a source is asked for its transactions: with each look, unless that takes long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.dataplane import lookout
from mirror_core.dataplane.lookout import EVERY_S, Lookout
from mirror_core.kafka.offsets import Led
from mirror_core.model.sighting import TransactionSeen

ONE = {("id", 1, 1): TransactionSeen(id="id", producer_id=1, state="Ongoing", parts=())}
LINK = cast("Any", SimpleNamespace(mirror=SimpleNamespace(name="m")))


class Source:
    """Counts how often it was asked, and takes so long for an answer."""

    def __init__(self) -> None:
        self.now, self.takes_s, self.asked = 100.0, 0.0, 0

    def open(self, *_: object) -> dict[Any, TransactionSeen]:
        self.asked += 1
        self.now += self.takes_s
        return dict(ONE)


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    made = Source()
    monkeypatch.setattr(lookout, "_open", made.open)
    monkeypatch.setattr(lookout, "led_offsets", lambda *_, **__: Led(offsets={}, leaderless=frozenset()))
    monkeypatch.setattr(lookout, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


@pytest.mark.parametrize(("takes_s", "asked"), [(EVERY_S / 2, 30), (2 * EVERY_S, 2)])
def test_a_source_that_needs_long_to_tell_its_transactions_is_asked_for_them_seldom(
    source: Source, takes_s: float, asked: int
) -> None:
    look, source.takes_s = Lookout(LINK, None), takes_s
    for _ in range(30):
        seen = look.look(cast("Any", None), cast("Any", None))
        assert [one.id for one in seen.transactions] == ["id"], "what was seen last stays"
        source.now += EVERY_S
    assert source.asked == asked


def test_what_was_not_asked_for_again_is_as_old_as_it_is(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookout, "now_ms", lambda: int(source.now * 1000))
    look, source.takes_s = Lookout(LINK, None), 3.0
    first = look.look(cast("Any", None), cast("Any", None))
    source.now += 5.0
    second = look.look(cast("Any", None), cast("Any", None))
    assert first.transactions_ms == second.transactions_ms == 100_000
    assert (first.at_ms, second.at_ms) == (103_000, 108_000)


@pytest.mark.parametrize(
    ("took_s", "answered", "passes_s"),
    [
        pytest.param(9.0, False, 2.0, id="a broker hung, and is restarted"),
        pytest.param(3_600.0, True, 600.0, id="the machine was stopped meanwhile"),
    ],
)
def test_what_did_not_work_or_was_held_up_is_no_source_that_has_much_to_tell(
    monkeypatch: pytest.MonkeyPatch, took_s: float, answered: bool, passes_s: float
) -> None:
    clock, asked = SimpleNamespace(now=100.0), list[float]()

    def opened(*_: object) -> dict[Any, Any] | None:
        asked.append(clock.now)
        clock.now += took_s if len(asked) == 1 else 0.1
        return {} if answered or len(asked) > 1 else None

    monkeypatch.setattr(lookout, "_open", opened)
    monkeypatch.setattr(lookout, "led_offsets", lambda *_, **__: Led(offsets={}, leaderless=frozenset()))
    monkeypatch.setattr(lookout, "time", SimpleNamespace(monotonic=lambda: clock.now))
    look = Lookout(LINK, None)
    look.look(cast("Any", None), cast("Any", None))
    clock.now += passes_s
    look.look(cast("Any", None), cast("Any", None))
    assert len(asked) == 2
