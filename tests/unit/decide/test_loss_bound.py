"""The loss bound: three clocks, what is unknown, and which transactions would be cut in half."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from mirror_core.decide.approval_rules import count_failed
from mirror_core.decide.failover_plan import decide_failover
from mirror_core.decide.failover_scope import find_lost_topics
from mirror_core.decide.loss_bound import (
    count_missing,
    find_agreed_ends,
    format_behind,
    format_partition_loss,
    list_transaction_figures,
)
from mirror_core.decide.mirror_snapshot import ClusterTopic, MirrorSnapshot, SourceSnapshot, UnseenCluster
from mirror_core.decide.plan_figures import list_loss_figures, list_loss_warnings, list_plan_figures, warn_uncopied
from mirror_core.decide.run_result import UncountedLoss, find_uncounted_loss
from mirror_core.model.figures import FigureKey, Figures
from mirror_core.model.findings import Finding
from mirror_core.model.forecast import PlanForecast, TransactionArrival, UncopiedReason
from mirror_core.model.mirror import FailureKind, PartitionState
from mirror_core.model.names import Offset, Partition, get_heartbeat_topic
from mirror_core.model.run import RunMode
from mirror_core.model.source_observation import (
    TRANSACTION_OVER,
    ObservedTopic,
    ObservedTransaction,
    PartitionTransaction,
    SourceObservation,
)
from tests.support import loss_views
from tests.support.loss_views import A0, A1, B0, DESTINATION, SIGHTING, M, cut_at_60, status
from tests.support.sentences import format_sentence

view = loss_views.view
ALL_TOPICS = "all topics together"


def limit_of(figures: Figures) -> str:
    limits = figures[FigureKey.COMPLETE_LIMITED_BY]
    assert isinstance(limits, Mapping)
    return str(limits[ALL_TOPICS])


def test_the_three_clocks(view: MirrorSnapshot) -> None:
    loss = view.loss
    assert {p: one.missing for p, one in loss.partitions.items()} == {A0: 7, A1: 30, B0: 0}
    assert loss.known_missing == 37
    assert loss.unknown_partitions == ()
    assert loss.observed_s == 6.0, "a-1 was looked at 2 s before the others"
    assert loss.heartbeat_age_s == 5.5, "the broker whose newest is older"
    assert loss.text == (format_sentence("loss_bound_since_last_look", 37, "6.0"))


def test_behind_in_seconds_counts_from_when_a_partition_lacked_nothing(view: MirrorSnapshot) -> None:
    assert view.source_observation is not None
    assert format_behind(view.loss) == "unknown of a-0", "nobody saw it whole"
    a = replace(view.source_observation.topics[0], recovery_points=((0, 7_000, 93), (1, 1_500, 20)))
    seen = replace(
        view, source_observation=replace(view.source_observation, topics=(a, *view.source_observation.topics[1:]))
    )
    loss = seen.loss
    assert [one.behind_s for one in loss.partitions.values()] == [11.0, 5.5, 4.0], "b-0 lacks nothing that was seen"
    assert format_behind(loss).startswith("11.0 s: the destination holds all that a-0 had then")
    cut = replace(DESTINATION, positions={**DESTINATION.positions, A0: Offset(92)})
    assert format_behind(replace(seen, destination=cut).loss) == "unknown of a-0", (
        "the copy has lost, by now, what it had then"
    )
    failed = status(A0, "gone")
    assert format_behind(replace(seen, statuses={**seen.statuses, A0: failed}).loss).startswith("5.5 s")
    assert format_behind(replace(seen, destination=UnseenCluster("dead, too")).loss).startswith("unknown of ")
    alone = replace(SIGHTING, topics=(ObservedTopic(topic="a", ends=(100,)),))
    assert (
        format_behind(replace(seen, statuses={A0: failed}, source_observation=alone).loss)
        == "unknown: no partition is copied"
    )


def test_the_bound_widens_with_every_second_of_silence_and_what_is_known_to_be_missing_does_not(
    view: MirrorSnapshot,
) -> None:
    later = replace(view, now_ms=view.now_ms + 1_000).loss
    assert (later.known_missing, later.observed_s, later.heartbeat_age_s) == (37, 7.0, 6.5)


def test_ages_by_a_clock_that_is_behind_are_unknown_and_never_0(view: MirrorSnapshot) -> None:
    a = replace(SIGHTING.topics[0], recovery_points=((0, 7_000, 93), (1, 1_500, 20)))
    sighting = replace(SIGHTING, topics=(a, *SIGHTING.topics[1:]))
    ntp = replace(view, source_observation=sighting, now_ms=99_000).loss
    assert (ntp.observed_s, ntp.heartbeat_age_s, ntp.has_clock_skew) == (1.0, 0.5, False), "what NTP leaves is no doubt"
    slow = replace(view, source_observation=sighting, now_ms=98_000)
    loss = slow.loss
    assert loss.has_clock_skew
    assert (loss.known_missing, loss.observed_s, loss.heartbeat_age_s) == (37, None, 0.0)
    assert replace(slow, now_ms=97_000).loss.heartbeat_age_s is None
    assert {p: one.age_s for p, one in loss.partitions.items()} == {A0: None, A1: 0.0, B0: None}
    assert format_behind(loss) == "unknown of b-0"
    assert "when that was is unknown" in loss.text
    figures = dict(list_loss_figures(slow))
    assert figures[FigureKey.SOURCE_SEEN_S] is None
    assert (figures[FigureKey.CUT_TRANSACTIONS], figures[FigureKey.TRANSACTIONS_SEEN_S]) == (0, None)
    beats = dict(list_loss_figures(replace(slow, now_ms=97_700)))
    assert beats[FigureKey.HEARTBEAT_AGES_S] == {"0": None, "1": 0.0}
    assert beats[FigureKey.HEARTBEAT_NUMBERS] == {"0": 7, "1": 7}
    assert format_partition_loss(loss.partitions[A0]).endswith("its end last seen at an unknown time (clocks differ)")
    assert dict(list_loss_figures(replace(slow, source_observation=None)))[FigureKey.SOURCE_SEEN_S] is None


def test_what_is_not_known_is_said_and_not_taken_for_nothing(view: MirrorSnapshot) -> None:
    never = replace(view, source_observation=None).loss
    assert (never.known_missing, never.unknown_partitions, never.observed_s) == (0, (A0, A1, B0), None)
    assert never.text.startswith("unknown: ")
    one = replace(SIGHTING, topics=(ObservedTopic(topic="a", ends=(100, None)), ObservedTopic(topic="b", ends=(10,))))
    partly = replace(view, source_observation=one).loss
    assert (partly.known_missing, partly.unknown_partitions, partly.observed_s) == (7, (A1,), 4.0)
    assert partly.text == (format_sentence("loss_bound_partly_unknown", 7, 1, 4.0))
    blind = replace(view, destination=UnseenCluster("dead, too")).loss
    assert (blind.known_missing, len(blind.unknown_partitions), blind.heartbeat_age_s) == (0, 3, None)
    assert blind.observed_s == 6.0
    unplaced = replace(view, destination=replace(DESTINATION, positions={A0: Offset(93)}, heartbeats=())).loss
    assert (unplaced.known_missing, unplaced.unknown_partitions, unplaced.heartbeat_age_s) == (7, (A1, B0), None)


def test_heartbeats_count_in_no_figure_of_a_loss(view: MirrorSnapshot) -> None:
    beats = Partition(get_heartbeat_topic(M), 0)
    observation = view.source_observation
    assert observation is not None
    lost_beats = ObservedTopic(topic=beats.topic, ends=(500,), ages_ms=(90_000,), offline=(0,))
    dead = replace(view, source=UnseenCluster("dead"), mode=RunMode.UNPLANNED)
    with_beats = replace(
        dead,
        source_observation=replace(observation, topics=(*observation.topics, lost_beats)),
        statuses={**view.statuses, beats: replace(status(beats), destination_topic_id="")},
    )
    assert dict(list_loss_figures(with_beats)) == dict(list_loss_figures(dead))
    assert not [*warn_uncopied(with_beats)]
    assert [*list_loss_warnings(with_beats)] == [*list_loss_warnings(dead)]
    only_beats = replace(
        with_beats,
        statuses={beats: status(beats)},
        source_observation=SourceObservation(mirror=M, at_ms=100_000, topics=(lost_beats,)),
    )
    assert only_beats.loss.unknown_partitions == (beats,), "a drill has nothing else"


def test_failed_and_leaderless_partitions_stand_apart_from_the_seconds(view: MirrorSnapshot) -> None:
    old = SourceObservation(
        mirror=M,
        at_ms=100_000,
        topics=(
            ObservedTopic(topic="a", ends=(100, 50), ages_ms=(0, 60_000), offline=(1,)),
            ObservedTopic(topic="b", ends=(10,), ages_ms=(90_000,)),
        ),
    )
    loss = replace(
        view, source_observation=old, statuses={A0: status(A0), A1: status(A1), B0: status(B0, "somebody wrote")}
    ).loss
    assert loss.observed_s == 4.0
    assert loss.partitions[A1].is_offline
    assert loss.partitions[A1].age_s == 64.0
    assert loss.partitions[B0].is_failed
    assert loss.known_missing == 37, "their offsets count"


def transaction(*parts: PartitionTransaction, state: str = "Ongoing") -> ObservedTransaction:
    return ObservedTransaction(id="tx", producer_id=5, state=state, parts=parts)


def part(partition: Partition, first: int | None, upto: int | None = None) -> PartitionTransaction:
    return PartitionTransaction(
        partition=partition,
        first=None if first is None else Offset(first),
        end=None if upto is None else Offset(upto),
    )


@pytest.mark.parametrize(
    ("seen", "fate"),
    [
        (transaction(part(A0, 90), part(A1, 20)), TransactionArrival.PARTIAL),
        (transaction(part(A0, 90), part(A1, 40), part(B0, None)), TransactionArrival.PARTIAL),
        (transaction(part(A0, 93), part(A1, 20)), TransactionArrival.ABSENT),
        (transaction(part(A0, 90), part(A1, 10)), TransactionArrival.MAYBE_PARTIAL),
        (transaction(part(A0, 95), part(A1, None)), TransactionArrival.UNKNOWN),
        (transaction(part(A0, 90), part(Partition("gone", 0), 4)), TransactionArrival.UNKNOWN),
        (transaction(part(A0, 80, 93), part(A1, 20, 25), state=TRANSACTION_OVER), TransactionArrival.PARTIAL),
        (transaction(part(A0, 80, 94), part(A1, 10, 20), state=TRANSACTION_OVER), TransactionArrival.MAYBE_PARTIAL),
        (transaction(part(A0, None, 93), part(A1, 10, 20), state=TRANSACTION_OVER), TransactionArrival.COMPLETE),
    ],
)
def test_what_has_arrived_of_a_transaction(
    view: MirrorSnapshot, seen: ObservedTransaction, fate: TransactionArrival
) -> None:
    loss = replace(view, source_observation=replace(SIGHTING, transactions=(seen,))).loss
    assert (
        [t.arrival for t in loss.transactions] == [fate]
        if fate is not TransactionArrival.COMPLETE
        else loss.transactions == ()
    )
    assert [t.id for t in loss.cut_transactions] == (["tx"] if fate is TransactionArrival.PARTIAL else [])


@pytest.mark.parametrize(
    ("parts", "fate"),
    [
        ([part(Partition("new", 0), 4)], TransactionArrival.ABSENT),
        ([part(A0, 90), part(Partition("new", 0), None)], TransactionArrival.PARTIAL),
        ([part(A0, 93), part(Partition("new", 0), 4)], TransactionArrival.ABSENT),
    ],
)
def test_of_a_transaction_nothing_has_arrived_where_there_is_no_copy(
    view: MirrorSnapshot, parts: list[PartitionTransaction], fate: TransactionArrival
) -> None:
    observation = replace(SIGHTING, transactions=(transaction(*parts),))
    loss = replace(view, source_observation=observation, unmirrored=(Partition("new", 0),)).loss
    assert [t.arrival for t in loss.transactions] == [fate]


def test_a_cut_transaction_names_its_partitions_and_busy_ids_are_named_for_what_came_later(
    view: MirrorSnapshot,
) -> None:
    seen = (
        transaction(part(A0, 90), part(A1, 20)),
        replace(transaction(part(A0, 80, 93), state=TRANSACTION_OVER), id="done"),
        replace(transaction(part(B0, None)), id="idle"),
    )
    loss = replace(view, source_observation=replace(SIGHTING, transactions=seen, unlisted_transactions=3)).loss
    assert [(t.copied, t.not_copied) for t in loss.cut_transactions] == [((A0,), (A1,))]
    assert loss.open_transactional_ids == {"idle": (B0,), "tx": (A0, A1)}
    assert loss.unlisted_transactions == 3


def test_a_run_says_what_became_of_transactions_where_the_copy_has_ended(view: MirrorSnapshot) -> None:
    """Until then a data plane may still have copied: a plan's figures are of before."""
    cut, whole = (
        transaction(part(A0, 90), part(A1, 20)),
        replace(transaction(part(A0, None, 93), part(A1, 10, 20)), id="whole", state=TRANSACTION_OVER),
    )
    seen = replace(SIGHTING, transactions=(cut, whole))
    at_the_plan = dict(
        list_transaction_figures(view.statuses, seen, {A0: Offset(93), A1: Offset(20), B0: Offset(11)}, 106_000)
    )
    assert (at_the_plan[FigureKey.CUT_TRANSACTIONS], at_the_plan[FigureKey.TRANSACTIONS_SEEN_S]) == (1, 6.0)
    assert at_the_plan[FigureKey.DOUBTFUL_TRANSACTIONS] == {"tx": TransactionArrival.PARTIAL}
    assert at_the_plan[FigureKey.TRANSACTIONS_COPIED_TO] == {"tx": "a-0"}
    assert at_the_plan[FigureKey.TRANSACTIONS_MISSING_IN] == {"tx": "a-1"}
    later = dict(
        list_transaction_figures(view.statuses, seen, {A0: Offset(93), A1: Offset(30), B0: Offset(11)}, 106_000)
    )
    assert (later[FigureKey.CUT_TRANSACTIONS], later[FigureKey.TRANSACTIONS_SEEN_S]) == (0, 6.0)
    assert later[FigureKey.DOUBTFUL_TRANSACTIONS] == {"tx": TransactionArrival.MAYBE_PARTIAL}
    assert later[FigureKey.TRANSACTIONS_COPIED_TO] == {"tx": "a-0, a-1"}
    assert dict(list_transaction_figures(view.statuses, None, {}, 106_000)) == {
        FigureKey.CUT_TRANSACTIONS: None,
        FigureKey.TRANSACTIONS_SEEN_S: None,
        FigureKey.DOUBTFUL_TRANSACTIONS: None,
    }
    many = dict(
        list_transaction_figures(
            view.statuses, replace(seen, transactions=(whole,), unlisted_transactions=500), {}, 106_000
        )
    )
    assert many[FigureKey.DOUBTFUL_TRANSACTIONS] == {"whole": TransactionArrival.UNKNOWN}, "positions are not known"
    assert (many[FigureKey.UNLISTED_TRANSACTIONS], many[FigureKey.OPEN_TRANSACTIONAL_IDS]) == (500, 0)


