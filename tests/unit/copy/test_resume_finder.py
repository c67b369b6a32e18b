"""Leaders are asked beside the task's loop: one that hangs keeps nobody waiting but those it is asked about."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.copy import resume_finder
from mirror_core.copy.background import BackgroundThreads
from mirror_core.copy.log_ends import (
    BothMetadata,
    ExpectedTopicIds,
    LogEndRequest,
    LogEndRequests,
    LogEndsResponse,
    UnknownLogEnd,
    VerifiedMetadata,
)
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.partition_states import CopyState
from mirror_core.copy.resume_decision import ResumeDecision
from mirror_core.copy.resume_finder import ResumeFinder
from mirror_core.decide.gaps_and_resume import BothLogBounds, ResumePoint
from mirror_core.kafka.client import ClusterClient, ClusterMetadata
from mirror_core.kafka.fan_out import BrokerResponsePending
from mirror_core.kafka.reassignment import TopicIds
from mirror_core.model.errors import MissingPermission, RemoteFault, Unreachable
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Partition
from tests.support.log_comparisons import SEEN, replicator
from tests.support.resume_decisions import EAST, WEST
from tests.support.waiting import wait_until

HANGS, WELL, DOUBTFUL = 0, 1, 3
"""Of a topic: the partition whose leader hangs, another one, and one that some broker calls gone."""


class Leaders:
    """The connections of one round, to clusters of which a part may hang."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.source, self.destination = SimpleNamespace(name=EAST), SimpleNamespace(name=WEST)
        self.closed = self.hurry = False

    def set_hurry(self, hurry: bool) -> None:
        self.hurry = hurry

    def fetch_metadata(self, wanted: Sequence[ExpectedTopicIds]) -> BothMetadata:
        if self.world.dead:
            raise Unreachable("cluster east: no broker answered")
        nothing = VerifiedMetadata(ClusterMetadata("", 1, {}, {}, frozenset()), TopicIds({}, ()))
        doubtful = {one.partition.topic: frozenset[str]() for one in wanted if one.partition.index == DOUBTFUL}
        heard = TopicIds(doubtful, (2,) if self.hurry else ())
        return BothMetadata(replace(nothing, topic_ids=heard), nothing)

    def fetch_log_ends(self, wanted: Sequence[LogEndRequest]) -> LogEndsResponse:
        partitions = [one.partition for one in wanted]
        unsure = dict(self.world.unsure)
        if not self.world.answers.is_set() and (hanging := [p for p in partitions if p.index == HANGS]):
            if not self.hurry:
                self.world.answers.wait()
            else:
                unsure |= {p: UnknownLogEnd(BrokerResponsePending("no answer yet"), EAST) for p in hanging}
        seen: dict[Partition, BothLogBounds] = {partition: SEEN for partition in partitions if partition not in unsure}
        return LogEndsResponse(0.0, {}, seen, unsure)

    def close(self) -> None:
        self.closed = True

    def close_when_done(self, question: Any) -> None:
        question.add_done_callback(lambda _: self.close())


