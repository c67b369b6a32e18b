"""The way home while it is made: whoever must go home by it, since the new primary is lost, gets no right back that was
withdrawn there; and a failback that goes on afterwards leaves what they were given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.model.acl import AclPurpose, Operation
from mirror_core.model.errors import Refused
from mirror_core.model.mirror import DesiredState, FailureKind, PartitionState, PartitionStatus
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.run import Plan, Run, RunKind, RunMode, RunState
from mirror_core.rights.acl_rules import build_denial
from mirror_core.runbook import failback_steps
from mirror_core.runbook.failback_steps import FailbackSteps
from mirror_core.state.state_records import PartitionRecord, State
from mirror_core.sync import acl_sync
from tests.support.acl_model import APPS, Killed, World, administer, in_memory, right
from tests.support.cluster_names import LINK
from tests.support.failback_views import A0, stopped
from tests.support.memory_state import journal_of

BACK = MirrorName("m-back")
FAILBACK = "m-failback-1"
TOPIC = "t-m"
WRITE = right(TOPIC, APPS[0], Operation.WRITE)


@contextmanager
def steps_of(world: World) -> Iterator[FailbackSteps]:
    """Of a failback of mirror m, in this world."""
    route, west, east = world.routes["m"], world.logs["west"], world.logs["east"]
    status = PartitionStatus(
        partition=Partition(TOPIC, 0),
        state=PartitionState.STOPPED,
        source_topic_id="e",
        destination_topic_id="w",
    )
    west.put(route.there.mirror, PartitionRecord(route.there.mirror.name, status))

    @contextmanager
    def client(side: Any, **_: object) -> Iterator[Any]:
        yield world.client(side.name)

    @contextmanager
    def writer(*_: object) -> Iterator[Any]:
        yield east

    def synced(*_: object, **__: object) -> SimpleNamespace:
        route.sync(route.home)
        return SimpleNamespace(rows=())

    def read(side: Any) -> State:
        return world.logs[side.name].state.copy()

    topics = {TOPIC: SimpleNamespace(id="t", partitions={0})}
    with pytest.MonkeyPatch.context() as patch:
        for name, double in (
            ("ClusterClient", client),
            ("StateWriter", writer),
            ("read_state", read),
            ("read_complete_state", read),
            ("ensure_state_topic", lambda client: None),
            ("find_existing_topics", lambda client, names: topics),
            (
                "list_available_offsets",
                lambda client, partitions, _: SimpleNamespace(offsets=dict.fromkeys(partitions, 7)),
            ),
            ("reset_group_offsets", lambda *_: 0),
            ("require_source_times", lambda *_: None),
            ("choose_reverse_gap_method", lambda mirror, link: mirror.gaps),
            ("sync_mirror", synced),
        ):
            patch.setattr(failback_steps, name, double)
        patch.setattr(FailbackSteps, "save_missing_beginnings", lambda steps, old: {})  # these logs have none
        yield FailbackSteps(route.there, cast("Any", None), cast("Any", west), journal_of(FAILBACK))


@contextmanager
def failed_over(folder: Path) -> Iterator[tuple[World, FailbackSteps]]:
    """Mirror m has taken one application to west, with a right that was withdrawn there since; east is demoted."""
    world = World(folder)
    with in_memory(world):
        administer(world, "m", APPS[0], "grant", Operation.WRITE)
        go(world, 6)
        assert (world.routes["m"].active, WRITE in world.held["west"]) == ("west", True)
        administer(world, "m", APPS[0], "revoke", Operation.WRITE)
        with steps_of(world) as steps:
            steps.demote()
            yield world, steps


def goes_home(state: RunState) -> Run:
    plan = Plan(kind=RunKind.FAILOVER, mirror=BACK, mode=RunMode.UNPLANNED, steps=(), bound_facts=())
    return Run(
        id="m-back-failover-1",
        number=1,
        plan=plan,
        plan_hash=plan.hash,
        state=state,
        started_by="me",
        started_ms=1,
        ended_ms=2 if state is RunState.DONE else None,
        desired=DesiredState.STARTED,
        conducted_by="me",
        failback_run=FAILBACK,
    )


def kept_out(world: World) -> set[AclPurpose]:
    """For what M-back's ledger has the denial of the withdrawn right."""
    entries = world.logs["east"].state.ledger_entries(BACK)
    return {e.purpose for e in entries if (e.acl.principal, e.acl.operation) == (APPS[0], Operation.WRITE)}