# -- what is on the source and not recorded, or has no copy ------------------------------------------------------------


WIDENED = replace(
    SIGHTING,
    topics=(
        ObservedTopic(topic="a", ends=(100, 50, 300, 250), starts=((2, 0), (3, 50))),
        ObservedTopic(topic="b", ends=(10,)),
        ObservedTopic(topic="new", ends=(7, None), id="n", starts=((0, 0),)),
    ),
)
A2, A3, N0, N1 = Partition("a", 2), Partition("a", 3), Partition("new", 0), Partition("new", 1)


def test_partitions_that_no_plan_knew_count_with_their_whole_log_and_are_named(view: MirrorSnapshot) -> None:
    lost = replace(view, source_observation=WIDENED)
    loss = lost.loss
    assert {p: one.missing for p, one in loss.uncopied_losses.items()} == {A2: 300, A3: 200, N0: 7, N1: None}
    assert loss.known_missing == 37 + 300 + 200 + 7
    assert loss.unknown_partitions == (N1,)
    assert loss.observed_s == 4.0, "of those whose end was seen; nobody has ever seen that of new-1"
    assert loss.text.startswith(format_sentence("loss_bound_without_copies", 544, 1, 507, 4))
    assert format_behind(loss).startswith("unknown of ")
    plan = decide_failover(lost).plan
    assert (plan.figures[FigureKey.LOST_OFFSETS], plan.figures[FigureKey.LOST_UNKNOWN_PARTITIONS]) == (544, 1)
    assert plan.figures[FigureKey.UNCOPIED_PARTITIONS] == 4
    assert plan.figures[FigureKey.UNCOPIED_OFFSETS] == 507
    assert plan.figures[FigureKey.UNCOPIED_UNKNOWN_PARTITIONS] == 1
    assert plan.figures[FigureKey.UNCOPIED_SIZES] == {"a-2": 300, "a-3": 200, "new-0": 7, "new-1": None}
    assert plan.figures[FigureKey.UNCOPIED_REASONS] == dict.fromkeys(
        ("a-2", "a-3", "new-0", "new-1"), UncopiedReason.NOT_MIRRORED
    )
    assert any(
        "HAS NO COPY of these partitions of east" in line and "a-2" in line for line in map(str, plan.warnings[:2])
    )
    assert plan.partitions["a-2"] == {
        FigureKey.UNCOPIED_REASON: UncopiedReason.NOT_MIRRORED,
        FigureKey.MISSING_OFFSETS: 300,
        FigureKey.END_SEEN_S: 4.0,
    }
    assert plan.figures[FigureKey.COMPLETE_UP_TO_MS] == {ALL_TOPICS: None}
    assert limit_of(plan.figures).startswith("a-2 (not mirrored yet), ")
    assert isinstance(plan.forecast, PlanForecast)
    assert plan.forecast.lost_offsets == 544


