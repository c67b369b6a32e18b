"""The loss bound: three clocks, what is unknown, and which transactions would be cut in half."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_core.decide.failover import decide
from mirror_core.decide.figures import figures_of
from mirror_core.decide.loss import loss_of
from mirror_core.decide.loss_figures import (
    CUT,
    IN_DOUBT,
    LISTED,
    NOT_MIRRORED,
    behind,
    cut_at,
    in_words,
    loss_figures,
)
from mirror_core.decide.scope import lost_topics
from mirror_core.decide.view import DestinationView, Topic, Unseen, View
from mirror_core.model.loss import Fate, Uncopied
from mirror_core.model.mirror import Desired, FailureKind, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.reckoning import Foretold
from mirror_core.model.run import Mode
from mirror_core.model.sighting import (
    OVER,
    Heartbeat,
    Sighting,
    TopicSeen,
    TransactionPart,
    TransactionSeen,
)

A0, A1, B0 = Partition("a", 0), Partition("a", 1), Partition("b", 0)
M = MirrorName("m")


def status(partition: Partition, reason: str | None = None) -> PartitionStatus:
    state = PartitionState.FAILED if reason else PartitionState.MIRRORING
    return PartitionStatus(
        partition=partition, state=state, reason=reason, source_topic_id="s", destination_topic_id="d"
    )


def beat(partition: int, at_ms: int) -> Heartbeat:
    return Heartbeat(partition=partition, number=7, at_ms=at_ms, mirror="m", driver="host/1")


SIGHTING = Sighting(
    mirror=M,
    at_ms=100_000,
    topics=(TopicSeen(topic="a", ends=(100, 50), ago_ms=(0, 2_000)), TopicSeen(topic="b", ends=(10,))),
    listed_ms=100_000,
    transactions_ms=100_000,
)
DESTINATION = DestinationView(
    cluster_id="W",
    topics={"a": Topic(id="d", partitions=2), "b": Topic(id="d", partitions=1)},
    positions={A0: Offset(93), A1: Offset(20), B0: Offset(11)},
    authorizer=True,
    heartbeats=(beat(0, 99_000), beat(1, 98_500)),
)


@pytest.fixture
def view() -> View:
    return View(
        mirror=Mirror(
            name=M,
            source=ClusterName("east"),
            destination=ClusterName("west"),
            source_id="E",
            destination_id="W",
            topics=("a", "b"),
            producer_id=1 << 62,
            desired=Desired.STARTED,
            created_ms=1,
        ),
        mode=Mode.UNPLANNED,
        statuses={p: status(p) for p in (B0, A1, A0)},
        source=Unseen("dead"),
        destination=DESTINATION,
        lease=None,
        active_run=None,
        grants=(),
        forecast=None,
        now_ms=104_000,
        sighting=SIGHTING,
    )


def test_the_three_clocks(view: View) -> None:
    loss = loss_of(view)
    assert {p: one.missing for p, one in loss.partitions.items()} == {A0: 7, A1: 30, B0: 0}
    assert loss.known == 37
    assert loss.unknown == ()
    assert loss.silent_s == 6.0, "a-1 was looked at 2 s before the others"
    assert loss.heartbeat_s == 5.5, "the broker whose newest is older"
    assert loss.bound == (
        "at least 37 offset(s), and whatever was acknowledged in the 6.0 s since the source was last looked at"
    )


def test_behind_in_seconds_counts_from_when_a_partition_lacked_nothing(view: View) -> None:
    assert view.sighting is not None
    assert behind(loss_of(view)) == "unknown of a-0", "nobody saw it whole"
    a = replace(view.sighting.topics[0], whole_ago_ms=((0, 7_000), (1, 1_500)))
    seen = replace(view, sighting=replace(view.sighting, topics=(a, *view.sighting.topics[1:])))
    loss = loss_of(seen)
    assert [one.behind_s for one in loss.partitions.values()] == [11.0, 5.5, 4.0], "b-0 lacks nothing that was seen"
    assert behind(loss).startswith("11.0 s: the destination holds all that a-0 had then")
    failed = status(A0, "gone")
    assert behind(loss_of(replace(seen, statuses={**seen.statuses, A0: failed}))).startswith("5.5 s")
    assert behind(loss_of(replace(seen, destination=Unseen("dead, too")))).startswith("unknown of ")
    alone = replace(SIGHTING, topics=(TopicSeen(topic="a", ends=(100,)),))
    assert behind(loss_of(replace(seen, statuses={A0: failed}, sighting=alone))) == "unknown: no partition is copied"


def test_the_bound_widens_with_every_second_of_silence_and_what_is_known_to_be_missing_does_not(view: View) -> None:
    later = loss_of(replace(view, now_ms=view.now_ms + 1_000))
    assert (later.known, later.silent_s, later.heartbeat_s) == (37, 7.0, 6.5)


def test_ages_by_a_clock_that_is_behind_are_unknown_and_never_0(view: View) -> None:
    a = replace(SIGHTING.topics[0], whole_ago_ms=((0, 7_000), (1, 1_500)))
    sighting = replace(SIGHTING, topics=(a, *SIGHTING.topics[1:]))
    ntp = loss_of(replace(view, sighting=sighting, now_ms=99_000))
    assert (ntp.silent_s, ntp.heartbeat_s, ntp.clocks_differ) == (1.0, 0.5, False), "what NTP leaves is no doubt"
    slow = replace(view, sighting=sighting, now_ms=98_000)
    loss = loss_of(slow)
    assert loss.clocks_differ
    assert (loss.known, loss.silent_s, loss.heartbeat_s) == (37, None, 0.0)
    assert loss_of(replace(slow, now_ms=97_000)).heartbeat_s is None
    assert {p: one.age_s for p, one in loss.partitions.items()} == {A0: None, A1: 0.0, B0: None}
    assert behind(loss) == "unknown of b-0"
    assert "when that was is unknown" in loss.bound
    figures = dict(loss_figures(slow))
    assert figures["source last looked at"] == "at an unknown time (clocks differ)"
    assert figures["transactions cut in half"].startswith("0, of those seen at an unknown time (clocks differ); ")
    beats = dict(loss_figures(replace(slow, now_ms=97_700)))["newest heartbeats on the destination"]
    assert beats == "partition 0: number 7, of unknown age (clocks differ), partition 1: number 7, 0.0 s old"
    assert in_words(loss.partitions[A0]).endswith("its end last seen at an unknown time (clocks differ)")
    assert dict(loss_figures(replace(slow, sighting=None)))["source last looked at"] == "never"


def test_what_is_not_known_is_said_and_not_taken_for_nothing(view: View) -> None:
    never = loss_of(replace(view, sighting=None))
    assert (never.known, never.unknown, never.silent_s) == (0, (A0, A1, B0), None)
    assert never.bound.startswith("unknown: ")
    one = replace(SIGHTING, topics=(TopicSeen(topic="a", ends=(100, None)), TopicSeen(topic="b", ends=(10,))))
    partly = loss_of(replace(view, sighting=one))
    assert (partly.known, partly.unknown, partly.silent_s) == (7, (A1,), None)
    assert partly.bound == (
        "at least 7 offset(s) (unknown of 1 partition(s)), and whatever was acknowledged since it was last looked at, "
        "and when that was is unknown"
    )
    blind = loss_of(replace(view, destination=Unseen("dead, too")))
    assert (blind.known, len(blind.unknown), blind.heartbeat_s) == (0, 3, None)
    assert blind.silent_s == 6.0
    unplaced = loss_of(replace(view, destination=replace(DESTINATION, positions={A0: Offset(93)}, heartbeats=())))
    assert (unplaced.known, unplaced.unknown, unplaced.heartbeat_s) == (7, (A1, B0), None)


def test_failed_and_leaderless_partitions_stand_apart_from_the_seconds(view: View) -> None:
    old = Sighting(
        mirror=M,
        at_ms=100_000,
        topics=(
            TopicSeen(topic="a", ends=(100, 50), ago_ms=(0, 60_000), leaderless=(1,)),
            TopicSeen(topic="b", ends=(10,), ago_ms=(90_000,)),
        ),
    )
    loss = loss_of(
        replace(view, sighting=old, statuses={A0: status(A0), A1: status(A1), B0: status(B0, "somebody wrote")})
    )
    assert loss.silent_s == 4.0
    assert loss.partitions[A1].leaderless
    assert loss.partitions[A1].age_s == 64.0
    assert loss.partitions[B0].failed
    assert loss.known == 37, "their offsets count"


def transaction(*parts: TransactionPart, state: str = "Ongoing") -> TransactionSeen:
    return TransactionSeen(id="tx", producer_id=5, state=state, parts=parts)


def part(partition: Partition, first: int | None, upto: int | None = None) -> TransactionPart:
    return TransactionPart(
        partition=partition,
        first=None if first is None else Offset(first),
        upto=None if upto is None else Offset(upto),
    )


@pytest.mark.parametrize(
    ("seen", "fate"),
    [
        (transaction(part(A0, 90), part(A1, 20)), Fate.CUT),
        (transaction(part(A0, 90), part(A1, 40), part(B0, None)), Fate.CUT),
        (transaction(part(A0, 93), part(A1, 20)), Fate.ABSENT),
        (transaction(part(A0, 90), part(A1, 10)), Fate.BEGUN),
        (transaction(part(A0, 95), part(A1, None)), Fate.UNKNOWN),
        (transaction(part(A0, 90), part(Partition("gone", 0), 4)), Fate.UNKNOWN),
        (transaction(part(A0, 80, 93), part(A1, 20, 25), state=OVER), Fate.CUT),
        (transaction(part(A0, 80, 94), part(A1, 10, 20), state=OVER), Fate.BEGUN),
        (transaction(part(A0, None, 93), part(A1, 10, 20), state=OVER), Fate.THERE),
    ],
)
def test_what_has_arrived_of_a_transaction(view: View, seen: TransactionSeen, fate: Fate) -> None:
    loss = loss_of(replace(view, sighting=replace(SIGHTING, transactions=(seen,))))
    assert [t.fate for t in loss.transactions] == [fate] if fate is not Fate.THERE else loss.transactions == ()
    assert [t.id for t in loss.cut] == (["tx"] if fate is Fate.CUT else [])


def test_a_cut_transaction_names_its_partitions_and_busy_ids_are_named_for_what_came_later(view: View) -> None:
    seen = (
        transaction(part(A0, 90), part(A1, 20)),
        replace(transaction(part(A0, 80, 93), state=OVER), id="done"),
        replace(transaction(part(B0, None)), id="idle"),
    )
    loss = loss_of(replace(view, sighting=replace(SIGHTING, transactions=seen, unnamed=3)))
    assert [(t.copied, t.not_copied) for t in loss.cut] == [((A0,), (A1,))]
    assert loss.busy == {"idle": (B0,), "tx": (A0, A1)}
    assert loss.unnamed == 3


def test_a_run_says_what_became_of_transactions_where_the_copy_has_ended(view: View) -> None:
    """Until then a data plane may still have copied: a plan's figures are of before."""
    cut, whole = (
        transaction(part(A0, 90), part(A1, 20)),
        replace(transaction(part(A0, None, 93), part(A1, 10, 20)), id="whole", state=OVER),
    )
    seen = replace(SIGHTING, transactions=(cut, whole))
    at_the_plan = dict(cut_at(view.statuses, seen, {A0: Offset(93), A1: Offset(20), B0: Offset(11)}, 106_000))
    assert at_the_plan[CUT] == "1, of those seen 6.0 s ago; of later ones it is not known"
    assert at_the_plan[IN_DOUBT].startswith("transaction 'tx' (Ongoing when last seen), if it was committed, is cut in")
    later = dict(cut_at(view.statuses, seen, {A0: Offset(93), A1: Offset(30), B0: Offset(11)}, 106_000))
    assert later[CUT].startswith("0, of those seen 6.0 s ago")
    assert later[IN_DOUBT].startswith(
        "transaction 'tx' (Ongoing when last seen) has begun on a-0, a-1; whether its end"
    )
    assert dict(cut_at(view.statuses, None, {}, 106_000)) == {CUT: "unknown", IN_DOUBT: "unknown"}
    many = dict(cut_at(view.statuses, replace(seen, transactions=(whole,), unnamed=500), {}, 106_000))
    assert many[IN_DOUBT].startswith("transaction 'whole' (Over"), "positions are not known"
    assert "500 that were too many to be noted; later ones of 0 id(s) that were busy then" in many[IN_DOUBT]


