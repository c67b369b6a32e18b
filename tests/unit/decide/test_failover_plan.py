"""Plans of a failover: what they say, and each reason that forbids one."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from msgspec import UNSET

from mirror_core.decide.failover_plan import PlanDecision, decide_failover
from mirror_core.decide.failover_scope import find_scope_changes
from mirror_core.decide.mirror_snapshot import (
    ClusterTopic,
    CopyingState,
    DestinationSnapshot,
    HiddenTopics,
    MirrorSnapshot,
    SourceSnapshot,
    UnseenCluster,
    select_healthy,
)
from mirror_core.decide.steps import HoldingRun, list_step_names
from mirror_core.model.config_sections import KAFKA_AUTHORIZER
from mirror_core.model.figures import FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import DesiredState, FailureKind, Lease, PartitionState
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.pending_fence import FenceAction, PendingFence
from mirror_core.model.run import PlanFact, RunKind, RunMode
from mirror_core.model.timing import UNKNOWN_NOW_MS
from tests.support import failover_views
from tests.support.failover_views import (
    CLOSABLE,
    DST,
    P0,
    P1,
    SRC,
    foreign,
    healthy_view,
    reasons_of,
    source_of,
    status,
)
from tests.support.mirror_views import HOLDER, TOO_WIDE

view = failover_views.view


def warning_codes(decision: PlanDecision) -> list[str]:
    return [warning.code for warning in decision.plan.warnings]


def test_a_healthy_mirror_may_fail_over(view: MirrorSnapshot) -> None:
    decision = decide_failover(view)
    assert decision.reasons == ()
    assert decision.plan.warnings == ()
    assert tuple(s.name for s in decision.plan.steps) == list_step_names(RunKind.FAILOVER)
    assert [s.name for s in decision.plan.steps if not s.reversible] == ["promote", "switch", "canary", "report"]
    assert decision.plan.figures[FigureKey.LAG_OFFSETS] == 5
    assert decision.plan.partitions["orders-1"] == {
        FigureKey.PARTITION_STATE: PartitionState.MIRRORING,
        FigureKey.LAG_OFFSETS: 5,
    }
    assert decision.plan.groups["g"][FigureKey.READ_AGAIN_OFFSETS] == 3


def test_a_dead_source_forbids_a_planned_failover_but_not_its_plan(view: MirrorSnapshot) -> None:
    decision = decide_failover(replace(view, source=UnseenCluster("refused")))
    assert decision.reasons == (Finding("source_unseen", "east", reason="refused", mirror="m", stopped=False),)
    assert decision.plan.figures[FigureKey.LAG_OFFSETS] is None
    assert decision.plan.partitions["orders-0"] == {
        FigureKey.PARTITION_STATE: PartitionState.MIRRORING,
        FigureKey.LAG_OFFSETS: None,
        FigureKey.MIRROR_POSITION: 10,
        FigureKey.MISSING_OFFSETS: None,
        FigureKey.END_SEEN_S: None,
    }
    assert decision.plan.groups["g"][FigureKey.READ_AGAIN_MOST] == 5
    assert decision.plan.unknown


def test_a_mirror_that_moved_its_applications_is_told_of_no_unplanned_failover_and_no_data_plane(
    view: MirrorSnapshot,
) -> None:
    moved = replace(view, mirror=replace(view.mirror, desired=DesiredState.STOPPED), source=UnseenCluster("refused"))
    decision = decide_failover(replace(moved, lease=None))
    (unseen,) = (reason for reason in decision.reasons if reason.code == "source_unseen")
    assert unseen.values["stopped"] is True
    assert "unplanned" not in str(unseen)
    assert "nobody_copies" not in warning_codes(decision)


def test_an_unplanned_failover_needs_no_source_and_says_so_of_one_that_answers(view: MirrorSnapshot) -> None:
    lost = replace(view, mode=RunMode.UNPLANNED, source=UnseenCluster("dead"))
    assert decide_failover(lost).reasons == ()
    assert tuple(s.name for s in decide_failover(lost).plan.steps) == list_step_names(
        RunKind.FAILOVER, RunMode.UNPLANNED
    )
    assert "source_answers" in warning_codes(decide_failover(replace(lost, source=source_of(view))))
    assert "destination west could not be read" in reasons_of(replace(lost, destination=UnseenCluster("dead")))


@pytest.mark.parametrize(("run", "code"), [(None, "mirror_stopped"), (HOLDER, "mirror_held_by_run")])
def test_a_mirror_that_was_failed_over_is_not_compared_with_its_old_source(
    view: MirrorSnapshot, run: HoldingRun | None, code: str
) -> None:
    """Applications write on its destination, which is ahead."""
    source = view.source
    assert isinstance(source, SourceSnapshot)
    behind = replace(view, source=replace(source, stable_ends=dict.fromkeys(view.statuses, Offset(0))))
    assert "destination_ahead" in {reason.code for reason in decide_failover(behind).reasons}
    fence = PendingFence(
        mirror=view.mirror.name, cluster=view.mirror.source, action=FenceAction.APPLY, run="r", since_ms=1
    )
    moved = replace(
        behind, mirror=replace(view.mirror, desired=DesiredState.STOPPED), pending_fence=fence, active_run=run
    )
    decision = decide_failover(moved)
    assert [reason.code for reason in decision.reasons] == [code]
    assert warning_codes(decision) == ["fence_pending", "fence_awaits_watcher"]
    assert set(decision.plan.figures) == {FigureKey.PARTITIONS}
    assert (decision.plan.partitions, decision.plan.groups, decision.plan.forecast) == ({}, {}, UNSET)


def test_a_way_home_that_was_ended_by_hand_says_what_ends_the_failback(view: MirrorSnapshot) -> None:
    """As where the new primary died on it: Airflow's task `home.plan` shows no more than these reasons."""
    back = replace(view.mirror, name=MirrorName("m-back"), desired=DesiredState.STOPPED, failback_run="run-1")
    assert "`mirrorbook failback resume m`" in reasons_of(replace(view, mirror=back))
    assert "failback resume" not in reasons_of(replace(view, mirror=replace(back, failback_run="")))
    lost = reasons_of(
        replace(view, mirror=replace(back, desired=DesiredState.STARTED), source=UnseenCluster("no answer"))
    )
    assert "`mirrorbook failover run m-back --mode unplanned`" in lost


