"""Two copiers of one partition, interleaved with each other, a broker that forgets, and answers that come late.

The decisions are the product's own (`tests/support/model_copier.py`); only connections and the broker are a model.
Whatever happens, no copier reports as copied what is not at its offset, unless the partition is FAILED and says so.
Once nothing goes wrong any more, everything is copied or the partition has failed. Without faults nothing fails.

Each guard, taken away, lets that happen; `GUARDS` lists them with what they are for.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_core.copy import gap_filler, gap_ownership, response_errors, resume_decision
from mirror_core.copy.gap_filler import GapRound
from mirror_core.copy.gap_ownership import GapClaim, GapFillState
from mirror_core.copy.partition_progress import PartitionProgress
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.partition_states import CopyState
from mirror_core.copy.send_queue import Gap
from mirror_core.decide.gaps_and_resume import (
    BothLogBounds,
    ForeignWrite,
    ResumePoint,
    SourceLostRecords,
    choose_marker_epoch,
    decide_resume_point,
    find_turn,
    limit_markers_in_flight,
    to_first_marker_epoch,
)
from mirror_core.model.mirror import FailureKind
from tests.support import model_copier
from tests.support.model_broker import Broker
from tests.support.model_copier import Source
from tests.support.model_scenes import BETWEEN, OWN, SCENES, STEPS, WORK, Move, Parts
from tests.support.model_world import Broken, Weather, World

moves = st.tuples(st.sampled_from(WORK + BETWEEN * 2), st.integers(0, 1))
parts = st.lists(st.tuples(st.booleans(), st.integers(1, 4)), min_size=1, max_size=8).map(tuple)


def go_through(source: Parts, weather: Weather, happens: list[Move]) -> None:
    world = World(Source(source), weather)
    for name, who in happens:
        world.move(name, who)
    world.comes_to_rest()


def counterexample(weather: Weather, tries: int, scene: str | None = None) -> int | None:
    """The first of so many random walks on which something breaks; each begins with a scene, or all with this one."""
    for seed in range(tries):
        chance = random.Random(seed)
        source = tuple((chance.random() < 0.5, chance.randint(1, 4)) for _ in range(chance.randint(1, 8)))
        try:
            chosen = scene or chance.choice(list(SCENES))
            happens = list(SCENES[chosen])
            known = WORK + tuple(chance.sample(BETWEEN, chance.randint(2, 8))) * 2
            happens += [
                (chance.choice(known), chance.randrange(2)) for _ in range(STEPS if scene is None else STEPS // 4)
            ]
            go_through(OWN.get(chosen, source), weather, happens)
        except Broken:
            return seed
    return None


@pytest.mark.parametrize("weather", Weather)
@settings(deadline=None, max_examples=40)
@given(parts, st.sampled_from(list(SCENES)), st.lists(moves, min_size=STEPS // 4, max_size=STEPS))
def test_no_offset_has_two_writers_and_nothing_waits_for_ever(
    weather: Weather, source: Parts, scene: str, happens: list[Move]
) -> None:
    go_through(OWN.get(scene, source), weather, [*SCENES[scene], *happens])


@pytest.mark.parametrize("weather", Weather)
@pytest.mark.parametrize("timed", [True, False])
def test_nor_on_any_of_many_random_walks(weather: Weather, timed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not timed:
        _without_times(monkeypatch)
    assert counterexample(weather, 100) is None


def test_what_a_leader_forgot_while_nothing_was_written_is_proven_anew() -> None:
    world = World(Source(OWN["first refused"]), Weather.FORGETFUL)
    for name, who in SCENES["rested"]:
        world.move(name, who)
    world.comes_to_rest()
    assert world.told == set(), "the first batch was refused, and what came behind it was taken in its place"
    assert world.broker.log == world.expected


def test_a_marker_in_a_records_place_is_seen_where_nothing_comes_behind() -> None:
    """Two newcomers' markers fill a gap of one. The log ends where the source does, and the record is missing."""
    world = World(Source(OWN["one too many"]), Weather.LATE)
    for name, who in SCENES["one too many"]:
        world.move(name, who)
    world.comes_to_rest()
    assert world.told == {FailureKind.GAP_LIMIT}


Seed = Callable[[pytest.MonkeyPatch], None]


