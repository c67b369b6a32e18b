"""How often the steps during which applications stand still ask a source: each time is a round trip, far away."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from mirror_core.kafka.connection import Connection
from mirror_core.model.run import Mode, RunState
from mirror_core.runbook.conductor import Conductor
from tests.brokers import Pair, new_topic, produce
from tests.mirroring import new_mirror

pytestmark = pytest.mark.cluster

DRAIN: Final = 10
"""Of a mirror that has caught up."""
STANDSTILL: Final = 80
"""From the fence to the promotion; to sign in counts three times."""


def test_a_planned_failover_asks_its_source_little(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, step, polling = Counter[str](), "", set[int]()
    take: Any = Conductor._take
    sleep = time.sleep

    def sleeping(seconds: float) -> None:
        """Who asks after it polls for what a busy broker has not done yet: how often is the broker's matter."""
        sleep(seconds)
        polling.add(threading.get_ident())

    monkeypatch.setattr(time, "sleep", sleeping)

    def taking(self: Any, writer: Any, journal: Any, name: str) -> Any:
        nonlocal step
        step = name
        return take(self, writer, journal, name)

    def counting(kind: str) -> None:
        usual: Any = getattr(Connection, kind)

        def count(self: Connection, *given: Any, **named: Any) -> Any:
            # What is opened ahead travels beside other questions.
            if self.where.startswith("cluster east") and not threading.current_thread().name.startswith("connect"):
                asked["polls" if threading.get_ident() in polling else step] += 1
                polling.discard(threading.get_ident())
            return usual(self, *given, **named)

        monkeypatch.setattr(Connection, kind, count)

    topic = new_topic(pair.east, 2)
    produce(pair.east, topic, 100)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    failover = mirrored.failover
    plan = failover.plan(Mode.PLANNED)
    monkeypatch.setattr(Conductor, "_take", taking)
    for kind in ("call", "call_each", "call_all"):
        counting(kind)
    assert failover.drive(failover.begin(plan.hash, Mode.PLANNED).id).state is RunState.DONE
    print(dict(asked))
    assert 0 < asked["drain"] <= DRAIN, asked
    still = sum(asked[name] for name in ("fence", "drain", "final_sync", "parity", "record_lmo", "promote"))
    assert still <= STANDSTILL, asked