# -- what is on the source and not recorded, or has no copy ------------------------------------------------------------


WIDENED = replace(
    SIGHTING,
    topics=(
        TopicSeen(topic="a", ends=(100, 50, 300, 250), starts=((2, 0), (3, 50))),
        TopicSeen(topic="b", ends=(10,)),
        TopicSeen(topic="new", ends=(7, None), id="n", starts=((0, 0),)),
    ),
)
A2, A3, N0, N1 = Partition("a", 2), Partition("a", 3), Partition("new", 0), Partition("new", 1)


def test_partitions_that_no_plan_knew_count_with_their_whole_log_and_are_named(view: View) -> None:
    lost = replace(view, sighting=WIDENED)
    loss = loss_of(lost)
    assert {p: one.missing for p, one in loss.uncopied.items()} == {A2: 300, A3: 200, N0: 7, N1: None}
    assert loss.known == 37 + 300 + 200 + 7
    assert loss.unknown == (N1,)
    assert loss.silent_s is None, "nobody has ever seen the end of new-1"
    assert loss.bound.startswith(
        "at least 544 offset(s) (unknown of 1 partition(s)), 507 of them in 4 partition(s) that have no copy, and "
    )
    assert behind(loss).startswith("unknown of ")
    plan = decide(lost).plan
    assert plan.figures[NOT_MIRRORED] == (
        "4 partition(s), 507 offset(s), and what 1 of them hold is unknown: a-2 (not mirrored yet: 300 offset(s)), a-3 "
        "(not mirrored yet: 200 offset(s)), new-0 (not mirrored yet: 7 offset(s)), new-1 (not mirrored yet: unknown)"
    )
    assert any("HAS NO COPY of these partitions of east" in line and "a-2" in line for line in plan.warnings[:2])
    assert (
        plan.partitions["a-2"] == "not mirrored yet, all of it is missing, 300 offset(s), its end last seen 4.0 s ago"
    )
    assert plan.figures["complete up to, all topics together"].startswith("unknown: of a-2 (not mirrored yet), ")
    assert isinstance(plan.foretold, Foretold)
    assert plan.foretold.lost == 544