class World:
    def __init__(self) -> None:
        self.answers = threading.Event()
        self.dead = False
        self.unsure = dict[Partition, UnknownLogEnd]()
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
def aligner(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[ResumeFinder]:
    monkeypatch.setattr(resume_finder, "_SLOW_ROUND_S", 0.0)
    monkeypatch.setattr(resume_finder, "_ROUND_INTERVAL_S", 0.0)
    monkeypatch.setattr(
        resume_finder,
        "resolve_leaders",
        lambda one, views, asking: LogEndRequest(
            one.partition, 1, 1, 1, 1, end_unverified=False, is_interrupted=False, verified_end=None
        ),
    )
    east, west = (cast("ClusterClient", SimpleNamespace(name=name)) for name in (EAST, WEST))
    with (
        closing(BackgroundThreads()) as beside,
        closing(ResumeFinder(east, west, 7, lambda *_: None, list, beside)) as made,
    ):
        monkeypatch.setattr(made, "_new_requests", world.asking)
        resume = ResumePoint(offset=10, sequence=10, gap_end=10, seed_end=10, must_check_tail=False)
        monkeypatch.setattr(
            made._comparisons,
            "start",
            lambda cases: (
                (case.replicator, ResumeDecision(case.bounds, resume, end_unverified=False)) for case in cases
            ),
        )
        yield made


def taken_in(aligner: ResumeFinder, holds: Callable[[], object], why: str) -> None:
    """Turn after turn."""

    def turn() -> object:
        aligner.apply_results()
        return holds()

    wait_until(turn, timeout_s=20, why=why)


def becomes(aligner: ResumeFinder, one: PartitionReplicator, state: CopyState) -> None:
    taken_in(aligner, lambda: one.state is state, f"it does not become {state}")


def test_who_is_asked_about_another_leader_does_not_wait_for_one_that_hangs(
    aligner: ResumeFinder, world: World
) -> None:
    hangs, well = replicator(HANGS), replicator(WELL)
    aligner.start([hangs])
    taken_in(aligner, lambda: world.made, "nobody is asked")
    assert not hangs.is_due(), "it is being looked for"
    assert aligner.can_start
    aligner.start([well])
    becomes(aligner, well, CopyState.READY)
    assert hangs.state is CopyState.LOST
    assert len(world.made) == 2, "connections of its own"
    world.answers.set()
    becomes(aligner, hangs, CopyState.READY)
    assert not aligner.is_busy


def test_who_is_lost_in_the_same_moment_does_not_wait_for_it_either(aligner: ResumeFinder, world: World) -> None:
    hangs, well = replicator(HANGS), replicator(WELL)
    aligner.start([hangs, well])
    becomes(aligner, well, CopyState.READY)
    assert hangs.state is CopyState.LOST
    assert "no answer yet" in hangs.lost_reason
    assert not hangs.is_due(), "it is asked about alone, with time"
    world.answers.set()
    becomes(aligner, hangs, CopyState.READY)
    assert not aligner.is_busy


def test_who_is_called_gone_while_a_broker_is_late_is_asked_about_apart_and_with_time(
    aligner: ResumeFinder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def route(one: PartitionReplicator, views: BothMetadata, asking: LogEndRequests) -> LogEndRequest | None:
        if one.partition.index != DOUBTFUL:
            return LogEndRequest(
                one.partition, 1, 1, 1, 1, end_unverified=False, is_interrupted=False, verified_end=None
            )
        if views.source.is_undecided(one.partition.topic):
            one.mark_lost("1 broker (2) gave no answer")
        else:
            one.fail("it was deleted", None, FailureKind.GONE)
        return None

    monkeypatch.setattr(resume_finder, "resolve_leaders", route)
    gone, well = replicator(DOUBTFUL), replicator(WELL)
    aligner.start([gone, well])
    becomes(aligner, well, CopyState.READY)
    becomes(aligner, gone, CopyState.FAILED)
    assert not aligner.is_busy


def test_there_is_room_for_others_beside_all_that_is_late(aligner: ResumeFinder, world: World) -> None:
    for number in range(resume_finder._MAX_ROUNDS):
        well = replicator(WELL)
        aligner.start([replicator(HANGS), well])
        becomes(aligner, well, CopyState.READY)
        assert aligner.can_start, number


def test_rounds_are_limited_and_a_short_one_is_waited_for(
    aligner: ResumeFinder, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(resume_finder._MAX_ROUNDS):
        assert aligner.can_start, number
        aligner.start([replicator(HANGS)])
    assert not aligner.can_start
    world.answers.set()
    taken_in(aligner, lambda: not aligner.is_busy, "rounds do not end")
    monkeypatch.setattr(resume_finder, "_SLOW_ROUND_S", 60.0)
    world.answers.clear()
    aligner.start([replicator(HANGS)])
    assert not aligner.can_start
    assert len(world.made) == resume_finder._MAX_ROUNDS, "connections are used again"


def test_a_cluster_that_does_not_answer_is_asked_again_after_a_pause(aligner: ResumeFinder, world: World) -> None:
    world.dead = True
    one = replicator(WELL)
    aligner.start([one])
    taken_in(aligner, lambda: not aligner.is_busy, "it does not end")
    assert one.lost_reason == "cluster east: no broker answered"
    assert not aligner.can_start
    world.dead = False
    wait_until(lambda: aligner.can_start and one.is_due(), timeout_s=20, why="it is not asked again")
    aligner.start([one])
    becomes(aligner, one, CopyState.READY)


@pytest.mark.parametrize(
    ("why", "state"),
    [
        ("its replicas are behind", CopyState.LOST),
        (Unreachable("no answer"), CopyState.LOST),
        (MissingPermission("may not DESCRIBE"), CopyState.FAILED),
    ],
)
def test_what_is_not_known_of_one_holds_up_no_other(
    aligner: ResumeFinder, world: World, why: RemoteFault | str, state: CopyState
) -> None:
    one, other = replicator(2), replicator(WELL)
    world.unsure[one.partition] = UnknownLogEnd(why, WEST)
    aligner.start([one, other])
    becomes(aligner, other, CopyState.READY)
    assert one.state is state
    assert str(why) in (one.failure.reason if one.failure else one.lost_reason)
    assert one.misleading_cluster == (WEST if state is CopyState.LOST else None)


def test_who_has_failed_meanwhile_stays_so(aligner: ResumeFinder, world: World) -> None:
    one = replicator(HANGS)
    aligner.start([one])
    aligner.apply_results()
    one.fail("an answer that makes no sense", 10, FailureKind.OTHER)
    world.answers.set()
    taken_in(aligner, lambda: not aligner.is_busy, "it does not end")
    assert one.state is CopyState.FAILED


def test_at_the_end_nobody_waits_for_it(aligner: ResumeFinder, world: World) -> None:
    one = replicator(HANGS)
    aligner.start([one])
    taken_in(aligner, lambda: world.made, "nobody is asked")
    assert aligner.finish(60.0, lambda: False) == 0
    assert not one.in_background
    assert not aligner.is_busy
    world.answers.set()
    wait_until(lambda: world.made[0].closed, timeout_s=20, why="its connections stay open")