def test_topics_that_the_destination_lost_are_left_out_of_an_unplanned_failover(view: MirrorSnapshot) -> None:
    destination = view.destination
    assert isinstance(destination, DestinationSnapshot)
    lost = replace(view, mode=RunMode.UNPLANNED, source=UnseenCluster("dead"))
    gone = replace(lost, destination=replace(destination, topics={}))
    assert decide_failover(gone).scope.topics == ()
    assert "nothing to promote" in reasons_of(gone)
    paid = Partition("paid", 0)
    partly = replace(gone, destination=replace(destination, topics={"paid": ClusterTopic(id=DST, partitions=1)}))
    partly = replace(partly, statuses={**view.statuses, paid: status(paid)})
    decision = decide_failover(partly)
    assert (decision.reasons, decision.scope.topic_names) == ((), ("paid",))
    assert "topic_replaced" in warning_codes(decision)
    never = {p: replace(s, destination_topic_id="") if p.topic == "orders" else s for p, s in partly.statuses.items()}
    warnings = tuple(map(str, decide_failover(replace(partly, statuses=never)).plan.warnings))
    assert [w for w in warnings if "topic orders was never created on west" in w]
    assert not [w for w in warnings if "is gone" in w]


def hidden_from_us(cluster: str, topic: str) -> Finding:
    return Finding("topics_hidden", cluster, topics=[topic], user="mirror", grant_command="grant it")


