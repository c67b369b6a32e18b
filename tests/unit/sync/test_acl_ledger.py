"""Entries of ours agree with the ledger, also when who acts has slept, and the mirror is another's by now."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.kafka.acl_requests import BrokerAcls
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, LiftedDenial, Permission, Resource
from mirror_core.model.errors import LostOwnership
from mirror_core.model.names import ClusterName, MirrorName, format_reverse_name
from mirror_core.rights.acl_rules import build_denial
from mirror_core.state.state_records import State, StateRecord, Tombstone
from mirror_core.sync import acl_ledger
from tests.support.memory_state import MemoryLog, journal_of

MIRROR, EAST = MirrorName("m"), ClusterName("east")
ENTRIES = [
    LedgerEntry(mirror=MIRROR, cluster=EAST, acl=build_denial(topic), purpose=AclPurpose.FENCE) for topic in ("a", "b")
]
ACLS = {entry.acl for entry in ENTRIES}


class Cluster:
    """Rights, as everybody can change them; what happens before somebody's first change."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held = set[Acl]()
        self.meanwhile: Callable[[], None] | None = None
        monkeypatch.setattr(acl_ledger, "create_acls", self.create)
        monkeypatch.setattr(acl_ledger, "delete_acls", self.delete)
        monkeypatch.setattr(acl_ledger, "wait_until_acls_absent", lambda client, acls: None)
        monkeypatch.setattr(acl_ledger, "describe_acls", lambda client: BrokerAcls(frozenset(self.held)))
        self.client: Any = SimpleNamespace(name=EAST)

    def create(self, client: object, acls: Iterable[Acl]) -> None:
        self._sleep()
        self.held |= set(acls)

    def delete(self, client: object, acls: Collection[Acl]) -> None:
        self._sleep()
        self.held -= set(acls)

    def _sleep(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile:
            meanwhile()


class Lost(MemoryLog):
    """Of somebody whose mirror was taken over."""

    def __init__(self, owner: MemoryLog) -> None:
        super().__init__()
        self.owner = owner
        self.state.ledger.update(owner.state.ledger)

    def put(self, *records: StateRecord | Tombstone) -> None:
        raise LostOwnership("another process has taken over this mirror")

    def refresh(self) -> Any:
        return self.owner.state


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


@pytest.fixture
def owner() -> MemoryLog:
    log = MemoryLog()
    log.put(*ENTRIES)
    return log


def test_who_puts_up_late_what_its_owner_has_taken_away_takes_it_back(cluster: Cluster, owner: MemoryLog) -> None:
    sleeper = Lost(owner)
    cluster.meanwhile = lambda: acl_ledger.delete_entries(owner, cluster.client, ENTRIES)
    with pytest.raises(LostOwnership):
        acl_ledger.create_entries(sleeper, cluster.client, ENTRIES)
    assert cluster.held == set()


def test_who_takes_away_late_what_its_owner_has_put_up_again_gives_it_back(cluster: Cluster, owner: MemoryLog) -> None:
    sleeper = Lost(owner)

    def meanwhile() -> None:
        acl_ledger.delete_entries(owner, cluster.client, ENTRIES)
        owner.put(ENTRIES[0])
        acl_ledger.create_entries(owner, cluster.client, ENTRIES[:1])

    cluster.held = set(ACLS)
    cluster.meanwhile = meanwhile
    with pytest.raises(LostOwnership):
        acl_ledger.delete_entries(sleeper, cluster.client, ENTRIES)
    assert cluster.held == {ENTRIES[0].acl}


def test_an_owner_at_work_on_the_same_entries_has_the_last_word(cluster: Cluster, owner: MemoryLog) -> None:
    """He takes away what the other one is about to give back."""
    sleeper = Lost(owner)
    cluster.held = set(ACLS)

    def meanwhile() -> None:
        cluster.meanwhile = lambda: acl_ledger.delete_entries(owner, cluster.client, ENTRIES)

    cluster.meanwhile = meanwhile
    with pytest.raises(LostOwnership):
        acl_ledger.delete_entries(sleeper, cluster.client, ENTRIES)
    assert cluster.held == set()


OTHERS = [replace(entry, mirror=MirrorName("other")) for entry in ENTRIES]


class Late(MemoryLog):
    """Of another mirror, who read the state topic some time ago."""

    def __init__(self, topic: MemoryLog) -> None:
        super().__init__()
        self.topic = topic
        self.state = topic.state.copy()

    def put(self, *records: StateRecord | Tombstone) -> None:
        self.topic.put(*records)
        super().put(*records)

    def refresh(self) -> State:
        self.state = self.topic.state.copy()
        return self.state


def test_what_another_mirror_has_entered_since_stays(cluster: Cluster, owner: MemoryLog) -> None:
    mine = Late(owner)
    owner.put(OTHERS[0])
    cluster.held = set(ACLS)
    acl_ledger.delete_unshared_entries(mine, cluster.client, ENTRIES)
    assert cluster.held == {ENTRIES[0].acl}
    assert list(owner.state.ledger.values()) == [OTHERS[0]]


def test_what_another_mirror_enters_while_it_is_taken_away_is_given_back(cluster: Cluster, owner: MemoryLog) -> None:
    """It found the entry on every broker, and goes on: a denial that late commits must meet."""
    cluster.held = set(ACLS)
    cluster.meanwhile = lambda: owner.put(OTHERS[1])
    acl_ledger.delete_unshared_entries(Late(owner), cluster.client, ENTRIES)
    assert cluster.held == {ENTRIES[1].acl}
    assert list(owner.state.ledger.values()) == [OTHERS[1]]


def test_what_is_only_staged_is_not_given_by_who_gives_way(cluster: Cluster, owner: MemoryLog) -> None:
    """He had promoted it; since then applications have gone home, and its owner waits for the next promotion."""
    given = replace(ENTRIES[0], acl=replace(ENTRIES[0].acl, permission=Permission.ALLOW), purpose=AclPurpose.PROMOTED)
    owner.put(given)
    sleeper = Lost(owner)
    cluster.meanwhile = lambda: acl_ledger.restage_grants(owner, MIRROR, cluster.client, frozenset())
    with pytest.raises(LostOwnership):
        acl_ledger.create_entries(sleeper, cluster.client, [given])
    assert cluster.held == set()


def test_what_promotion_gave_is_staged_again_and_stays_for_another_mirror(cluster: Cluster, owner: MemoryLog) -> None:
    given = [
        replace(entry, acl=replace(entry.acl, permission=Permission.ALLOW), purpose=AclPurpose.PROMOTED)
        for entry in ENTRIES
    ]
    alsos = replace(given[1], mirror=MirrorName("other"))
    owner.put(*given, alsos)
    cluster.held = {entry.acl for entry in given}
    for _ in range(2):
        acl_ledger.restage_grants(owner, MIRROR, cluster.client, frozenset())
        assert cluster.held == {alsos.acl}
        assert not acl_ledger.list_entries(owner, MIRROR, EAST, AclPurpose.PROMOTED)
        staged = acl_ledger.list_entries(owner, MIRROR, EAST, AclPurpose.STAGED)
        assert {entry.acl for entry in staged} == {entry.acl for entry in given}


def test_who_is_killed_before_it_is_staged_again_finds_it_promoted(cluster: Cluster, owner: MemoryLog) -> None:
    given = replace(ENTRIES[0], acl=replace(ENTRIES[0].acl, permission=Permission.ALLOW), purpose=AclPurpose.PROMOTED)
    owner.put(given)
    cluster.held = {given.acl}

    def killed() -> None:
        raise KeyboardInterrupt

    cluster.meanwhile = killed
    with pytest.raises(KeyboardInterrupt):
        acl_ledger.restage_grants(owner, MIRROR, cluster.client, frozenset())
    assert acl_ledger.list_entries(owner, MIRROR, EAST, AclPurpose.PROMOTED) == (given,)


def test_a_denial_that_is_to_stay_is_not_remembered_as_one_to_be_lifted(owner: MemoryLog) -> None:
    there = MemoryLog()
    demoted = [
        LedgerEntry(
            mirror=format_reverse_name(MIRROR), cluster=EAST, acl=build_denial("a", user), purpose=AclPurpose.DEMOTED
        )
        for user in ("User:one", "User:two")
    ]
    there.put(*demoted)
    kept = replace(demoted[0], mirror=MIRROR, purpose=AclPurpose.WITHDRAWN)
    owner.put(kept)
    acl_ledger.copy_demotions(owner, MIRROR, there.state, EAST, ["a"])
    assert acl_ledger.list_entries(owner, MIRROR, EAST, AclPurpose.WITHDRAWN) == (kept,)
    assert [e.acl for e in acl_ledger.list_entries(owner, MIRROR, EAST, AclPurpose.DEMOTED)] == [demoted[1].acl]


def test_what_another_mirror_has_only_staged_does_not_stand_for_it(cluster: Cluster, owner: MemoryLog) -> None:
    owner.put(replace(OTHERS[0], purpose=AclPurpose.STAGED))
    cluster.held = set(ACLS)
    acl_ledger.delete_unshared_entries(Late(owner), cluster.client, ENTRIES)
    assert cluster.held == set()


def test_who_gives_back_what_its_owner_is_about_to_forget_leaves_nothing(cluster: Cluster, owner: MemoryLog) -> None:
    """Two people give the same run up. The owner has deleted, and not forgotten yet, when the other one wakes up."""
    sleeper, cluster.held = Lost(owner), set(ACLS)
    forget = owner.put

    def meanwhile(*records: StateRecord | Tombstone) -> None:
        with pytest.raises(LostOwnership):
            acl_ledger.delete_entries(sleeper, cluster.client, ENTRIES)
        assert cluster.held == ACLS
        forget(*records)

    owner.put = meanwhile  # type: ignore[method-assign]  # the other one acts right before
    acl_ledger.delete_entries(owner, cluster.client, ENTRIES)
    assert cluster.held == set()


def test_a_denial_that_is_lifted_is_remembered_with_its_run(cluster: Cluster, owner: MemoryLog) -> None:
    copied = replace(ENTRIES[0], purpose=AclPurpose.COPIED, acl=replace(ENTRIES[0].acl, permission=Permission.ALLOW))
    owner.put(journal_of("r", "fence").run)
    acl_ledger.delete_entries(owner, cluster.client, [*ENTRIES, copied])
    assert {(one.entry, one.run) for one in owner.state.lifted_entries.values()} == {(entry, "r") for entry in ENTRIES}


def test_memory_does_not_grow_with_the_transactional_ids_of_each_run(cluster: Cluster, owner: MemoryLog) -> None:
    ids = [build_denial(f"app-{n}", resource=Resource.TRANSACTIONAL_ID) for n in range(50)]
    app = build_denial("a", "User:app")
    owner.put(LiftedDenial(entry=replace(ENTRIES[0], acl=app, purpose=AclPurpose.DEMOTED)))
    for n, acl in enumerate(ids):
        fence = [ENTRIES[0], replace(ENTRIES[0], acl=acl)]
        owner.state.runs.clear()
        owner.put(journal_of(f"r{n}", "fence").run, *fence)
        for entry in fence:  # one run may lift in several goes
            acl_ledger.delete_entries(owner, cluster.client, [entry])
        if n == 7:
            cluster.held.add(acl)  # somebody has woken up
    assert {one.entry.acl for one in owner.state.lifted_entries.values()} == {app, ENTRIES[0].acl, ids[7], ids[49]}


@pytest.mark.parametrize("purpose", [AclPurpose.COPIED, AclPurpose.PROMOTED, AclPurpose.DEMOTED])
def test_what_was_lifted_is_forgotten_by_lifting_a_fence_only(
    cluster: Cluster, owner: MemoryLog, purpose: AclPurpose
) -> None:
    owner.put(LiftedDenial(entry=ENTRIES[0], run="before"))
    acl = build_denial("c", "User:app") if purpose is AclPurpose.DEMOTED else ENTRIES[1].acl
    acl_ledger.delete_entries(owner, cluster.client, [replace(ENTRIES[1], acl=acl, purpose=purpose)])
    assert LiftedDenial(entry=ENTRIES[0], run="before") in owner.state.lifted_entries.values()
