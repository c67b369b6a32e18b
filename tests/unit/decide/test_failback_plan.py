"""Plans of a failback: strategies by topic, what would be discarded, and each reason that forbids one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_core.decide.failback_plan import (
    FailbackSnapshot,
    NewPrimary,
    OldSource,
    UnendedTransaction,
    UnmirroredTopic,
    decide_failback,
    find_written_since,
)
from mirror_core.decide.mirror_snapshot import ClusterTopic, UnseenCluster
from mirror_core.decide.truncation import AllowedStrategies, find_divergent_tails
from mirror_core.model.acl import Acl, Operation, Permission, Resource
from mirror_core.model.config_sections import AuthorizerConfig, AuthorizerKind
from mirror_core.model.figures import MAX_RECORDED_NAMES, FigureKey, Figures
from mirror_core.model.findings import Finding
from mirror_core.model.hooks import Hook, HookCommand
from mirror_core.model.mirror import FailureKind, PartitionState
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.pending_fence import FenceAction
from mirror_core.model.run import FailbackStrategy
from tests.support import failback_views
from tests.support.failback_views import A0, A1, B0, OLD, stopped
from tests.support.mirror_views import HOLDER

view = failback_views.view


def old_of(view: FailbackSnapshot) -> OldSource:
    assert isinstance(view.old_source, OldSource)
    return view.old_source


def discarded(start: int, end: int) -> Figures:
    return {
        FigureKey.DISCARDED_OFFSETS: end - start,
        FigureKey.DISCARDED_FROM: start,
        FigureKey.DISCARDED_BEFORE: end,
    }


def list_reasons(view: FailbackSnapshot) -> tuple[Finding, ...]:
    return decide_failback(view).reasons


def reasons_of(view: FailbackSnapshot) -> str:
    return "\n".join(map(str, decide_failback(view).reasons))


def test_a_topic_is_recreated_only_when_one_of_its_partitions_has_a_tail(view: FailbackSnapshot) -> None:
    decision = decide_failback(view)
    assert decision.reasons == ()
    assert decision.plan.strategies == {"a": "recreate", "b": "none"}
    assert decision.plan.figures[FigureKey.DISCARDED_OFFSETS] == 3
    assert decision.plan.partitions["a-1"] == discarded(20, 23)
    assert decision.plan.discarded == 3
    # All of a, and the two that b lacks.
    assert decision.plan.figures[FigureKey.OFFSETS_TO_COPY] == 50 + 20 + 2


def test_what_is_deleted_and_copied_anew_is_counted(view: FailbackSnapshot) -> None:
    new_primary = view.new_primary
    assert isinstance(new_primary, NewPrimary)
    trimmed = replace(new_primary, log_starts={A0: Offset(10)}, sizes={A0: 4_000, A1: 2_000, B0: 9_000})
    figures = decide_failback(replace(view, new_primary=trimmed)).plan.figures
    assert (figures[FigureKey.RECREATED_OFFSETS], figures[FigureKey.RECREATED_BYTES]) == (60, 6_000)
    unknown = decide_failback(replace(view, new_primary=replace(trimmed, sizes={A0: 4_000}))).plan.figures
    assert unknown[FigureKey.RECREATED_BYTES] is None
    level = replace(old_of(view), log_ends={A0: Offset(10), A1: Offset(20), B0: Offset(4)})
    assert FigureKey.RECREATED_OFFSETS not in decide_failback(replace(view, old_source=level)).plan.figures


def test_what_would_be_discarded_is_part_of_what_is_approved(view: FailbackSnapshot) -> None:
    longer = replace(old_of(view), log_ends={A0: Offset(10), A1: Offset(24), B0: Offset(4)})
    assert decide_failback(replace(view, old_source=longer)).plan.hash != decide_failback(view).plan.hash


def test_what_applications_write_on_the_new_primary_is_not(view: FailbackSnapshot) -> None:
    assert isinstance(view.new_primary, NewPrimary)
    busier = replace(view.new_primary, log_ends={A0: Offset(90), A1: Offset(90), B0: Offset(90)})
    assert decide_failback(replace(view, new_primary=busier)).plan.hash == decide_failback(view).plan.hash


def test_a_mirror_that_was_only_stopped_cannot_come_home_since_nobody_has_left(view: FailbackSnapshot) -> None:
    assert view.pending_fence is not None
    for debt in (None, replace(view.pending_fence, action=FenceAction.LIFT)):
        [reason] = decide_failback(replace(view, pending_fence=debt)).reasons
        assert reason == Finding("stopped_without_failover", "m", source="east", may_start=True), debt
    assert not decide_failback(replace(view, pending_fence=replace(view.pending_fence, applied_at_ms=None))).reasons, (
        "silent since the failover"
    )


def test_all_of_a_topic_that_was_created_anew_is_tail(view: FailbackSnapshot) -> None:
    topics = {**old_of(view).topics, "b": ClusterTopic(id="f" * 32, partitions=1)}
    assert find_divergent_tails(view.statuses, topics, old_of(view).log_ends)[B0] == (0, 4)
    assert (
        decide_failback(replace(view, old_source=replace(old_of(view), topics=topics))).plan.strategies["b"]
        == "recreate"
    )


def test_a_topic_that_is_gone_from_the_old_source_is_copied_as_a_whole(view: FailbackSnapshot) -> None:
    old = replace(old_of(view), topics={"a": old_of(view).topics["a"]}, log_ends={A0: Offset(10), A1: Offset(20)})
    decision = decide_failback(replace(view, old_source=old))
    assert decision.reasons == ()
    assert decision.plan.strategies == {"a": "none", "b": "none"}
    assert any("no longer on east" in w for w in map(str, decision.plan.warnings))


def test_a_mirror_of_the_same_topics_to_a_third_cluster_is_named_with_what_becomes_of_it(
    view: FailbackSnapshot,
) -> None:
    north = replace(view.mirror, name=MirrorName("n"), destination=ClusterName("north"))

    def warn(seen: FailbackSnapshot, *topics: str) -> Finding:
        beside = replace(seen, sibling_mirrors=((north, frozenset(topics)),))
        assert decide_failback(beside).plan.hash == decide_failback(seen).plan.hash, "what is approved is the same"
        (finding,) = {*decide_failback(beside).plan.warnings} - {*decide_failback(seen).plan.warnings}
        return finding

    def make_reached(topics: str, recreated: str = "", truncated: str = "") -> Finding:
        ways = {"recreated": list(recreated), "truncated": list(truncated)}
        return Finding("sibling_mirror_reached", "n", topics=list(topics), source="east", destination="north", **ways)

    assert warn(view, "a", "b") == make_reached("ab", recreated="a")
    cut = replace(view, allowed_strategies=AllowedStrategies(FailbackStrategy.OFFLINE))
    assert warn(cut, "a", "b") == make_reached("ab", truncated="a")
    assert warn(view, "b") == make_reached("b")
    gone = replace(old_of(view), topics={"a": old_of(view).topics["a"]}, log_ends={A0: Offset(10), A1: Offset(20)})
    assert warn(replace(view, old_source=gone), "a", "b") == make_reached("ab", recreated="b")
    assert warn(replace(view, old_source=UnseenCluster("dead")), "a") == Finding(
        "sibling_mirror_unseen", "n", topics=["a"], source="east", destination="north"
    )


def test_strategy_none_is_refused_for_a_tail_and_others_by_name(view: FailbackSnapshot) -> None:
    assert "or other ones below it, in a;" in reasons_of(
        replace(view, allowed_strategies=AllowedStrategies(FailbackStrategy.NONE))
    )
    assert reasons_of(replace(view, allowed_strategies=AllowedStrategies(FailbackStrategy.RECREATE))) == ""
    assert reasons_of(replace(view, allowed_strategies=AllowedStrategies(FailbackStrategy.OFFLINE))) == ""


def test_each_obstacle_is_named(view: FailbackSnapshot) -> None:
    going = replace(view.statuses[A0], state=PartitionState.MIRRORING, lmo=None)
    assert "not failed over" in reasons_of(replace(view, statuses={**view.statuses, A0: going}))
    assert "mirrored nothing" in reasons_of(replace(view, statuses={}))
    assert HOLDER.explain() in list_reasons(replace(view, active_runs=(HOLDER,)))
    assert "cluster east could not be read: dead" in reasons_of(replace(view, old_source=UnseenCluster("dead")))
    assert "cluster west could not be read: dead" in reasons_of(replace(view, new_primary=UnseenCluster("dead")))
    assert "cluster east is X" in reasons_of(replace(view, old_source=replace(old_of(view), cluster_id="X")))


def test_a_new_primary_that_is_not_what_it_was_forbids(view: FailbackSnapshot) -> None:
    assert isinstance(view.new_primary, NewPrimary)
    short = replace(view.new_primary, log_ends={**view.new_primary.log_ends, A0: Offset(9)})
    assert "west has lost records since the failover" in reasons_of(replace(view, new_primary=short))
    anew = replace(view.new_primary, topics={**view.new_primary.topics, "a": ClusterTopic(id="f" * 32, partitions=2)})
    assert "topic a was created anew on west" in reasons_of(replace(view, new_primary=anew))
    gone = replace(view.new_primary, topics={"a": view.new_primary.topics["a"]})
    assert "topic b is gone from west" in reasons_of(replace(view, new_primary=gone))


def test_whether_the_old_source_is_fenced_is_said(view: FailbackSnapshot) -> None:
    def list_fence_codes(old: OldSource) -> set[str]:
        warnings = decide_failback(replace(view, old_source=old)).plan.warnings
        return {warning.code for warning in warnings if warning.code.startswith("old_source_")}

    unfenced = replace(old_of(view), fenced=False)
    by_command = replace(unfenced, authorizer=False, fenced_by_command=True)
    assert list_fence_codes(old_of(view)) == set()
    assert list_fence_codes(unfenced) == {"old_source_unfenced"}
    assert list_fence_codes(replace(unfenced, authorizer=False)) == {"old_source_unfenceable"}
    assert list_fence_codes(by_command) == {"old_source_closed_by_command"}


def test_a_right_that_the_failover_gave_and_nobody_has_at_home_is_named(view: FailbackSnapshot) -> None:
    given = Acl(resource=Resource.TOPIC, name="a", principal="User:late", operation=Operation.WRITE)
    denied = replace(given, permission=Permission.DENY)
    assert isinstance(view.new_primary, NewPrimary)
    view = replace(view, new_primary=replace(view.new_primary, granted_acls=(given,)))

    def warnings_with(held: frozenset[Acl] | None) -> tuple[Finding, ...]:
        return decide_failback(replace(view, old_source=replace(old_of(view), held_acls=held))).plan.warnings

    without = decide_failback(view).plan.warnings
    assert warnings_with(None) == warnings_with(frozenset({given})) == without
    assert decide_failback(replace(view, new_primary=UnseenCluster("no answer"))).plan.warnings == without
    (warning,) = set(warnings_with(frozenset({denied}))) - set(without)
    assert (warning.code, warning.subject, warning.values["destination"]) == ("grants_unheld", "east", "west")
    assert "User:late" in str(warning.values["grants"])


def test_a_grant_to_everybody_on_either_side_forbids_it_before_anything_is_changed(view: FailbackSnapshot) -> None:
    assert isinstance(view.new_primary, NewPrimary)
    problem = Finding("grant_undeniable", "ALLOW WRITE ...", cluster="west", command="kafka-acls.sh --remove")
    for seen in (
        replace(old_of(view), demotion_problems=(problem,)),
        replace(view.new_primary, demotion_problems=(problem,)),
    ):
        changed = replace(view, old_source=seen) if isinstance(seen, OldSource) else replace(view, new_primary=seen)
        assert decide_failback(changed).reasons == (problem,)


@pytest.mark.parametrize("state", [PartitionState.MIRRORING, PartitionState.FAILED])
def test_only_a_stopped_partition_comes_home(view: FailbackSnapshot, state: PartitionState) -> None:
    going = replace(view.statuses[A0], state=state)
    assert "not STOPPED): a-0" in reasons_of(replace(view, statuses={**view.statuses, A0: going}))


def test_of_a_partition_without_a_last_mirrored_offset_all_is_tail(view: FailbackSnapshot) -> None:
    """Nobody led it on the new primary when it was promoted."""
    unknown = replace(view.statuses[A0], lmo=None)
    decision = decide_failback(replace(view, statuses={**view.statuses, A0: unknown}))
    assert decision.reasons == ()
    assert decision.plan.strategies["a"] is FailbackStrategy.RECREATE


def test_what_was_approved_is_bound_to_everything_that_was_seen(view: FailbackSnapshot) -> None:
    assert isinstance(view.new_primary, NewPrimary)
    lmo = {**view.statuses, B0: stopped(B0, 4)}
    others = [
        replace(view, mirror=replace(view.mirror, created_ms=2)),
        replace(view, old_source=replace(old_of(view), cluster_id="X")),
        replace(view, new_primary=replace(view.new_primary, cluster_id="X")),
        replace(view, old_source=replace(old_of(view), fenced=False)),
        replace(view, old_source=UnseenCluster("dead")),
        replace(view, new_primary=UnseenCluster("dead")),
        replace(view, statuses=lmo),
        replace(view, old_source=replace(old_of(view), topics={"a": ClusterTopic(id="f" * 32, partitions=2)})),
    ]
    hashes = [decide_failback(found).plan.hash for found in (view, *others)]
    assert len(set(hashes)) == len(hashes)
    assert {fact.name for fact in decide_failback(view).plan.bound_facts} == {
        "mirror",
        "old source",
        "new primary",
        "last mirrored offsets",
        "divergent tails",
        "topic ids",
        "fenced",
    }


def test_a_topic_of_the_old_source_that_is_another_now_changes_what_was_approved_also_without_records(
    view: FailbackSnapshot,
) -> None:
    ends = {A0: Offset(10), A1: Offset(20)}
    seen = [
        decide_failback(
            replace(view, old_source=replace(old_of(view), topics={**old_of(view).topics, "b": topic}, log_ends=ends))
        )
        for topic in (ClusterTopic(id="e" * 32, partitions=1), ClusterTopic(id="f" * 32, partitions=1))
    ]
    assert [decision.plan.strategies["b"] for decision in seen] == [FailbackStrategy.RECREATE] * 2
    assert seen[0].plan.hash != seen[1].plan.hash


def test_from_the_alignment_on_there_is_no_way_back(view: FailbackSnapshot) -> None:
    assert [s.name for s in decide_failback(view).plan.steps if s.reversible] == ["salvage"]


def test_nothing_is_known_of_what_an_unseen_source_has(view: FailbackSnapshot) -> None:
    plan = decide_failback(replace(view, old_source=UnseenCluster("dead"))).plan
    assert (plan.discarded, plan.figures[FigureKey.DISCARDED_OFFSETS], plan.strategies) == (None, None, {})


def test_a_thousand_tails_are_counted_and_not_all_listed(view: FailbackSnapshot) -> None:
    many = [Partition("a", n) for n in range(1000)]
    old = replace(old_of(view), log_ends=dict.fromkeys(many, Offset(3)))
    plan = decide_failback(replace(view, statuses={p: stopped(p, 1) for p in many}, old_source=old)).plan
    assert plan.discarded == 2000
    assert len(plan.warnings) < 250
    assert Finding("more_tails_discarded", "east", count=800) in plan.warnings


def test_each_topic_is_held_against_its_own_id_on_the_new_primary(view: FailbackSnapshot) -> None:
    assert isinstance(view.new_primary, NewPrimary)
    other = "c" * 32
    statuses = {**view.statuses, B0: replace(view.statuses[B0], destination_topic_id=other)}
    topics = {**view.new_primary.topics, "b": ClusterTopic(id=other, partitions=1)}
    assert reasons_of(replace(view, statuses=statuses, new_primary=replace(view.new_primary, topics=topics))) == ""
    mixed = {**view.statuses, A1: replace(view.statuses[A1], destination_topic_id=other)}
    assert reasons_of(replace(view, statuses=mixed)).startswith("topic a was created anew on west")


def test_another_cluster_behind_the_new_primarys_name_forbids(view: FailbackSnapshot) -> None:
    assert isinstance(view.new_primary, NewPrimary)
    assert "cluster west is X, the mirror was made with W" in reasons_of(
        replace(view, new_primary=replace(view.new_primary, cluster_id="X"))
    )


def test_a_log_that_ends_exactly_at_the_last_mirrored_offset_lost_nothing(view: FailbackSnapshot) -> None:
    assert isinstance(view.new_primary, NewPrimary)
    assert (
        reasons_of(replace(view, new_primary=replace(view.new_primary, log_ends={A0: Offset(10), B0: Offset(5)}))) == ""
    )
    short = reasons_of(replace(view, new_primary=replace(view.new_primary, log_ends={A0: Offset(50), A1: Offset(19)})))
    assert short.endswith("before the last mirrored offset in a-1")


def test_without_strategy_only_what_diverged_is_named(view: FailbackSnapshot) -> None:
    assert "in a;" in reasons_of(replace(view, allowed_strategies=AllowedStrategies(FailbackStrategy.NONE)))
    same = replace(old_of(view), log_ends={A0: Offset(10), A1: Offset(20), B0: Offset(5)})
    assert reasons_of(replace(view, old_source=same, allowed_strategies=AllowedStrategies(FailbackStrategy.NONE))) == ""
    assert decide_failback(replace(view, old_source=same)).plan.strategies == {
        "a": FailbackStrategy.NONE,
        "b": FailbackStrategy.NONE,
    }
    # Not one more record there, but other ones: the topic was created anew, and is empty.
    topics = {**same.topics, "b": ClusterTopic(id="f" * 32, partitions=1)}
    anew = replace(same, topics=topics, log_ends={A0: Offset(10), A1: Offset(20), B0: Offset(0)})
    assert decide_failback(replace(view, old_source=anew)).plan.strategies["b"] is FailbackStrategy.RECREATE


def test_the_plan_says_what_is_salvaged_copied_and_unknown(view: FailbackSnapshot) -> None:
    plan = decide_failback(view).plan
    assert (plan.figures[FigureKey.PARTITIONS], plan.discarded, plan.unknown) == (3, 3, ())
    assert Finding("tail_discarded", "a-1", source="east", first=20, last=22, mirrored=True) in plan.warnings
    old = replace(old_of(view), topics={"b": ClusterTopic(id=OLD, partitions=1)}, log_ends={B0: Offset(9)})
    gone = decide_failback(replace(view, old_source=old)).plan
    # All of a, which is gone there; of b all as well, since its tail makes it anew.
    assert gone.figures[FigureKey.OFFSETS_TO_COPY] == 50 + 20 + 6
    assert Finding("topics_created_at_home", "east", topics=["a"]) in gone.warnings
    ahead = replace(old_of(view), log_ends={A0: Offset(10), A1: Offset(20), B0: Offset(5)})
    assert decide_failback(replace(view, old_source=ahead)).plan.figures[FigureKey.OFFSETS_TO_COPY] == 40 + 0 + 1
    unseen_old = decide_failback(replace(view, old_source=UnseenCluster("dead"))).plan
    unseen_new = decide_failback(replace(view, new_primary=UnseenCluster("dead"))).plan
    assert unseen_old.unknown == (Finding("old_source_facts_unknown", "east"),)
    assert unseen_new.unknown == (Finding("new_primary_facts_unknown", "west"),)
    assert unseen_new.discarded == 3
    assert [p.figures[FigureKey.OFFSETS_TO_COPY] for p in (unseen_old, unseen_new)] == [None, None]


def test_a_run_of_the_reverse_mirror_that_nobody_could_look_for_forbids_it(view: FailbackSnapshot) -> None:
    unsure = decide_failback(replace(view, reverse_unknown=UnseenCluster("no answer")))
    assert unsure.reasons == (Finding("reverse_run_unknown", "m-back", reason="no answer"),)
    assert unsure.plan.hash == decide_failback(view).plan.hash


def test_what_was_written_after_applications_left_is_found_and_what_was_failed_before_is_no_such_thing() -> None:
    came_home = {
        A0: stopped(A0, 10),
        A1: replace(stopped(A1, 20), reason="it differs at 20"),
        B0: replace(stopped(B0, 0), lmo=None, reason="settings that east refuses"),
    }
    assert find_written_since(came_home, {A0: Offset(10), A1: Offset(30), B0: Offset(5)}) == {}
    assert find_written_since(came_home, {A1: Offset(30)}) == {}  # a topic that is gone
    assert find_written_since(came_home, {A0: Offset(11), A1: Offset(30)}) == {A0: "from 10 to 11"}


def test_a_topic_that_never_came_to_the_new_primary_stays_where_it_is(view: FailbackSnapshot) -> None:
    away = replace(view, never_copied_topics=("c",))
    assert reasons_of(away) == ""
    assert "never mirrored, so no part of the way home: c" in "\n".join(map(str, decide_failback(away).plan.warnings))
    assert isinstance(view.new_primary, NewPrimary)
    met = replace(away, new_primary=replace(view.new_primary, unmirrored_topics={"c": UnmirroredTopic(partitions=1)}))
    assert "topic c exists on west and on east" in reasons_of(met)


def test_a_topic_that_the_mirror_never_had_is_counted_and_stays_on_the_old_source(view: FailbackSnapshot) -> None:
    written = UnmirroredTopic(partitions=2, offsets=5, log_ends=9)
    old = replace(old_of(view), unmirrored_topics={"c": written, "d": UnmirroredTopic(partitions=1)})
    decision = decide_failback(replace(view, old_source=old))
    assert decision.reasons == ()
    staying = ["c (5 offsets)", "d (an unknown number of offsets)"]
    assert Finding("topics_stay", "east", topics=staying) in decision.plan.warnings


@pytest.mark.parametrize(
    ("old", "in_the_way"),
    [
        (None, False),  # it began on the new primary
        (UnmirroredTopic(partitions=1, offsets=0, log_ends=0), False),  # the way home takes it as it is
        (UnmirroredTopic(partitions=3, offsets=0, log_ends=0), True),
        (UnmirroredTopic(partitions=1, offsets=4, log_ends=4), True),
        (UnmirroredTopic(partitions=1, offsets=0, log_ends=4), True),
        (UnmirroredTopic(partitions=1), True),
    ],
)
def test_a_topic_that_each_side_made_on_its_own_forbids_it_unless_the_old_sources_is_new(
    view: FailbackSnapshot, old: UnmirroredTopic | None, in_the_way: bool
) -> None:
    assert isinstance(view.new_primary, NewPrimary)
    here = replace(view.new_primary, unmirrored_topics={"c": UnmirroredTopic(partitions=2, offsets=8, log_ends=8)})
    there = replace(old_of(view), unmirrored_topics={"c": old} if old else {})
    assert (
        "topic c exists on west and on east" in reasons_of(replace(view, old_source=there, new_primary=here))
    ) is in_the_way


def test_partitions_that_no_plan_has_recorded_are_named_counted_and_bound(view: FailbackSnapshot) -> None:
    b1 = Partition("b", 1)
    topics = {**old_of(view).topics, "b": ClusterTopic(id=OLD, partitions=2)}
    wide = replace(view, old_source=replace(old_of(view), topics=topics))
    plan = decide_failback(wide).plan
    assert plan.hash != decide_failback(view).plan.hash
    assert plan.strategies["b"] == "recreate"
    wider = Finding("topic_wider", "b", source="east", old_count=2, destination="west", new_count=1)
    assert wider in plan.warnings
    full = replace(wide, old_source=replace(old_of(wide), log_ends={**old_of(view).log_ends, b1: Offset(7)}))
    plan = decide_failback(full).plan
    assert plan.hash != decide_failback(wide).plan.hash
    assert (plan.discarded, plan.partitions["b-1"]) == (3 + 7, discarded(0, 7))
    assert plan.figures[FigureKey.UNCOPIED_PARTITIONS] == 1
    assert plan.figures[FigureKey.UNCOPIED_SIZES] == {"b-1": 7}
    assert Finding("tail_discarded", "b-1", source="east", first=0, last=6, mirrored=False) in plan.warnings


def test_a_partition_that_could_not_be_added_on_the_new_primary_is_no_topic_made_anew(view: FailbackSnapshot) -> None:
    never = replace(stopped(Partition("a", 2), 0), destination_topic_id="", lmo=None)
    assert reasons_of(replace(view, statuses={**view.statuses, never.partition: never})) == ""


def test_a_new_primary_that_nothing_can_close_is_no_way_home(view: FailbackSnapshot) -> None:
    """The way home would stop half-way, with the old source's logs taken back: at the planned failover."""
    bare = AuthorizerConfig(authorizer=AuthorizerKind.FOREIGN)
    gate = Hook(name="fence_command", call=HookCommand(argv=("/bin/close",)))
    reasons = decide_failback(replace(view, new_primary_authorizer=bare)).reasons
    assert Finding("new_primary_unfenceable", "west") in reasons
    for ruling in (
        AuthorizerConfig(),
        AuthorizerConfig(authorizer=AuthorizerKind.NONE),
        replace(bare, fence_command=gate, unfence_command=gate),
    ):
        assert decide_failback(replace(view, new_primary_authorizer=ruling)).reasons == ()