def test_a_topic_that_may_not_be_seen_is_none_that_is_gone(view: MirrorSnapshot) -> None:
    """Taken for gone it would be promoted as it is, without its last records, or left out."""
    hidden, destination = HiddenTopics(frozenset({"orders"}), "mirror", "grant it"), view.destination
    assert isinstance(destination, DestinationSnapshot)
    here = replace(view, source=replace(source_of(view), topics={}, stable_ends={}, hidden=hidden))
    assert decide_failover(here).reasons == (hidden_from_us("east", "orders"),)
    assert decide_failover(here).scope.drained == (P0, P1)
    assert "no longer exists" not in "".join(map(str, decide_failover(here).plan.warnings))
    assert decide_failover(replace(here, mode=RunMode.UNPLANNED)).reasons == ()
    there = replace(view, destination=replace(destination, topics={}, positions={}, hidden=hidden))
    decision = decide_failover(there)
    assert (decision.reasons, decision.scope.topic_names) == ((hidden_from_us("west", "orders"),), ("orders",))


def test_a_fence_that_would_shut_readers_out_is_not_put_up(view: MirrorSnapshot) -> None:
    open_to_all = replace(view, source=replace(source_of(view), fence_side_effects=TOO_WIDE))
    assert TOO_WIDE in decide_failover(open_to_all).reasons
    assert decide_failover(replace(open_to_all, mode=RunMode.UNPLANNED)).reasons == ()


def test_applications_go_by_no_way_home_that_its_failback_has_not_made_whole(view: MirrorSnapshot) -> None:
    """It does not know yet which rights were withdrawn. Without its source nobody can tell it."""
    begins = replace(view, mirror=replace(view.mirror, name=MirrorName("m-back"), failback_run="r", is_preparing=True))
    assert "failback r has not made all of mirror m-back" in reasons_of(begins)
    assert "`mirrorbook failback resume m` first" in reasons_of(begins)
    lost = decide_failover(replace(begins, mode=RunMode.UNPLANNED))
    assert lost.reasons == ()
    assert "failback_broken_off" in warning_codes(lost)


def test_a_topic_that_is_hidden_over_there_does_not_keep_the_others_from_an_unplanned_failover(
    view: MirrorSnapshot,
) -> None:
    hidden, paid = HiddenTopics(frozenset({"paid"}), "mirror", "grant it"), Partition("paid", 0)
    assert isinstance(view.destination, DestinationSnapshot)
    statuses, there = {**view.statuses, paid: status(paid)}, replace(view.destination, hidden=hidden)
    unplanned = replace(view, mode=RunMode.UNPLANNED, statuses=statuses, destination=there)
    decision = decide_failover(unplanned)
    assert (decision.reasons, decision.scope.topic_names) == ((), ("orders",))
    left_out = Finding("hidden_topics_left_out", "west", topics=["paid"], user="mirror", grant_command="grant it")
    assert [warning for warning in decision.plan.warnings if warning.code == left_out.code] == [left_out]
    assert not {"topic_replaced", "topic_never_created"} & {warning.code for warning in decision.plan.warnings}
    assert decide_failover(replace(unplanned, mode=RunMode.PLANNED)).reasons == (hidden_from_us("west", "paid"),)
    none = replace(there, topics={}, hidden=HiddenTopics(frozenset({"orders"}), "mirror", "grant it"))
    assert decide_failover(replace(unplanned, statuses=view.statuses, destination=none)).reasons == (
        hidden_from_us("west", "orders"),
    )


def test_the_scope_covers_every_partition_and_drains_those_that_can_be(view: MirrorSnapshot) -> None:
    paid = Partition("paid", 0)
    statuses = {P0: status(P0), P1: status(P1, PartitionState.FAILED), paid: status(paid)}
    scope = decide_failover(replace(view, statuses=statuses, destination=UnseenCluster("dead"))).scope
    assert scope.topic_names == ("orders", "paid")
    assert scope.drained == (P0,)  # the source has no topic `paid`
    assert scope.promoted == (P0, P1, paid)


