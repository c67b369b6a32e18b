"""Two clusters in memory, and two mirrors between them whose applications go there and home again, without end.

Sync, promotion and demotion are the product's own. Where the applications of a topic are, those may change it whom the
cluster before had let change it when it was left; where they are not, nobody may.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.kafka.acl_requests import BrokerAcls
from mirror_core.kafka.config import load_config
from mirror_core.model.acl import LIFTABLE_PURPOSES, Acl, AclPurpose, LedgerEntry, Operation, Pattern, Resource
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.names import ClusterName, MirrorName, format_reverse_name
from mirror_core.model.sync_state import DriftRow
from mirror_core.rights.acl_rules import build_denial
from mirror_core.rights.required_acls import is_allowed
from mirror_core.state.mirror_link import MirrorLink, make_mirror_link
from mirror_core.state.state_records import StateRecord, Tombstone
from mirror_core.sync import acl_ledger, acl_sync, fence_acls, promotion_acls
from tests.support.memory_state import MemoryLog

CONFIG = """
clusters:
  east: &user
    bootstrap.servers: "e:1"
    security.protocol: SASL_PLAINTEXT
    sasl.mechanism: PLAIN
    sasl.username: control
    sasl.password: secret
    data: {sasl.username: data, sasl.password: secret}
  west:
    <<: *user
    bootstrap.servers: "w:1"
"""
APPS = ("User:one", "User:two")
TOPICS = {"m": "t-m", "n": "t-n"}


class Killed(Exception):
    """At a write to a cluster or to a state topic, before it was done."""


@dataclass
class World:
    """Both clusters, and the state topic of each."""

    folder: Path
    held: dict[str, set[Acl]] = field(default_factory=lambda: {"east": set(), "west": set()})
    kill_in: int = 0

    def __post_init__(self) -> None:
        path = self.folder / "mirrorbook.yaml"
        path.write_text(CONFIG, encoding="utf-8")
        self.config = load_config(path)
        self.logs = {"east": Log(self), "west": Log(self)}
        self.routes = {name: Route(self, name, topic) for name, topic in TOPICS.items()}

    def writing(self) -> None:
        self.kill_in -= 1
        if self.kill_in == 0:
            raise Killed

    def client(self, cluster: str) -> Any:
        views = dict.fromkeys([*TOPICS.values(), "__mirrorbook_state"])
        return SimpleNamespace(name=ClusterName(cluster), metadata=lambda topics=None: SimpleNamespace(topics=views))

    def open_to(self, cluster: str, topic: str) -> set[tuple[str, Operation]]:
        """Who may change this topic there, and how."""
        held = self.held[cluster]
        return {
            (user, operation)
            for user in APPS
            for operation in (Operation.WRITE, Operation.DELETE)
            if is_allowed(held, user, Resource.TOPIC, topic, operation)
        }

    def check(self) -> None:
        """What must hold after each event."""
        for route in self.routes.values():
            assert all(e.acl in self.held[e.cluster] for e in route.kept)
            if route.fenced:
                assert build_denial("shared", resource=Resource.TRANSACTIONAL_ID) in self.held[route.fenced]
            for cluster in {"east", "west"} - {route.active}:
                found = self.open_to(cluster, route.topic)
                if cluster != route.mirrored:  # a fence is about writes only
                    found = {(user, operation) for user, operation in found if operation is Operation.WRITE}
                assert route.active is None or not found, f"{route.topic} is open on {cluster}: {found}"
                assert found <= route.due or route.active

    def create(self, client: Any, acls: Iterable[Acl]) -> None:
        self.change(client, self.held[client.name].union, acls)

    def delete(self, client: Any, acls: Collection[Acl]) -> None:
        self.change(client, self.held[client.name].difference, acls)

    def change(self, client: Any, how: Callable[[Iterable[Acl]], set[Acl]], acls: Iterable[Acl]) -> None:
        if acls := list(acls):
            self.writing()
            self.held[client.name] = how(acls)

    def shown(self, client: Any, acls: Collection[Acl], *_: object) -> None:
        assert set(acls) <= self.held[client.name]

    def gone(self, client: Any, acls: Collection[Acl]) -> None:
        assert not set(acls) & self.held[client.name]

    def describe(self, client: Any, _broker: int | None = None) -> BrokerAcls:
        return BrokerAcls(entries=frozenset(self.held[client.name]))


class Log(MemoryLog):
    """Of whoever has a mirror now; its writes are transactions."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def put(self, *records: StateRecord | Tombstone) -> None:
        self.world.writing()
        super().put(*records)