def test_first_records_that_the_old_source_has_deleted_are_told_with_the_way_out(view: FailbackSnapshot) -> None:
    old, new = view.old_source, view.new_primary
    assert isinstance(old, OldSource)
    assert isinstance(new, NewPrimary)
    early, late = dict.fromkeys((A0, A1, B0), Offset(3)), {A0: Offset(3), A1: Offset(2), B0: Offset(5)}
    held = replace(view, old_source=replace(old, log_starts=late), new_primary=replace(new, log_starts=early))
    words = "west has first records that east has deleted: "
    (told,) = [line for line in map(str, decide_failback(held).plan.warnings) if line.startswith(words)]
    assert told.startswith(f"{words}b-0 (from 3 on, there from 5 on). ")
    recreated = replace(held, allowed_strategies=AllowedStrategies(topics={"b": FailbackStrategy.RECREATE}))
    assert not [line for line in map(str, decide_failback(recreated).plan.warnings) if line.startswith(words)]


def test_open_transactions_on_the_side_that_will_be_fenced_are_named_oldest_first(view: FailbackSnapshot) -> None:
    new_primary = view.new_primary
    assert isinstance(new_primary, NewPrimary)
    transactions = tuple(
        UnendedTransaction(id=f"tx-{n}", partitions=frozenset({A1, A0}), started_ms=9_000 - n, timeout_s=60.0)
        for n in range(MAX_RECORDED_NAMES + 2)
    )
    decision = decide_failback(replace(view, new_primary=replace(new_primary, transactions=transactions)))
    assert decision.reasons == ()
    assert decision.plan.hash == decide_failback(view).plan.hash
    warnings = [w for w in decision.plan.warnings if w.code.endswith("open")]
    oldest = Finding(
        "failback_transaction_open",
        f"tx-{MAX_RECORDED_NAMES + 1}",
        cluster="west",
        partitions=[A0, A1],
        started_ms=9_000 - MAX_RECORDED_NAMES - 1,
        timeout_s=60.0,
    )
    assert warnings[0] == oldest
    assert len(warnings) == MAX_RECORDED_NAMES + 1
    assert warnings[-1] == Finding("more_failback_transactions_open", "west", count=2)