def test_a_half_made_way_home_knows_what_was_withdrawn(tmp_path: Path) -> None:
    found = [kept_out(world) for world in each_kill(tmp_path, failed_over)]
    assert found
    assert all(one == {AclPurpose.WITHDRAWN} for one in found)


def test_a_way_home_that_was_gone_is_made_no_further(tmp_path: Path) -> None:
    with failed_over(tmp_path) as (world, steps):
        steps.create_reverse()
        east = world.logs["east"]
        east.put(replace(east.state.mirrors[BACK], is_preparing=True))
        before, held = dict(east.state.ledger), set(world.held["east"])
        east.put(goes_home(RunState.RUNNING))
        with pytest.raises(Refused, match="m-back-failover-1 takes applications home already: `mirrorbook "):
            steps.create_reverse()
        east.put(goes_home(RunState.DONE))
        assert "west was given up" in str(steps.create_reverse()["made"])
        assert (dict(east.state.ledger), world.held["east"]) == (before, held)


def test_a_topic_that_was_deleted_on_the_new_primary_needs_no_settings_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted, checked = Partition("deleted", 0), list[str]()

    def find_existing(client: Any, names: list[str]) -> dict[str, SimpleNamespace]:
        absent = deleted.topic if client.name == "west" else ""
        return {name: SimpleNamespace(id="t", partitions={0}) for name in names if name != absent}

    with failed_over(tmp_path) as (world, steps), monkeypatch.context() as patch:
        mirror = world.routes["m"].there.mirror.name
        status = world.logs["west"].state.partitions[mirror][Partition(TOPIC, 0)]
        world.logs["west"].put(PartitionRecord(mirror, replace(status, partition=deleted)))
        patch.setattr(failback_steps, "find_existing_topics", find_existing)
        patch.setattr(failback_steps, "require_source_times", lambda client, topics: checked.extend(topics))
        steps.create_reverse()
        assert {p.topic for p in world.logs["east"].state.partitions[BACK]} == {TOPIC}
    assert checked == [TOPIC]


# -- denials that were copied, and rights that were given and taken away since -----------------------------------------

DENIED = build_denial(TOPIC, APPS[0])


@contextmanager
def third_time(folder: Path) -> Iterator[tuple[World, FailbackSteps]]:
    """An application's right was withdrawn at home, so west's denial of it was copied home; at home it has the right
    again, and the administrator has taken that denial away. Then mirror m has gone to west for the third time."""
    world = World(folder)
    with in_memory(world):
        route = world.routes["m"]
        administer(world, "m", APPS[0], "grant", Operation.WRITE)
        go(world, 13)
        administer(world, "m", APPS[0], "revoke", Operation.WRITE)
        route.sync_now()
        go(world, 12)
        administer(world, "m", APPS[0], "grant", Operation.WRITE)
        administer(world, "m", APPS[0], "undeny", Operation.WRITE)
        route.sync_now()
        go(world, 5)
        assert (route.active, (APPS[0], Operation.WRITE) in world.open_to("west", TOPIC)) == ("west", True)
        with steps_of(world) as steps:
            steps.demote()
            yield world, steps


def go(world: World, count: int) -> None:
    for _ in range(count):
        world.routes["m"].step()


def given_up(world: World) -> set[tuple[str, Operation]]:
    """Who may change the topic at home, when west is lost at this moment and applications go home by M-back."""
    world.kill_in = 0
    route = world.routes["m"]
    acl_sync.apply_promotion(route.home, world.logs["east"], [TOPIC], ask_source=False)
    return world.open_to("east", TOPIC)