class Route:
    """One mirror, and the steps by which its topic's applications go there and home again, without end."""

    def __init__(self, world: World, name: str, topic: str) -> None:
        self.world, self.topic = world, topic
        self.there = self._link(MirrorName(name), "east", "west")
        self.home = self._link(format_reverse_name(MirrorName(name)), "west", "east")
        self.active: str | None = "east"
        self.due = set[tuple[str, Operation]]()
        self.taken = 0
        self._steps = self._around()
        self._next: Callable[[], None] | None = None

    def _link(self, name: MirrorName, source: str, destination: str) -> MirrorLink:
        return make_mirror_link(
            self.world.config,
            Mirror(
                name=name,
                source=ClusterName(source),
                destination=ClusterName(destination),
                source_id=source,
                destination_id=destination,
                topics=(TOPICS[name.removesuffix("-back")],),
                groups=(),
                producer_id=1 << 62,
                desired=DesiredState.STARTED,
                created_ms=0,
            ),
        )

    def sync(self, link: MirrorLink) -> None:
        log, clusters = self.world.logs[link.mirror.destination], (link.mirror.source, link.mirror.destination)
        source, destination = map(self.world.client, clusters)
        acl_sync.sync_acls(link, log.state, log, source, destination, [self.topic], [])

    def sync_now(self) -> None:
        """As a schedule does it."""
        link = self.there if self.active == "east" else self.home
        if self._next is None and self.active and (self.active == "east" or self.coming_home):
            self.sync(link)

    mirrored: str | None = "west"
    """Where the topic is a mirror's, and nobody may change it."""
    coming_home = False
    fenced: str | None = None
    kept: tuple[LedgerEntry, ...] = ()
    """Denials that are nobody's to lift before this mirror's next promotion."""

    def step(self) -> None:
        """The next step, or the one that was killed once more."""
        self._next = self._next or next(self._steps)
        self._next()
        self._next, self.taken = None, self.taken + 1

    def _around(self) -> Iterator[Callable[[], None]]:
        yield lambda: self.sync(self.there)
        while True:
            yield from self._switch(self.there)
            yield self.create_reverse
            yield from self._switch(self.home)
            yield self.reprotect

    def _switch(self, link: MirrorLink) -> Iterator[Callable[[], None]]:
        log, names = self.world.logs[link.mirror.destination], (link.mirror.source, link.mirror.destination)
        source = self.world.client(names[0])
        yield lambda: self._leave(names[0])
        yield lambda: self._fence(link, log, source)
        yield lambda: self.sync(link)
        yield lambda: self._promote(link, log)
        yield lambda: self._arrive(names[1])

    def _fence(self, link: MirrorLink, log: MemoryLog, source: Any) -> None:
        fence_acls.deny_writes(link, log, source, [self.topic], ["shared"])
        self.fenced = link.mirror.source

    def _promote(self, link: MirrorLink, log: MemoryLog) -> None:
        self.kept = ()
        acl_sync.apply_promotion(link, log, [self.topic])

    def _leave(self, cluster: str) -> None:
        self.due, self.active, self.mirrored = self.world.open_to(cluster, self.topic), None, None

    def _arrive(self, cluster: str) -> None:
        assert self.world.open_to(cluster, self.topic) == self.due - self._denied_by_hand(cluster)
        self.active = cluster

    def _denied_by_hand(self, cluster: str) -> set[tuple[str, Operation]]:
        """What somebody had denied there before, and is his own to take away: promotion names it."""
        ours = {e.acl for log in self.world.logs.values() for e in log.state.ledger.values() if e.cluster == cluster}
        theirs = self.world.held[cluster] - ours
        everything = {right(self.topic, user, Operation.ALL) for user in APPS}
        return {
            (user, operation)
            for user, operation in self.due
            if not is_allowed(everything | theirs, user, Resource.TOPIC, self.topic, operation)
        }

    def create_reverse(self) -> None:
        """With the step before it, which demotes."""
        self._turn(self.there, self.home)
        self.coming_home = True

    def reprotect(self) -> None:
        self._turn(self.home, self.there)
        self.coming_home = False

    def _turn(self, ended: MirrorLink, begins: MirrorLink) -> None:
        """The topic is a mirror's again where `ended` had left it."""
        left, taken = ended.mirror.source, ended.mirror.destination
        theirs, ours, old = self.world.logs[taken], self.world.logs[left], self.world.client(left)
        name, self.fenced = begins.mirror.name, None
        acl_sync.demote_topics(ended, theirs, [self.topic], left)
        fence_acls.lift_all_denials(begins.mirror, ours, old)
        acl_ledger.restage_grants(ours, name, old, frozenset({"User:control", "User:data"}))
        acl_ledger.copy_demotions(ours, name, theirs.state, left, [self.topic])
        promotion_acls.sync_lifted_records(begins, ours, theirs.state)
        self.sync(begins)
        promotion_acls.record_withdrawn_rights(begins, theirs.state, ours, self.world.client(taken))
        self.kept = acl_ledger.list_entries(ours, name, left, AclPurpose.DEMOTED)
        self.mirrored = left