def test_what_strays_from_the_scope_is_named(view: MirrorSnapshot) -> None:
    scope = decide_failover(view).scope
    assert list(find_scope_changes(scope, view.statuses)) == []
    wider = Partition("orders", 2)
    found = [
        *find_scope_changes(scope, {**view.statuses, wider: status(wider)}),
        *find_scope_changes(scope, {**view.statuses, Partition("paid", 0): status(Partition("paid", 0))}),
        *find_scope_changes(scope, {P0: status(P0)}),
        *find_scope_changes(scope, {P0: status(P0), P1: status(P1, PartitionState.FAILED)}),
    ]
    assert [str(change).split(" since")[0] for change in found] == [
        "orders-2 was added",
        "paid was added",
        "orders-1 is not recorded any more",
        "orders-1 has FAILED",
    ]


def test_failed_partitions_warn_and_do_not_forbid(view: MirrorSnapshot) -> None:
    decision = decide_failover(replace(view, statuses={P0: status(P0), P1: status(P1, PartitionState.FAILED)}))
    assert decision.reasons == ()
    assert (decision.plan.warnings[0].code, decision.plan.warnings[0].values["count"]) == ("partitions_failed", 1)
    assert "orders-1 (damaged" in str(decision.plan.warnings[0].values["failures"])


@pytest.mark.parametrize(
    ("id_", "there", "kind", "remedy"),
    [
        pytest.param("", False, FailureKind.REFUSED, "change the setting or policy", id="never made"),
        pytest.param("", False, FailureKind.DENIED, "grant it", id="no right to make it"),
        pytest.param("", True, FailureKind.OCCUPIED, "its owner deletes or renames it", id="a stranger has its name"),
        pytest.param("old", True, FailureKind.REPLACED, "find who did it", id="replaced"),
        pytest.param(DST, False, FailureKind.REPLACED, "find who did it", id="deleted"),
    ],
)
def test_a_topic_without_a_copy_forbids_a_planned_failover_and_the_reason_has_the_remedy(
    view: MirrorSnapshot, id_: str, there: bool, kind: FailureKind, remedy: str
) -> None:
    paid, destination = Partition("paid", 0), view.destination
    assert isinstance(destination, DestinationSnapshot)
    bare = replace(status(paid, PartitionState.FAILED), destination_topic_id=id_, kind=kind, reason="west says no")
    source = source_of(view)
    here = replace(
        view,
        statuses={**view.statuses, paid: bare},
        source=replace(source, topics={**source.topics, "paid": ClusterTopic(id=SRC, partitions=1)}),
        destination=replace(
            destination,
            topics={**destination.topics, **({"paid": ClusterTopic(id=DST, partitions=1)} if there else {})},
        ),
    )
    decision = decide_failover(here)
    (reason,) = decision.reasons
    assert (reason.code, reason.subject, reason.values["reason"]) == ("topic_without_copy", "paid", "west says no")
    assert remedy in str(reason)
    assert "`mirrorbook mirror recover m --topics paid --action " in str(reason)
    assert "partitions_failed" not in warning_codes(decision)
    assert decide_failover(replace(here, source=source)).reasons == (), "it is not on the source any more"
    assert decide_failover(
        replace(here, statuses={**view.statuses, paid: replace(bare, destination_topic_id=DST)})
    ).reasons == (() if there else decision.reasons)


def test_partitions_that_the_destination_would_not_add_forbid_a_planned_failover(view: MirrorSnapshot) -> None:
    p2 = Partition("orders", 2)
    added = replace(
        status(p2, PartitionState.FAILED), destination_topic_id="", kind=FailureKind.REFUSED, reason="quota"
    )
    source = source_of(view)
    here = replace(
        view,
        statuses={**view.statuses, p2: added},
        source=replace(source, topics={"orders": replace(source.topics["orders"], partitions=3)}),
    )
    assert reasons_of(here).startswith("orders-2 has no copy on west")
    assert decide_failover(replace(here, mode=RunMode.UNPLANNED)).scope.topic_names == ("orders",)


