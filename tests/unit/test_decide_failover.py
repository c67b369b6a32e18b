"""Plans of a failover: what they are bound to, and each reason that forbids one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from mirror_core.decide.failover import broken_since, changed_since, decide
from mirror_core.decide.scope import strayed
from mirror_core.decide.steps import names
from mirror_core.decide.view import DestinationView, SourceView, Topic, Unseen, View, healthy
from mirror_core.model.errors import Refused, Unreachable
from mirror_core.model.mirror import Desired, Lease, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.run import Mode, RunKind
from mirror_core.runbook import promotion
from mirror_core.runbook.failover_steps import Steps
from mirror_core.state.journal import Journal
from tests.memory import MemoryLog
from tests.unit.test_decide_verbs import RUN
from tests.unit.test_refusals import LINK

P0, P1 = Partition("orders", 0), Partition("orders", 1)
SRC, DST = "a" * 32, "b" * 32


def status(partition: Partition, state: PartitionState = PartitionState.MIRRORING) -> PartitionStatus:
    reason = "damaged: recover it" if state is PartitionState.FAILED else None
    return PartitionStatus(
        partition=partition, state=state, source_topic_id=SRC, destination_topic_id=DST, reason=reason
    )


@pytest.fixture
def view() -> View:
    return View(
        mirror=Mirror(
            name=MirrorName("m"),
            source=ClusterName("east"),
            destination=ClusterName("west"),
            source_id="E",
            destination_id="W",
            topics=("orders",),
            producer_id=1 << 62,
            desired=Desired.STARTED,
            created_ms=1,
        ),
        mode=Mode.PLANNED,
        statuses={P0: status(P0), P1: status(P1)},
        source=SourceView(
            cluster_id="E",
            topics={"orders": Topic(id=SRC, partitions=2)},
            stable_ends={P0: Offset(10), P1: Offset(20)},
            authorizer=True,
            transactions=(),
            groups=("g",),
            committed={"g": {P0: Offset(8)}},
        ),
        destination=DestinationView(
            cluster_id="W",
            topics={"orders": Topic(id=DST, partitions=2)},
            positions={P0: Offset(10), P1: Offset(15)},
            authorizer=True,
            committed={"g": {P0: Offset(5)}},
        ),
        lease=Lease(mirror=MirrorName("m"), owner="x", generation=1, beat_ms=1_000, writers_until_ms=2_000),
        active_run=None,
        grants=("ALLOW WRITE",),
        earlier_seconds=None,
        now_ms=2_000,
    )


def source_of(view: View) -> SourceView:
    assert isinstance(view.source, SourceView)
    return view.source


def reasons_of(view: View) -> str:
    return "\n".join(decide(view).reasons)


def test_a_healthy_mirror_may_fail_over(view: View) -> None:
    decision = decide(view)
    assert decision.reasons == ()
    assert decision.plan.warnings == ()
    assert tuple(s.name for s in decision.plan.steps) == names(RunKind.FAILOVER)
    assert [s.name for s in decision.plan.steps if not s.reversible] == ["promote", "switch", "canary", "report"]
    assert decision.plan.figures["lag in offsets"] == "5"
    assert decision.plan.partitions["orders-1"] == "MIRRORING, lag 5"
    assert decision.plan.groups["g"].startswith("3 record(s)")


def test_the_hash_holds_while_only_numbers_move(view: View) -> None:
    source = replace(source_of(view), stable_ends={P0: Offset(99), P1: Offset(99)})
    assert decide(replace(view, source=source, now_ms=3_000)).plan.hash == decide(view).plan.hash


@pytest.mark.parametrize(
    "change",
    [
        {"statuses": {P0: status(P0), P1: status(P1, PartitionState.FAILED)}},
        {"statuses": {P0: status(P0), P1: status(P1, PartitionState.PAUSED)}},
        {"statuses": {P0: status(P0)}},
        {"grants": ()},
        {"mode": Mode.UNPLANNED},
        {"source": Unseen("dead")},
        {"destination": Unseen("dead")},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_hash_changes_with_what_was_approved(view: View, change: dict[str, object]) -> None:
    assert decide(replace(view, **change)).plan.hash != decide(view).plan.hash  # type: ignore[arg-type]  # one of View's


def test_a_dead_source_forbids_a_planned_failover_but_not_its_plan(view: View) -> None:
    decision = decide(replace(view, source=Unseen("refused")))
    assert "east could not be read" in decision.reasons[0]
    assert decision.plan.figures["lag in offsets"] == "unknown"
    assert decision.plan.partitions["orders-0"] == "MIRRORING, lag unknown; position 10, loss unknown"
    assert decision.plan.groups["g"].startswith("0 to 5 record(s) read again")
    assert decision.plan.unknown


def test_an_error_text_that_varies_does_not_change_the_hash(view: View) -> None:
    one, two = (decide(replace(view, source=Unseen(text))).plan.hash for text in ("after 2.9 s", "after 3.0 s"))
    assert one == two


def test_an_unplanned_failover_needs_no_source_and_says_so_of_one_that_answers(view: View) -> None:
    lost = replace(view, mode=Mode.UNPLANNED, source=Unseen("dead"))
    assert decide(lost).reasons == ()
    assert tuple(s.name for s in decide(lost).plan.steps) == names(RunKind.FAILOVER, Mode.UNPLANNED)
    assert [w for w in decide(replace(lost, source=source_of(view))).plan.warnings if "east answers" in w]
    assert "destination west could not be read" in reasons_of(replace(lost, destination=Unseen("dead")))


def test_an_approval_of_an_unplanned_failover_holds_while_the_source_comes_and_goes(view: View) -> None:
    lost = replace(view, mode=Mode.UNPLANNED, source=Unseen("dead"))
    other = replace(source_of(view), topics={}, groups=("h",), cluster_id="X", authorizer=False)
    assert decide(lost).plan.hash == decide(replace(lost, source=other)).plan.hash
    assert decide(lost).plan.hash != decide(replace(lost, continues="run-1")).plan.hash


def test_topics_that_the_destination_lost_are_left_out_of_an_unplanned_failover(view: View) -> None:
    destination = view.destination
    assert isinstance(destination, DestinationView)
    lost = replace(view, mode=Mode.UNPLANNED, source=Unseen("dead"))
    gone = replace(lost, destination=replace(destination, topics={}))
    assert decide(gone).scope.topics == ()
    assert "nothing to promote" in reasons_of(gone)
    paid = Partition("paid", 0)
    partly = replace(gone, destination=replace(destination, topics={"paid": Topic(id=DST, partitions=1)}))
    partly = replace(partly, statuses={**view.statuses, paid: status(paid)})
    decision = decide(partly)
    assert (decision.reasons, decision.scope.names) == ((), ("paid",))
    assert [w for w in decision.plan.warnings if "topic orders is gone from west" in w]


def test_the_scope_covers_every_partition_and_drains_those_that_can_be(view: View) -> None:
    paid = Partition("paid", 0)
    statuses = {P0: status(P0), P1: status(P1, PartitionState.FAILED), paid: status(paid)}
    scope = decide(replace(view, statuses=statuses, destination=Unseen("dead"))).scope
    assert scope.names == ("orders", "paid")
    assert scope.drained == (P0,)  # the source has no topic `paid`
    assert scope.promoted == (P0, P1, paid)


def test_what_strays_from_the_scope_is_named(view: View) -> None:
    scope = decide(view).scope
    assert list(strayed(scope, view.statuses)) == []
    wider = Partition("orders", 2)
    found = [
        *strayed(scope, {**view.statuses, wider: status(wider)}),
        *strayed(scope, {**view.statuses, Partition("paid", 0): status(Partition("paid", 0))}),
        *strayed(scope, {P0: status(P0)}),
        *strayed(scope, {P0: status(P0), P1: status(P1, PartitionState.FAILED)}),
    ]
    assert [line.split(" since")[0] for line in found] == [
        "orders-2 was added",
        "paid was added",
        "orders-1 is not recorded any more",
        "orders-1 has FAILED",
    ]


def test_a_topic_that_the_source_widens_after_the_approval_voids_it(view: View) -> None:
    wider = replace(source_of(view), topics={"orders": Topic(id=SRC, partitions=3)})
    changed = changed_since(decide(view).plan.bound, decide(replace(view, source=wider)).plan.bound, source_seen=True)
    now = "now it is 3 partition(s), 2 mirrored"
    assert changed == (f"topic orders on the source: approved was absent, {now}",)
    gone = replace(source_of(view), topics={})
    changed = changed_since(decide(view).plan.bound, decide(replace(view, source=gone)).plan.bound, source_seen=True)
    assert changed == ("topic orders on the source: approved was absent, now it is 0 partition(s), 2 mirrored",)
    assert broken_since(replace(view, source=wider, active_run="r"))
    assert broken_since(replace(view, active_run="r")) == ()


def test_failed_partitions_warn_and_do_not_forbid(view: View) -> None:
    decision = decide(replace(view, statuses={P0: status(P0), P1: status(P1, PartitionState.FAILED)}))
    assert decision.reasons == ()
    assert "orders-1 is FAILED" in decision.plan.warnings[0]


def test_a_topic_that_is_not_mirrored_yet_forbids(view: View) -> None:
    topics = {**source_of(view).topics, "orders2": Topic(id="c" * 32, partitions=1)}
    assert "topic orders2 on east" in reasons_of(replace(view, source=replace(source_of(view), topics=topics)))


def test_new_partitions_of_a_mirrored_topic_forbid(view: View) -> None:
    topics = {"orders": Topic(id=SRC, partitions=3)}
    text = reasons_of(replace(view, source=replace(source_of(view), topics=topics)))
    assert "partition(s) 2 are not mirrored yet" in text


def test_recreated_topics_forbid(view: View) -> None:
    topics = {"orders": Topic(id="f" * 32, partitions=2)}
    assert "recreated on east" in reasons_of(replace(view, source=replace(source_of(view), topics=topics)))
    assert isinstance(view.destination, DestinationView)
    assert "recreated on west" in reasons_of(replace(view, destination=replace(view.destination, topics=topics)))


def test_a_destination_ahead_of_its_source_forbids(view: View) -> None:
    source = replace(source_of(view), stable_ends={P0: Offset(9), P1: Offset(20)})
    assert "orders-0: west is 1 offset(s) ahead" in reasons_of(replace(view, source=source))


def test_another_cluster_behind_the_name_forbids(view: View) -> None:
    assert "east is cluster X" in reasons_of(replace(view, source=replace(source_of(view), cluster_id="X")))


def test_an_active_run_a_stopped_mirror_and_an_empty_one_forbid(view: View) -> None:
    text = reasons_of(replace(view, active_run="r9", statuses={}, mirror=replace(view.mirror, desired=Desired.STOPPED)))
    assert "run r9 holds" in text
    assert "is stopped" in text
    assert "nothing is mirrored yet" in text


def test_a_partition_without_alignment_forbids(view: View) -> None:
    statuses = {P0: status(P0), P1: status(P1, PartitionState.LOG_ALIGNMENT)}
    assert "not mirrored from their beginning yet: orders-1" in reasons_of(replace(view, statuses=statuses))


def test_no_authorizer_is_a_warning_that_names_the_consequence(view: View) -> None:
    decision = decide(replace(view, source=replace(source_of(view), authorizer=False)))
    assert "nothing can stop a writer" in decision.plan.warnings[0]
    assert "stand still" in decision.plan.steps[1].action
    assert decision.reasons == ()


def test_the_check_before_promotion_ignores_what_the_run_itself_changes(view: View) -> None:
    approved = decide(view).plan.bound
    stopped = {p: replace(s, state=PartitionState.STOPPED, lmo=Offset(9)) for p, s in view.statuses.items()}
    mirror = replace(view.mirror, desired=Desired.STOPPED)
    after = decide(replace(view, mirror=mirror, statuses=stopped, active_run="r")).plan.bound
    assert changed_since(approved, after, source_seen=True) == ()


def test_the_check_before_promotion_sees_new_topics_failures_and_grants(view: View) -> None:
    approved = decide(view).plan.bound
    topics = {**source_of(view).topics, "orders2": Topic(id="c" * 32, partitions=1)}
    worse = replace(
        view,
        source=replace(source_of(view), topics=topics),
        statuses={P0: status(P0), P1: status(P1, PartitionState.FAILED)},
        grants=(),
    )
    changed = changed_since(approved, decide(worse).plan.bound, source_seen=True)
    assert [line.split(":")[0] for line in changed] == ["failed partitions", "grants", "topic orders2"]


def test_a_source_that_died_after_it_was_drained_does_not_forbid_promotion(view: View) -> None:
    approved = decide(view).plan.bound
    dead = decide(replace(view, source=Unseen("dead"), grants=())).plan.bound
    assert changed_since(approved, dead, source_seen=False) == ()
    changed = changed_since(approved, dead, source_seen=True)
    assert [line.split(":")[0] for line in changed] == ["grants", "source"]
    lost = decide(replace(view, source=Unseen("dead"), destination=Unseen("dead"))).plan.bound
    assert changed_since(approved, lost, source_seen=False) == ("destination: approved was W, now it is unseen",)


@pytest.mark.parametrize(("source_id", "destination_id"), [("f" * 32, DST), (SRC, "f" * 32)])
def test_a_topic_of_another_id_makes_the_approval_void_also_when_the_source_is_dead(
    view: View, source_id: str, destination_id: str
) -> None:
    approved = decide(view).plan
    anew = {
        p: replace(s, source_topic_id=source_id, destination_topic_id=destination_id) for p, s in view.statuses.items()
    }
    now = decide(replace(view, statuses=anew, source=Unseen("dead"))).plan
    assert now.hash != decide(replace(view, source=Unseen("dead"))).plan.hash
    assert [line.split(":")[0] for line in changed_since(approved.bound, now.bound, source_seen=False)] == [
        "topic orders"
    ]


def test_a_partition_that_failed_and_was_stopped_is_not_healthy(view: View) -> None:
    stopped = replace(status(P1, PartitionState.FAILED), state=PartitionState.STOPPED)
    assert list(healthy({P0: status(P0), P1: stopped})) == [P0]
    assert "orders-1 is FAILED" in decide(replace(view, statuses={P0: status(P0), P1: stopped})).plan.warnings[0]


def test_facts_have_names_of_their_own(view: View) -> None:
    names_of_facts = [fact.name for fact in decide(view).plan.bound]
    assert len(set(names_of_facts)) == len(names_of_facts)


def test_a_thousand_failed_partitions_are_counted_and_not_all_listed(view: View) -> None:
    failed = {p: status(p, PartitionState.FAILED) for p in (Partition("orders", n) for n in range(1000))}
    plan = decide(replace(view, statuses=failed)).plan
    assert len(plan.warnings) < 250
    assert any("800 more partitions are FAILED" in line for line in plan.warnings)
    assert len(plan.partitions) == 200
    assert next(f.value for f in plan.bound if f.name == "failed partitions").startswith("1000: orders-0, ")


def test_what_was_approved_is_bound_to_everything_that_a_run_would_rest_on(view: View) -> None:
    others = [
        replace(view, mirror=replace(view.mirror, created_ms=2)),  # another mirror of the same name
        replace(view, mirror=replace(view.mirror, desired=Desired.PAUSED)),
        replace(view, source=replace(source_of(view), groups=("g", "new"))),
        replace(view, source=replace(source_of(view), authorizer=False)),
        replace(view, source=replace(source_of(view), cluster_id="X")),
    ]
    bound = [decide(found).plan.bound for found in (view, *others)]
    assert len(set(bound)) == len(bound)
    assert {fact.name for fact in bound[0]} == {
        "desired",
        "mirror",
        "source",
        "destination",
        "topic orders",
        "groups",
        "authorizer of the source",
        "states",
        "failed partitions",
        "grants",
    }


def test_a_partition_that_nobody_leads_is_named_and_holds_up_a_planned_failover_only(view: View) -> None:
    one = replace(source_of(view), stable_ends={P0: Offset(10)}, leaderless=(P1,))
    assert "east: nobody leads orders-1, so the rest cannot be copied" in reasons_of(replace(view, source=one))
    unplanned = replace(view, source=one, mode=Mode.UNPLANNED)
    assert "nobody leads" not in reasons_of(unplanned)
    given_up = {P0: status(P0), P1: status(P1, PartitionState.FAILED)}
    assert "nobody leads" not in reasons_of(replace(view, source=one, statuses=given_up)), "it is not copied anyway"
    assert isinstance(view.destination, DestinationView)
    there = replace(view.destination, positions={P0: Offset(10)}, leaderless=(P1,))
    assert "west: nobody leads orders-1" in reasons_of(replace(view, destination=there))


def test_a_source_that_is_silent_before_the_fence_is_waited_for(monkeypatch: pytest.MonkeyPatch, view: View) -> None:
    """Nothing that was approved has changed by that: a run that is refused would be aborted."""
    log = MemoryLog()
    log.put(replace(RUN, plan=decide(view).plan))
    steps = Steps(LINK, cast("Any", None), cast("Any", log), Journal(log, RUN.id, ("fence",)))
    seen = replace(view, source=Unseen("no broker answered"))
    monkeypatch.setattr(promotion, "observe", lambda *asked: seen)
    with pytest.raises(Unreachable, match=r"fence: no broker answered; resume the run when \w+ answers"):
        steps.check_approval("fence", source_needed=True)
    assert steps.check_approval("promotion", source_needed=False) is False
    monkeypatch.setattr(promotion, "observe", lambda *asked: replace(seen, destination=Unseen("nor here")))
    with pytest.raises(Refused, match="abort this run and plan again"):
        steps.check_approval("fence", source_needed=True)