def _turn(patch: pytest.MonkeyPatch) -> None:
    """Newcomers who wait for the same gap take it up at different times."""
    patch.setattr(gap_filler, "find_turn", lambda epoch, wall_ms: 0)


def _at_once(patch: pytest.MonkeyPatch) -> None:
    """All but one of a gap's markers are unanswered at a time: there is always room for one that shuts them out."""
    patch.setattr(gap_ownership, "limit_markers_in_flight", lambda missing: missing)


def _attempts(patch: pytest.MonkeyPatch) -> None:
    """Whoever takes up somebody else's gap sends a higher number: what the other one has on its way is refused."""
    patch.setattr(
        gap_ownership,
        "choose_marker_epoch",
        lambda count, newest, *, is_owned: choose_marker_epoch(count, newest, is_owned=True),
    )


def _numbers(patch: pytest.MonkeyPatch) -> None:
    """Each gap's markers have higher numbers than those of the gaps before it."""
    patch.setattr(
        gap_ownership, "choose_marker_epoch", lambda count, newest, *, is_owned: max(newest, to_first_marker_epoch(1))
    )


def _fence(patch: pytest.MonkeyPatch) -> None:
    """The broker refuses markers of a lower number."""
    _with_broker(patch, fences_markers=False)


def _sequences(patch: pytest.MonkeyPatch) -> None:
    """The broker refuses batches that do not follow the last one."""
    _with_broker(patch, checks_sequences=False)


def _with_broker(patch: pytest.MonkeyPatch, **without: bool) -> None:
    real = Broker.__init__

    def made(broker: Broker) -> None:
        real(broker)
        for name, value in without.items():
            setattr(broker, name, value)

    patch.setattr(Broker, "__init__", made)


def _check_tail(patch: pytest.MonkeyPatch) -> None:
    """The logs' ends are compared, where the leader has forgotten and after each interruption."""

    def unchecked(seen: BothLogBounds, *, holds_deletions: bool) -> ResumePoint | ForeignWrite | SourceLostRecords:
        found = decide_resume_point(seen, holds_deletions=holds_deletions)
        return replace(found, must_check_tail=False) if isinstance(found, (ResumePoint, SourceLostRecords)) else found

    patch.setattr(resume_decision, "decide_resume_point", unchecked)
    patch.setattr(resume_decision.ResumeDecider, "_has_other_tail", lambda *_: False)


def _base_offset(patch: pytest.MonkeyPatch) -> None:
    """An answer's base offset is compared."""
    real = response_errors.handle_produce_response
    patch.setattr(
        model_copier,
        "handle_produce_response",
        lambda one, sent, produced, side: real(one, sent, produced._replace(base_offset=sent.base_offset), side),
    )


def _barrier(patch: pytest.MonkeyPatch) -> None:
    """Before a gap is filled, all before it is acknowledged."""

    def gap(one: PartitionReplicator) -> Gap | None:
        return one.queue.first_gap if one.can_send else None

    patch.setattr(PartitionReplicator, "due_gap", property(gap))


def _quiet(patch: pytest.MonkeyPatch) -> None:
    """A newcomer waits until the log has stood still."""
    patch.setattr(gap_ownership, "QUIET_S", 0.0)


def _one_turn(patch: pytest.MonkeyPatch) -> None:
    """Who looked in one turn does not send in another, be the broker so far away that an answer of then is fresh."""
    patch.setattr(model_copier, "STALE_S", 1e9)
    patch.setattr(gap_filler, "find_turn", lambda epoch, wall_ms: None if find_turn(epoch, wall_ms) is None else 0)


def _unanswered(patch: pytest.MonkeyPatch) -> None:
    """Who has markers on their way owns nothing."""
    patch.setattr(GapClaim, "mark_sending", GapClaim.note_epoch)


def _round_first(patch: pytest.MonkeyPatch) -> None:
    """No place is looked for while a round of filling goes on: what that has sent would be counted twice."""
    patch.setattr(PartitionReplicator, "is_due", lambda one: one.state is CopyState.LOST and not one.progress.in_flight)


def _left_round(patch: pytest.MonkeyPatch) -> None:
    """Who does not wait for a round's end owns nothing: its markers may come at any time."""

    def left(one: PartitionReplicator, case: GapFillState) -> None:
        one.in_background = False

    patch.setattr(PartitionReplicator, "abandon_gap_round", left)


