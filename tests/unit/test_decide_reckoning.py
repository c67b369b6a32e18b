"""What is foretold, what is counted, and how far the one is from the other: unknown is never taken for nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest

from mirror_core.decide import reckoning
from mirror_core.decide.drills import drill_name
from mirror_core.decide.failover import decide
from mirror_core.decide.reckoning import (
    AGAIN,
    LOST,
    SECONDS,
    Row,
    counted_in_words,
    error_in_words,
    foretold,
    foretold_in_words,
    lost_behind_fence,
    lost_with_source,
    past,
    read_again,
    rows,
)
from mirror_core.decide.view import DestinationView, Forecast, SourceView, Topic, Unseen, View
from mirror_core.model.mirror import Desired, PartitionState
from mirror_core.model.names import HEARTBEATS, ClusterName, MirrorName, Offset, Partition
from mirror_core.model.offsets import Offsets
from mirror_core.model.reckoning import Counted, Foretold
from mirror_core.model.run import Evidence, Mode, Plan, Run, RunKind, RunState, StepRecord, StepState
from mirror_core.model.sighting import Sighting, TopicSeen
from mirror_core.model.standing import Debt, Owed
from tests.unit import test_decide_loss
from tests.unit.test_decide_loss import A0, A1, B0, DESTINATION, status

view = test_decide_loss.view
COMMITTED: Mapping[str, Mapping[Partition, Offset]] = {"g": {A0: Offset(88), A1: Offset(20)}, "h": {B0: Offset(5)}}
SOURCE = SourceView(
    cluster_id="E",
    topics={"a": Topic(id="s", partitions=2), "b": Topic(id="s", partitions=1)},
    stable_ends={A0: Offset(100), A1: Offset(50), B0: Offset(11)},
    authorizer=True,
    transactions=(),
    groups=("g", "h"),
    committed=COMMITTED,
)


def planned(view: View, here: DestinationView = DESTINATION) -> View:
    return replace(view, mode=Mode.PLANNED, source=SOURCE, destination=here)


def test_a_planned_failover_loses_and_repeats_nothing_and_takes_as_long_as_the_last_one(view: View) -> None:
    told = foretold(replace(planned(view), forecast=Forecast(2.5, "last run", {"fence": 1.0, "drain": 0.5})))
    assert told == Foretold(
        seconds=2.5, steps={"fence": 1.0, "drain": 0.5}, basis="last run", lost=0, again={"g": (0, 0), "h": (0, 0)}
    )
    nothing = foretold(planned(view))
    assert (nothing.seconds, nothing.steps, nothing.basis) == (None, {}, "")


def test_what_has_failed_may_miss_more_than_nothing(view: View) -> None:
    broken = replace(planned(view), statuses={A0: status(A0), A1: status(A1, "diverged")})
    assert (foretold(broken).lost, foretold(broken).at_least) == (0, True)


def test_an_unplanned_one_loses_at_least_what_was_seen_and_repeats_up_to_the_position(view: View) -> None:
    told = foretold(replace(view, destination=replace(DESTINATION, committed=COMMITTED)))
    assert (told.lost, told.at_least, told.again) == (37, True, {"g": (0, 5), "h": (0, 6)})
    never = foretold(replace(view, sighting=None))
    assert (never.lost, never.at_least) == (None, True)
    behind_a_fence = foretold(replace(view, drained=True))
    assert (behind_a_fence.lost, behind_a_fence.at_least) == (0, False)


def test_of_groups_that_are_not_ours_to_move_nothing_is_foretold(view: View) -> None:
    here = replace(DESTINATION, committed=COMMITTED, joined=("g",))
    assert set(foretold(replace(view, destination=here)).again) == {"h"}
    assert set(foretold(planned(view, here)).again) == {"h"}
    assert foretold(replace(view, destination=replace(here, groups_unseen=True))).again == {}
    assert foretold(replace(view, destination=Unseen("dead"))).again == {}
    unplaced = replace(DESTINATION, committed=COMMITTED, positions={A0: Offset(93)})
    assert foretold(replace(view, destination=unplaced)).again == {}, "how far a log goes is not known"


def test_a_plan_carries_it_and_its_hash_does_not(view: View) -> None:
    plan = decide(view).plan
    assert isinstance(plan.foretold, Foretold)
    assert replace(plan, foretold=msgspec.UNSET).hash == plan.hash
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan


def test_the_plan_of_an_older_mirrorbook_is_written_as_that_wrote_it(view: View) -> None:
    """Its run holds the digest of that JSON."""
    older = replace(decide(view).plan, foretold=msgspec.UNSET)
    assert b"foretold" not in msgspec.json.encode(older)


GATE: Evidence = {"verdict": "passed", "records_in_all": 10}


def test_nothing_is_lost_only_where_all_was_compared_equal() -> None:
    assert lost_behind_fence(GATE, [])[0] == 0
    assert lost_behind_fence({}, [])[0] is None
    assert lost_behind_fence({"verdict": "failed"}, [])[0] is None
    lost, why = lost_behind_fence(GATE, [B0])
    assert lost is None
    assert "b-0" in why


def debt(ends: dict[Partition, int], paid_ms: int | None = 5) -> Debt:
    return Debt(
        mirror=MirrorName("m"), cluster=ClusterName("east"), owed=Owed.FENCE, run="r", since_ms=1, paid_ms=paid_ms,
        ends=Offsets.of({p: Offset(end) for p, end in ends.items()}),
    )  # fmt: skip


def test_an_unplanned_loss_is_counted_when_every_end_of_the_old_source_was_seen_behind_its_fence() -> None:
    stopped = {p: replace(status(p), state=PartitionState.STOPPED, lmo=Offset(lmo)) for p, lmo in ((A0, 93), (A1, 20))}
    assert lost_with_source(debt({A0: 100, A1: 20}), stopped)[0] == 7
    assert lost_with_source(None, stopped)[0] is None
    assert lost_with_source(debt({}, paid_ms=None), stopped)[0] is None
    assert lost_with_source(debt({A0: 100, A1: 20}, paid_ms=None), stopped)[0] is None, "it may take more"
    lost, why = lost_with_source(debt({A0: 100}), stopped)
    assert lost is None
    assert "a-1" in why
    without = {**stopped, A1: replace(stopped[A1], lmo=None)}
    assert lost_with_source(debt({A0: 100, A1: 20}), without)[0] is None


def test_heartbeats_are_nobodys_loss_but_a_drills(view: View) -> None:
    beat = Partition(f"{HEARTBEATS}m", 0)
    both = {p: replace(status(p), state=PartitionState.STOPPED, lmo=Offset(lmo)) for p, lmo in ((A0, 93), (beat, 10))}
    assert lost_with_source(debt({A0: 93, beat: 17}), both)[0] == 0
    assert lost_with_source(debt({A0: 93}), both)[0] == 0, "nor is it waited for them"
    assert lost_with_source(debt({beat: 17}), {beat: both[beat]})[0] == 7
    ends = (TopicSeen(topic="a", ends=(100,)), TopicSeen(topic=beat.topic, ends=(17,)))
    seen = Sighting(mirror=MirrorName("m"), at_ms=100_000, topics=ends)
    here = replace(DESTINATION, positions={A0: Offset(93), beat: Offset(10)})
    assert foretold(replace(view, statuses=both, sighting=seen, destination=here)).lost == 7


ENDS: Mapping[Partition, Offset | None] = {A0: Offset(93), A1: Offset(20)}


@pytest.mark.parametrize(
    ("had", "again"),
    [
        ({A0: 90, A1: 20}, 10),
        ({A0: 80, A1: 20}, 0),
        ({A0: 70, A1: 20}, 0),  # set back on the source since
        ({A0: 99, A1: 20}, 13),  # what was lost cannot be read again
        ({A0: 90, A1: 20, B0: 7}, 10),  # b is none of the mirror's
        ({A0: 90}, 10),
        ({}, None),
    ],
)
def test_what_a_group_reads_again_is_counted_up_to_what_was_mirrored(
    had: dict[Partition, int], again: int | None
) -> None:
    resumes = {"g": {A0: Offset(80), A1: Offset(20)}}
    reached = {"g": {p: Offset(o) for p, o in had.items()}}
    assert read_again(resumes, reached, ENDS) == {"g": again}


def test_what_a_group_reads_again_is_unknown_without_both_sides_of_each_partition() -> None:
    begins, had = {"g": {A0: Offset(80)}}, {"g": {A0: Offset(90), A1: Offset(3)}}
    assert read_again(begins, had, ENDS) == {"g": None}, "where it begins in a-1, its consumers' settings decide"
    assert read_again(begins, None, ENDS) == {"g": None}
    assert read_again(begins, {}, ENDS) == {"g": None}
    assert read_again(begins, {"g": {A0: Offset(90)}}, {A0: None}) == {"g": None}


TOLD = Foretold(seconds=2.0, steps={"fence": 1.0}, basis="last drill", lost=5, at_least=True, again={"g": (0, 6)})
COUNTED = Counted(lost=12, lost_by="seen", again={"g": 8, "new": None}, again_by="asked")


def run(told: Foretold | None = TOLD, counted: Counted | None = COUNTED, mirror: str = "m", at_ms: int = 0) -> Run:
    plan = Plan(
        kind=RunKind.FAILOVER, mirror=MirrorName(mirror), mode=Mode.UNPLANNED, steps=(), bound=(),
        foretold=told or msgspec.UNSET,
    )  # fmt: skip
    return Run(
        id=f"r-{at_ms}", plan=plan, plan_hash="", state=RunState.DONE, started_by="ann", started_ms=at_ms,
        desired=Desired.STARTED, conducted_by="ann", counted=counted,
    )  # fmt: skip


def step(name: str, start: int, end: int | None) -> StepRecord:
    return StepRecord(run="r", step=name, state=StepState.DONE, attempt=1, started_ms=start, ended_ms=end)


STEPS = (step("settle", 0, 500), step("stand", 500, 900), step("promote", 1_000, 2_500))


def by_name(found: tuple[Row, ...]) -> dict[str, tuple[float | None, float | None, float | None]]:
    return {f"{row.what} {row.of}".strip(): (row.least, row.counted, row.error) for row in found}


def test_each_forecast_stands_beside_what_was_counted_with_its_error() -> None:
    assert by_name(rows(run(), STEPS)) == {
        SECONDS: (2.0, 2.5, 0.5),
        "seconds of step settle": (None, 0.5, None),
        "seconds of step stand": (None, 0.4, None),
        "seconds of step promote": (None, 1.5, None),
        LOST: (5, 12, 7),
        f"{AGAIN} g": (0, 8, 2),
        f"{AGAIN} new": (None, None, None),
    }


@pytest.mark.parametrize(("counted", "error"), [(0, 0), (6, 0), (7, 1), (None, None)])
def test_within_its_limits_a_forecast_was_right(counted: int | None, error: int | None) -> None:
    found = rows(run(counted=replace(COUNTED, again={"g": counted})), ())
    assert by_name(found)[f"{AGAIN} g"] == (0, counted, error)


def test_a_bound_that_was_too_high_is_an_error_below_nothing() -> None:
    assert by_name(rows(run(counted=replace(COUNTED, lost=3)), ()))[LOST] == (5, 3, -2)
    exact = rows(run(replace(TOLD, lost=0, at_least=False), replace(COUNTED, lost=0)), ())
    assert by_name(exact)[LOST] == (0, 0, 0)


def test_what_an_older_mirrorbook_foretold_is_unknown_and_of_what_counts_nothing_there_is_nothing_to_say() -> None:
    assert by_name(rows(run(told=None), STEPS))[SECONDS] == (None, 2.5, None)
    assert rows(run(told=None, counted=None), STEPS) == ()
    assert by_name(rows(run(counted=None), ()))[LOST] == (5, None, None)


def test_in_words() -> None:
    def words(what: str, least: float | None, most: float | None, counted: float | None) -> tuple[str, str, str]:
        row = reckoning._row(what, "", least, most, counted)
        return foretold_in_words(row), counted_in_words(row), error_in_words(row)

    assert words(SECONDS, 2.0, 2.0, 2.5) == ("2.00 s", "2.50 s", "+0.50 s")
    assert words(LOST, 1204, None, 1200) == ("at least 1,204", "1,200", "-4")
    assert words(AGAIN, 0, 6, 6) == ("0 to 6", "6", "none")
    assert words(AGAIN, None, None, None) == ("unknown", "unknown", "unknown")


def test_over_time_are_finished_failovers_of_this_mirror_and_its_drills_the_newest_first() -> None:
    mine, drill = run(at_ms=1), run(mirror=drill_name("m"), at_ms=2)
    others = [run(mirror="m2", at_ms=3), replace(run(at_ms=4), state=RunState.ABORTED)]
    back = run(at_ms=5)
    others.append(replace(back, plan=replace(back.plan, kind=RunKind.FAILBACK)))
    assert past([mine, *others, drill], "m") == [drill, mine]