def each_kill(tmp_path: Path, failed: Callable[[Path], Any]) -> Iterator[World]:
    """A world each, in which making the way home was killed at another one of its writes, and M-back is there."""
    for kills in range(1, 40):
        folder = tmp_path / str(kills)
        folder.mkdir()
        with failed(folder) as (world, steps):
            world.kill_in = kills
            try:
                steps.create_reverse()
            except Killed:
                mirror = world.logs["east"].state.mirrors.get(BACK)
                if mirror is not None and mirror.failback_run == FAILBACK:
                    yield world
            else:
                return


def test_a_denial_that_was_copied_home_is_not_taken_away_while_applications_are_kept_out_by_it(tmp_path: Path) -> None:
    with third_time(tmp_path) as (world, steps):
        assert not world.open_to("east", TOPIC)
        steps.create_reverse()
        assert not world.open_to("east", TOPIC), "applications may write on both"


def test_a_denial_that_was_copied_home_shuts_nobody_out_when_the_new_primary_is_lost(tmp_path: Path) -> None:
    found = [given_up(world) for world in each_kill(tmp_path, third_time)]
    assert found
    assert all((APPS[0], Operation.WRITE) in one for one in found)


def test_the_mirror_that_begins_again_keeps_out_whom_a_copied_denial_had_kept_out(tmp_path: Path) -> None:
    """At home the application was denied, on west it was not any more when it was there, and it is not at home now."""
    world = World(tmp_path)
    with in_memory(world):
        world.held["east"].add(DENIED)
        go(world, 6)
        administer(world, "m", APPS[0], "undeny", Operation.WRITE)
        administer(world, "m", APPS[0], "grant", Operation.WRITE)
        assert (APPS[0], Operation.WRITE) in world.open_to("west", TOPIC)
        go(world, 1)
        world.held["east"].discard(DENIED)
        go(world, 6)
        assert world.routes["m"].active == "east"
        assert not world.open_to("west", TOPIC), "the mirror topic takes writes"


@contextmanager
def revoked_at_home(folder: Path) -> Iterator[tuple[World, FailbackSteps]]:
    """A right that was granted on west came home, and was withdrawn there. Then mirror m has gone to west again."""
    world = World(folder)
    with in_memory(world):
        administer(world, "m", APPS[1], "grant", Operation.WRITE)
        go(world, 6)
        administer(world, "m", APPS[0], "grant", Operation.WRITE)
        go(world, 7)
        administer(world, "m", APPS[0], "revoke", Operation.WRITE)
        world.routes["m"].sync_now()
        go(world, 5)
        assert (world.routes["m"].active, WRITE in world.held["west"]) == ("west", True)
        assert (APPS[0], Operation.WRITE) not in world.open_to("west", TOPIC)
        with steps_of(world) as steps:
            steps.demote()
            yield world, steps


def test_a_half_made_way_home_gives_nothing_that_was_withdrawn_at_home(tmp_path: Path) -> None:
    found = [given_up(world) for world in each_kill(tmp_path, revoked_at_home)]
    assert found
    assert not any((APPS[0], Operation.WRITE) in one for one in found)


@pytest.mark.parametrize(
    ("kind", "expected"), [(FailureKind.DIVERGED, 36), (FailureKind.ALTERED, 36), (FailureKind.DENIED, None)]
)
def test_what_failed_on_the_way_home_differs_from_the_same_offset_on(kind: FailureKind, expected: int | None) -> None:
    steps = FailbackSteps(LINK, cast("Any", None), cast("Any", None), journal_of(FAILBACK))
    failed = replace(stopped(A0, 40), kind=kind, failed_at=Offset(36), reason="x")
    protected = steps._to_protected_status(failed, None)
    assert (protected.state, protected.kind) == (PartitionState.FAILED, FailureKind.DIVERGED)
    assert (protected.failed_at, steps._to_protected_status(failed, "from 40 to 50").failed_at) == (
        expected,
        expected or 40,
    )
