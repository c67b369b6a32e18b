"""What an approval of a failover is bound to: what voids it, before the fence and before the promotion, and what does
not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from mirror_core.decide.failover import bound_of, broken_since, changed_since, decide
from mirror_core.decide.view import DestinationView, Topic, Unseen, View
from mirror_core.model.errors import Refused, Unreachable
from mirror_core.model.mirror import Desired, PartitionState
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import Mode
from mirror_core.runbook import observe, promotion
from mirror_core.runbook.failover_steps import Steps
from mirror_core.state.journal import Journal, checkpoint
from mirror_core.state.records import PartitionRecord
from tests.memory import MemoryLog
from tests.unit.test_decide_failover import DST, P0, P1, SRC, healthy_view, source_of, status
from tests.unit.test_decide_verbs import RUN
from tests.unit.test_refusals import LINK


@pytest.fixture
def view() -> View:
    return healthy_view()


def test_whether_an_approval_holds_does_not_depend_on_what_groups_have_committed(view: View) -> None:
    """So nobody asks hundreds of groups for it while applications stand still."""
    here = cast(DestinationView, view.destination)
    some = {"a group": {Partition("t", 0): Offset(1)}}
    other = replace(
        view,
        source=replace(source_of(view), committed=some),
        destination=replace(here, committed=some, joined=("a group",), groups_unseen=True),
    )
    assert decide(other).plan.bound == bound_of(other) == bound_of(view)
    assert broken_since(other, source_seen=True) == broken_since(view, source_seen=True)
    assert decide(other).reasons == decide(view).reasons
    assert decide(other).plan.warnings != decide(view).plan.warnings


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


def test_an_error_text_that_varies_does_not_change_the_hash(view: View) -> None:
    one, two = (decide(replace(view, source=Unseen(text))).plan.hash for text in ("after 2.9 s", "after 3.0 s"))
    assert one == two


def test_an_approval_of_an_unplanned_failover_holds_while_the_source_comes_and_goes(view: View) -> None:
    lost = replace(view, mode=Mode.UNPLANNED, source=Unseen("dead"))
    other = replace(source_of(view), topics={}, groups=("h",), cluster_id="X", authorizer=False)
    assert decide(lost).plan.hash == decide(replace(lost, source=other)).plan.hash
    assert decide(lost).plan.hash != decide(replace(lost, continues="run-1")).plan.hash


def test_a_topic_that_the_source_widens_after_the_approval_voids_it(view: View) -> None:
    wider = replace(source_of(view), topics={"orders": Topic(id=SRC, partitions=3)})
    changed = changed_since(decide(view).plan.bound, decide(replace(view, source=wider)).plan.bound, source_seen=True)
    now = "now it is 3 partition(s), 2 mirrored"
    assert changed == (f"topic orders on the source: approved was absent, {now}",)
    gone = replace(source_of(view), topics={})
    changed = changed_since(decide(view).plan.bound, decide(replace(view, source=gone)).plan.bound, source_seen=True)
    assert changed == ("topic orders on the source: approved was absent, now it is 0 partition(s), 2 mirrored",)
    assert broken_since(replace(view, source=wider, active_run="r"), source_seen=True)
    assert broken_since(replace(view, active_run="r"), source_seen=True) == ()


def test_a_mirror_topic_that_was_recreated_is_not_promoted_though_the_source_has_died(view: View) -> None:
    here = cast(DestinationView, view.destination)
    other = replace(here, topics={name: replace(topic, id="0" * 32) for name, topic in here.topics.items()})
    lost = replace(view, source=Unseen("dead"), destination=other)
    assert broken_since(lost, source_seen=False) == (
        f"topic orders was recreated on {view.mirror.destination}: recover it first",
    )
    assert broken_since(replace(lost, destination=here), source_seen=False) == (), "a dead source holds nobody up"


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


def test_a_source_that_is_silent_before_the_fence_is_waited_for(monkeypatch: pytest.MonkeyPatch, view: View) -> None:
    """Nothing that was approved has changed by that: a run that is refused would be aborted."""
    log = MemoryLog()
    log.put(replace(RUN, plan=decide(view).plan), checkpoint(RUN.id, "begin", decide(view).scope))
    steps = Steps(LINK, cast("Any", None), cast("Any", log), Journal(log, RUN.id, ("fence",)))
    seen = replace(view, source=Unseen("no broker answered"))
    monkeypatch.setattr(promotion, "observe", lambda *asked, offsets, fences: seen)
    with pytest.raises(Unreachable, match=r"fence: no broker answered; resume the run when \w+ answers"):
        steps.check_approval("fence", source_needed=True)
    assert steps.check_approval("promotion", source_needed=False) is False
    monkeypatch.setattr(
        promotion, "observe", lambda *asked, offsets, fences: replace(seen, destination=Unseen("nor here"))
    )
    with pytest.raises(Refused, match="abort this run and plan again"):
        steps.check_approval("fence", source_needed=True)


def test_a_fence_that_has_become_a_first_acl_since_the_plan_is_not_put_up(
    monkeypatch: pytest.MonkeyPatch, view: View
) -> None:
    """A proof takes hours, and rights change."""
    log = MemoryLog()
    log.put(replace(RUN, plan=decide(view).plan), checkpoint(RUN.id, "begin", decide(view).scope))
    steps = Steps(LINK, cast("Any", None), cast("Any", log), Journal(log, RUN.id, ("fence",)))

    def source(*_: object, fences: bool, **__: object) -> Any:
        return replace(source_of(view), shuts_out="orders have no ACL" if fences else "")

    monkeypatch.setattr(observe, "_look_at_source", source)
    monkeypatch.setattr(observe, "_look_at_destination", lambda *_, **__: view.destination)
    monkeypatch.setattr(observe, "command_problems", lambda *_: ())
    monkeypatch.setattr(observe, "now_ms", lambda: view.now_ms)
    log.put(*(PartitionRecord(LINK.mirror.name, status) for status in view.statuses.values()))
    with pytest.raises(Refused) as refused:
        steps.check_approval("fence", source_needed=True)
    assert any("would shut out more than writers" in reason for reason in refused.value.reasons)
