"""A data plane that starts while a failover takes the rest over: the run goes on, and the data plane ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirror_core.decide.steps import list_step_names
from mirror_core.model.errors import HeldByRun, LostOwnership
from mirror_core.model.run import RunKind, RunMode, RunState
from mirror_core.runbook import drain, planned_steps, run_services
from mirror_core.state.lease import HeldLease, acquire_lease, make_owner_name, take_over_lease
from mirror_core.state.state_records import State
from tests.support.kafka_clients import Pair, new_topic, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror

pytestmark = pytest.mark.cluster


@pytest.fixture
def draining(pair: Pair, tmp_path: Path) -> tuple[Mirrored, str]:
    """Up to the drain, which has something to copy; and the run."""
    topic = new_topic(pair.east)
    produce(pair.east, topic, 30)
    mirrored = new_mirror(pair, tmp_path / "evidence", topic)
    mirrored.copy()
    produce(pair.east, topic, 20)
    run = mirrored.failover.begin(mirrored.failover.plan(RunMode.PLANNED).hash)
    steps = list_step_names(RunKind.FAILOVER, RunMode.PLANNED)
    for name in steps[: steps.index("drain")]:
        mirrored.failover.run_step(run.id, name)
    return mirrored, run.id


def rival(mirrored: Mirrored, taken: list[HeldLease], times: int) -> Callable[..., Any]:
    """Right behind the drain's own taking."""
    real = drain.report_drain_progress

    def look(*given: Any, **named: Any) -> Any:
        if len(taken) < times:
            taken.append(take_over_lease(mirrored.link.destination, mirrored.name, make_owner_name()))
        return real(*given, **named)

    return look


def test_the_lease_is_taken_back_from_a_data_plane_that_was_just_starting(
    draining: tuple[Mirrored, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrored, run = draining
    taken = list[HeldLease]()
    with monkeypatch.context() as patched:
        patched.setattr(run_services, "_LEASE_ATTEMPTS", 0)  # as it was
        patched.setattr(planned_steps, "report_drain_progress", rival(mirrored, taken, 1))
        with pytest.raises(LostOwnership):
            mirrored.failover.run_step(run, "drain")
    monkeypatch.setattr(planned_steps, "report_drain_progress", rival(mirrored, taken, 3))
    assert mirrored.failover.drive(run).state is RunState.DONE
    assert len(taken) == 3
    for one in taken:
        with pytest.raises(LostOwnership):
            one.release()
    [topic] = mirrored.link.mirror.topics
    assert [r for r in read_all(mirrored.pair.west, topic) if r.value != b"x"] == read_all(mirrored.pair.east, topic)


def test_who_has_lost_the_run_takes_nothing_from_who_conducts_it_now(
    draining: tuple[Mirrored, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrored, run = draining
    real, other = drain.report_drain_progress, mirrored.failover

    def overtaken(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(planned_steps, "report_drain_progress", real)
        assert other.drive(run).state is RunState.DONE
        return real(*given, **named)

    monkeypatch.setattr(planned_steps, "report_drain_progress", overtaken)
    with pytest.raises(LostOwnership):
        mirrored.failover.run_step(run, "drain")
    assert mirrored.state.runs[run].state is RunState.DONE


def test_who_may_not_copy_takes_nothing(draining: tuple[Mirrored, str]) -> None:
    mirrored, run = draining
    before = mirrored.state.leases[mirrored.name]

    def held(_: State) -> None:
        raise HeldByRun("replicate", [f"run {run} copies the rest itself"])

    with pytest.raises(HeldByRun):
        acquire_lease(mirrored.link.destination, mirrored.name, make_owner_name(), held)
    assert mirrored.state.leases[mirrored.name] == before
    mirrored.failover.drive(run)