def test_an_approval_is_bound_to_what_has_no_copy(view: MirrorSnapshot) -> None:
    before, after = decide_failover(view).plan, decide_failover(replace(view, source_observation=WIDENED)).plan
    assert before.hash != after.hash
    more = decide_failover(replace(view, source_observation=replace(WIDENED, topics=WIDENED.topics[:2]))).plan
    assert more.hash not in (before.hash, after.hash)
    later = replace(
        WIDENED, at_ms=103_000, topics=(replace(WIDENED.topics[0], ends=(100, 50, 900, 900)), *WIDENED.topics[1:])
    )
    assert decide_failover(replace(view, source_observation=later)).plan.hash == after.hash, (
        "no number that always moves"
    )


def test_a_topic_that_was_deleted_and_made_anew_counts_as_a_whole_whatever_the_old_copy_holds(
    view: MirrorSnapshot,
) -> None:
    a = ObservedTopic(topic="a", ends=(60, 5), id="another", starts=((0, 10), (1, 0)))
    lost = replace(view, source_observation=replace(SIGHTING, topics=(a, SIGHTING.topics[1])))
    loss = lost.loss
    assert {p: (one.missing, one.position) for p, one in loss.uncopied_losses.items()} == {
        A0: (50, None),
        A1: (5, None),
    }
    assert {one.uncopied_reason for one in loss.uncopied_losses.values()} == {UncopiedReason.RECREATED}
    figures = dict(list_plan_figures(lost))
    assert figures[FigureKey.COMPLETE_UP_TO_MS] == {ALL_TOPICS: None}
    assert limit_of(figures).startswith("a-0 (created anew on the source)")
    recorded = {p: replace(s, source_topic_id="another") if p.topic == "a" else s for p, s in view.statuses.items()}
    copied = replace(lost, statuses=recorded).loss
    assert not copied.uncopied_losses, "the mirror has taken it up since"
    assert copied.partitions[A0].missing == 0


