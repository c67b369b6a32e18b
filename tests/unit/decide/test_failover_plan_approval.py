"""What an approval of a failover is bound to: what voids it, before the fence and before the promotion, and what does
not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from mirror_core.decide.failover_plan import decide_failover, list_bound_facts, list_changed_facts, list_new_reasons
from mirror_core.decide.mirror_snapshot import ClusterTopic, DestinationSnapshot, MirrorSnapshot, UnseenCluster
from mirror_core.model.errors import Refused, Unreachable
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import DesiredState, PartitionState
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import RunMode
from mirror_core.runbook import promotion_steps, snapshot_reader
from mirror_core.runbook.planned_steps import PlannedSteps
from mirror_core.state.journal import Journal, make_checkpoint
from mirror_core.state.state_records import PartitionRecord
from tests.support.cluster_names import LINK
from tests.support.failover_views import DST, P0, P1, SRC, healthy_view, source_of, status
from tests.support.memory_state import MemoryLog
from tests.support.mirror_views import HOLDER, RUN, TOO_WIDE


@pytest.fixture
def view() -> MirrorSnapshot:
    return healthy_view()


def test_whether_an_approval_holds_does_not_depend_on_what_groups_have_committed(view: MirrorSnapshot) -> None:
    """So nobody asks hundreds of groups for it while applications stand still."""
    here = cast(DestinationSnapshot, view.destination)
    some = {"a group": {Partition("t", 0): Offset(1)}}
    other = replace(
        view,
        source=replace(source_of(view), committed=some),
        destination=replace(here, committed=some, active_groups=("a group",), groups_unknown=True),
    )
    assert decide_failover(other).plan.bound_facts == list_bound_facts(other) == list_bound_facts(view)
    assert list_new_reasons(other, source_seen=True) == list_new_reasons(view, source_seen=True)
    assert decide_failover(other).reasons == decide_failover(view).reasons
    assert decide_failover(other).plan.warnings != decide_failover(view).plan.warnings


def test_the_hash_holds_while_only_numbers_move(view: MirrorSnapshot) -> None:
    source = replace(source_of(view), stable_ends={P0: Offset(99), P1: Offset(99)})
    assert decide_failover(replace(view, source=source, now_ms=3_000)).plan.hash == decide_failover(view).plan.hash


@pytest.mark.parametrize(
    "change",
    [
        {"statuses": {P0: status(P0), P1: status(P1, PartitionState.FAILED)}},
        {"statuses": {P0: status(P0), P1: status(P1, PartitionState.PAUSED)}},
        {"statuses": {P0: status(P0)}},
        {"grants": ()},
        {"mode": RunMode.UNPLANNED},
        {"source": UnseenCluster("dead")},
        {"destination": UnseenCluster("dead")},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_hash_changes_with_what_was_approved(view: MirrorSnapshot, change: dict[str, object]) -> None:
    assert decide_failover(replace(view, **change)).plan.hash != decide_failover(view).plan.hash  # type: ignore[arg-type]  # one of View's


def test_an_error_text_that_varies_does_not_change_the_hash(view: MirrorSnapshot) -> None:
    one, two = (
        decide_failover(replace(view, source=UnseenCluster(text))).plan.hash for text in ("after 2.9 s", "after 3.0 s")
    )
    assert one == two


def test_an_approval_of_an_unplanned_failover_holds_while_the_source_comes_and_goes(view: MirrorSnapshot) -> None:
    lost = replace(view, mode=RunMode.UNPLANNED, source=UnseenCluster("dead"))
    other = replace(source_of(view), topics={}, groups=("h",), cluster_id="X", authorizer=False)
    assert decide_failover(lost).plan.hash == decide_failover(replace(lost, source=other)).plan.hash
    assert decide_failover(lost).plan.hash != decide_failover(replace(lost, continues_run="run-1")).plan.hash


def test_a_topic_that_the_source_widens_after_the_approval_voids_it(view: MirrorSnapshot) -> None:
    wider = replace(source_of(view), topics={"orders": ClusterTopic(id=SRC, partitions=3)})
    changed = list_changed_facts(
        decide_failover(view).plan.bound_facts,
        decide_failover(replace(view, source=wider)).plan.bound_facts,
        source_seen=True,
    )
    now = "now it is 3 partition(s), 2 mirrored"
    assert changed == (f"topic orders on the source: approved was absent, {now}",)
    gone = replace(source_of(view), topics={})
    changed = list_changed_facts(
        decide_failover(view).plan.bound_facts,
        decide_failover(replace(view, source=gone)).plan.bound_facts,
        source_seen=True,
    )
    assert changed == ("topic orders on the source: approved was absent, now it is 0 partition(s), 2 mirrored",)
    assert list_new_reasons(replace(view, source=wider, active_run=HOLDER), source_seen=True)
    assert list_new_reasons(replace(view, active_run=HOLDER), source_seen=True) == ()


def test_a_mirror_topic_that_was_recreated_is_not_promoted_though_the_source_has_died(view: MirrorSnapshot) -> None:
    here = cast(DestinationSnapshot, view.destination)
    other = replace(here, topics={name: replace(topic, id="0" * 32) for name, topic in here.topics.items()})
    lost = replace(view, source=UnseenCluster("dead"), destination=other)
    assert list_new_reasons(lost, source_seen=False) == (
        Finding("topic_recreated", "orders", cluster=view.mirror.destination),
    )
    assert list_new_reasons(replace(lost, destination=here), source_seen=False) == (), "a dead source holds nobody up"


def test_the_check_before_promotion_ignores_what_the_run_itself_changes(view: MirrorSnapshot) -> None:
    approved = decide_failover(view).plan.bound_facts
    stopped = {p: replace(s, state=PartitionState.STOPPED, lmo=Offset(9)) for p, s in view.statuses.items()}
    mirror = replace(view.mirror, desired=DesiredState.STOPPED)
    after = decide_failover(replace(view, mirror=mirror, statuses=stopped, active_run=HOLDER)).plan.bound_facts
    assert list_changed_facts(approved, after, source_seen=True) == ()


def test_the_check_before_promotion_sees_new_topics_failures_and_grants(view: MirrorSnapshot) -> None:
    approved = decide_failover(view).plan.bound_facts
    topics = {**source_of(view).topics, "orders2": ClusterTopic(id="c" * 32, partitions=1)}
    worse = replace(
        view,
        source=replace(source_of(view), topics=topics),
        statuses={P0: status(P0), P1: status(P1, PartitionState.FAILED)},
        grants=(),
    )
    changed = list_changed_facts(approved, decide_failover(worse).plan.bound_facts, source_seen=True)
    assert [line.split(":")[0] for line in changed] == ["failed partitions", "grants", "topic orders2"]


def test_a_source_that_died_after_it_was_drained_does_not_forbid_promotion(view: MirrorSnapshot) -> None:
    approved = decide_failover(view).plan.bound_facts
    dead = decide_failover(replace(view, source=UnseenCluster("dead"), grants=())).plan.bound_facts
    assert list_changed_facts(approved, dead, source_seen=False) == ()
    changed = list_changed_facts(approved, dead, source_seen=True)
    assert [line.split(":")[0] for line in changed] == ["grants", "source"]
    lost = decide_failover(
        replace(view, source=UnseenCluster("dead"), destination=UnseenCluster("dead"))
    ).plan.bound_facts
    assert list_changed_facts(approved, lost, source_seen=False) == ("destination: approved was W, now it is unseen",)


@pytest.mark.parametrize(("source_id", "destination_id"), [("f" * 32, DST), (SRC, "f" * 32)])
def test_a_topic_of_another_id_makes_the_approval_void_also_when_the_source_is_dead(
    view: MirrorSnapshot, source_id: str, destination_id: str
) -> None:
    approved = decide_failover(view).plan
    anew = {
        p: replace(s, source_topic_id=source_id, destination_topic_id=destination_id) for p, s in view.statuses.items()
    }
    now = decide_failover(replace(view, statuses=anew, source=UnseenCluster("dead"))).plan
    assert now.hash != decide_failover(replace(view, source=UnseenCluster("dead"))).plan.hash
    assert [
        line.split(":")[0] for line in list_changed_facts(approved.bound_facts, now.bound_facts, source_seen=False)
    ] == ["topic orders"]


def test_what_was_approved_is_bound_to_everything_that_a_run_would_rest_on(view: MirrorSnapshot) -> None:
    others = [
        replace(view, mirror=replace(view.mirror, created_ms=2)),  # another mirror of the same name
        replace(view, mirror=replace(view.mirror, desired=DesiredState.PAUSED)),
        replace(view, source=replace(source_of(view), groups=("g", "new"))),
        replace(view, source=replace(source_of(view), authorizer=False)),
        replace(view, source=replace(source_of(view), cluster_id="X")),
    ]
    bound = [decide_failover(found).plan.bound_facts for found in (view, *others)]
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


def test_a_source_that_is_silent_before_the_fence_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, view: MirrorSnapshot
) -> None:
    """Nothing that was approved has changed by that: a run that is refused would be aborted."""
    log = MemoryLog()
    log.put(
        replace(RUN, plan=decide_failover(view).plan), make_checkpoint(RUN.id, "begin", decide_failover(view).scope)
    )
    steps = PlannedSteps(LINK, cast("Any", None), cast("Any", log), Journal(log, RUN.id, ("fence",)))
    seen = replace(view, source=UnseenCluster("no broker answered"))
    monkeypatch.setattr(promotion_steps, "take_snapshot", lambda *asked, offsets, fences: seen)
    with pytest.raises(Unreachable, match=r"fence: no broker answered; resume the run when \w+ answers"):
        steps.check_approval("fence", source_needed=True)
    assert steps.check_approval("promotion", source_needed=False) is False
    monkeypatch.setattr(
        promotion_steps,
        "take_snapshot",
        lambda *asked, offsets, fences: replace(seen, destination=UnseenCluster("nor here")),
    )
    with pytest.raises(Refused, match="abort this run and plan again"):
        steps.check_approval("fence", source_needed=True)


def test_a_fence_that_has_become_a_first_acl_since_the_plan_is_not_put_up(
    monkeypatch: pytest.MonkeyPatch, view: MirrorSnapshot
) -> None:
    """A proof takes hours, and rights change."""
    log = MemoryLog()
    log.put(
        replace(RUN, plan=decide_failover(view).plan), make_checkpoint(RUN.id, "begin", decide_failover(view).scope)
    )
    steps = PlannedSteps(LINK, cast("Any", None), cast("Any", log), Journal(log, RUN.id, ("fence",)))

    def source(*_: object, fences: bool, **__: object) -> Any:
        return replace(source_of(view), fence_side_effects=TOO_WIDE if fences else None)

    monkeypatch.setattr(snapshot_reader, "_snapshot_source", source)
    monkeypatch.setattr(snapshot_reader, "_snapshot_destination", lambda *_, **__: view.destination)
    monkeypatch.setattr(snapshot_reader, "warn_unusable_fence_commands", lambda *_: ())
    monkeypatch.setattr(snapshot_reader, "now_ms", lambda: view.now_ms)
    log.put(*(PartitionRecord(LINK.mirror.name, status) for status in view.statuses.values()))
    with pytest.raises(Refused) as refused:
        steps.check_approval("fence", source_needed=True)
    assert any("would shut out more than writers" in reason for reason in refused.value.reasons)