def test_a_topic_that_is_not_mirrored_yet_forbids(view: MirrorSnapshot) -> None:
    topics = {**source_of(view).topics, "orders2": ClusterTopic(id="c" * 32, partitions=1)}
    assert "topic orders2 on east" in reasons_of(replace(view, source=replace(source_of(view), topics=topics)))


def test_new_partitions_of_a_mirrored_topic_forbid(view: MirrorSnapshot) -> None:
    topics = {"orders": ClusterTopic(id=SRC, partitions=3)}
    wider = decide_failover(replace(view, source=replace(source_of(view), topics=topics)))
    values = {"source": "east", "indexes": [2], "mirror": "m", "copying": CopyingState.WORKS}
    assert wider.reasons == (Finding("partitions_not_mirrored", "orders", **values),)


LEASE = healthy_view().lease
_STARTING = ("mirrorbook supervise", "mirrorbook mirror resume")


def commands_of(sentence: str) -> list[str]:
    return re.findall("`(.+?)`", sentence)


@pytest.mark.parametrize(
    ("desired", "lease", "now_ms", "commands"),
    [
        (DesiredState.STARTED, LEASE, 2_000, []),
        (DesiredState.STARTED, None, 2_000, ["mirrorbook supervise m"]),
        (DesiredState.STARTED, LEASE, 2_000_000, ["mirrorbook supervise m"]),
        (DesiredState.STARTED, LEASE, UNKNOWN_NOW_MS, []),
        (DesiredState.PAUSED, None, 2_000, ["mirrorbook mirror resume m"]),
    ],
    ids=["a data plane works", "none ever ran", "it has died", "nobody knows by these clocks", "it is paused"],
)
def test_nobody_is_told_to_wait_for_a_data_plane_where_none_copies(
    view: MirrorSnapshot, desired: DesiredState, lease: Lease | None, now_ms: int, commands: list[str]
) -> None:
    """Each reason names the way out: of partitions that are not mirrored, being aligned, or without a copy."""
    no_copy = replace(status(P1), destination_topic_id="", reason="no right", kind=FailureKind.DENIED)
    idle = replace(
        view,
        mirror=replace(view.mirror, desired=desired),
        lease=lease,
        now_ms=now_ms,
        statuses={P0: status(P0, PartitionState.LOG_ALIGNMENT), P1: no_copy},
        source=replace(source_of(view), topics={"orders": ClusterTopic(id=SRC, partitions=3)}),
    )
    told = {reason.code: str(reason) for reason in decide_failover(idle).reasons}
    for code in ("partitions_not_mirrored", "initial_copy_unfinished", "topic_without_copy"):
        named = [command for command in commands_of(told[code]) if command.startswith(_STARTING)]
        assert (named, "wait for" in told[code]) == (commands, not commands and code != "topic_without_copy"), told


def test_recreated_topics_forbid(view: MirrorSnapshot) -> None:
    topics = {"orders": ClusterTopic(id="f" * 32, partitions=2)}
    assert "recreated on east" in reasons_of(replace(view, source=replace(source_of(view), topics=topics)))
    assert isinstance(view.destination, DestinationSnapshot)
    assert "recreated on west" in reasons_of(replace(view, destination=replace(view.destination, topics=topics)))


def test_a_recreated_topic_forbids_also_once_its_partitions_have_failed(view: MirrorSnapshot) -> None:
    """Nothing of the topic that is there now is copied."""
    failed = {
        p: replace(s, state=PartitionState.FAILED, reason="created anew", kind=FailureKind.RECREATED)
        for p, s in view.statuses.items()
    }
    source = replace(source_of(view), topics={"orders": ClusterTopic(id="f" * 32, partitions=2)})
    assert "recreated on east" in reasons_of(replace(view, statuses=failed, source=source))
    never_copied = {p: replace(s, destination_topic_id="") for p, s in failed.items()}
    assert "recreated on east" not in reasons_of(replace(view, statuses=never_copied, source=source))