def test_a_topic_that_a_sync_has_seen_made_anew_has_no_copy_where_no_data_plane_observed_it(
    view: MirrorSnapshot,
) -> None:
    failed = {
        p: replace(s, state=PartitionState.FAILED, reason="created anew", kind=FailureKind.RECREATED)
        for p, s in view.statuses.items()
        if p.topic == "a"
    }
    for observation in (SIGHTING, None):
        lost = replace(view, statuses={**view.statuses, **failed}, source_observation=observation)
        assert {p: (row.missing, row.uncopied_reason) for p, row in lost.loss.uncopied_losses.items()} == dict.fromkeys(
            failed, (None, UncopiedReason.RECREATED)
        )
        assert dict(list_plan_figures(lost))[FigureKey.COMPLETE_UP_TO_MS] == {ALL_TOPICS: None}


@pytest.mark.parametrize(("position", "missing"), [(40, 60), (70, 40), (100, 40)])
def test_a_copy_that_lags_behind_where_the_source_began_to_write_again_lacks_what_is_before_it_too(
    view: MirrorSnapshot, position: int, missing: int
) -> None:
    """The source has lost its end, from 60 on, and has written other records up to 100."""
    a = replace(SIGHTING.topics[0], rewritten=((0, 5, 60),))
    recorded = {p: replace(s, source_epoch=5) if p == A0 else s for p, s in view.statuses.items()}
    observation = replace(SIGHTING, topics=(a, SIGHTING.topics[1]))
    positions = {**DESTINATION.positions, A0: Offset(position)}
    lost = replace(
        view,
        statuses=recorded,
        source_observation=observation,
        destination=replace(DESTINATION, positions=positions),
    )
    bound = lost.loss
    assert (bound.partitions[A0].missing, bound.partitions[A0].uncopied_reason) == (missing, UncopiedReason.DIVERGED)
    assert count_missing(recorded, observation, positions) == bound.missing_in_all