def _all_sent(patch: pytest.MonkeyPatch) -> None:
    """What a round has sent is no longer its partition's to hand on, until it is known to be in the log."""
    patch.setattr(GapFillState, "mark_sending", lambda case, epoch: case.gap_claim.note_epoch(epoch))


def _true_end(patch: pytest.MonkeyPatch) -> None:
    """A newcomer knows the gap's whole extent."""
    patch.setattr(PartitionReplicator, "is_gap_end_known", property(lambda one: True))


def _late_fetch(patch: pytest.MonkeyPatch) -> None:
    """A Fetch's answer counts only for the place that it was asked for."""
    patch.setattr(PartitionReplicator, "awaits_response", PartitionReplicator.can_fetch)


def _settled(patch: pytest.MonkeyPatch) -> None:
    """A place is taken up only when the log has stood still meanwhile."""
    patch.setattr(model_copier, "explain_unstable_end", lambda *_: "")


def _first_alone(patch: pytest.MonkeyPatch) -> None:
    """The first batch that a leader without memory is sent goes alone."""
    patch.setattr(PartitionProgress, "is_all_acknowledged", True)
    patch.setattr(PartitionProgress, "is_first_unanswered", False)
    patch.setattr(PartitionReplicator, "has_sendable_batch", property(_any_batch))


def _any_batch(one: PartitionReplicator) -> bool:
    items = one.queue.items
    return bool(items) and one.can_send and not isinstance(items[0], Gap)


def _loudest(patch: pytest.MonkeyPatch) -> None:
    """A batch that landed elsewhere is told of, whatever was wrong before."""
    patch.setattr(PartitionReplicator, "fail_shifted", lambda one, reason, offset: None)


def _one_first(patch: pytest.MonkeyPatch) -> None:
    """A newcomer sends one marker, and looks."""
    real = GapFillState.next_markers

    def many(one: GapFillState, most: int) -> tuple[int, int] | None:
        found = real(one, most)
        return found and (limit_markers_in_flight(one.end - one.acknowledged), found[1])

    patch.setattr(GapFillState, "next_markers", many)


def _look_behind(patch: pytest.MonkeyPatch) -> None:
    """A newcomer's answer says too little: it looks where the log ends."""
    real = GapRound._is_confirmed_by_response
    patch.setattr(
        GapRound,
        "_is_confirmed_by_response",
        lambda self, one, mine, codes: real(self, one, mine._replace(owned=True), codes),
    )


def _confirmed(patch: pytest.MonkeyPatch) -> None:
    """An owner that has not looked for a while looks: that its data is acknowledged does not say where the log ends."""
    patch.setattr(gap_ownership, "CERTAIN_S", 1e9)
    _without_times(patch)


def _without_times(patch: pytest.MonkeyPatch) -> None:
    """Of records without a time the broker's answer does not tell that it has taken them for a repetition."""
    patch.setattr(model_copier, "MS", -1)


CALM, LATE, WILD = Weather.CALM, Weather.LATE, Weather.WILD
GUARDS: tuple[tuple[Seed, Weather, str | None], ...] = (
    (_turn, CALM, "both"),
    (_at_once, CALM, "straggler"),
    (_attempts, CALM, "outlived"),
    (_numbers, CALM, None),
    (_fence, CALM, "outlived"),
    (_sequences, CALM, None),
    (_check_tail, WILD, "slow marker"),
    (_base_offset, LATE, "slow marker"),
    (_barrier, CALM, "refused"),
    (_quiet, CALM, "crowd"),
    (_one_turn, CALM, "two wait"),
    (_unanswered, CALM, "comeback"),
    (_round_first, CALM, "parted"),
    (_left_round, CALM, "comeback"),
    (_all_sent, CALM, "comeback"),
    (_true_end, CALM, "short sight"),
    (_late_fetch, CALM, "late answer"),
    (_settled, CALM, None),
    (_first_alone, CALM, "first refused"),
    (_loudest, WILD, "forgotten"),
    (_one_first, CALM, "wide"),
    (_look_behind, CALM, "straggler"),
    (_confirmed, CALM, "slept"),
)


@pytest.mark.parametrize(
    ("guard", "weather", "scene"), GUARDS, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_without_any_of_the_guards_it_breaks(
    guard: Seed, weather: Weather, scene: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard(monkeypatch)
    assert counterexample(weather, 1_000, scene) is not None, guard.__doc__
