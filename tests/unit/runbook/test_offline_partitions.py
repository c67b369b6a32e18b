"""A planned failover beside partitions that nobody leads on the source: refused, or left behind by a word."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.decide.failover_plan import decide_failover, list_new_reasons
from mirror_core.decide.failover_scope import LEFT_BEHIND_FACT, FailoverScope, TopicScope, build_scope, drain_led_again
from mirror_core.decide.forecast_accuracy import count_lost_planned
from mirror_core.decide.mirror_snapshot import MirrorSnapshot
from mirror_core.kafka.log_offsets import OffsetPoint
from mirror_core.model.errors import MirrorError, Refused
from mirror_core.model.figures import FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import Lease
from mirror_core.model.names import Offset, Partition, PartitionOffsets
from mirror_core.model.parity_verdict import ParityVerdict
from mirror_core.model.run import PlanFact, RunMode, StepRecord, StepState
from mirror_core.model.run_checkpoints import Checkpoint
from mirror_core.model.timing import now_ms
from mirror_core.runbook import drain, planned_steps, promotion_steps
from mirror_core.runbook import failover_conductor as engine
from mirror_core.runbook.failover_conductor import Failover, is_drained_behind_fence
from mirror_core.runbook.parity_gate import CompareRound, RemainingCompare
from mirror_core.runbook.planned_steps import PlannedSteps
from mirror_core.runbook.promotion_steps import PromotionSteps
from mirror_core.runbook.step_records import DrainResult, LeftBehindPartition, ProveResult
from mirror_core.state import lease as leases
from mirror_core.state.journal import Journal
from mirror_core.state.state_records import State
from mirror_core.sync import fence_acls
from tests.support import failover_views, offline_partitions
from tests.support.cluster_names import LINK
from tests.support.failover_views import CLOSABLE, P0, P1, foreign, reasons_of, source_of
from tests.support.mirror_views import RUN
from tests.support.offline_partitions import healthy_view, led, there
from tests.support.sentences import format_sentence

journal = offline_partitions.journal
left = offline_partitions.left
steps = offline_partitions.steps
view = offline_partitions.view
WORD = "`mirrorbook failover run m --leave-behind`"


def test_it_is_refused_and_the_refusal_names_the_word(view: MirrorSnapshot) -> None:
    [reason] = decide_failover(view).reasons
    assert (reason.code, reason.subject) == ("source_offline", "east")
    assert reason.values == {"partitions": ("orders-1",), "mirror": "m", "may_leave_behind": True}
    assert WORD in str(reason)


def test_by_the_word_it_is_left_behind_and_the_plan_says_what_that_means(left: MirrorSnapshot) -> None:
    decision = decide_failover(left)
    assert decision.reasons == ()
    assert (decision.scope.drained, decision.scope.left_behind, decision.scope.promoted) == ((P0,), (P1,), (P0, P1))
    assert decision.scope.topic_names == ("orders",), "what is promoted is fenced"
    plan = decision.plan
    [told] = [line for line in map(str, plan.warnings) if "left behind" in line]
    assert format_sentence("left_behind_position", "orders-1", 15, 7, "1.5") in told
    row = plan.partitions["orders-1"]
    assert (row[FigureKey.LAG_OFFSETS], row[FigureKey.PARTITION_LEFT_BEHIND], row[FigureKey.MIRROR_POSITION]) == (
        None,
        True,
        15,
    )
    assert plan.figures[FigureKey.LEFT_BEHIND_PARTITIONS] == 1
    assert plan.figures[FigureKey.LEFT_BEHIND_OFFSETS] == 7
    assert plan.figures[FigureKey.LAG_OFFSETS] == 0, "of all that is drained"
    assert (plan.forecast.lost_offsets, plan.forecast.lost_is_minimum) == (7, True)  # type: ignore[union-attr]
    assert (
        PlanFact(LEFT_BEHIND_FACT, next(f.value for f in plan.bound_facts if f.name == LEFT_BEHIND_FACT))
        in plan.bound_facts
    )


def test_what_is_not_known_of_it_is_said_to_be_unknown(left: MirrorSnapshot) -> None:
    plan = decide_failover(replace(left, source_observation=None)).plan
    assert any("orders-1 (position 15, loss unknown)" in line for line in map(str, plan.warnings))
    assert plan.figures[FigureKey.LEFT_BEHIND_PARTITIONS] == 1
    assert plan.figures[FigureKey.LEFT_BEHIND_OFFSETS] is None
    assert (plan.forecast.lost_offsets, plan.forecast.lost_is_minimum) == (None, True)  # type: ignore[union-attr]


def test_an_approval_is_for_what_was_left_behind(view: MirrorSnapshot, left: MirrorSnapshot) -> None:
    assert decide_failover(view).plan.hash != decide_failover(left).plan.hash
    led = replace(left, source=replace(source_of(left), offline_partitions=()))
    assert decide_failover(led).plan.hash != decide_failover(left).plan.hash, "it has a leader again: another plan"
    assert decide_failover(led).plan.hash == decide_failover(replace(led, left_behind=frozenset())).plan.hash, (
        "a word for nothing"
    )
    assert build_scope(led).left_behind == ()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda v: replace(v, mirror=replace(v.mirror, failback_run="run-1")), "on the way home"),
        (lambda v: replace(v, source=replace(source_of(v), authorizer=False)), "nothing fences east"),
        (
            lambda v: replace(v, source=replace(source_of(v), offline_partitions=(P0, P1))),
            format_sentence("no_mirrored_partition_has_a_leader", "east"),
        ),
        (
            lambda v: replace(v, destination=replace(there(v), positions={P0: Offset(10)})),
            "their log ends on west are not known",
        ),
    ],
)
def test_where_it_is_not_safe_no_word_helps_and_none_is_offered(view: MirrorSnapshot, change: Any, why: str) -> None:
    assert "--leave-behind" not in reasons_of(change(view))
    assert why in reasons_of(replace(change(view), left_behind=frozenset({P0, P1})))


def test_a_destination_without_a_leader_for_it_is_refused_as_ever(left: MirrorSnapshot) -> None:
    both = replace(left, destination=replace(there(left), positions={P0: Offset(10)}, offline_partitions=(P1,)))
    assert decide_failover(both).reasons == (Finding("destination_offline", "west", partitions=["orders-1"]),)


def test_a_command_that_closes_the_source_fences_it_as_well(left: MirrorSnapshot) -> None:
    assert decide_failover(foreign(left, CLOSABLE)).reasons == ()


def test_a_word_is_for_those_that_were_approved(left: MirrorSnapshot) -> None:
    """As a run asks before the fence, and before promotion."""
    assert list_new_reasons(left, source_seen=True) == ()
    another = Partition("orders", 2)
    statuses = {**left.statuses, another: failover_views.status(another)}
    [reason] = list_new_reasons(
        replace(left, statuses=statuses, source=replace(source_of(left), offline_partitions=(P1, another))),
        source_seen=True,
    )
    assert (reason.code, reason.values["partitions"]) == ("source_offline", ("orders-2",))


def test_an_unplanned_failover_leaves_behind_what_was_never_copied_in_full(left: MirrorSnapshot) -> None:
    lost = replace(left, mode=RunMode.UNPLANNED)
    [reason] = decide_failover(replace(lost, left_behind=frozenset())).reasons
    assert (reason.code, reason.values["partitions"]) == ("copy_never_complete", ("orders-1 (15 of 22)",))
    decision = decide_failover(lost)
    assert decision.reasons == ()
    assert decision.plan.warnings[0].code == "copy_never_complete", "the gravest first"
    assert [fact.name for fact in decision.plan.bound_facts if fact.name == LEFT_BEHIND_FACT]
    assert decision.scope.left_behind == (), "nothing is drained, so nothing can be drained after all"
    assert decide_failover(replace(lost, is_drained=True, left_behind=frozenset())).reasons == ()


def test_what_has_a_leader_again_is_drained_like_the_others() -> None:
    scope = FailoverScope(
        topics=(
            TopicScope(name="a", drained=(0, 3), as_is=(4,), left_behind=(1, 2)),
            TopicScope(name="b", drained=(), as_is=(), left_behind=(1,)),
        )
    )
    again = drain_led_again(scope, [Partition("a", 1)])
    assert again.drained == (Partition("a", 0), Partition("a", 1), Partition("a", 3))
    assert again.left_behind == (Partition("a", 2), Partition("b", 1))
    assert again.promoted == scope.promoted


def test_what_was_lost_with_it_is_unknown_until_a_failback_counts_it() -> None:
    counted = count_lost_planned({FigureKey.PARITY_VERDICT: ParityVerdict.PASSED}, [], [P1])
    assert (counted.offsets, "left behind without a leader: orders-1" in counted.basis) == (None, True)


def test_an_unplanned_failover_that_goes_on_from_there_does_not_say_that_nothing_is_lost() -> None:
    state = State()
    for bound, nothing_lost in (((), True), ((PlanFact(LEFT_BEHIND_FACT, "1: orders-1"),), False)):
        facts = (PlanFact("authorizer of the source", "True"), *bound)
        run = replace(RUN, plan=replace(RUN.plan, bound_facts=facts))
        state.checkpoints[run.id, "drain", DrainResult.__name__] = cast("Checkpoint", None)
        assert is_drained_behind_fence(state, run) is nothing_lost


def test_a_leader_that_is_back_at_the_fence_takes_it_back_for_good(
    steps: PlannedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    led(monkeypatch)
    assert not drain.readmit_led_partitions(steps, steps.scope)
    assert steps.scope.left_behind == (P1,)
    led(monkeypatch, P1)
    assert drain.readmit_led_partitions(steps, steps.scope)
    assert steps.scope.drained == (P0, P1)
    assert not drain.readmit_led_partitions(steps, steps.scope)


def test_one_that_is_back_before_is_compared_while_applications_still_write(
    steps: PlannedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = list[tuple[Partition, ...]]()

    def rest_of(link: object, partitions: Iterable[Partition], *_: object) -> RemainingCompare:
        looked_at.append(tuple(partitions))
        return RemainingCompare(offsets=0, size_bytes=0, seconds=0.0)

    led(monkeypatch, P1)
    monkeypatch.setattr(PlannedSteps, "_may_be_fenced", lambda self: False)
    monkeypatch.setattr(planned_steps, "estimate_remaining", rest_of)
    steps.journal.save_checkpoint("prove", ProveResult(ends=PartitionOffsets(), records=1))
    ready = replace(steps, services=cast("Any", SimpleNamespace(prepare_gate=lambda run_id: None)))
    ready.compare_before_fence(None)
    assert looked_at == [(P0, P1)]


@pytest.mark.parametrize("measured", [None, 8_000.0])
def test_the_last_estimate_before_the_fence_goes_by_the_measured_rate(
    steps: PlannedSteps, monkeypatch: pytest.MonkeyPatch, measured: float | None
) -> None:
    rates = list[float | None]()

    def rest_of(link: object, partitions: object, proven: object, per_second: float | None) -> RemainingCompare:
        rates.append(per_second)
        return RemainingCompare(offsets=0, size_bytes=0, seconds=0.0)

    led(monkeypatch, P1)
    monkeypatch.setattr(PlannedSteps, "_may_be_fenced", lambda self: False)
    monkeypatch.setattr(planned_steps, "estimate_remaining", rest_of)
    steps.journal.save_checkpoint("prove", ProveResult(ends=PartitionOffsets(), records=1, offsets_per_s=measured))
    services = cast("Any", SimpleNamespace(prepare_gate=lambda run_id: None))
    replace(steps, services=services).compare_before_fence(None)
    assert rates == [measured]


@pytest.mark.parametrize(("prove_age_s", "rounds"), [(5.0, 0), (3_000.0, 1), (-3_600.0, 1)])
def test_a_run_that_waited_compares_even_little_again_before_the_fence(
    steps: PlannedSteps, monkeypatch: pytest.MonkeyPatch, prove_age_s: float, rounds: int
) -> None:
    """One whose clock was ahead may have waited any time."""
    little = RemainingCompare(offsets=7, size_bytes=0, seconds=0.1)
    compared = list[str]()

    def compare(self: PlannedSteps, ranges: object, check: object, folder: str) -> CompareRound:
        compared.append(folder)
        return CompareRound(
            verdict="passed", ends={}, records=7, records_before=0, chunks=1, report="", per_second=None
        )

    led(monkeypatch, P1)
    monkeypatch.setattr(PlannedSteps, "_may_be_fenced", lambda self: False)
    monkeypatch.setattr(PlannedSteps, "_compare_once", compare)
    monkeypatch.setattr(PlannedSteps, "_list_mirrored_ranges", lambda self: [P0])
    monkeypatch.setattr(planned_steps, "estimate_remaining", lambda *_: little)
    steps.journal.save_checkpoint("prove", ProveResult(ends=PartitionOffsets(), records=1))
    ended_ms = now_ms() - round(prove_age_s * 1000)
    proof = StepRecord(
        run=steps.journal.run_id, step="prove", state=StepState.DONE, attempt=1, started_ms=0, ended_ms=ended_ms
    )
    steps.journal.log.put(proof)
    services = SimpleNamespace(prepare_gate=lambda run_id: None, parity=None, quick_parity=None)
    replace(steps, services=cast("Any", services)).compare_before_fence(None)
    assert len(compared) == rounds


def test_one_that_is_back_while_the_fence_goes_up_is_seen_to_stand_still(
    steps: PlannedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Applications may have written there, until it stood."""
    raised = list[tuple[Partition, ...]]()

    def raise_fence(
        link: Any, log: Any, client: Any, topics: Any, partitions: Any, **_: object
    ) -> fence_acls.VerifiedFence:
        raised.append(tuple(partitions))
        led(monkeypatch, P1)
        return fence_acls.VerifiedFence(authorizer=True, still_s=0.1, ends=dict.fromkeys(partitions, Offset(5)))

    led(monkeypatch)
    monkeypatch.setattr(planned_steps, "apply_fence", raise_fence)
    monkeypatch.setattr(planned_steps, "LiftFile", lambda *a, **k: SimpleNamespace(text=""))
    monkeypatch.setattr(PlannedSteps, "check_approval", lambda *a, **k: True)
    monkeypatch.setattr(PlannedSteps, "_refuse_if_strayed", lambda self: None)
    steps.fence()
    assert raised == [(P0,), (P0, P1)]