def test_what_lacks_its_beginning_is_counted_everywhere_and_not_said_to_have_no_copy(view: MirrorSnapshot) -> None:
    cut = cut_at_60(view)
    bound = cut.loss
    assert bound.known_missing == 37 + 60
    assert "no copy" not in bound.text
    [warning] = warn_uncopied(cut)
    assert warning == Finding("deleted_early", "west", source="east", listed="a-0 [0, 60)")
    assert count_missing(cut.statuses, SIGHTING, DESTINATION.positions, cut.early_deletions) == 37 + 60
    both = warn_uncopied(replace(cut, source_observation=WIDENED))
    uncopied, deleted = both
    assert (uncopied.code, deleted) == ("partitions_uncopied", warning)
    assert "a-0" not in str(uncopied)


def test_a_source_that_answers_is_not_said_to_lose_nothing_where_a_copy_was_cut(view: MirrorSnapshot) -> None:
    """Before the cut partition has FAILED, too."""
    topics = {name: ClusterTopic(id="s", partitions=count) for name, count in (("a", 2), ("b", 1))}
    source = SourceSnapshot(cluster_id="E", topics=topics, stable_ends={}, authorizer=True, transactions=())
    for snapshot, lacking in ((view, 0), (cut_at_60(view), 1)):
        warnings = decide_failover(replace(snapshot, source=source)).plan.warnings
        [answers] = [warning for warning in warnings if warning.code == "source_answers"]
        assert (answers.values["failed"], count_failed(warnings)) == (lacking, lacking)


