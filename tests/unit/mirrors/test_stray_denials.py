"""Denials that were lifted and stand again: remembered, told from those that are needed, and named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from mirror_core.decide import failover_plan
from mirror_core.decide.fence_limits import (
    find_stray_denials,
    format_stray_denials,
    list_entries_on_cluster,
    warn_stray_denials,
)
from mirror_core.decide.mirror_snapshot import SourceSnapshot
from mirror_core.kafka.acl_requests import BrokerAcls
from mirror_core.mirrors import mirror_commands
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, LiftedDenial, Operation, Resource
from mirror_core.model.errors import MirrorError, Unreachable
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.names import ClusterName, MirrorName, format_reverse_name
from mirror_core.model.run import RunKind, RunMode
from mirror_core.rights.acl_rules import build_denial
from mirror_core.state.state_records import State, Tombstone
from mirror_core.sync import fence_acls as again
from mirror_core.sync.promotion_acls import sync_lifted_records
from tests.support.acl_model import APPS, TOPICS, World, in_memory, right
from tests.support.failover_views import healthy_view
from tests.support.memory_state import MemoryLog, fold
from tests.support.mirror_views import MIRROR, RUN
from tests.support.sentences import format_sentence

M, EAST, WEST = MIRROR.name, MIRROR.source, MIRROR.destination
OWN: Final = frozenset({"User:control", "User:data"})
FENCED, DEMOTED, COPIER = (
    build_denial("orders"),
    build_denial("orders", "User:app"),
    build_denial("orders", "User:data"),
)
COMMITS: Final = build_denial("*", "User:data", resource=Resource.GROUP, operation=Operation.READ)
ID: Final = build_denial("tx", resource=Resource.TRANSACTIONAL_ID)


def entry(
    acl: Acl, purpose: AclPurpose = AclPurpose.FENCE, mirror: str = M, cluster: ClusterName = EAST
) -> LedgerEntry:
    return LedgerEntry(mirror=MirrorName(mirror), cluster=cluster, acl=acl, purpose=purpose)


def lifted(one: LedgerEntry) -> LiftedDenial:
    return LiftedDenial(entry=one, run="m-failover-1")


def found(
    before: LedgerEntry, cluster: ClusterName, *ledger: LedgerEntry, mirror: Mirror = MIRROR, **others: Any
) -> tuple[LiftedDenial, ...]:
    """While the cluster holds an equal entry."""
    there = list_entries_on_cluster(mirror, cluster, ledger, {MirrorName(name): one for name, one in others.items()})
    return find_stray_denials(mirror, cluster, {before.acl}, [lifted(before)], there, OWN)


# -- what is remembered ---------------------------------------------------------------------------------------------


def test_it_is_read_again_and_is_no_part_of_the_ledger_nor_any_mirrors_trouble() -> None:
    log = MemoryLog()
    log.put(entry(FENCED), lifted(entry(FENCED)))
    assert (len(log.state.ledger), list(log.state.lifted_entries.values())) == (1, [lifted(entry(FENCED))])
    log.put(Tombstone(lifted(entry(FENCED))))
    assert (len(log.state.ledger), log.state.lifted_entries) == (1, {})
    fold([(log.keys[-1], b"garbage")]).require_readable(M)
    with pytest.raises(ValueError, match="fences and demotions only"):
        lifted(entry(FENCED, AclPurpose.PROMOTED))


def test_what_the_other_direction_has_lifted_is_remembered_where_it_would_hinder() -> None:
    back = format_reverse_name(M)
    gone, stays = (entry(build_denial(topic, "User:app"), AclPurpose.DEMOTED) for topic in ("a", "b"))
    log, there = MemoryLog(), State()
    log.put(gone, stays)
    there.put(replace(stays, mirror=back, purpose=AclPurpose.WITHDRAWN))
    there.put(lifted(replace(gone, mirror=back)))
    for acl in (FENCED, ID, COPIER, build_denial("payroll", operation=Operation.READ)):
        there.put(lifted(entry(acl, mirror=back, cluster=WEST)))
    there.put(lifted(entry(DEMOTED, AclPurpose.DEMOTED, back, WEST)))
    there.put(lifted(entry(FENCED, mirror=back)))  # this mirror's own, by which the other one is stopped
    link: Any = SimpleNamespace(mirror=MIRROR, source=SimpleNamespace(name=EAST))
    for _ in range(2):
        sync_lifted_records(link, log, there)
        assert set(log.state.lifted_entries.values()) == {lifted(gone), lifted(entry(FENCED, cluster=WEST))}
    assert len(log.keys) == 6


def test_nothing_is_named_while_applications_go_there_and_home_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    with in_memory(world):
        for topic in TOPICS.values():
            for user in APPS:
                world.held["east"].add(right(topic, user, Operation.WRITE))
        for turn in range(100):
            for route in world.routes.values():
                route.step()
                for link, begun in ((route.there, not route.coming_home), (route.home, route.coming_home)):
                    known = replace(link.mirror, desired=DesiredState.STARTED if begun else DesiredState.STOPPED)
                    state = world.logs[link.mirror.destination].state
                    for name in (EAST, WEST):
                        seen = again.find_stray_denials_on(replace(link, mirror=known), state, name, world.held[name])
                        assert not seen, f"turn {turn}, {link.mirror.name}: {seen} on {name}"
        assert any(log.state.lifted_entries for log in world.logs.values())


def test_a_deletion_forgets_the_mirrors_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog()
    log.put(MIRROR, lifted(entry(FENCED)), lifted(entry(FENCED, mirror="b")))

    @contextmanager
    def door(*asked: object) -> Iterator[MemoryLog]:
        yield log

    monkeypatch.setattr(mirror_commands, "take_control", door)
    link: Any = SimpleNamespace(mirror=MIRROR)
    mirror_commands.delete_mirror(link)
    assert list(log.state.lifted_entries.values()) == [lifted(entry(FENCED, mirror="b"))]


# -- what counts ----------------------------------------------------------------------------------------------------

ELSEWHERE: Final = replace(MIRROR, name=MirrorName("b"), source=ClusterName("north"), source_id="id-n")
ALIAS: Final = ClusterName("east2")


@pytest.mark.parametrize(
    ("before", "cluster", "says"),
    [
        (entry(FENCED), EAST, "nobody can write there what they name"),
        (entry(FENCED, cluster=WEST), WEST, "nobody can write there what they name"),
        (entry(ID), EAST, "nobody can write there what they name"),
        (entry(DEMOTED, AclPurpose.DEMOTED), EAST, "applications cannot change these topics there"),
        (entry(COPIER, cluster=WEST), WEST, "copying to west stands still because of it"),
        (entry(COMMITS, cluster=WEST), WEST, format_sentence("copying_of_group_offsets_stands_still", "west")),
    ],
)
def test_what_stands_again_is_named_with_what_it_does(before: LedgerEntry, cluster: ClusterName, says: str) -> None:
    words = format_stray_denials(found(before, cluster), MIRROR, cluster)
    assert format_sentence("denials_that_mirror_m_had_lifted", 1, cluster) in words
    assert (str(before.acl) in words, says in words) == (True, True)


@pytest.mark.parametrize(
    ("before", "cluster"),
    [
        (entry(FENCED, cluster=WEST), EAST),
        (entry(FENCED), WEST),
        (entry(FENCED, mirror="b"), EAST),
        (entry(build_denial("orders", "User:mallory")), EAST),
        (entry(build_denial("orders", operation=Operation.READ)), EAST),
    ],
)
def test_what_this_mirror_has_not_lifted_there_is_not_named(before: LedgerEntry, cluster: ClusterName) -> None:
    assert not found(before, cluster)


def test_a_fence_that_a_sync_took_for_the_sources_own_rule_is_named_where_the_promotion_made_it() -> None:
    given = entry(FENCED, AclPurpose.PROMOTED, cluster=WEST)
    stopped = replace(MIRROR, desired=DesiredState.STOPPED)
    assert found(entry(FENCED), WEST, given, mirror=stopped)
    assert not found(entry(FENCED), WEST, given, replace(given, mirror=MirrorName("b")), mirror=stopped)
    assert not found(entry(DEMOTED, AclPurpose.DEMOTED), WEST, replace(given, acl=DEMOTED), mirror=stopped)


@pytest.mark.parametrize("purpose", AclPurpose)
def test_what_a_ledger_wants_there_is_not_named(purpose: AclPurpose) -> None:
    staged = purpose is AclPurpose.STAGED
    assert bool(found(entry(FENCED), EAST, entry(FENCED, purpose, "b"))) is staged
    assert bool(found(entry(FENCED), EAST, entry(FENCED, purpose))) is (staged or purpose is AclPurpose.PROMOTED)
    assert found(entry(FENCED), EAST, entry(FENCED, purpose, "b", WEST))


def test_a_cluster_is_the_same_by_whatever_name_another_mirror_knows_it() -> None:
    wanted = entry(DEMOTED, AclPurpose.DEMOTED, "b", ALIAS)
    b = replace(ELSEWHERE, destination=ALIAS, destination_id=MIRROR.source_id)
    assert not found(entry(DEMOTED, AclPurpose.DEMOTED), EAST, wanted, b=b)
    assert found(entry(DEMOTED, AclPurpose.DEMOTED), EAST, wanted, b=replace(b, destination_id="another"))


# -- what describe and plans say ------------------------------------------------------------------------------------


class Clusters:
    """What two clusters hold, or why they are silent, and by which id their addresses answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ids = {EAST: MIRROR.source_id, WEST: MIRROR.destination_id}
        self.held: dict[str, Any] = {EAST: {FENCED}, WEST: {COPIER}}
        self.log = MemoryLog()
        self.log.put(MIRROR, lifted(entry(FENCED)), lifted(entry(COPIER, cluster=WEST)))
        sides = [SimpleNamespace(name=name, user=lambda principal: principal.lower()) for name in (EAST, WEST)]
        self.link: Any = SimpleNamespace(mirror=MIRROR, source=sides[0], destination=sides[1])
        monkeypatch.setattr(again, "ClusterClient", self.client)
        monkeypatch.setattr(again, "describe_acls", lambda client: BrokerAcls(frozenset(self.held[client.name])))
        monkeypatch.setattr(again, "read_state", lambda cluster: self.log.state)

    @contextmanager
    def client(self, side: Any, timeout_s: float) -> Iterator[Any]:
        if isinstance(held := self.held[side.name], MirrorError):
            raise held
        yield SimpleNamespace(name=side.name, metadata=lambda names: SimpleNamespace(cluster_id=self.ids[side.name]))

    def words(self, state: State | None = None, **silent: str) -> str:
        known = {ClusterName(name): why for name, why in silent.items()}
        return again.describe_stray_denials(self.link, state or self.log.state, known)