def right(topic: str, user: str, operation: Operation) -> Acl:
    return Acl(resource=Resource.TOPIC, name=topic, principal=user, operation=operation)


def administer(world: World, name: str, user: str, action: str, operation: Operation) -> None:
    """Grant or revoke where the topic's applications are; of a prefix for both topics, while both are at home."""
    route = world.routes[name]
    if route.active is None:
        return
    held, acl = world.held[route.active], right(route.topic, user, operation)
    match action:
        case "grant":
            held.add(acl)
        case "deny":
            held.add(build_denial(route.topic, user))
        case "undeny":  # what somebody has denied himself, and not what keeps a mirror's promise
            entries = (e for log in world.logs.values() for e in log.state.ledger.values())
            of_ours = {e.acl for e in entries if e.purpose in LIFTABLE_PURPOSES and e.cluster == route.active}
            held -= {build_denial(route.topic, user)} - of_ours
        case "revoke":
            held -= {acl}
        case _ if {r.active for r in world.routes.values()} == {"east"}:
            prefix = replace(acl, name="t-", pattern=Pattern.PREFIXED)
            world.held["east"] ^= {prefix}


class NoSettings:
    """Topics here have none."""

    def __init__(self, *_: object) -> None: ...

    def apply_before_first_record(self) -> list[DriftRow]:
        return []

    def apply_remaining(self) -> list[DriftRow]:
        return []


@contextmanager
def in_memory(world: World) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (acl_sync, fence_acls, acl_ledger, promotion_acls):
            for name, double in (
                ("create_acls", world.create),
                ("delete_acls", world.delete),
                ("wait_until_acls_present", world.shown),
                ("wait_until_acls_absent", world.gone),
                ("describe_acls", world.describe),
                ("read_state", lambda side, **_: world.logs[side.name].state.copy()),
            ):
                patch.setattr(module, name, double, raising=False)
        patch.setattr(acl_sync, "PromotionConfigs", NoSettings)
        patch.setattr(acl_sync, "probe_cluster_rights", lambda _: None)

        @contextmanager
        def client(side: Any) -> Iterator[Any]:
            yield world.client(side.name)

        patch.setattr(acl_sync, "ClusterClient", client)
        yield