@pytest.mark.parametrize(("rewritten", "foreign", "missing"), [(60, 80, 40), (80, 60, 40)])
def test_what_others_wrote_counts_from_the_first_offset_that_any_of_them_took(
    view: MirrorSnapshot, rewritten: int, foreign: int, missing: int
) -> None:
    a = replace(SIGHTING.topics[0], rewritten=((0, 5, rewritten),))
    lost = replace(
        view,
        statuses={p: replace(s, source_epoch=5) for p, s in view.statuses.items()},
        source_observation=replace(SIGHTING, topics=(a, SIGHTING.topics[1])),
        destination=replace(DESTINATION, foreign_starts={A0: Offset(foreign)}),
    )
    assert lost.loss.partitions[A0].missing == missing


def test_a_copy_agrees_up_to_the_first_of_two_differences() -> None:
    diverged = replace(status(A0, "x"), kind=FailureKind.DIVERGED, failed_at=Offset(150), source_epoch=5)
    a = replace(SIGHTING.topics[0], rewritten=((0, 5, 100),))
    assert find_agreed_ends({A0: diverged}, replace(SIGHTING, topics=(a,))) == {A0: 100}


def test_of_an_empty_log_nothing_is_missing(view: MirrorSnapshot) -> None:
    empty = ObservedTopic(topic="new", ends=(0, 9), id="n", starts=((0, 0), (1, 9)))
    whole = replace(
        view,
        source_observation=replace(SIGHTING, topics=(*SIGHTING.topics, empty)),
        destination=replace(DESTINATION, positions={A0: Offset(100), A1: Offset(50), B0: Offset(11)}),
    )
    figures = dict(list_plan_figures(whole))
    assert figures[FigureKey.COMPLETE_UP_TO_MS] == {ALL_TOPICS: 98_000}
    assert figures[FigureKey.UNCOPIED_PARTITIONS] == 2
    assert figures[FigureKey.UNCOPIED_SIZES] == {"new-0": 0, "new-1": 0}


