"""Leaders are asked beside the task's loop: one that hangs keeps nobody waiting but those it is asked about."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.copy import align
from mirror_core.copy.align import Aligner
from mirror_core.copy.asking import Asked, Asking, Expected, Logs, Unsure, View, Views
from mirror_core.copy.beside import Beside
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.states import State
from mirror_core.copy.verdict import Resumes
from mirror_core.decide.position import Resume, Seen
from mirror_core.kafka.at_once import Late
from mirror_core.kafka.client import ClusterClient, ClusterView
from mirror_core.kafka.placing import Heard
from mirror_core.model.errors import MissingPermission, RemoteFault, Unreachable
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Partition
from tests.judging import EAST, WEST
from tests.unit.test_looks import SEEN, replicator
from tests.waiting import wait_until

HANGS, WELL, DOUBTFUL = 0, 1, 3
"""Of a topic: the partition whose leader hangs, another one, and one that some broker calls gone."""


class Leaders:
    """The connections of one round, to clusters of which a part may hang."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.source, self.destination = SimpleNamespace(name=EAST), SimpleNamespace(name=WEST)
        self.closed = self.hurry = False

    def hurries(self, hurry: bool) -> None:
        self.hurry = hurry

    def views(self, wanted: Sequence[Expected]) -> Views:
        if self.world.dead:
            raise Unreachable("cluster east: no broker answered")
        nothing = View(ClusterView("", 1, {}, {}, frozenset()), Heard({}, ()))
        doubtful = {one.partition.topic: frozenset[str]() for one in wanted if one.partition.index == DOUBTFUL}
        heard = Heard(doubtful, (2,) if self.hurry else ())
        return Views(replace(nothing, heard=heard), nothing)

    def logs(self, wanted: Sequence[Asked]) -> Logs:
        partitions = [one.partition for one in wanted]
        unsure = dict(self.world.unsure)
        if not self.world.answers.is_set() and (hanging := [p for p in partitions if p.index == HANGS]):
            if not self.hurry:
                self.world.answers.wait()
            else:
                unsure |= {p: Unsure(Late("no answer yet"), EAST) for p in hanging}
        seen: dict[Partition, Seen] = {partition: SEEN for partition in partitions if partition not in unsure}
        return Logs(0.0, {}, seen, unsure)

    def close(self) -> None:
        self.closed = True

    def close_after(self, question: Any) -> None:
        question.add_done_callback(lambda _: self.close())


class World:
    def __init__(self) -> None:
        self.answers = threading.Event()
        self.dead = False
        self.unsure = dict[Partition, Unsure]()
        self.made = list[Leaders]()

    def asking(self) -> Leaders:
        self.made.append(Leaders(self))
        return self.made[-1]


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.answers.set()


@pytest.fixture
def aligner(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Aligner]:
    monkeypatch.setattr(align, "_LONG_S", 0.0)
    monkeypatch.setattr(align, "_AGAIN_S", 0.0)
    monkeypatch.setattr(
        align, "route", lambda one, views, asking: Asked(one.partition, 1, 1, 1, 1, unvouched=False, proved_end=None)
    )
    east, west = (cast("ClusterClient", SimpleNamespace(name=name)) for name in (EAST, WEST))
    with closing(Beside()) as beside, closing(Aligner(east, west, 7, lambda *_: None, list, beside)) as made:
        monkeypatch.setattr(made, "_asking", world.asking)
        resume = Resume(offset=10, sequence=10, gap_end=10, seed_end=10, check_tail=False)
        monkeypatch.setattr(
            made._looks,
            "begin",
            lambda cases: ((case.replicator, Resumes(case.seen, resume, unseen=False)) for case in cases),
        )
        yield made


def taken_in(aligner: Aligner, holds: Callable[[], object], why: str) -> None:
    """Turn after turn."""

    def turn() -> object:
        aligner.take_in()
        return holds()

    wait_until(turn, timeout_s=20, why=why)


def becomes(aligner: Aligner, one: PartitionReplicator, state: State) -> None:
    taken_in(aligner, lambda: one.state is state, f"it does not become {state}")


def test_who_is_asked_about_another_leader_does_not_wait_for_one_that_hangs(aligner: Aligner, world: World) -> None:
    hangs, well = replicator(HANGS), replicator(WELL)
    aligner.align([hangs])
    taken_in(aligner, lambda: world.made, "nobody is asked")
    assert not hangs.due(), "it is being looked for"
    assert aligner.may_begin
    aligner.align([well])
    becomes(aligner, well, State.READY)
    assert hangs.state is State.LOST
    assert len(world.made) == 2, "connections of its own"
    world.answers.set()
    becomes(aligner, hangs, State.READY)
    assert not aligner.at_work


