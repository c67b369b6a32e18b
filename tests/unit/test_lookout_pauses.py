"""What did not work, or was held up, is no source that has much to tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.dataplane import lookout
from mirror_core.dataplane.lookout import Lookout
from mirror_core.kafka.offsets import Led

LINK = cast("Any", SimpleNamespace(mirror=SimpleNamespace(name="m")))


@pytest.mark.parametrize(
    ("took_s", "answered", "passes_s"),
    [
        pytest.param(9.0, False, 2.0, id="a broker hung, and is restarted"),
        pytest.param(3_600.0, True, 600.0, id="the machine was stopped meanwhile"),
    ],
)
def test_transactions_are_asked_for_soon_again(
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