@pytest.mark.parametrize("kind", [FailureKind.DIVERGED, FailureKind.FOREIGN, FailureKind.ALTERED])
def test_what_failed_is_discarded_from_the_offset_where_the_two_sides_differ(
    view: FailbackSnapshot, kind: FailureKind
) -> None:
    """The old source's log ends where the copy did, so its end shows nothing."""
    failed = replace(view.statuses[A0], kind=kind, failed_at=Offset(7), reason="x")
    only_failed = replace(view, statuses={**view.statuses, A0: failed, A1: stopped(A1, 23)})
    plan = decide_failback(only_failed).plan
    assert (plan.discarded, plan.strategies["a"], plan.strategies["b"]) == (3, "recreate", "none")
    assert Finding("tail_discarded", "a-0", source="east", first=7, last=9, mirrored=True) in plan.warnings


def test_what_failed_at_an_unknown_offset_is_not_said_to_discard_nothing(view: FailbackSnapshot) -> None:
    failed = replace(view.statuses[A0], kind=FailureKind.DIVERGED, reason="x")
    unlocated = replace(view, statuses={**view.statuses, A0: failed, A1: stopped(A1, 23)})
    plan = decide_failback(unlocated).plan
    assert (plan.discarded, plan.figures[FigureKey.DISCARDED_OFFSETS]) == (None, None)
    warning = Finding("difference_unlocated", "east", destination="west", partitions=[A0])
    assert str(warning) in map(str, plan.warnings)
    compared = replace(unlocated, statuses={**unlocated.statuses, A0: replace(failed, differs_at=Offset(4))})
    assert decide_failback(compared).plan.discarded == 6
    held = replace(unlocated, statuses={**unlocated.statuses, A0: replace(failed, kind=FailureKind.DENIED)})
    assert decide_failback(held).plan.discarded == 0