def test_a_destination_ahead_of_its_source_forbids(view: MirrorSnapshot) -> None:
    source = replace(source_of(view), stable_ends={P0: Offset(9), P1: Offset(20)})
    assert Finding("destination_ahead", P0, destination="west", source="east", offsets=1) in (
        decide_failover(replace(view, source=source)).reasons
    )


def test_what_others_wrote_on_the_destination_forbids_and_is_no_progress(view: MirrorSnapshot) -> None:
    assert isinstance(view.destination, DestinationSnapshot)
    destination = replace(view.destination, foreign_starts={P0: Offset(6)})
    decision = decide_failover(replace(view, destination=destination))
    assert Finding("destination_ahead", P0, destination="west", source="east", offsets=4) in decision.reasons
    assert decision.plan.figures[FigureKey.LAG_OFFSETS] == 9
    unknown = decide_failover(replace(view, destination=replace(destination, foreign_starts={P0: None})))
    assert (unknown.reasons, unknown.plan.figures[FigureKey.LAG_OFFSETS]) == ((), None)


def test_another_cluster_behind_the_name_forbids(view: MirrorSnapshot) -> None:
    assert "east is cluster X" in reasons_of(replace(view, source=replace(source_of(view), cluster_id="X")))


@pytest.mark.parametrize(
    ("west_behind_s", "mode", "refused"),
    [
        (3_601, RunMode.PLANNED, True),
        (3_600, RunMode.PLANNED, False),
        (-7_200, RunMode.PLANNED, False),
        (3_601, RunMode.UNPLANNED, False),
    ],
)
def test_brokers_that_would_refuse_the_applications_records_forbid_a_planned_failover(
    view: MirrorSnapshot, west_behind_s: int, mode: RunMode, refused: bool
) -> None:
    east, west = view.mirror.source, view.mirror.destination
    clocks = {east: 500, west: 500 + west_behind_s * 1000}
    decision = decide_failover(replace(view, mode=mode, clocks_ahead_ms=clocks))
    expected = Finding("destination_clock_behind", west, source=east, behind_s=float(west_behind_s))
    assert (expected in decision.reasons) is refused
    only_west = replace(view, mode=mode, clocks_ahead_ms={west: clocks[west]})
    assert "destination_clock_behind" not in [finding.code for finding in decide_failover(only_west).reasons]


def test_an_active_run_or_a_stopped_and_empty_mirror_forbids(view: MirrorSnapshot) -> None:
    empty = replace(view, statuses={}, mirror=replace(view.mirror, desired=DesiredState.STOPPED))
    assert reasons_of(replace(empty, active_run=HOLDER)) == str(HOLDER.explain())
    assert [reason.code for reason in decide_failover(empty).reasons][:2] == ["mirror_stopped", "nothing_mirrored"]


def test_a_partition_without_alignment_forbids(view: MirrorSnapshot) -> None:
    statuses = {P0: status(P0), P1: status(P1, PartitionState.LOG_ALIGNMENT)}
    assert "initial copy not finished: orders-1" in reasons_of(replace(view, statuses=statuses))


def test_no_authorizer_is_a_warning_that_names_the_consequence(view: MirrorSnapshot) -> None:
    decision = decide_failover(replace(view, source=replace(source_of(view), authorizer=False)))
    assert warning_codes(decision)[0] == "source_without_acls"
    assert "stand still" in decision.plan.steps[1].action
    assert decision.reasons == ()


def test_a_source_that_nothing_can_close_is_not_failed_over_as_planned(view: MirrorSnapshot) -> None:
    there = foreign(view, there=KAFKA_AUTHORIZER)
    assert "no fence_command: nobody could keep applications from writing there" in reasons_of(there)
    assert "--mode unplanned" in reasons_of(there)
    drilled = replace(there, mirror=replace(there.mirror, name=MirrorName("drill.m")))
    assert decide_failover(drilled).reasons == (), "a drill has no applications that could write"