def test_an_approval_is_bound_to_what_has_no_copy(view: View) -> None:
    before, after = decide(view).plan, decide(replace(view, sighting=WIDENED)).plan
    assert before.hash != after.hash
    more = decide(replace(view, sighting=replace(WIDENED, topics=WIDENED.topics[:2]))).plan
    assert more.hash not in (before.hash, after.hash)
    later = replace(
        WIDENED, at_ms=103_000, topics=(replace(WIDENED.topics[0], ends=(100, 50, 900, 900)), *WIDENED.topics[1:])
    )
    assert decide(replace(view, sighting=later)).plan.hash == after.hash, "no number that always moves"


def test_a_topic_that_was_deleted_and_made_anew_counts_as_a_whole_whatever_the_old_copy_holds(view: View) -> None:
    a = TopicSeen(topic="a", ends=(60, 5), id="another", starts=((0, 10), (1, 0)))
    lost = replace(view, sighting=replace(SIGHTING, topics=(a, SIGHTING.topics[1])))
    loss = loss_of(lost)
    assert {p: (one.missing, one.position) for p, one in loss.uncopied.items()} == {A0: (50, None), A1: (5, None)}
    assert {one.uncopied for one in loss.uncopied.values()} == {Uncopied.RECREATED}
    assert dict(figures_of(lost))["complete up to, all topics together"].startswith("unknown: of a-0 (created anew")
    recorded = {p: replace(s, source_topic_id="another") if p.topic == "a" else s for p, s in view.statuses.items()}
    copied = loss_of(replace(lost, statuses=recorded))
    assert not copied.uncopied, "the mirror has taken it up since"
    assert copied.partitions[A0].missing == 0


