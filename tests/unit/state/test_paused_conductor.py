"""Who slept and is no conductor any more takes nothing from the one at work: neither its lease nor its writer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from mirror_core.model.errors import LostOwnership
from mirror_core.model.mirror import Lease
from mirror_core.model.run import StepEvidence, StepRecord
from mirror_core.runbook.planned_steps import PlannedSteps
from mirror_core.runbook.unplanned_steps import UnplannedSteps
from mirror_core.state import lease
from mirror_core.state.state_records import State, StateRecord, Tombstone
from tests.support.cluster_names import LINK
from tests.support.memory_state import journal_of

ACTS: list[tuple[str, type[PlannedSteps] | type[UnplannedSteps], Callable[[Any], StepEvidence]]] = [
    ("drain", PlannedSteps, lambda steps: cast("StepEvidence", steps._drain())),
    ("settle", UnplannedSteps, lambda steps: cast("StepEvidence", steps._settle())),
]


class Control:
    """The run's writer; another process takes its id before the write of this number."""

    def __init__(self, fenced_at: int, happened: list[str]) -> None:
        self.state, self.left, self.happened = State(), fenced_at, happened

    def put(self, *records: StateRecord | Tombstone) -> None:
        self.left -= 1
        if self.left < 0:
            raise LostOwnership("another process conducts it")
        self.happened += [f"control: {type(one).__name__}" for one in records]

    def refresh(self) -> State:
        raise InterruptedError("the lease is taken")


@pytest.mark.parametrize(("step", "kind", "act"), ACTS, ids=[name for name, *_ in ACTS])
@pytest.mark.parametrize(
    ("fenced_at", "expected"),
    [
        (0, []),
        (1, ["control: StepRecord", "data id taken"]),
        (9, ["control: StepRecord", "data id taken", "control: Lease", "data: Lease"]),
    ],
)
def test_before_the_data_id_is_taken_it_shows_that_it_still_conducts(
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    kind: type[PlannedSteps] | type[UnplannedSteps],
    act: Callable[[Any], StepEvidence],
    fenced_at: int,
    expected: list[str],
) -> None:
    happened = list[str]()

    class Data:
        def __init__(self, cluster: object, writer: object) -> None:
            assert (cluster, str(writer)) == (LINK.destination, "mirrorbook.data.m")
            self.state = State()

        def __enter__(self) -> Data:
            happened.append("data id taken")
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def put(self, record: Lease) -> None:
            happened.append(f"data: {type(record).__name__}")
            assert record.owner == "run:run-1"

    monkeypatch.setattr(lease, "StateWriter", Data)
    monkeypatch.setattr(lease, "measure_clock_ahead_ms", lambda cluster, timeout_s: 0)
    journal = journal_of("run-1", step)
    control = Control(fenced_at, happened)
    steps = kind(LINK, cast("Any", None), cast("Any", control), journal)
    with pytest.raises(LostOwnership if fenced_at < 9 else InterruptedError):
        journal.perform(step, lambda: act(steps))
    assert happened == expected
    assert isinstance(journal.record(step), StepRecord)
