"""A planned failover beside partitions that nobody leads on the source: refused, or left behind by a word."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from mirror_core.cli import failover as cli
from mirror_core.decide.failover import broken_since, decide
from mirror_core.decide.leaderless import LEFT
from mirror_core.decide.reckoning import lost_behind_fence
from mirror_core.decide.scope import Scope, TopicScope, led_again, scope_of
from mirror_core.decide.view import DestinationView, View
from mirror_core.kafka.offsets import Point
from mirror_core.model.checkpoint import Checkpoint
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import BadRequest, MirrorError, Refused
from mirror_core.model.mirror import Lease
from mirror_core.model.names import Offset, Partition
from mirror_core.model.offsets import Offsets
from mirror_core.model.parity import Verdict
from mirror_core.model.run import Fact, Mode
from mirror_core.model.sighting import Sighting, TopicSeen
from mirror_core.runbook import failover as engine
from mirror_core.runbook import failover_steps, leaderless, promotion
from mirror_core.runbook.checkpoints import Drained, LeftBehind, Proven
from mirror_core.runbook.failover import Failover, drained_behind_fence
from mirror_core.runbook.failover_steps import Steps
from mirror_core.runbook.promotion import Promotion
from mirror_core.runbook.rest import Rest
from mirror_core.state import lease as leases
from mirror_core.state.journal import Journal
from mirror_core.state.records import State
from mirror_core.sync import fence
from tests.memory import journal_of
from tests.unit import test_decide_failover
from tests.unit.test_decide_failover import CLOSABLE, P0, P1, foreign, reasons_of, source_of
from tests.unit.test_decide_verbs import RUN
from tests.unit.test_refusals import LINK

healthy_view = test_decide_failover.healthy_view
WORD = "`mirrorbook failover run m --leave-behind`"
SEEN = Sighting(
    mirror=LINK.mirror.name,
    at_ms=1_500,
    topics=(TopicSeen(topic="orders", ends=(10, 22), ago_ms=(0, 1_000), leaderless=(1,)),),
)


@pytest.fixture
def view() -> View:
    """Nobody leads the second partition; the data plane saw its end before."""
    known = healthy_view()
    return replace(
        known, source=replace(source_of(known), stable_ends={P0: Offset(10)}, leaderless=(P1,)), sighting=SEEN
    )


@pytest.fixture
def left(view: View) -> View:
    return replace(view, left=frozenset({P1}))


def there(view: View) -> DestinationView:
    assert isinstance(view.destination, DestinationView)
    return view.destination


def test_it_is_refused_and_the_refusal_names_the_word(view: View) -> None:
    [reason] = decide(view).reasons
    assert reason.startswith("east: no leader for orders-1, so the rest cannot be copied: restore their brokers")
    assert WORD in reason
    assert reason.endswith("or use --mode unplanned")


def test_by_the_word_it_is_left_behind_and_the_plan_says_what_that_means(left: View) -> None:
    decision = decide(left)
    assert decision.reasons == ()
    assert (decision.scope.drained, decision.scope.left, decision.scope.promoted) == ((P0,), (P1,), (P0, P1))
    assert decision.scope.names == ("orders",), "what is promoted is fenced"
    plan = decision.plan
    [told] = [line for line in plan.warnings if "left behind" in line]
    assert "orders-1 (position 15, 7 offset(s) known to be missing, its end last seen 1.5 s ago)" in told
    assert plan.partitions["orders-1"].startswith("MIRRORING, lag unknown; no leader on east, left behind; position 15")
    assert plan.figures[LEFT] == "1 partition(s); at least 7 offset(s) missing"
    assert plan.figures["lag in offsets"] == "0", "of all that is drained"
    assert (plan.foretold.lost, plan.foretold.at_least) == (7, True)  # type: ignore[union-attr]
    assert Fact(LEFT, next(f.value for f in plan.bound if f.name == LEFT)) in plan.bound


def test_what_is_not_known_of_it_is_said_to_be_unknown(left: View) -> None:
    plan = decide(replace(left, sighting=None)).plan
    assert any("orders-1 (position 15, loss unknown)" in line for line in plan.warnings)
    assert plan.figures[LEFT] == "1 partition(s); how much is missing is unknown"
    assert (plan.foretold.lost, plan.foretold.at_least) == (None, True)  # type: ignore[union-attr]


def test_an_approval_is_for_what_was_left_behind(view: View, left: View) -> None:
    assert decide(view).plan.hash != decide(left).plan.hash
    led = replace(left, source=replace(source_of(left), leaderless=()))
    assert decide(led).plan.hash != decide(left).plan.hash, "it has a leader again: another plan"
    assert decide(led).plan.hash == decide(replace(led, left=frozenset())).plan.hash, "a word for nothing"
    assert scope_of(led).left == ()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda v: replace(v, mirror=replace(v.mirror, homecoming="run-1")), "on the way home"),
        (lambda v: replace(v, source=replace(source_of(v), authorizer=False)), "nothing fences east"),
        (lambda v: replace(v, source=replace(source_of(v), leaderless=(P0, P1))), "no leader for any partition"),
        (lambda v: replace(v, destination=replace(there(v), positions={P0: Offset(10)})), "how far west holds"),
    ],
)
def test_where_it_is_not_safe_no_word_helps_and_none_is_offered(view: View, change: Any, why: str) -> None:
    assert "--leave-behind" not in reasons_of(change(view))
    assert why in reasons_of(replace(change(view), left=frozenset({P0, P1})))


def test_a_destination_without_a_leader_for_it_is_refused_as_ever(left: View) -> None:
    both = replace(left, destination=replace(there(left), positions={P0: Offset(10)}, leaderless=(P1,)))
    assert decide(both).reasons == ("west: no leader for orders-1: restore their brokers",)


def test_a_command_that_closes_the_source_fences_it_as_well(left: View) -> None:
    assert decide(foreign(left, CLOSABLE)).reasons == ()


def test_a_word_is_for_those_that_were_approved(left: View) -> None:
    """As a run asks before the fence, and before promotion."""
    assert broken_since(left, source_seen=True) == ()
    another = Partition("orders", 2)
    statuses = {**left.statuses, another: test_decide_failover.status(another)}
    [reason] = broken_since(
        replace(left, statuses=statuses, source=replace(source_of(left), leaderless=(P1, another))), source_seen=True
    )
    assert "no leader for orders-2," in reason


def test_an_unplanned_failover_knows_no_word(left: View) -> None:
    lost = decide(replace(left, mode=Mode.UNPLANNED))
    assert lost.scope.left == ()
    assert not [fact for fact in lost.plan.bound if fact.name == LEFT]
    with pytest.raises(BadRequest, match="planned failover"):
        cli._refuse_word(Mode.UNPLANNED, leave_behind=True)


def test_what_has_a_leader_again_is_drained_like_the_others() -> None:
    scope = Scope(
        topics=(
            TopicScope(name="a", drained=(0, 3), as_is=(4,), left=(1, 2)),
            TopicScope(name="b", drained=(), as_is=(), left=(1,)),
        )
    )
    again = led_again(scope, [Partition("a", 1)])
    assert again.drained == (Partition("a", 0), Partition("a", 1), Partition("a", 3))
    assert again.left == (Partition("a", 2), Partition("b", 1))
    assert again.promoted == scope.promoted


def test_what_was_lost_with_it_is_unknown_until_a_failback_counts_it() -> None:
    lost, why = lost_behind_fence({"verdict": Verdict.PASSED}, [], [P1])
    assert (lost, "left behind without a leader: orders-1" in why) == (None, True)


def test_an_unplanned_failover_that_goes_on_from_there_does_not_say_that_nothing_is_lost() -> None:
    state = State()
    for bound, nothing_lost in (((), True), ((Fact(LEFT, "1: orders-1"),), False)):
        facts = (Fact("authorizer of the source", "True"), *bound)
        run = replace(RUN, plan=replace(RUN.plan, bound=facts))
        state.checkpoints[run.id, "drain", Drained.__name__] = cast("Checkpoint", None)
        assert drained_behind_fence(state, run) is nothing_lost


# -- the steps ---------------------------------------------------------------------------------------------------------

CLIENT = SimpleNamespace(name="east")


@pytest.fixture
def journal() -> Journal:
    made = journal_of(RUN.id, "fence", "drain", "promote")
    made.keep("begin", Scope(topics=(TopicScope(name="orders", drained=(0,), as_is=(), left=(1,)),)))
    return made


@pytest.fixture
def steps(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> Steps:
    for module in (leaderless, failover_steps, promotion):
        monkeypatch.setattr(module, "ClusterClient", lambda *a, **k: nullcontext(CLIENT))
    return Steps(LINK, cast("Any", None), cast("Any", journal.log), journal)


def led(monkeypatch: pytest.MonkeyPatch, *partitions: Partition) -> None:
    monkeypatch.setattr(leaderless, "leaderless", lambda client, wanted: frozenset(wanted) - set(partitions))


def test_a_leader_that_is_back_at_the_fence_takes_it_back_for_good(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    led(monkeypatch)
    assert not leaderless.take_back(steps, steps.scope)
    assert steps.scope.left == (P1,)
    led(monkeypatch, P1)
    assert leaderless.take_back(steps, steps.scope)
    assert steps.scope.drained == (P0, P1)
    assert not leaderless.take_back(steps, steps.scope)


def test_one_that_is_back_before_is_compared_while_applications_still_write(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = list[tuple[Partition, ...]]()

    def rest_of(link: object, partitions: Iterable[Partition], *_: object) -> Rest:
        looked_at.append(tuple(partitions))
        return Rest(offsets=0, size=0, seconds=0.0)

    led(monkeypatch, P1)
    monkeypatch.setattr(Steps, "_may_stand", lambda self: False)
    monkeypatch.setattr(failover_steps, "rest_of", rest_of)
    steps.journal.keep("prove", Proven(ends=Offsets(), records=1))
    ready = replace(steps, services=cast("Any", SimpleNamespace(ready_gate=lambda run_id: None)))
    ready.close_in(None)
    assert looked_at == [(P0, P1)]


def test_one_that_is_back_while_the_fence_goes_up_is_seen_to_stand_still(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Applications may have written there, until it stood."""
    raised = list[tuple[Partition, ...]]()

    def raise_fence(link: Any, log: Any, client: Any, topics: Any, partitions: Any, **_: object) -> fence.Fence:
        raised.append(tuple(partitions))
        led(monkeypatch, P1)
        return fence.Fence(authorizer=True, still_s=0.1, ends=dict.fromkeys(partitions, Offset(5)))

    led(monkeypatch)
    monkeypatch.setattr(failover_steps, "raise_fence", raise_fence)
    monkeypatch.setattr(failover_steps, "LiftFile", lambda *a, **k: SimpleNamespace(words=""))
    monkeypatch.setattr(Steps, "check_approval", lambda *a, **k: True)
    monkeypatch.setattr(Steps, "_refuse_if_strayed", lambda self: None)
    steps.fence()
    assert raised == [(P0,), (P0, P1)]


