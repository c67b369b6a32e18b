"""What copying waits for is said as far as it is known, and not any more where nothing is copied."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.dataplane.driver import Options, Replication
from mirror_core.dataplane.planning import Work
from mirror_core.mirrors.describe import _waits
from mirror_core.model.names import MirrorName
from mirror_core.state.lease import HeldLease, next_lease
from mirror_core.state.records import State
from tests.unit.test_waits import CUT, HELD, Writer, ended


def test_who_has_not_ended_an_epoch_yet_does_not_say_that_copying_waits_for_nothing() -> None:
    """Spark starts, the first epoch waits, or an older version copies, which does not tell."""
    assert "nothing" not in (_waits(next_lease(State(), MirrorName("m"), "me"), held=True) or "")


def test_where_nothing_is_copied_any_more_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic whose broker was silent is taken out of the filters, and was the last one."""
    monkeypatch.setattr("mirror_core.state.lease.BEAT_S", 0.0)
    link = cast("Any", SimpleNamespace(destination=None, mirror=SimpleNamespace(name="m")))
    one: Any = Replication(link, cast("Any", SimpleNamespace), Options(), stop=threading.Event(), say=lambda _: None)
    writer = Writer()
    lease = HeldLease(cast("Any", writer), HELD)
    ended(one.results, lease, 1, CUT)
    nothing = Work(partitions={}, lags={}, ends={}, changes=(), failed={})
    assert one._begun(lease, nothing, 0, 0)
    lease.beat()
    assert not writer.state.leases[HELD.mirror].waits
