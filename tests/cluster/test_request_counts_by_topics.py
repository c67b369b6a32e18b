"""How often a mirror's clusters are asked must not grow with its topics and groups: many are asked about together."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from mirror_core.dataplane.epoch_planner import Planner
from mirror_core.kafka.acl_requests import create_acls, delete_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.mirrors import mirror_commands
from mirror_core.model.acl import Acl, Operation, Resource
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import RunMode, RunState
from tests.support.group_commits import commit_offsets
from tests.support.kafka_clients import Pair, new_topic, produce
from tests.support.mirrored_topics import Mirrored, new_mirror

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

FEW: Final = 2
MANY: Final = 24
SPARE: Final = 10
"""More for many, since what is waited for is asked about until it is there; one for each would be 22 more."""
WAITED_FOR: Final = {("first plan", "MetadataRequest"), ("first plan", "ListOffsetsRequest")}
"""Brokers take up new partitions one after the other."""

Asked = Counter[tuple[str, str]]
"""Round trips by what was done, and what was asked."""


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch, asked: Asked, doing: list[str]) -> Iterator[None]:
    """Round trips of control requests while entered. Tasks that copy are left out: their partitions are theirs."""

    def counting(kind: str, name: Callable[[Any], str]) -> None:
        usual: Any = getattr(Connection, kind)

        def count(self: Connection, given: Any, *more: Any, **named: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                asked[doing[-1], name(given)] += 1
            return usual(self, given, *more, **named)

        patched.setattr(Connection, kind, count)

    with monkeypatch.context() as patched:
        counting("call", lambda request: type(request).__name__)
        counting("_exchange", lambda requests: type(requests[0]).__name__)
        yield


def rights(topics: Sequence[str], groups: Sequence[str]) -> list[Acl]:
    """Each may be written, or used, by one application."""
    wanted = [(Resource.TOPIC, topic, Operation.WRITE) for topic in topics]
    wanted += [(Resource.GROUP, group, Operation.READ) for group in groups]
    return [Acl(resource=r, name=n, principal="User:application", operation=o) for r, n, o in wanted]


def life(pair: Pair, evidence: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """A mirror of so many topics, and as many groups: planned, synced, and failed over."""
    topics = [new_topic(pair.east, 2) for _ in range(count)]
    for topic in topics:
        produce(pair.east, topic, 4)
    groups = [f"{topic}-group" for topic in topics]
    mirrored = new_mirror(pair, evidence, *topics, groups=tuple(groups))
    with ClusterClient(mirrored.link.source) as east:
        for group, topic in zip(groups, topics, strict=True):
            assert not commit_offsets(east, group, {Partition(topic, 0): (Offset(1), "")})
        create_acls(east, rights(topics, groups))
    asked, doing = Asked(), ["nothing"]
    try:
        with counted(monkeypatch, asked, doing):
            work_through(mirrored, topics, doing)
    finally:
        for cluster in (mirrored.link.source, mirrored.link.destination):
            with ClusterClient(cluster) as client:
                delete_acls(client, rights(topics, groups))
    return asked


def work_through(mirrored: Mirrored, topics: Sequence[str], doing: list[str]) -> None:
    """Each action is noted before it is done."""
    doing.append("first plan")
    with ClusterClient(mirrored.link.source) as east, ClusterClient(mirrored.link.destination) as west:
        assert (
            len(Planner(mirrored.link, east, west).plan(mirrored.state, all_ends=False).partitions) == len(topics) * 2
        )
    doing.append("copy")
    mirrored.copy()
    doing.append("plan")
    with ClusterClient(mirrored.link.source) as east, ClusterClient(mirrored.link.destination) as west:
        assert (
            len(Planner(mirrored.link, east, west).plan(mirrored.state, all_ends=False).partitions) == len(topics) * 2
        )
    doing.append("first sync")
    rows = mirror_commands.run_sync(mirrored.link).rows
    assert sum(row.done for row in rows if row.part == "groups") == len(topics)
    doing.append("sync")
    assert not any(row.done for row in mirror_commands.run_sync(mirrored.link).rows if row.part == "groups")
    failover = mirrored.failover
    doing.append("failover plan")
    plan = failover.plan(RunMode.PLANNED)
    doing.append("failover")
    assert failover.drive(failover.begin(plan.hash, RunMode.PLANNED).id).state is RunState.DONE


def test_many_topics_and_groups_are_asked_about_together(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = life(pair, tmp_path / "few", FEW, monkeypatch)
    many = life(pair, tmp_path / "many", MANY, monkeypatch)
    for what, count in sorted(many.items()):
        print(*what, few[what], count)
    grown = {what: (few[what], count) for what, count in many.items() if count > few[what] + SPARE}
    assert {what: counts for what, counts in grown.items() if what not in WAITED_FOR} == {}
    assert {action for action, _ in many} >= {"first plan", "plan", "first sync", "sync", "failover"}, "was not counted"