def test_each_side_is_looked_at_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = Clusters(monkeypatch)
    assert ("on east again" in clusters.words(), "on west again" in clusters.words()) == (True, True)
    assert clusters.words(east="no answer").startswith("unknown on east: no answer; 1 denial ")
    clusters.held[WEST] = Unreachable("no broker")
    assert clusters.words().endswith("; unknown on west: no broker")
    assert not clusters.words(State()), "nothing was lifted"
    clusters.ids[EAST] = "another"
    assert clusters.words().startswith("unknown on east: cluster east is another now")
    clusters.ids[EAST], clusters.held = MIRROR.source_id, {EAST: set(), WEST: set()}
    assert not clusters.words()


def test_what_a_failback_demotes_with_its_last_step_is_not_named_while_it_is_under_way() -> None:
    """It is in the way home's ledger, and in this mirror's a moment later."""
    state = State()
    state.put(lifted(entry(DEMOTED, AclPurpose.DEMOTED, cluster=WEST)))
    stopped = replace(MIRROR, desired=DesiredState.STOPPED)
    sides = [SimpleNamespace(name=name, user=lambda principal: principal) for name in (EAST, WEST)]
    link: Any = SimpleNamespace(mirror=stopped, source=sides[0], destination=sides[1])
    assert again.find_stray_denials_on(link, state, WEST, {DEMOTED})
    home = replace(RUN, id="m-failback-20260101T000000-abcd", plan=replace(RUN.plan, kind=RunKind.FAILBACK))
    state.put(home)
    assert not again.find_stray_denials_on(link, state, WEST, {DEMOTED})


def test_a_run_that_has_begun_since_the_state_was_read_has_its_own_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = Clusters(monkeypatch)
    before = clusters.log.state.copy()
    clusters.log.put(entry(FENCED))
    assert "on east" not in clusters.words(before)


@pytest.mark.parametrize("mode", RunMode)
def test_a_failovers_plan_warns_in_one_line_and_refuses_nothing(mode: RunMode) -> None:
    [warning] = warn_stray_denials(found(entry(FENCED), EAST), MIRROR, EAST)
    assert (warning.code, warning.subject) == ("stray_denials", EAST)
    assert (warning.values["denials"], warning.values["mirror"]) == (1, MIRROR.name)
    assert not tuple(warn_stray_denials((), MIRROR, EAST))
    seen = replace(healthy_view(), mode=mode)
    assert isinstance(seen.source, SourceSnapshot)
    plain, told = (
        failover_plan.decide_failover(one)
        for one in (seen, replace(seen, source=replace(seen.source, stray_denials=(warning,))))
    )
    assert (told.reasons, told.plan.hash) == (plain.reasons, plain.plan.hash)
    assert set(told.plan.warnings) - set(plain.plan.warnings) == {warning}