def test_one_that_a_command_closes_is_and_the_plan_says_so(view: MirrorSnapshot) -> None:
    found = decide_failover(foreign(view, CLOSABLE))
    assert found.reasons == ()
    assert "fence_command" in found.plan.steps[1].action
    assert "source_closed_by_command" in warning_codes(found)
    assert PlanFact("authorizer of the source", "fence_command") in found.plan.bound_facts
    assert not {"source_without_acls", "destination_without_acls"} & {*warning_codes(found)}


@pytest.mark.parametrize("dead", [True, False])
def test_an_unplanned_failover_is_not_refused_by_either_authorizer(view: MirrorSnapshot, dead: bool) -> None:
    lost = replace(foreign(view), mode=RunMode.UNPLANNED)
    if dead:
        lost = replace(lost, source=UnseenCluster("no broker answered"))
    found = decide_failover(lost)
    assert found.reasons == ()
    assert {"foreign_destination", "foreign_destination_copiers"} < {*warning_codes(found)}
    assert Finding("foreign_source_undenied", "east", fence_command=False) in found.plan.warnings
    closable = decide_failover(replace(lost, source_authorizer=CLOSABLE))
    assert Finding("foreign_source_undenied", "east", fence_command=True) in closable.plan.warnings
    assert "fence_command" in closable.plan.steps[1].action


def test_a_command_that_is_not_there_is_told_before_the_run(view: MirrorSnapshot) -> None:
    absent = Finding("fence_command_program_absent", "east", hook="fence_command", program="/x")
    missing = replace(foreign(view, CLOSABLE), unusable_fence_commands=(absent,))
    assert absent in decide_failover(missing).plan.warnings


def test_a_partition_that_failed_and_was_stopped_is_not_healthy(view: MirrorSnapshot) -> None:
    stopped = replace(status(P1, PartitionState.FAILED), state=PartitionState.STOPPED)
    assert list(select_healthy({P0: status(P0), P1: stopped})) == [P0]
    assert "orders-1 (damaged" in str(
        decide_failover(replace(view, statuses={P0: status(P0), P1: stopped})).plan.warnings[0]
    )


def test_facts_have_names_of_their_own(view: MirrorSnapshot) -> None:
    names_of_facts = [fact.name for fact in decide_failover(view).plan.bound_facts]
    assert len(set(names_of_facts)) == len(names_of_facts)


def test_a_thousand_failed_partitions_are_counted_and_not_all_listed(view: MirrorSnapshot) -> None:
    failed = {p: status(p, PartitionState.FAILED) for p in (Partition("orders", n) for n in range(1000))}
    plan = decide_failover(replace(view, statuses=failed)).plan
    assert len(plan.warnings) < 5
    (count_warning,) = [warning for warning in plan.warnings if warning.code == "partitions_failed"]
    assert (count_warning.values["count"], count_warning.values["more"]) == (1000, 995)
    assert len(plan.partitions) == 200
    assert next(f.value for f in plan.bound_facts if f.name == "failed partitions").startswith("1000: orders-0, ")


def test_a_partition_that_nobody_leads_is_named_and_holds_up_a_planned_failover_only(view: MirrorSnapshot) -> None:
    one = replace(source_of(view), stable_ends={P0: Offset(10)}, offline_partitions=(P1,))
    assert "east: no leader for orders-1, so the rest cannot be copied" in reasons_of(replace(view, source=one))
    unplanned = replace(view, source=one, mode=RunMode.UNPLANNED)
    assert "no leader for" not in reasons_of(unplanned)
    given_up = {P0: status(P0), P1: status(P1, PartitionState.FAILED)}
    assert "no leader for" not in reasons_of(replace(view, source=one, statuses=given_up)), "it is not copied anyway"
    assert isinstance(view.destination, DestinationSnapshot)
    there = replace(view.destination, positions={P0: Offset(10)}, offline_partitions=(P1,))
    assert "west: no leader for orders-1" in reasons_of(replace(view, destination=there))
