"""What is left behind in a planned failover, seen again in the course of its run."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.decide.failover_plan import decide_failover, list_bound_facts, list_changed_facts, list_new_reasons
from mirror_core.decide.failover_scope import build_scope, find_scope_changes
from mirror_core.decide.forecast_accuracy import LossCount, add_left_behind
from mirror_core.decide.mirror_snapshot import ClusterTopic, MirrorSnapshot
from mirror_core.kafka.client import Leader
from mirror_core.mirrors import incremental_verification
from mirror_core.model.errors import Refused
from mirror_core.model.mirror import FailureKind, PartitionState
from mirror_core.model.names import Offset, Partition, PartitionOffsets
from mirror_core.model.parity_verdict import MirrorVerification, ParityRange, VerifiedEnd
from mirror_core.model.timing import read_steady_s
from mirror_core.runbook import drain, planned_steps
from mirror_core.runbook.parity_gate import RemainingCompare
from mirror_core.runbook.planned_steps import PlannedSteps
from mirror_core.runbook.step_records import FenceResult, ProveResult
from mirror_core.state.state_records import State
from mirror_core.sync.fence_acls import VerifiedFence
from tests.support import offline_partitions
from tests.support.cluster_names import LINK
from tests.support.failover_views import DST, P0, P1, SRC, reasons_of, source_of, status
from tests.support.mirror_views import HOLDER
from tests.support.offline_partitions import led, there
from tests.support.sentences import format_sentence

view, left, steps, journal = (
    offline_partitions.view,
    offline_partitions.left,
    offline_partitions.steps,
    offline_partitions.journal,
)
NAME = LINK.mirror.name


# -- before anybody is stopped -----------------------------------------------------------------------------------------


def test_topics_that_the_source_has_lost_are_nothing_that_could_be_moved(left: MirrorSnapshot) -> None:
    gone = Partition("gone", 0)
    alone = replace(
        left,
        statuses={P1: left.statuses[P1], gone: status(gone)},
        source=replace(source_of(left), topics={"orders": ClusterTopic(id=SRC, partitions=2)}),
        destination=replace(
            there(left),
            topics={**there(left).topics, "gone": ClusterTopic(id=DST, partitions=1)},
            positions={P1: Offset(15), gone: Offset(3)},
        ),
    )
    assert "nothing is left to be moved" in reasons_of(alone)
    assert decide_failover(replace(alone, statuses={**alone.statuses, P0: status(P0)})).reasons == ()


def test_one_that_is_back_and_behind_the_destination_is_seen_before_anybody_is_stopped(
    steps: PlannedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the fence it could not be drained. Nor is it fenced before it was compared within the gate's limit."""
    asked = list[tuple[Partition, ...]]()
    monkeypatch.setattr(PlannedSteps, "check_approval", lambda self, what, **_: asked.append(self.scope.left_behind))
    monkeypatch.setattr(PlannedSteps, "_refuse_if_strayed", lambda self: None)
    monkeypatch.setattr(planned_steps, "LiftFile", lambda *a, **k: SimpleNamespace(text=""))
    fenced = list[tuple[Partition, ...]]()

    def raise_fence(
        link: object, log: object, client: object, names: object, drained: Any, **_: object
    ) -> VerifiedFence:
        fenced.append(tuple(drained))
        return VerifiedFence(authorizer=True, still_s=0.1, ends={P0: Offset(5)})

    monkeypatch.setattr(planned_steps, "apply_fence", raise_fence)
    led(monkeypatch, P1)
    monkeypatch.setattr(PlannedSteps, "_may_be_fenced", lambda self: False)
    with pytest.raises(Refused) as refused:
        steps.fence()
    assert asked == [(P1,), ()]
    assert "`mirrorbook failover resume m` compares it first" in refused.value.reasons[0]
    steps.fence()
    assert fenced == [(P0, P1)], "when it was resumed"