def test_of_an_empty_log_nothing_is_missing(view: View) -> None:
    empty = TopicSeen(topic="new", ends=(0, 9), id="n", starts=((0, 0), (1, 9)))
    whole = replace(
        view,
        sighting=replace(SIGHTING, topics=(*SIGHTING.topics, empty)),
        destination=replace(DESTINATION, positions={A0: Offset(100), A1: Offset(50), B0: Offset(11)}),
    )
    figures = dict(figures_of(whole))
    assert figures["complete up to, all topics together"].startswith("1970-01-01 00:01:38")
    assert figures[NOT_MIRRORED].startswith("2 partition(s), 0 offset(s): new-0 ")


def test_topics_are_known_as_of_when_they_were_listed(view: View) -> None:
    whole = replace(DESTINATION, positions={A0: Offset(100), A1: Offset(50), B0: Offset(11)})
    old = replace(view, destination=whole, sighting=replace(SIGHTING, listed_ms=80_000))
    figures = dict(figures_of(old))
    assert figures["loss"].endswith("; topics that were created in the 24.0 s since all were listed are not in this")
    assert figures[LISTED] == "24.0 s ago"
    assert figures["complete up to, all topics together"] == (
        "1970-01-01 00:01:20.000 UTC; the source's topics were listed then"
    )
    assert behind(loss_of(old)).startswith("24.0 s: all topics of the source were listed then")
    never = replace(old, sighting=replace(SIGHTING, listed_ms=None))
    figures = dict(figures_of(never))
    assert figures["loss"].endswith("are not in this: when they were listed is unknown")
    assert figures[NOT_MIRRORED] == "unknown: when the source's topics were listed is not known"
    assert figures["complete up to, all topics together"].startswith("unknown: when the source's topics were listed")


