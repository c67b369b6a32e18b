"""How often the steps during which applications stand still ask a cluster: each time is a round trip, far away."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from mirror_core.kafka.connection import Connection
from mirror_core.model.run import RunMode
from mirror_core.runbook.conductor import Conductor
from tests.support.kafka_clients import Pair
from tests.support.many_topics import crowd
from tests.support.mirrored_topics import Mirrored

pytestmark = pytest.mark.cluster

STEPS: Final = ("fence", "drain", "final_sync", "parity", "record_lmo", "promote")
DRAIN: Final = 10
"""Of a mirror that has caught up."""
STANDSTILL: Final = 80
"""From the fence to the promotion, of the source; to sign in counts three times."""
FEW: Final = 2
MANY: Final = 80
TOGETHER: Final = frozenset(
    {
        "CreateAclsRequest",
        "DescribeConfigsRequest",
        "FindCoordinatorRequest",
        "IncrementalAlterConfigsRequest",
        "OffsetCommitRequest",
        "OffsetFetchRequest",
    }
)
"""Requests that are about many topics or groups, or travel behind each other."""
SPARE: Final = 1
"""More of a kind for many than for few, of both clusters: a coordinator may have to be asked again."""

Asked = Counter[tuple[str, str, str]]
"""Round trips by cluster, step and request."""


def counted(mirrored: Mirrored) -> Asked:
    """Those of a planned failover's steps, up to its promotion."""
    asked, step, polling = Asked(), "", set[int]()
    take: Any = Conductor._run_step
    sleep = time.sleep

    def sleeping(seconds: float) -> None:
        """Who asks after it polls for what a busy broker has not done yet: how often is the broker's matter."""
        sleep(seconds)
        polling.add(threading.get_ident())

    def taking(self: Any, writer: Any, journal: Any, name: str) -> Any:
        nonlocal step
        step = name
        return take(self, writer, journal, name)

    def counting(patch: pytest.MonkeyPatch, kind: str, first: Callable[[Any], object]) -> None:
        usual: Any = getattr(Connection, kind)

        def count(self: Connection, given: Any, *more: Any, **named: Any) -> Any:
            # What is opened ahead travels beside other questions.
            if not threading.current_thread().name.startswith("connect"):
                side = self.where.split()[1].rstrip(",")
                during = "polls" if threading.get_ident() in polling else step
                asked[side, during, type(first(given)).__name__] += 1
                polling.discard(threading.get_ident())
            return usual(self, given, *more, **named)

        patch.setattr(Connection, kind, count)

    failover = mirrored.failover
    run = failover.begin(failover.plan(RunMode.PLANNED).hash, RunMode.PLANNED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", sleeping)
        patch.setattr(Conductor, "_run_step", taking)
        counting(patch, "call", lambda request: request)
        counting(patch, "_exchange", lambda requests: requests[0])
        failover.run_steps(run.id, ("prove", *STEPS))
    return asked


def test_a_planned_failover_asks_little_and_not_more_for_many(pair: Pair, tmp_path: Path) -> None:
    with crowd(pair, tmp_path / "few", FEW) as mirrored:
        few = counted(mirrored)
    with crowd(pair, tmp_path / "many", MANY) as mirrored:
        many = counted(mirrored)
    for asked in (few, many):
        by_step, of_source = by(asked, lambda key: key[:2]), by(asked, lambda key: key[1] if key[0] == "east" else "")
        print(by_step)
        assert 0 < of_source["drain"] <= DRAIN, by_step
        assert sum(of_source[step] for step in STEPS) <= STANDSTILL, by_step
    least, most = (by(asked, lambda key: key[2] if key[1] in STEPS else "") for asked in (few, many))
    assert most.keys() >= TOGETHER, "was not counted"
    grown = {kind: (least[kind], most[kind]) for kind in TOGETHER if most[kind] > least[kind] + SPARE}
    assert not grown


def by(asked: Asked, key: Callable[[tuple[str, str, str]], object]) -> Counter[object]:
    """Added up."""
    found = Counter[object]()
    for what, count in asked.items():
        found[key(what)] += count
    return found
