"""A look that takes seconds is not taken for a clock that is behind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.mirrors import describe
from mirror_core.mirrors.describe import ClockState
from mirror_core.mirrors.mirror_facts import FactKey
from mirror_core.model.source_observation import Heartbeat
from mirror_core.model.timing import now_ms
from mirror_core.state.state_records import State
from tests.support.mirror_views import MIRROR


@pytest.mark.parametrize(("took_s", "clock"), [(3.0, ClockState.NOT_BEHIND), (0.0, ClockState.BEHIND)])
def test_heartbeats_of_the_end_of_a_look_are_not_of_the_future(
    monkeypatch: pytest.MonkeyPatch, took_s: float, clock: ClockState
) -> None:
    """One broker of the source keeps silent for three seconds, and the data plane goes on."""
    began, passed = now_ms(), [0.0]

    def offsets(cluster: Any, partitions: object, *points: object) -> object:
        passed[0] += took_s if cluster.name == MIRROR.source else 0.0
        return SimpleNamespace(points=tuple({} for _ in points), problem="", absent=frozenset(), is_silent=False)

    def newest(*given: object, **options: object) -> tuple[Heartbeat, ...]:
        return (Heartbeat(partition=0, number=7, at_ms=began + 2_500, mirror=MIRROR.name, driver="d"),)

    monkeypatch.setattr(describe, "_fetch_offsets", offsets)
    monkeypatch.setattr(describe, "read_newest_heartbeats", newest)
    monkeypatch.setattr(describe, "measure_clock_ahead_ms", lambda cluster, timeout_s: None)
    monkeypatch.setattr(describe, "time", SimpleNamespace(monotonic=lambda: passed[0]))
    sides = [SimpleNamespace(name=name, control={}) for name in (MIRROR.source, MIRROR.destination)]
    config = SimpleNamespace(deletion_hold_ms=lambda mirror: 0)
    link: Any = SimpleNamespace(mirror=MIRROR, source=sides[0], destination=sides[1], config=config)
    seen = describe.describe_mirror(link, State(mirrors={MIRROR.name: MIRROR}), began)
    assert seen.facts[FactKey.CLOCK].value is clock