def test_topics_are_known_as_of_when_they_were_listed(view: MirrorSnapshot) -> None:
    whole = replace(DESTINATION, positions={A0: Offset(100), A1: Offset(50), B0: Offset(11)})
    old = replace(view, destination=whole, source_observation=replace(SIGHTING, listed_ms=80_000))
    figures = dict(list_plan_figures(old))
    assert figures[FigureKey.TOPICS_LISTED_S] == 24.0
    assert figures[FigureKey.COMPLETE_UP_TO_MS] == {ALL_TOPICS: 80_000}
    assert limit_of(figures) == "topic_list"
    assert format_behind(old.loss).startswith("24.0 s: all topics of the source were listed then")
    never = replace(old, source_observation=replace(SIGHTING, listed_ms=None))
    figures = dict(list_plan_figures(never))
    assert figures[FigureKey.TOPICS_LISTED_S] is None
    assert figures[FigureKey.UNCOPIED_PARTITIONS] is None
    assert figures[FigureKey.COMPLETE_UP_TO_MS] == {ALL_TOPICS: None}
    assert limit_of(figures) == "topic_list"


def test_what_a_look_at_the_living_source_finds_is_named_though_the_data_plane_has_not_seen_it(
    view: MirrorSnapshot,
) -> None:
    loss = replace(view, unmirrored=(N0,)).loss
    assert loss.uncopied_losses.keys() == {N0}
    assert loss.unknown_partitions == (N0,)


def test_a_topic_that_nobody_observed_takes_nothing_away_from_what_is_known_of_others(view: MirrorSnapshot) -> None:
    """Partitions of an unknown size count apart; up to when all of it is complete is unknown."""
    known = replace(view, source_observation=replace(SIGHTING, offsets_per_s=100.0))
    new = replace(known, unmirrored=(N0, N1, Partition("a", 2)))
    before, plan = decide_failover(known).plan, decide_failover(new).plan
    assert isinstance(before.forecast, PlanForecast)
    assert plan.forecast == before.forecast
    assert (before.forecast.unseen_s, before.forecast.unseen_offsets) == (6.0, 599)
    assert plan.figures[FigureKey.SOURCE_SEEN_S] == 6.0
    assert plan.figures[FigureKey.LOST_UNKNOWN_PARTITIONS] == 3
    assert plan.figures[FigureKey.COMPLETE_UP_TO_MS] == {ALL_TOPICS: None}
    assert format_behind(new.loss).startswith("unknown of ")
    [uncopied] = [warning for warning in plan.warnings if warning.code == "partitions_uncopied"]
    assert (uncopied.values["count"], uncopied.values["offsets"], uncopied.values["unknown"]) == (3, None, 3)
    assert (uncopied.values["unknown_topics"], uncopied.values["counted_topics"]) == (("new (2 partitions)",), ())
    assert find_uncounted_loss(plan) == UncountedLoss(unknown_topics=("new (2 partitions)",), unknown_partitions=1)
    assert find_uncounted_loss(before) == UncountedLoss()


