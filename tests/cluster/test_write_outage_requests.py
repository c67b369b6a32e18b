"""How long applications stand still does not grow with a mirror's groups and topics, however far its destination is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from mirror_core.model.run import RunMode, RunState, StepRecord
from tests.support.many_topics import SETTINGS, crowd
from tests.support.wan_clusters import Distant, distant_clusters

pytestmark = [pytest.mark.cluster, pytest.mark.timed]

STANDSTILL: Final = ("fence", "drain", "final_sync", "parity", "record_lmo", "promote")
FEW: Final = 5
MANY: Final = 500
MORE_S: Final = 3.0
"""For all that many take more than few."""


@pytest.fixture(scope="module")
def distant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Distant]:
    with distant_clusters(tmp_path_factory.mktemp("distant")) as made:
        yield made


def stood_still(distant: Distant, evidence: Path, count: int) -> dict[str, StepRecord]:
    """The steps of a failover of so many topics and groups, taken by way of a relay of 80 ms each way."""
    with crowd(distant.pair, evidence, count) as mirrored:
        failover = mirrored.failover
        run = failover.begin(failover.plan(RunMode.PLANNED).hash, RunMode.PLANNED)
        failover.run_step(run.id, "prove")
        with distant.is_far(distant.pair.west, 160):
            taken = failover.run_steps(run.id, STANDSTILL)
        assert failover.drive(run.id).state is RunState.DONE
    steps = {record.step: record for record in taken}
    assert steps["final_sync"].evidence["commit"] == count
    assert steps["promote"].evidence["set"] == len(SETTINGS) * count
    assert steps["promote"].evidence["create"] == 2 * count
    return steps


def seconds(first: StepRecord, last: StepRecord) -> float:
    return ((last.ended_ms or 0) - first.started_ms) / 1000


def test_many_groups_and_topics_hold_applications_up_no_longer_than_few(distant: Distant, tmp_path: Path) -> None:
    few = stood_still(distant, tmp_path / "few", FEW)
    many = stood_still(distant, tmp_path / "many", MANY)
    for name in STANDSTILL:
        print(f"{name:12} {seconds(few[name], few[name]):6.2f} {seconds(many[name], many[name]):6.2f}")
    least, most = (seconds(steps["fence"], steps["promote"]) for steps in (few, many))
    print(f"fence to promote {least:.2f} and {most:.2f} s")
    assert most <= least + MORE_S