def test_what_is_led_again_during_the_last_comparison_is_within_the_limit_of_the_gate_too(
    steps: PlannedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or applications would stand still for its comparison, which nobody has allowed."""
    steps.journal.save_checkpoint("prove", ProveResult(ends=PartitionOffsets.from_mapping({P0: Offset(5)}), records=5))
    rests = {(P0,): RemainingCompare(10**5, 10**9, 20.0), (P0, P1): RemainingCompare(10**9, 10**12, 10_000.0)}
    monkeypatch.setattr(PlannedSteps, "_may_be_fenced", lambda self: False)
    monkeypatch.setattr(planned_steps, "estimate_remaining", lambda link, partitions, *_: rests[tuple(partitions)])

    def compare(
        self: PlannedSteps, rest: RemainingCompare, folder: str, *_: object
    ) -> tuple[list[Any], RemainingCompare]:
        whole = P1 in self.scope.drained
        led(monkeypatch, P1)
        return [], (rest if whole else RemainingCompare(0, 0, 0.0))

    monkeypatch.setattr(PlannedSteps, "_compare_new_records", compare)
    led(monkeypatch)
    with pytest.raises(Refused) as refused:
        replace(steps, services=cast("Any", SimpleNamespace(prepare_gate=lambda run: None))).compare_before_fence(5.0)
    assert "about 10000.0 s: more than the 5 s that were allowed" in refused.value.reasons[0]
    assert steps.scope.left_behind == ()


@pytest.mark.parametrize("leader", [Leader(3, epoch=7), Leader(-1, epoch=7)])
def test_a_leader_that_does_not_answer_yet_is_none_that_is_left_behind(
    steps: PlannedSteps, monkeypatch: pytest.MonkeyPatch, leader: Leader
) -> None:
    """It says NOT_LEADER for seconds after an election, or hangs: it is asked nothing."""
    topic = SimpleNamespace(partitions={P1.index: leader})
    client = SimpleNamespace(
        name="east", metadata=lambda topics: SimpleNamespace(topics={P1.topic: topic}), mark_metadata_stale=lambda: None
    )
    monkeypatch.setattr(drain, "ClusterClient", lambda *a, **k: nullcontext(client))
    assert drain.readmit_led_partitions(steps, steps.scope) is (leader.broker >= 0)
    assert steps.scope.left_behind == (() if leader.broker >= 0 else (P1,))


def compared(steps: PlannedSteps, monkeypatch: pytest.MonkeyPatch) -> list[set[Partition]]:
    """What a comparison of this run takes for compared already, where a topic is cleaned by key."""
    recent = list[set[Partition]]()

    def compare_rest(link: object, state: object, ranges: list[ParityRange], *_: object, **how: Any) -> Any:
        recent.append(set(how["recent"]))
        proven = {one.partition: one.end for one in ranges}
        result = SimpleNamespace(verified_ends=proven, records=1, chunks=1, report="", seconds=0.0)
        return result, None, SimpleNamespace(count_verified_records=lambda ranges: 0, list_remaining=lambda ranges: ())

    monkeypatch.setattr(planned_steps, "compare_unverified", compare_rest)
    monkeypatch.setattr(planned_steps, "check_gate", lambda *a, **k: "PASSED")
    ready = replace(steps, writer=cast("Any", SimpleNamespace(state=State(), now_ms=int, put=lambda *records: None)))
    for partitions in ([P0], [P0], [P0, P1]):
        ranges = [ParityRange(partition=p, start=Offset(0), end=Offset(9)) for p in partitions]
        ready._compare_once(ranges, cast("Any", None), "prove")
    return recent


def test_one_that_is_taken_back_is_compared_whole_by_its_first_round(
    steps: PlannedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compared(steps, monkeypatch) == [set(), {P0}, {P0}]


def test_what_is_cleaned_by_key_is_in_doubt_unless_it_was_compared_a_moment_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proof = MirrorVerification.from_partitions(
        NAME, {P0: VerifiedEnd(9, 1, 1, 9, 1), P1: VerifiedEnd(9, 1, 1, 9, 1)}, {"orders": DST}
    )
    state = State()
    state.verifications[NAME] = proof
    state.partitions[NAME] = {p: status(p) for p in (P0, P1)}
    ids = iter([DST, SRC] * 2)

    def leaders(client: object, topics: object, asked: dict[Partition, int]) -> Any:
        return incremental_verification._LeaderEpochs(
            {"orders": next(ids)}, dict.fromkeys((P0, P1), 1), dict.fromkeys(asked, Offset(9))
        )

    settings = SimpleNamespace(effective={"cleanup.policy": "compact"})
    monkeypatch.setattr(incremental_verification, "ClusterClient", lambda *a, **k: nullcontext())
    monkeypatch.setattr(incremental_verification, "_fetch_leader_epochs", leaders)
    monkeypatch.setattr(
        incremental_verification, "list_known_offsets", lambda client, asked, *a, **k: dict.fromkeys(asked, Offset(0))
    )
    monkeypatch.setattr(
        incremental_verification, "describe_configs", lambda client, topics: dict.fromkeys(topics, settings)
    )
    assert set(incremental_verification._read_basis_of_both(LINK, state, recent=[P0]).valid) == {P0}
    assert set(incremental_verification._read_basis_of_both(LINK, state, recent=[P0, P1]).valid) == {P0, P1}


# -- behind the fence --------------------------------------------------------------------------------------------------


def test_a_destination_that_is_ahead_of_what_came_back_promotes_it_as_it_is(left: MirrorSnapshot) -> None:
    back = replace(
        left,
        active_run=HOLDER,
        source=replace(source_of(left), offline_partitions=(), stable_ends={P0: Offset(10), P1: Offset(12)}),
    )
    assert list_new_reasons(back, source_seen=True) == ()
    [reason] = list_new_reasons(replace(back, left_behind=frozenset()), source_seen=True)
    assert (reason.code, reason.values["offsets"]) == ("destination_ahead", 3)


@pytest.mark.parametrize("kind", FailureKind)
def test_one_that_has_failed_behind_the_fence_is_promoted_as_it_is_unless_the_copy_is_bad(
    left: MirrorSnapshot, kind: FailureKind
) -> None:
    """The data plane has seen that its source, which has a leader again, is shorter; or that west holds no copy."""
    failed = replace(left.statuses[P1], state=PartitionState.FAILED, reason="why", kind=kind)
    now = replace(
        left,
        active_run=HOLDER,
        statuses={**left.statuses, P1: failed},
        source=replace(source_of(left), offline_partitions=()),
    )
    assert tuple(find_scope_changes(build_scope(left), now.statuses)) == ()
    bad = {"REPLACED", "OCCUPIED", "CIRCLE", "FOREIGN", "ALTERED", "DELETED", "RECOPYING", "RECREATED"}
    assert bool(list_changed_facts(list_bound_facts(left), list_bound_facts(now), source_seen=True)) is (
        kind.name in bad
    )


def test_a_slow_leader_on_the_destination_forbids_the_plan_and_does_not_end_the_run(left: MirrorSnapshot) -> None:
    slow = replace(left, destination=replace(there(left), positions={P0: Offset(10)}))
    assert "their log ends on west are not known" in reasons_of(slow)
    assert list_new_reasons(replace(slow, active_run=HOLDER), source_seen=True) == ()


@pytest.mark.parametrize(
    ("until_s", "waited_s"),
    [
        (20, 22),
        (6000, drain.MAX_TASK_S),
        (-5, None),
    ],  # the second one by the clock of a host that is ahead of ours
)
def test_people_hear_how_long_they_wait_for_tasks_and_nobody_waits_longer_than_one_lives(
    steps: PlannedSteps, monkeypatch: pytest.MonkeyPatch, until_s: int, waited_s: float | None
) -> None:
    end_s, said, waited = read_steady_s() + until_s, list[str](), list[float]()
    monkeypatch.setattr(time, "sleep", waited.append)
    assert drain.wait_for_tasks_to_stop(replace(steps, print_line=said.append), end_s, [P1]) == [P1]
    drain.wait_for_tasks_to_stop(steps, end_s, [])
    if waited_s is None:
        assert (said, waited) == ([], [])
    else:
        assert [round(s) for s in waited] == [waited_s]
        assert said == [format_sentence("drain_waits_for_copying_tasks", f"{waited_s:.0f}")]


@pytest.mark.parametrize(
    ("lifted", "words"),
    [
        (LossCount(4, "by what east took"), format_sentence("late_writes_left_behind_unknown", 4, "east")),
        (LossCount(None, "it was lifted"), format_sentence("late_writes_since_lift_unknown", "orders-1")),
    ],
)
def test_a_loss_that_was_counted_otherwise_is_not_all_where_something_was_left_behind(
    steps: PlannedSteps, monkeypatch: pytest.MonkeyPatch, lifted: LossCount, words: str
) -> None:
    steps.journal.save_checkpoint("fence", FenceResult(ends=PartitionOffsets(), authorizer=True, command=False))
    monkeypatch.setattr(planned_steps, "count_lost_while_lifted", lambda *a: lifted)
    counted = steps.count_lost()
    assert (counted.offsets, counted.least, words in counted.basis) == (None, lifted.offsets, True)
    assert add_left_behind(lifted, ()) == lifted