def test_topics_that_are_lost_whole_are_named_also_where_their_records_were_counted(view: MirrorSnapshot) -> None:
    seen = ObservedTopic(topic="new", ends=(7, 9), id="n", starts=((0, 0), (1, 9)))
    plan = decide_failover(replace(view, source_observation=replace(SIGHTING, topics=(*SIGHTING.topics, seen)))).plan
    assert plan.figures[FigureKey.LOST_OFFSETS] == 37 + 7
    assert find_uncounted_loss(plan) == UncountedLoss(counted_topics=("new (2 partitions)",))


@pytest.mark.parametrize("is_listed", [True, False])
def test_the_loss_of_a_mirror_without_any_partition_is_unknown_and_not_0(
    view: MirrorSnapshot, *, is_listed: bool
) -> None:
    empty = replace(view, statuses={}, source_observation=replace(SIGHTING, topics=()) if is_listed else None)
    bound = empty.loss
    assert bound.missing_in_all is None
    assert "offset" not in bound.text
    for snapshot in (empty, replace(empty, mode=RunMode.UNPLANNED)):
        assert dict(list_loss_figures(snapshot))[FigureKey.LOST_OFFSETS] is None
        plan = decide_failover(snapshot).plan
        assert plan.figures[FigureKey.LOST_OFFSETS] is None
        assert isinstance(plan.forecast, PlanForecast)
        assert plan.forecast.lost_offsets is None
    assert dict(list_loss_figures(replace(empty, is_drained=True)))[FigureKey.LOST_OFFSETS] == 0, "nothing is missing"


NEVER_MADE = replace(status(B0, "broker refused: collides with b_"), destination_topic_id="", kind=FailureKind.REFUSED)


def test_a_topic_that_was_never_made_is_lost_as_a_whole_and_not_promoted_without_its_newer_records(
    view: MirrorSnapshot,
) -> None:
    seen = replace(SIGHTING, topics=(SIGHTING.topics[0], ObservedTopic(topic="b", ends=(10,), starts=((0, 4),))))
    absent = replace(DESTINATION, topics={"a": DESTINATION.topics["a"]})
    lost = replace(view, statuses={**view.statuses, B0: NEVER_MADE}, source_observation=seen, destination=absent)
    decision = decide_failover(replace(lost, left_behind=frozenset({A0, A1})))
    assert decision.reasons == (), "the others are worth it"
    assert lost.loss.uncopied_losses[B0].missing == 6
    assert "b" not in decision.scope.topic_names
    warnings = "\n".join(map(str, decision.plan.warnings))
    assert Finding("topic_never_created", "b", destination="west", mirror="m") in decision.plan.warnings
    assert "b-0 (no copy: 6 offsets, its end last seen 4.0 s ago)" in warnings
    assert "without their newer records" not in warnings
    stranger = replace(absent, topics=DESTINATION.topics, positions=DESTINATION.positions)
    assert replace(lost, destination=stranger).loss.uncopied_losses[B0].missing == 6, "another topic has its name"
    assert (
        decide_failover(replace(lost, statuses=view.statuses, destination=DESTINATION)).plan.hash != decision.plan.hash
    )


def test_partitions_that_the_destination_would_not_add_leave_the_others_of_their_topic_in(view: MirrorSnapshot) -> None:
    added = {p: replace(status(p, "cannot widen"), destination_topic_id="") for p in (A2, A3)}
    old = {p: status(p, "cannot widen") for p in (A0, A1)}
    lost = replace(view, statuses={**view.statuses, **old, **added}, source_observation=WIDENED)
    assert find_lost_topics(lost) == frozenset()
    assert lost.loss.uncopied_losses[A2].missing == 300
    assert "a" in decide_failover(lost).scope.topic_names