def test_what_a_look_at_the_living_source_finds_is_named_though_the_data_plane_has_not_seen_it(view: View) -> None:
    loss = loss_of(replace(view, unmirrored=(N0,)))
    assert loss.uncopied.keys() == {N0}
    assert loss.unknown == (N0,)


NEVER_MADE = replace(status(B0, "broker refused: collides with b_"), destination_topic_id="", kind=FailureKind.REFUSED)


def test_a_topic_that_was_never_made_is_lost_as_a_whole_and_not_promoted_without_its_newer_records(view: View) -> None:
    seen = replace(SIGHTING, topics=(SIGHTING.topics[0], TopicSeen(topic="b", ends=(10,), starts=((0, 4),))))
    absent = replace(DESTINATION, topics={"a": DESTINATION.topics["a"]})
    lost = replace(view, statuses={**view.statuses, B0: NEVER_MADE}, sighting=seen, destination=absent)
    decision = decide(lost)
    assert decision.reasons == (), "the others are worth it"
    assert loss_of(lost).uncopied[B0].missing == 6
    assert "b" not in decision.scope.names
    warnings = "\n".join(decision.plan.warnings)
    assert "topic b was never created on west: it is left out; `mirrorbook mirror describe m` says why" in warnings
    assert "b-0 (no copy: 6 offset(s))" in warnings
    assert "without their newer records" not in warnings
    stranger = replace(absent, topics=DESTINATION.topics, positions=DESTINATION.positions)
    assert loss_of(replace(lost, destination=stranger)).uncopied[B0].missing == 6, "another topic has its name"
    assert decide(replace(lost, statuses=view.statuses, destination=DESTINATION)).plan.hash != decision.plan.hash


def test_partitions_that_the_destination_would_not_add_leave_the_others_of_their_topic_in(view: View) -> None:
    added = {p: replace(status(p, "cannot widen"), destination_topic_id="") for p in (A2, A3)}
    old = {p: status(p, "cannot widen") for p in (A0, A1)}
    lost = replace(view, statuses={**view.statuses, **old, **added}, sighting=WIDENED)
    assert lost_topics(lost) == frozenset()
    assert loss_of(lost).uncopied[A2].missing == 300
    assert "a" in decide(lost).scope.names
