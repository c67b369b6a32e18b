"""The way home while it is made: whoever must go home by it, since the new primary is lost, gets no right back that was
withdrawn there; and a failback that goes on afterwards leaves what they were given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.model.acl import AclPurpose, Operation
from mirror_core.model.errors import Refused
from mirror_core.model.mirror import Desired, PartitionState, PartitionStatus
from mirror_core.model.names import MirrorName, Partition
from mirror_core.model.run import Mode, Plan, Run, RunKind, RunState
from mirror_core.runbook import failback_steps
from mirror_core.runbook.failback_steps import FailbackSteps
from mirror_core.state.records import PartitionRecord
from mirror_core.sync import access
from tests.memory import journal_of
from tests.rights_world import APPS, Killed, World, administer, in_memory, right

BACK = MirrorName("m-back")
FAILBACK = "m-failback-1"
TOPIC = "t-m"
WRITE = right(TOPIC, APPS[0], Operation.WRITE)


@contextmanager
def failed_over(folder: Path) -> Iterator[tuple[World, FailbackSteps]]:
    """Mirror m has taken one application to west, with a right that was withdrawn there since; east is demoted."""
    world = World(folder)
    with in_memory(world), pytest.MonkeyPatch.context() as patch:
        route = world.routes["m"]
        administer(world, "m", APPS[0], "grant", Operation.WRITE)
        for _ in range(6):
            route.step()
        assert (route.active, WRITE in world.held["west"]) == ("west", True)
        administer(world, "m", APPS[0], "revoke", Operation.WRITE)
        west, east = world.logs["west"], world.logs["east"]
        status = PartitionStatus(
            partition=Partition(TOPIC, 0),
            state=PartitionState.STOPPED,
            source_topic_id="e",
            destination_topic_id="w",
        )
        west.put(route.there.mirror, PartitionRecord(route.there.mirror.name, status))
        access.demote(route.there, west, [TOPIC], route.there.source.name)

        @contextmanager
        def client(side: Any, **_: object) -> Iterator[Any]:
            yield world.client(side.name)

        @contextmanager
        def writer(*_: object) -> Iterator[Any]:
            yield east

        def synced(*_: object, **__: object) -> SimpleNamespace:
            route.sync(route.home)
            return SimpleNamespace(rows=())

        topics = {TOPIC: SimpleNamespace(id="t", partitions={0})}
        for name, double in (
            ("ClusterClient", client),
            ("StateWriter", writer),
            ("read_whole", lambda side: world.logs[side.name].state.copy()),
            ("ensure_state_topic", lambda client: None),
            ("existing", lambda client, names: topics),
            ("bring_home", lambda *_: 0),
            ("gaps_home", lambda mirror, link: mirror.gaps),
            ("sync", synced),
        ):
            patch.setattr(failback_steps, name, double)
        yield world, FailbackSteps(route.there, cast("Any", None), cast("Any", west), journal_of(FAILBACK))


def goes_home(state: RunState) -> Run:
    plan = Plan(kind=RunKind.FAILOVER, mirror=BACK, mode=Mode.UNPLANNED, steps=(), bound=())
    return Run(
        id="m-back-failover-1",
        plan=plan,
        plan_hash=plan.hash,
        state=state,
        started_by="me",
        started_ms=1,
        ended_ms=2 if state is RunState.DONE else None,
        desired=Desired.STARTED,
        conducted_by="me",
        homecoming=FAILBACK,
    )


def kept_out(world: World) -> set[AclPurpose]:
    """For what M-back's ledger has the denial of the withdrawn right."""
    entries = world.logs["east"].state.ledger_of(BACK)
    return {e.purpose for e in entries if (e.acl.principal, e.acl.operation) == (APPS[0], Operation.WRITE)}


def test_a_half_made_way_home_knows_what_was_withdrawn(tmp_path: Path) -> None:
    kills = 0
    while True:
        folder = tmp_path / str(kills)
        folder.mkdir()
        with failed_over(folder) as (world, steps):
            world.kill_in = kills = kills + 1
            try:
                steps.create_reverse()
            except Killed:
                if world.logs["east"].state.mirrors.get(BACK):
                    assert kept_out(world) == {AclPurpose.WITHDRAWN}, f"killed at write {kills}"
                continue
            assert not world.logs["east"].state.mirrors[BACK].begins
            assert kept_out(world) == {AclPurpose.WITHDRAWN}
            break
    assert kills > 3


def test_a_way_home_that_was_gone_is_made_no_further(tmp_path: Path) -> None:
    with failed_over(tmp_path) as (world, steps):
        steps.create_reverse()
        east = world.logs["east"]
        east.put(replace(east.state.mirrors[BACK], begins=True))
        before, held = dict(east.state.ledger), set(world.held["east"])
        east.put(goes_home(RunState.RUNNING))
        with pytest.raises(Refused, match="m-back-failover-1 takes applications home already: `mirrorbook "):
            steps.create_reverse()
        east.put(goes_home(RunState.DONE))
        assert "west was given up" in str(steps.create_reverse()["made"])
        assert (dict(east.state.ledger), world.held["east"]) == (before, held)
