"""What a failback's plan looks at: each side as long as it goes on answering."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, cast

import pytest

from mirror_core.decide.failback_plan import FailbackSnapshot
from mirror_core.kafka.progress_timeout import report_progress
from mirror_core.model.timing import TIMEOUTS
from mirror_core.runbook import failback_conductor
from mirror_core.runbook.failback_conductor import Failback
from mirror_core.state.state_records import State
from tests.support.cluster_names import LINK


class Seen(Exception):
    """What a plan is made from."""

    def __init__(self, view: FailbackSnapshot) -> None:
        super().__init__()
        self.view = view


def decide(view: FailbackSnapshot) -> None:
    raise Seen(view)


def test_the_old_sources_state_is_waited_for_as_long_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mirror of many partitions has much to tell, and far away that takes longer than to tell where logs end."""

    def much(link: object) -> State:
        for _ in range(30):
            time.sleep(0.1)
            report_progress()
        return State()

    nothing: Any = lambda *arguments: {}  # noqa: E731
    for name in ("_snapshot_old_source", "_snapshot_new_primary", "_list_log_sizes"):
        monkeypatch.setattr(failback_conductor, name, nothing)
    monkeypatch.setattr(failback_conductor, "find_sibling_mirrors", lambda link, topics, found: [])
    monkeypatch.setattr(failback_conductor, "_read_reverse_state", much)
    monkeypatch.setattr(failback_conductor, "TIMEOUTS", replace(TIMEOUTS, plan_cluster_idle_s=1.8))
    monkeypatch.setattr("mirror_core.decide.failback_plan.decide_failback", decide)
    with pytest.raises(Seen) as seen:
        Failback(LINK, cast("Any", None), started_by="me")._decide(State(), None)
    assert seen.value.view.reverse_unknown is None
