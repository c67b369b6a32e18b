"""What is foretold, what is counted, and how far the one is from the other: unknown is never taken for nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest

from mirror_core.decide import forecast_accuracy
from mirror_core.decide.drills import to_drill_name
from mirror_core.decide.failover_plan import decide_failover
from mirror_core.decide.forecast_accuracy import (
    ForecastComparison,
    ForecastKey,
    LossCount,
    build_forecast,
    compute_last_losses,
    count_lost_planned,
    count_lost_unplanned,
    count_read_again,
    format_counted,
    format_error,
    format_forecast,
    list_forecast_rows,
    list_past_failovers,
)
from mirror_core.decide.mirror_snapshot import (
    ClusterTopic,
    DestinationSnapshot,
    MirrorSnapshot,
    SourceSnapshot,
    StandstillForecast,
    UnseenCluster,
)
from mirror_core.decide.plan_figures import list_loss_figures
from mirror_core.model.figures import FigureKey
from mirror_core.model.forecast import ForecastOutcome, PlanForecast, UncountedReread
from mirror_core.model.mirror import DesiredState, PartitionState
from mirror_core.model.names import HEARTBEAT_TOPIC_PREFIX, ClusterName, MirrorName, Offset, Partition, PartitionOffsets
from mirror_core.model.pending_fence import FenceAction, PendingFence
from mirror_core.model.run import Plan, Run, RunKind, RunMode, RunState, StepEvidence, StepRecord, StepState
from mirror_core.model.source_observation import ObservedTopic, SourceObservation
from mirror_core.model.sync_state import UncommittedGroupOffset, UnsyncedGroups
from tests.support import loss_views
from tests.support.forecasts import COMMITTED
from tests.support.loss_views import A0, A1, B0, DESTINATION, SIGHTING, cut_at_60, status
from tests.support.mirror_views import MIRROR

view = loss_views.view
SOURCE = SourceSnapshot(
    cluster_id="E",
    topics={"a": ClusterTopic(id="s", partitions=2), "b": ClusterTopic(id="s", partitions=1)},
    stable_ends={A0: Offset(100), A1: Offset(50), B0: Offset(11)},
    authorizer=True,
    transactions=(),
    groups=("g", "h"),
    committed=COMMITTED,
)


def planned(view: MirrorSnapshot, here: DestinationSnapshot = DESTINATION) -> MirrorSnapshot:
    return replace(view, mode=RunMode.PLANNED, source=SOURCE, destination=here)


def test_a_planned_failover_loses_and_repeats_nothing_and_takes_as_long_as_the_last_one(view: MirrorSnapshot) -> None:
    told = build_forecast(
        replace(planned(view), forecast=StandstillForecast(2.5, "last run", {"fence": 1.0, "drain": 0.5}))
    )
    assert told == PlanForecast(
        seconds=2.5,
        steps={"fence": 1.0, "drain": 0.5},
        basis="last run",
        lost_offsets=0,
        reread_offsets={"g": (0, 0), "h": (0, 0)},
    )
    nothing = build_forecast(planned(view))
    assert (nothing.seconds, nothing.steps, nothing.basis) == (None, {}, "")


def test_a_planned_one_loses_what_failed_partitions_lack_by_the_same_bound(
    view: MirrorSnapshot,
) -> None:
    broken = replace(planned(view), statuses={A0: status(A0), A1: status(A1, "diverged")})
    assert (build_forecast(broken).lost_offsets, build_forecast(broken).lost_is_minimum) == (30, True)
    unseen = build_forecast(replace(broken, source_observation=None))
    assert (unseen.lost_offsets, unseen.lost_is_minimum) == (None, True)


def test_a_planned_one_loses_what_only_the_destination_has_deleted(view: MirrorSnapshot) -> None:
    cut = cut_at_60(planned(view))
    assert (build_forecast(cut).lost_offsets, build_forecast(cut).lost_is_minimum) == (67, True)
    assert dict(list_loss_figures(cut)) == {FigureKey.LOST_OFFSETS: 67}


def test_an_unplanned_one_loses_at_least_what_was_seen_and_repeats_up_to_the_position(view: MirrorSnapshot) -> None:
    told = build_forecast(replace(view, destination=replace(DESTINATION, committed=COMMITTED)))
    assert (told.lost_offsets, told.lost_is_minimum, told.reread_offsets) == (37, True, {"g": (0, 5), "h": (0, 6)})
    never = build_forecast(replace(view, source_observation=None))
    assert (never.lost_offsets, never.lost_is_minimum) == (None, True)
    behind_a_fence = build_forecast(replace(view, is_drained=True))
    assert (behind_a_fence.lost_offsets, behind_a_fence.lost_is_minimum) == (0, False)


def test_of_groups_that_are_not_ours_to_move_nothing_is_foretold(view: MirrorSnapshot) -> None:
    here = replace(DESTINATION, committed=COMMITTED, active_groups=("g",))
    assert set(build_forecast(replace(view, destination=here)).reread_offsets) == {"h"}
    assert set(build_forecast(planned(view, here)).reread_offsets) == {"h"}
    assert build_forecast(replace(view, destination=replace(here, groups_unknown=True))).reread_offsets == {}
    assert build_forecast(replace(view, destination=UnseenCluster("dead"))).reread_offsets == {}
    unplaced = replace(DESTINATION, committed=COMMITTED, positions={A0: Offset(93)})
    assert build_forecast(replace(view, destination=unplaced)).reread_offsets == {}, "how far a log goes is not known"


def test_what_a_group_with_members_on_the_destination_reads_again_is_unknown_and_not_nothing(
    view: MirrorSnapshot,
) -> None:
    """Its topic was deleted there, and its offsets with it."""
    here = replace(DESTINATION, committed={}, active_groups=("g", "elsewhere"))
    forecast = build_forecast(planned(view, here))
    assert (forecast.uncounted_groups, set(forecast.reread_offsets)) == ({"g": UncountedReread.ACTIVE}, {"h"})


@pytest.mark.parametrize("ahead", [None, Offset(13_944)])
def test_what_could_not_be_committed_is_not_read_again_by_nobody(view: MirrorSnapshot, ahead: Offset | None) -> None:
    refused = UncommittedGroupOffset(group="g", partition=str(A0), reason="is ahead", destination_offset=ahead)
    left = replace(planned(view), groups_left=UnsyncedGroups(mirror=view.mirror.name, uncommitted=(refused,)))
    forecast = build_forecast(left)
    assert (forecast.uncounted_groups, set(forecast.reread_offsets)) == ({"g": UncountedReread.UNCOMMITTED}, {"h"})
    assert build_forecast(planned(view)).uncounted_groups == {}


def test_a_plan_carries_it_and_its_hash_does_not(view: MirrorSnapshot) -> None:
    plan = decide_failover(view).plan
    assert isinstance(plan.forecast, PlanForecast)
    assert replace(plan, forecast=msgspec.UNSET).hash == plan.hash
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan


def test_the_plan_of_an_older_mirrorbook_is_written_as_that_wrote_it(view: MirrorSnapshot) -> None:
    """Its run holds the digest of that JSON."""
    older = replace(decide_failover(view).plan, forecast=msgspec.UNSET)
    assert b"foretold" not in msgspec.json.encode(older)


GATE: StepEvidence = {"parity_verdict": "passed", "records_in_all": 10}


def test_nothing_is_lost_only_where_all_was_compared_equal() -> None:
    assert count_lost_planned(GATE, [])[0] == 0
    assert count_lost_planned({}, [])[0] is None
    assert count_lost_planned({"parity_verdict": "failed"}, [])[0] is None
    counted = count_lost_planned(GATE, [B0])
    assert (counted.offsets, counted.least) == (None, 0)
    assert "b-0" in counted.basis


def debt(ends: dict[Partition, int], paid_ms: int | None = 5) -> PendingFence:
    return PendingFence(
        mirror=MirrorName("m"),
        cluster=ClusterName("east"),
        action=FenceAction.APPLY,
        run="r",
        since_ms=1,
        applied_at_ms=paid_ms,
        log_ends=PartitionOffsets.from_mapping({p: Offset(end) for p, end in ends.items()}),
        uncopied=(),
    )


def test_an_unplanned_loss_is_counted_when_every_end_of_the_old_source_was_seen_behind_its_fence() -> None:
    stopped = {p: replace(status(p), state=PartitionState.STOPPED, lmo=Offset(lmo)) for p, lmo in ((A0, 93), (A1, 20))}
    assert count_lost_unplanned(debt({A0: 100, A1: 20}), stopped)[0] == 7
    assert count_lost_unplanned(None, stopped)[0] is None
    assert count_lost_unplanned(debt({}, paid_ms=None), stopped)[0] is None
    assert count_lost_unplanned(debt({A0: 100, A1: 20}, paid_ms=None), stopped)[0] is None, "it may take more"
    partial = count_lost_unplanned(debt({A0: 100}), stopped)
    assert (partial.offsets, partial.least) == (None, 7)
    assert "a-1" in partial.basis
    without = {**stopped, A1: replace(stopped[A1], lmo=None)}
    assert count_lost_unplanned(debt({A0: 100, A1: 20}), without)[0] is None


def test_each_partition_is_in_the_least_loss_once_behind_the_fence_or_as_last_observed() -> None:
    """Of one copy the end is known (7), of another one what was observed (12), as of a topic without a copy (36)."""
    lmos = {A0: 93, A1: 20}
    stopped = {p: replace(status(p), state=PartitionState.STOPPED, lmo=Offset(lmo)) for p, lmo in lmos.items()}
    topics = (
        ObservedTopic(topic="a", ends=(95, 32)),
        ObservedTopic(topic="b", ends=(36,), starts=((0, 0),)),
    )
    mirror = replace(MIRROR, topics=(".*",))
    losses = compute_last_losses(mirror, stopped, SourceObservation(mirror=mirror.name, at_ms=1, topics=topics))
    counted = count_lost_unplanned(debt({A0: 100}), stopped, losses)
    assert (counted.offsets, counted.least) == (None, 7 + 12 + 36)
    every_copy = count_lost_unplanned(debt({A0: 100, A1: 32, B0: 36}), stopped, losses)
    assert (every_copy.offsets, every_copy.least) == (None, 7 + 12 + 36)


def test_what_the_fence_found_without_a_copy_is_lost_too() -> None:
    """One partition was added, and topics were created, after the data plane had last listed them."""
    stopped = {A0: replace(status(A0), state=PartitionState.STOPPED, lmo=Offset(93))}
    mirror = replace(MIRROR, topics=(".*",))
    topics = (ObservedTopic(topic="a", ends=(95,)), ObservedTopic(topic="b", ends=(0,), starts=((0, 0),)))
    seen = SourceObservation(mirror=mirror.name, at_ms=1, topics=topics)

    def count(*uncopied: tuple[str, int, int | None], listed: bool = True) -> LossCount:
        fence = replace(debt({A0: 100}), uncopied=uncopied if listed else None)
        return count_lost_unplanned(fence, stopped, compute_last_losses(mirror, stopped, seen, fence))

    found = count(("a", 0, 100), ("a", 1, 40), ("b", 0, 35), ("c", 0, 0))
    assert (found.offsets, len(found.uncopied_texts or ())) == (7 + 40 + 35, 2)
    held_none = count(("b", 0, 0))
    assert (held_none.offsets, held_none.uncopied_texts) == (7, ())
    unread = count(("a", 1, 40), ("b", 0, 0), ("late", 0, None))
    assert (unread.offsets, unread.least, "late-0" in unread.basis) == (None, 47, True)
    assert "late-0" in str(unread.uncopied_texts)
    unlisted = count(listed=False)
    assert (unlisted.offsets, unlisted.least) == (None, 7), "b may have grown, and others may have been created"


def test_what_a_returned_source_took_is_no_loss_where_times_tell() -> None:
    stopped = {p: replace(status(p), state=PartitionState.STOPPED, lmo=Offset(lmo)) for p, lmo in ((A0, 93), (A1, 20))}
    parted = debt({A0: 100, A1: 25}).add_since_offsets({A0: Offset(95), A1: Offset(25)})
    assert count_lost_unplanned(parted, stopped)[0] == 7
    in_part = debt({A0: 100, A1: 25}).add_since_offsets({A0: Offset(95)})
    counted = count_lost_unplanned(in_part, stopped)
    assert (counted.offsets, "a-1" in counted.basis) == (7, True)


def test_heartbeats_are_nobodys_loss_but_a_drills(view: MirrorSnapshot) -> None:
    beat = Partition(f"{HEARTBEAT_TOPIC_PREFIX}m", 0)
    both = {p: replace(status(p), state=PartitionState.STOPPED, lmo=Offset(lmo)) for p, lmo in ((A0, 93), (beat, 10))}
    assert count_lost_unplanned(debt({A0: 93, beat: 17}), both)[0] == 0
    assert count_lost_unplanned(debt({A0: 93}), both)[0] == 0, "nor is it waited for them"
    assert count_lost_unplanned(debt({beat: 17}), {beat: both[beat]})[0] == 7
    ends = (ObservedTopic(topic="a", ends=(100,)), ObservedTopic(topic=beat.topic, ends=(17,)))
    seen = SourceObservation(mirror=MirrorName("m"), at_ms=100_000, topics=ends)
    here = replace(DESTINATION, positions={A0: Offset(93), beat: Offset(10)})
    assert build_forecast(replace(view, statuses=both, source_observation=seen, destination=here)).lost_offsets == 7


def test_a_failed_heartbeats_partition_makes_no_forecast_of_a_loss_uncertain(view: MirrorSnapshot) -> None:
    beat = Partition(f"{HEARTBEAT_TOPIC_PREFIX}m", 0)
    failed = replace(planned(view), statuses={A0: status(A0), beat: status(beat, "altered")})
    assert (build_forecast(failed).lost_offsets, build_forecast(failed).lost_is_minimum) == (0, False)


def test_what_was_copied_after_the_source_was_last_observed_is_not_lost(view: MirrorSnapshot) -> None:
    """500 offsets are expected in 5 s, and the destination has some of them."""
    observation = replace(SIGHTING, topics=(ObservedTopic(topic="a", ends=(100, 50)),), offsets_per_s=100.0)
    statuses = {p: status(p) for p in (A0, A1)}

    def forecast(first: int, second: int, **changed: object) -> PlanForecast:
        here = replace(DESTINATION, positions={A0: Offset(first), A1: Offset(second)})
        snapshot = replace(view, statuses=statuses, destination=here, source_observation=observation, now_ms=105_000)
        return build_forecast(replace(snapshot, **changed))  # type: ignore[arg-type]

    def of(told: PlanForecast) -> tuple[int | None, int | None]:
        return told.lost_offsets, told.unseen_offsets

    assert of(forecast(100, 50)) == (0, 500)
    assert of(forecast(400, 150)) == (0, 100)
    assert of(forecast(90, 150)) == (10, 400), "at least what is proved, and the ends are 650 in all"
    assert of(forecast(500, 150)) == (0, 0)
    assert of(forecast(900, 950)) == (0, None), "it was faster than that rate, nobody knows by how much"
    unrated = forecast(400, 150, source_observation=replace(observation, offsets_per_s=None))
    assert (of(unrated), unrated.copied_unseen_offsets) == ((0, None), 400)

    beat = Partition(f"{HEARTBEAT_TOPIC_PREFIX}m", 0)
    seen = replace(observation, topics=(*observation.topics, ObservedTopic(topic=beat.topic, ends=(10,))))
    beating = replace(DESTINATION, positions={A0: Offset(400), A1: Offset(50), beat: Offset(90)})
    with_beats = {**statuses, beat: status(beat)}
    assert forecast(0, 0, statuses=with_beats, destination=beating, source_observation=seen).unseen_offsets == 200

    for uncounted in (
        {"statuses": {**statuses, A0: status(A0, "diverged")}},
        {"statuses": {**statuses, A0: replace(status(A0), destination_topic_id="replaced")}},
        {"source_observation": replace(observation, topics=(replace(observation.topics[0], offline=(0,)),))},
    ):
        assert forecast(400, 150, **uncounted).unseen_offsets == 400, uncounted
    assert forecast(400, 150, mode=RunMode.PLANNED, source=SOURCE).copied_unseen_offsets == 0


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
    assert count_read_again(resumes, reached, ENDS) == {"g": again}


def test_what_a_group_reads_again_is_unknown_without_both_sides_of_each_partition() -> None:
    begins, had = {"g": {A0: Offset(80)}}, {"g": {A0: Offset(90), A1: Offset(3)}}
    assert count_read_again(begins, had, ENDS) == {"g": None}, "where it begins in a-1, its consumers' settings decide"
    assert count_read_again(begins, None, ENDS) == {"g": None}
    assert count_read_again(begins, {}, ENDS) == {"g": None}
    assert count_read_again(begins, {"g": {A0: Offset(90)}}, {A0: None}) == {"g": None}


TOLD = PlanForecast(
    seconds=2.0,
    steps={"fence": 1.0},
    basis="last drill",
    lost_offsets=5,
    lost_is_minimum=True,
    reread_offsets={"g": (0, 6)},
)
COUNTED = ForecastOutcome(
    lost_offsets=12, lost_basis="seen", reread_offsets={"g": 8, "new": None}, reread_basis="asked"
)


def run(
    told: PlanForecast | None = TOLD, counted: ForecastOutcome | None = COUNTED, mirror: str = "m", number: int = 0
) -> Run:
    plan = Plan(
        kind=RunKind.FAILOVER, mirror=MirrorName(mirror), mode=RunMode.UNPLANNED, steps=(), bound_facts=(),
        forecast=told or msgspec.UNSET,
    )  # fmt: skip
    return Run(
        id=f"r-{number}", number=number, plan=plan, plan_hash="", state=RunState.DONE, started_by="ann",
        started_ms=-number, desired=DesiredState.STARTED, conducted_by="ann", forecast_outcome=counted,
    )  # fmt: skip


def step(name: str, start: int, end: int | None) -> StepRecord:
    return StepRecord(run="r", step=name, state=StepState.DONE, attempt=1, started_ms=start, ended_ms=end)


STEPS = (step("settle", 0, 500), step("stand", 500, 900), step("promote", 1_000, 2_500))


def by_key(
    found: tuple[ForecastComparison, ...],
) -> dict[tuple[ForecastKey, str], tuple[float | None, float | None, float | None]]:
    return {(row.key, row.item): (row.at_least, row.counted, row.error) for row in found}


def test_each_forecast_stands_beside_what_was_counted_with_its_error() -> None:
    assert by_key(list_forecast_rows(run(), STEPS)) == {
        (ForecastKey.FIRST_STEP_TO_PROMOTION_S, ""): (2.0, 2.5, 0.5),
        (ForecastKey.STEP_S, "settle"): (None, 0.5, None),
        (ForecastKey.STEP_S, "stand"): (None, 0.4, None),
        (ForecastKey.STEP_S, "promote"): (None, 1.5, None),
        (ForecastKey.LOST_OFFSETS, ""): (5, 12, 7),
        (ForecastKey.READ_AGAIN_OFFSETS, "g"): (0, 8, 2),
        (ForecastKey.READ_AGAIN_OFFSETS, "new"): (None, None, None),
    }


@pytest.mark.parametrize(("counted", "error"), [(0, 0), (6, 0), (7, 1), (None, None)])
def test_within_its_limits_a_forecast_was_right(counted: int | None, error: int | None) -> None:
    found = list_forecast_rows(run(counted=replace(COUNTED, reread_offsets={"g": counted})), ())
    assert by_key(found)[ForecastKey.READ_AGAIN_OFFSETS, "g"] == (0, counted, error)


def test_a_bound_that_was_too_high_is_an_error_below_nothing() -> None:
    assert by_key(list_forecast_rows(run(counted=replace(COUNTED, lost_offsets=3)), ()))[
        ForecastKey.LOST_OFFSETS, ""
    ] == (5, 3, -2)
    exact = list_forecast_rows(
        run(replace(TOLD, lost_offsets=0, lost_is_minimum=False), replace(COUNTED, lost_offsets=0)), ()
    )
    assert by_key(exact)[ForecastKey.LOST_OFFSETS, ""] == (0, 0, 0)


def test_what_an_older_mirrorbook_foretold_is_unknown_and_of_what_counts_nothing_there_is_nothing_to_say() -> None:
    assert by_key(list_forecast_rows(run(told=None), STEPS))[ForecastKey.FIRST_STEP_TO_PROMOTION_S, ""] == (
        None,
        2.5,
        None,
    )
    assert list_forecast_rows(run(told=None, counted=None), STEPS) == ()
    assert by_key(list_forecast_rows(run(counted=None), ()))[ForecastKey.LOST_OFFSETS, ""] == (5, None, None)


def test_in_words() -> None:
    def words(
        key: ForecastKey, least: float | None, most: float | None, counted: float | None, unit: str = ""
    ) -> tuple[str, str, str]:
        row = forecast_accuracy._build_row(key, "", least, most, counted, unit=unit)
        return format_forecast(row), format_counted(row), format_error(row)

    assert words(ForecastKey.FIRST_STEP_TO_PROMOTION_S, 2.0, 2.0, 2.5, "s") == ("2.00 s", "2.50 s", "+0.50 s")
    assert words(ForecastKey.LOST_OFFSETS, 1204, None, 1200) == ("at least 1,204", "1,200", "-4")
    assert words(ForecastKey.READ_AGAIN_OFFSETS, 0, 6, 6) == ("0 to 6", "6", "none")
    assert words(ForecastKey.READ_AGAIN_OFFSETS, None, None, None) == ("unknown", "unknown", "unknown")


def test_over_time_are_finished_failovers_of_this_mirror_and_its_drills_the_newest_first() -> None:
    mine, drill = run(number=1), run(mirror=to_drill_name("m"), number=2)
    others = [run(mirror="m2", number=3), replace(run(number=4), state=RunState.ABORTED)]
    back = run(number=5)
    others.append(replace(back, plan=replace(back.plan, kind=RunKind.FAILBACK)))
    assert list_past_failovers([mine, *others, drill], "m") == [drill, mine]