def test_a_task_of_before_is_outwaited_before_its_place_is_recorded(
    steps: PlannedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has lost its driver would go on with a partition that gets a leader, behind applications' records."""
    events = list[str]()
    now = now_ms()
    lease = Lease(mirror=LINK.mirror.name, owner="run", generation=2, heartbeat_ms=now, writers_until_ms=now + 20_000)
    writer = SimpleNamespace(state=State(), put=lambda *records: None)
    monkeypatch.setattr(leases, "StateWriter", lambda *a: nullcontext(writer))
    monkeypatch.setattr(leases, "make_next_lease", lambda *a: lease)
    monkeypatch.setattr(planned_steps, "list_offsets", lambda client, wanted, point: dict.fromkeys(wanted, Offset(9)))
    monkeypatch.setattr(planned_steps, "report_drain_progress", lambda *a: None)
    monkeypatch.setattr("mirror_core.state.lease.measure_clock_ahead_ms", lambda cluster, timeout_s: 0)
    monkeypatch.setattr(planned_steps, "deny_offset_commits", lambda *a: 0)
    monkeypatch.setattr(planned_steps, "verify_drained", lambda link, ends, state: drain.DrainedLogs(ends, {}))
    monkeypatch.setattr(time, "sleep", lambda s: events.append("waited" if s > 15 else "too short"))
    monkeypatch.setattr(PlannedSteps, "statuses", lambda self: healthy_view().statuses)

    def standing(link: object, partitions: Collection[Partition]) -> tuple[LeftBehindPartition, ...]:
        events.append(f"looked at {', '.join(map(str, partitions))}")
        return tuple(
            LeftBehindPartition(topic=p.topic, index=p.index, end=Offset(15), high_watermark=Offset(15))
            for p in partitions
        )

    monkeypatch.setattr(planned_steps, "read_left_behind", standing)
    copied = list[Collection[Partition]]()
    copy = lambda link: lambda ends, *_: copied.append(tuple(ends))  # noqa: E731
    steps = replace(steps, services=cast("Any", SimpleNamespace(copy=copy)))
    steps.journal.perform("fence", dict)
    assert steps.journal.perform("drain", steps._drain).evidence["left_behind_ends"] == {"orders-1": 15}
    assert (copied, events) == ([(P0,)], ["waited", "looked at orders-1"])
    assert (steps.positions, steps.left_behind[P1].high_watermark) == ({P0: 9}, 15)


def test_it_counts_as_mirrored_only_up_to_what_is_replicated(
    monkeypatch: pytest.MonkeyPatch, steps: PlannedSteps
) -> None:
    points = {OffsetPoint.LOG_END: {P1: Offset(15)}, OffsetPoint.HIGH_WATERMARK: {P1: Offset(14)}}
    monkeypatch.setattr(drain, "list_offset_points", lambda client, partitions, asked: {p: points[p] for p in asked})
    with pytest.raises(MirrorError, match="orders-1: replicated up to 14 of 15"):
        drain.read_left_behind(LINK, [P1])
    points[OffsetPoint.HIGH_WATERMARK] = {P1: Offset(15)}
    [one] = drain.read_left_behind(LINK, [P1])
    assert (one.end, one.high_watermark) == (15, 15)


def test_a_run_asks_with_what_it_leaves_behind(
    steps: PlannedSteps, view: MirrorSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promotion_steps, "take_snapshot", lambda *a, **k: view)
    plan = decide_failover(replace(view, left_behind=frozenset({P1}))).plan
    monkeypatch.setattr(Journal, "run", replace(RUN, plan=plan))
    assert PromotionSteps.check_approval(steps, "fence", source_needed=True)
    steps.journal.save_checkpoint("begin", drain_led_again(steps.scope, [P1]))
    with pytest.raises(Refused, match="no leader for orders-1"):
        PromotionSteps.check_approval(steps, "fence", source_needed=True)


@pytest.mark.parametrize("word", [True, False])
def test_the_word_is_the_conductors_and_a_run_keeps_it(
    steps: PlannedSteps, view: MirrorSnapshot, monkeypatch: pytest.MonkeyPatch, word: bool
) -> None:
    monkeypatch.setattr(engine, "take_snapshot", lambda *a, **k: view)
    state = cast("Any", steps.writer).state
    monkeypatch.setattr(engine, "read_state", lambda *a, **k: state)
    made = Failover(LINK, cast("Any", None), started_by="me", leave_behind=word)
    decision = made._decide(State(), RunMode.PLANNED)
    assert (decision.reasons == (), decision.scope.left_behind) == ((True, (P1,)) if word else (False, ()))
    assert made.decide_again(replace(RUN, plan=decision.plan)).scope.left_behind == (P1,), "as it is kept, whoever asks"