def test_a_task_of_before_is_outwaited_before_its_place_is_recorded(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has lost its driver would go on with a partition that gets a leader, behind applications' records."""
    events = list[str]()
    now = now_ms()
    lease = Lease(mirror=LINK.mirror.name, owner="run", generation=2, beat_ms=now, writers_until_ms=now + 20_000)
    writer = SimpleNamespace(state=State(), put=lambda *records: None)
    monkeypatch.setattr(leases, "StateWriter", lambda *a: nullcontext(writer))
    monkeypatch.setattr(leases, "next_lease", lambda *a: lease)
    monkeypatch.setattr(failover_steps, "list_offsets", lambda client, wanted, point: dict.fromkeys(wanted, Offset(9)))
    monkeypatch.setattr(failover_steps, "telling_rounds", lambda *a: None)
    monkeypatch.setattr("mirror_core.state.lease.clock_ahead_ms", lambda cluster, timeout_s: 0)
    monkeypatch.setattr(failover_steps, "stop_commits", lambda *a: 0)
    monkeypatch.setattr(failover_steps, "verify_drained", lambda link, ends: ends)
    monkeypatch.setattr(time, "sleep", lambda s: events.append("waited" if s > 15 else "too short"))
    monkeypatch.setattr(Steps, "statuses", lambda self: healthy_view().statuses)

    def standing(link: object, partitions: Collection[Partition]) -> tuple[LeftBehind, ...]:
        events.append(f"looked at {', '.join(map(str, partitions))}")
        return tuple(LeftBehind(topic=p.topic, index=p.index, end=Offset(15), high=Offset(15)) for p in partitions)

    monkeypatch.setattr(failover_steps, "standing_at", standing)
    copied = list[Collection[Partition]]()
    copy = lambda link: lambda ends, *_: copied.append(tuple(ends))  # noqa: E731
    steps = replace(steps, services=cast("Any", SimpleNamespace(copy=copy)))
    steps.journal.perform("fence", dict)
    assert steps.journal.perform("drain", steps._drain).evidence["left_behind"] == "1: orders-1 at 15"
    assert (copied, events) == ([(P0,)], ["waited", "looked at orders-1"])
    assert (steps.positions, steps.left_behind[P1].high) == ({P0: 9}, 15)


def test_it_counts_as_mirrored_only_up_to_what_is_replicated(monkeypatch: pytest.MonkeyPatch, steps: Steps) -> None:
    points = {Point.LOG_END: {P1: Offset(15)}, Point.HIGH_WATERMARK: {P1: Offset(14)}}
    monkeypatch.setattr(leaderless, "list_points", lambda client, partitions, asked: {p: points[p] for p in asked})
    with pytest.raises(MirrorError, match="orders-1: replicated up to 14 of 15"):
        leaderless.standing_at(LINK, [P1])
    points[Point.HIGH_WATERMARK] = {P1: Offset(15)}
    [one] = leaderless.standing_at(LINK, [P1])
    assert (one.end, one.high) == (15, 15)


def test_a_run_asks_with_what_it_leaves_behind(steps: Steps, view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promotion, "observe", lambda *a, **k: view)
    plan = decide(replace(view, left=frozenset({P1}))).plan
    monkeypatch.setattr(Journal, "run", replace(RUN, plan=plan))
    assert Promotion.check_approval(steps, "fence", source_needed=True)
    steps.journal.keep("begin", led_again(steps.scope, [P1]))
    with pytest.raises(Refused, match="no leader for orders-1"):
        Promotion.check_approval(steps, "fence", source_needed=True)


@pytest.mark.parametrize("word", [True, False])
def test_the_word_is_the_conductors_and_a_run_keeps_it(
    steps: Steps, view: View, monkeypatch: pytest.MonkeyPatch, word: bool
) -> None:
    monkeypatch.setattr(engine, "observe", lambda *a, **k: view)
    state = cast("Any", steps.writer).state
    monkeypatch.setattr(engine, "read_state", lambda *a, **k: state)
    made = Failover(LINK, cast("Any", None), started_by="me", leave_behind=word)
    decision = made._decide(State(), Mode.PLANNED)
    assert (decision.reasons == (), decision.scope.left) == ((True, (P1,)) if word else (False, ()))
    assert made.anew(replace(RUN, plan=decision.plan)).scope.left == (P1,), "as it is kept, whoever asks"


def test_where_an_older_run_has_begun_and_drained_is_read(steps: Steps) -> None:
    scope = '{"topics":[{"name":"orders","drained":[0],"as_is":[1]}]}'
    positions = msgspec.json.encode(Offsets.of({P0: Offset(9)})).decode()
    steps.writer.put(
        Checkpoint(run=RUN.id, step="begin", kind="Scope", version=1, value=scope),
        Checkpoint(run=RUN.id, step="drain", kind="Drained", version=1, value=f'{{"positions":{positions}}}'),
    )
    assert (steps.scope.promoted, steps.scope.left, steps.left_behind) == ((P0, P1), (), {})