def test_who_is_lost_in_the_same_moment_does_not_wait_for_it_either(aligner: Aligner, world: World) -> None:
    hangs, well = replicator(HANGS), replicator(WELL)
    aligner.align([hangs, well])
    becomes(aligner, well, State.READY)
    assert hangs.state is State.LOST
    assert "no answer yet" in hangs.lost_why
    assert not hangs.due(), "it is asked about alone, with time"
    world.answers.set()
    becomes(aligner, hangs, State.READY)
    assert not aligner.at_work


def test_who_is_called_gone_while_a_broker_is_late_is_asked_about_apart_and_with_time(
    aligner: Aligner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def route(one: PartitionReplicator, views: Views, asking: Asking) -> Asked | None:
        if one.partition.index != DOUBTFUL:
            return Asked(one.partition, 1, 1, 1, 1, unvouched=False, proved_end=None)
        if views.source.undecided(one.partition.topic):
            one.lose("broker(s) 2 do not answer")
        else:
            one.fail("it was deleted", None, FailureKind.GONE)
        return None

    monkeypatch.setattr(align, "route", route)
    gone, well = replicator(DOUBTFUL), replicator(WELL)
    aligner.align([gone, well])
    becomes(aligner, well, State.READY)
    becomes(aligner, gone, State.FAILED)
    assert not aligner.at_work


def test_there_is_room_for_others_beside_all_that_is_late(aligner: Aligner, world: World) -> None:
    for number in range(align._ROUNDS):
        well = replicator(WELL)
        aligner.align([replicator(HANGS), well])
        becomes(aligner, well, State.READY)
        assert aligner.may_begin, number


def test_rounds_are_limited_and_a_short_one_is_waited_for(
    aligner: Aligner, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(align._ROUNDS):
        assert aligner.may_begin, number
        aligner.align([replicator(HANGS)])
    assert not aligner.may_begin
    world.answers.set()
    taken_in(aligner, lambda: not aligner.at_work, "rounds do not end")
    monkeypatch.setattr(align, "_LONG_S", 60.0)
    world.answers.clear()
    aligner.align([replicator(HANGS)])
    assert not aligner.may_begin
    assert len(world.made) == align._ROUNDS, "connections are used again"


def test_a_cluster_that_does_not_answer_is_asked_again_after_a_pause(aligner: Aligner, world: World) -> None:
    world.dead = True
    one = replicator(WELL)
    aligner.align([one])
    taken_in(aligner, lambda: not aligner.at_work, "it does not end")
    assert one.lost_why == "cluster east: no broker answered"
    assert not aligner.may_begin
    world.dead = False
    wait_until(lambda: aligner.may_begin and one.due(), timeout_s=20, why="it is not asked again")
    aligner.align([one])
    becomes(aligner, one, State.READY)


@pytest.mark.parametrize(
    ("why", "state"),
    [
        ("its replicas are behind", State.LOST),
        (Unreachable("no answer"), State.LOST),
        (MissingPermission("may not DESCRIBE"), State.FAILED),
    ],
)
def test_what_is_not_known_of_one_holds_up_no_other(
    aligner: Aligner, world: World, why: RemoteFault | str, state: State
) -> None:
    one, other = replicator(2), replicator(WELL)
    world.unsure[one.partition] = Unsure(why, WEST)
    aligner.align([one, other])
    becomes(aligner, other, State.READY)
    assert one.state is state
    assert str(why) in (one.failure.reason if one.failure else one.lost_why)
    assert one.misled == (WEST if state is State.LOST else None)


def test_who_has_failed_meanwhile_stays_so(aligner: Aligner, world: World) -> None:
    one = replicator(HANGS)
    aligner.align([one])
    aligner.take_in()
    one.fail("an answer that makes no sense", 10, FailureKind.OTHER)
    world.answers.set()
    taken_in(aligner, lambda: not aligner.at_work, "it does not end")
    assert one.state is State.FAILED


def test_at_the_end_nobody_waits_for_it(aligner: Aligner, world: World) -> None:
    one = replicator(HANGS)
    aligner.align([one])
    taken_in(aligner, lambda: world.made, "nobody is asked")
    assert aligner.finish(60.0, lambda: False) == 0
    assert not one.beside
    assert not aligner.at_work
    world.answers.set()
    wait_until(lambda: world.made[0].closed, timeout_s=20, why="its connections stay open")
