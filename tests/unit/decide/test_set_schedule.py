"""A set of mirrors in one failover: what is due for each of them, when k of n have failed at any step. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.decide.set_schedule import (
    PAST_NO_RETURN_PHASES,
    UNDISTURBED_PHASES,
    NextAction,
    RunPhase,
    SetMember,
    compute_set_hash,
    decide_actions,
    find_next_mirror,
    find_run_phase,
    is_undisturbed,
    measure_set_standstill_s,
    select_mirrors_from,
)
from mirror_core.decide.steps import WriteLocation, list_step_names, list_undisturbed_steps
from mirror_core.decide.write_access import OperatorAction, WriteAccess
from mirror_core.evidence.run_report import SetPageMirror, write_set_page
from mirror_core.kafka.config import load_config
from mirror_core.model.config_sections import MirrorSet, SetOrder
from mirror_core.model.errors import BadRequest
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import DesiredState
from mirror_core.model.names import MirrorName
from mirror_core.model.run import Plan, PlanFact, Run, RunKind, RunMode, RunState, StepRecord, StepState
from tests.support.set_members import F, P

SIDE, ORDER = SetOrder.SIDE_BY_SIDE, SetOrder.IN_ORDER
STEPS = list_step_names(RunKind.FAILOVER)
A, B = MirrorName("orders"), MirrorName("payments")


def members(*places: RunPhase, failed: Sequence[int] = ()) -> list[SetMember]:
    return [SetMember(MirrorName(f"m{n}"), place, n in failed) for n, place in enumerate(places)]


@pytest.mark.parametrize(
    ("order", "places", "failed", "due"),
    [
        (SIDE, (P.BEGUN, P.BEGUN), (), (F.VERIFY, F.VERIFY)),
        (SIDE, (P.VERIFIED, P.BEGUN), (), (F.WAIT, F.VERIFY)),
        (SIDE, (P.VERIFIED, P.VERIFIED), (), (F.MAKE_READY, F.MAKE_READY)),
        (SIDE, (P.READY, P.APPLICATIONS_STOPPED), (), (F.WAIT, F.MAKE_READY)),
        (SIDE, (P.READY, P.READY), (), (F.FINISH, F.FINISH)),
        (SIDE, (P.DONE, P.PAST_NO_RETURN), (), (F.NOTHING, F.FINISH)),
        (SIDE, (P.PAST_NO_RETURN, P.READY, P.READY), (1,), (F.FINISH, F.NOTHING, F.FINISH)),
        (SIDE, (P.READY, P.APPLICATIONS_STOPPED), (1,), (F.ABORT, F.ABORT)),
        (SIDE, (P.BEGUN, P.VERIFIED), (0,), (F.ABORT, F.ABORT)),
        (SIDE, (P.GIVEN_UP, P.READY), (), (F.NOTHING, F.ABORT)),
        (SIDE, (P.ABORTING, P.VERIFIED), (), (F.ABORT, F.ABORT)),
        (SIDE, (P.PAST_NO_RETURN, P.ABORTING), (), (F.FINISH, F.FINISH)),
        (SIDE, (P.DONE, P.DONE), (), (F.NOTHING, F.NOTHING)),
        (ORDER, (P.BEGUN, P.BEGUN), (), (F.VERIFY, F.WAIT)),
        (ORDER, (P.VERIFIED, P.BEGUN), (), (F.WAIT, F.VERIFY)),
        (ORDER, (P.VERIFIED, P.VERIFIED), (), (F.FINISH, F.WAIT)),
        (ORDER, (P.APPLICATIONS_STOPPED, P.VERIFIED), (0,), (F.ABORT, F.ABORT)),
        (ORDER, (P.PAST_NO_RETURN, P.VERIFIED), (0,), (F.NOTHING, F.WAIT)),
        (ORDER, (P.DONE, P.VERIFIED, P.VERIFIED), (), (F.NOTHING, F.FINISH, F.WAIT)),
        (ORDER, (P.DONE, P.APPLICATIONS_STOPPED, P.VERIFIED), (1,), (F.NOTHING, F.NOTHING, F.WAIT)),
        (ORDER, (P.DONE, P.GIVEN_UP, P.VERIFIED), (), (F.NOTHING, F.NOTHING, F.FINISH)),
        (ORDER, (P.DONE, P.VERIFIED, P.BEGUN), (), (F.NOTHING, F.FINISH, F.WAIT)),
        (SIDE, (P.READY, P.BEGUN), (), (F.WAIT, F.VERIFY)),
        (SIDE, (P.OLD_SOURCE_CHANGED, P.READY, P.HOME_DUE), (), (F.FINISH, F.FINISH, F.WAIT)),
        (SIDE, (P.OLD_SOURCE_CHANGED, P.READY), (0,), (F.NOTHING, F.FINISH)),
        (SIDE, (P.HOME_DUE, P.HOME, P.DONE), (), (F.WAIT, F.FINISH, F.NOTHING)),
        (SIDE, (P.OLD_SOURCE_UNREAD, P.HOME_DUE), (), (F.FINISH, F.WAIT)),
    ],
)
def test_what_is_due(
    order: SetOrder, places: tuple[RunPhase, ...], failed: tuple[int, ...], due: tuple[NextAction, ...]
) -> None:
    assert decide_actions(members(*places, failed=failed), order) == due


@pytest.mark.parametrize(
    ("order", "places", "failed", "due"),
    [
        (SIDE, (P.VERIFIED, P.READY, P.APPLICATIONS_STOPPED), (2,), (F.FINISH, F.FINISH, F.NOTHING)),
        (SIDE, (P.GIVEN_UP, P.DONE, P.ABORTING), (), (F.NOTHING, F.NOTHING, F.FINISH)),
        (ORDER, (P.APPLICATIONS_STOPPED, P.VERIFIED, P.VERIFIED), (0,), (F.NOTHING, F.FINISH, F.WAIT)),
    ],
)
def test_where_the_source_is_given_up_nobody_waits_for_one_that_failed(
    order: SetOrder, places: tuple[RunPhase, ...], failed: tuple[int, ...], due: tuple[NextAction, ...]
) -> None:
    assert decide_actions(members(*places, failed=failed), order, RunMode.UNPLANNED) == due


LATER = {
    F.VERIFY: [P.VERIFIED],
    F.MAKE_READY: [P.APPLICATIONS_STOPPED, P.READY],
    F.FINISH: [P.VERIFIED, P.APPLICATIONS_STOPPED, P.READY, P.PAST_NO_RETURN, P.DONE],
}


@given(order=st.sampled_from(SetOrder), count=st.integers(1, 4), data=st.data())
def test_whatever_fails_all_stay_or_all_go(order: SetOrder, count: int, data: st.DataObject) -> None:
    """Each move may fail at any place on its way; a process that is killed forgets which ones did."""
    now, failed, ever = [P.BEGUN] * count, set[int](), False
    for _ in range(60):
        due = decide_actions(members(*now, failed=tuple(failed)), order)
        turned = any(place in PAST_NO_RETURN_PHASES for place in now)
        assert turned or not failed or set(due) <= {F.ABORT, F.NOTHING}, "all are taken back"
        assert not turned or F.ABORT not in due, "nothing is taken back any more"
        for n, move in enumerate(due):
            if move in (F.VERIFY, F.WAIT, F.NOTHING):
                continue
            assert turned or P.BEGUN not in now, "nobody is stopped before all are proved"
            if move is F.FINISH and not turned and order is SIDE:
                assert set(now) == {P.READY}, "none is promoted before all can be"
            if order is ORDER and move is F.FINISH:
                assert all(place in (P.DONE, P.GIVEN_UP) for place in now[:n]), "out of order"
        acting = [n for n, move in enumerate(due) if move in (*LATER, F.ABORT)]
        if not acting:
            break
        for n in acting:
            if due[n] is F.ABORT:
                now[n] = P.GIVEN_UP
                continue
            reached = data.draw(st.sampled_from([p for p in LATER[due[n]] if [*P].index(p) >= [*P].index(now[n])]))
            whole = reached is LATER[due[n]][-1]
            now[n] = reached
            failed, ever = failed if whole else failed | {n}, ever or not whole
        if data.draw(st.booleans()):
            failed = set()  # killed, and begun again by somebody
    else:
        raise AssertionError(f"it comes to no end: {now}")
    if any(place in PAST_NO_RETURN_PHASES for place in now):
        stuck = [n for n, place in enumerate(now) if place not in (P.DONE, P.GIVEN_UP)]
        assert not stuck or failed & set(stuck), "one is left, and nobody has said why"
    else:
        assert ever
        assert set(now) == {P.GIVEN_UP}


def run(mirror: MirrorName = A, state: RunState = RunState.RUNNING, value: str = "x") -> Run:
    plan = Plan(
        kind=RunKind.FAILOVER, mirror=mirror, mode=RunMode.PLANNED, steps=(), bound_facts=(PlanFact("mirror", value),)
    )
    return Run(
        id=f"{mirror}-failover-1", number=1, plan=plan, plan_hash=plan.hash, state=state, started_by="ann@desk",
        started_ms=1, desired=DesiredState.STARTED, conducted_by="ann@desk", approved_by="ann@desk", set_run="shop-1",
    )  # fmt: skip


def take_failback_steps(count: int) -> list[StepRecord]:
    return [
        StepRecord(run="r", step=step, state=StepState.DONE, attempt=1, started_ms=1)
        for step in list_step_names(RunKind.FAILBACK)[:count]
    ]


@pytest.mark.parametrize(
    ("done", "is_past", "is_home", "phase"),
    [
        (0, False, False, P.BEGUN),
        (1, False, False, P.READY),
        (1, True, False, P.OLD_SOURCE_CHANGED),
        (4, True, False, P.OLD_SOURCE_CHANGED),
        (5, True, False, P.HOME_DUE),
        (5, True, True, P.HOME),
        (5, True, None, P.OLD_SOURCE_UNREAD),
    ],
)
def test_a_failback_is_in_this_phase(done: int, is_past: bool, is_home: bool | None, phase: RunPhase) -> None:
    failback = replace(run(), plan=replace(run().plan, kind=RunKind.FAILBACK))
    found = find_run_phase(failback, take_failback_steps(done), is_past_no_return=is_past, is_home=is_home)
    assert found is phase
    assert is_undisturbed(RunKind.FAILBACK, found) is not is_past
    assert (found in PAST_NO_RETURN_PHASES) is is_past


def test_a_failback_has_steps_that_nobody_notices_before_its_point_of_no_return() -> None:
    assert list_undisturbed_steps(RunKind.FAILBACK) == ("salvage",)
    assert list_undisturbed_steps(RunKind.FAILOVER, RunMode.UNPLANNED) == ()


C = MirrorName("refunds")
AT_SOURCE = WriteAccess(writes=WriteLocation.SOURCE, cluster=None, action=OperatorAction.NOTHING, run=None)
MOVED = WriteAccess(writes=WriteLocation.DESTINATION, cluster=None, action=OperatorAction.PLAN_FAILBACK, run=None)


def of_attempt(attempt: str, number: int, *mirrors: MirrorName, open_: Sequence[MirrorName] = ()) -> list[Run]:
    return [
        replace(
            run(mirror),
            id=f"{mirror}-{number}",
            number=number,
            set_run=attempt,
            ended_ms=None if mirror in open_ else 9,
        )
        for mirror in mirrors
    ]


@pytest.mark.parametrize(
    ("accesses", "runs", "mirrors"),
    [
        ({B: AT_SOURCE, A: AT_SOURCE}, [], (A, B)),
        ({A: AT_SOURCE, B: MOVED}, [], (A,)),
        ({A: None, B: MOVED}, [], (A,)),
        ({A: AT_SOURCE, B: MOVED}, of_attempt("east-1-ab", 1, A, B, open_=[A]), (A, B)),
        ({A: AT_SOURCE, B: MOVED, C: MOVED}, of_attempt("east-1-ab", 1, A, B), (A,)),
        ({A: MOVED, B: MOVED, C: MOVED}, of_attempt("east-1-ab", 1, A, B), (A, B)),
        ({A: MOVED, B: MOVED}, [*of_attempt("east-1-ab", 1, A, B), *of_attempt("east-2-cd", 2, B)], (B,)),
        ({A: MOVED, B: AT_SOURCE}, of_attempt("shop-1-ab", 1, A, B, open_=[B]), (B,)),
        ({A: MOVED}, of_attempt("east-1-ab", 1, A, B), (A,)),
        ({A: MOVED}, [], ()),
    ],
    ids=[
        "all", "one moved", "not readable", "goes on", "ended, another stays", "all moved", "newest attempt",
        "another set's", "deleted since", "none",
    ],
)  # fmt: skip
def test_a_set_of_a_cluster_has_what_is_still_there_and_what_its_failover_has_begun(
    accesses: dict[MirrorName, WriteAccess | None], runs: list[Run], mirrors: tuple[MirrorName, ...]
) -> None:
    assert select_mirrors_from("east", accesses, runs) == mirrors


def test_a_set_of_a_cluster_comes_home_with_all_that_is_not_there() -> None:
    stopped = WriteAccess(writes=WriteLocation.NOWHERE, cluster=None, action=OperatorAction.RESUME_RUN, run=None)
    accesses = {A: MOVED, B: AT_SOURCE, C: stopped}
    failovers = of_attempt("east-1-ab", 1, A, B, open_=[B])
    assert select_mirrors_from("east", accesses, failovers, RunKind.FAILBACK) == (A, C), "its failover is another run"
    failbacks = [
        replace(open_run, plan=replace(open_run.plan, kind=RunKind.FAILBACK))
        for open_run in of_attempt("east-2-cd", 2, A, B, open_=[A])
    ]
    assert select_mirrors_from("east", accesses, failbacks, RunKind.FAILBACK) == (A, B, C), "one is home already"
    assert select_mirrors_from("east", accesses, failbacks) == (B, C)


def taken(until: str | None, last: StepState = StepState.DONE) -> list[StepRecord]:
    """All steps up to this one, which is in this state; each takes a second."""
    some = STEPS[: STEPS.index(until) + 1] if until else ()
    return [
        StepRecord(
            run="r", step=step, state=last if step == until else StepState.DONE, attempt=1, started_ms=1000 * n,
            ended_ms=1000 * n + 1000, error="no" if step == until and last is StepState.FAILED else "",
        )
        for n, step in enumerate(some)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("until", "last", "place"),
    [
        (None, StepState.DONE, P.BEGUN),
        ("prove", StepState.FAILED, P.BEGUN),
        ("prove", StepState.DONE, P.VERIFIED),
        ("fence", StepState.STARTED, P.APPLICATIONS_STOPPED),
        ("parity", StepState.FAILED, P.APPLICATIONS_STOPPED),
        ("record_lmo", StepState.DONE, P.READY),
        ("promote", StepState.STARTED, P.PAST_NO_RETURN),
        ("promote", StepState.FAILED, P.PAST_NO_RETURN),
        ("canary", StepState.DONE, P.PAST_NO_RETURN),
    ],
)
def test_a_journal_says_how_far_a_run_has_come(until: str | None, last: StepState, place: RunPhase) -> None:
    assert list_undisturbed_steps(RunKind.FAILOVER) == ("prove",)
    assert find_run_phase(run(), taken(until, last), is_past_no_return=place is P.PAST_NO_RETURN) is place


@pytest.mark.parametrize("state", [StepState.STARTED, StepState.FAILED])
def test_a_promotion_that_has_given_nothing_is_no_promotion(state: StepState) -> None:
    """It is taken back like the others, when it, or another one, fails."""
    assert find_run_phase(run(), taken("promote", state), is_past_no_return=False) is P.READY
    due = decide_actions([SetMember(A, P.READY, has_failed=True), SetMember(B, P.VERIFIED)], ORDER)
    assert due == (F.ABORT, F.ABORT)


@pytest.mark.parametrize(
    ("state", "place"),
    [
        (RunState.DONE, P.DONE),
        (RunState.ABORTING, P.ABORTING),
        (RunState.ABORTED, P.GIVEN_UP),
        (RunState.SUPERSEDED, P.GIVEN_UP),
    ],
)
def test_a_run_that_has_ended_is_over_wherever_it_stood(state: RunState, place: RunPhase) -> None:
    assert find_run_phase(run(state=state), taken("record_lmo"), is_past_no_return=False) is place
    assert place not in UNDISTURBED_PHASES


def test_an_approval_of_a_set_is_void_when_one_plan_or_the_order_has_changed() -> None:
    shop = MirrorSet("shop", (A, B))
    plans = [run(A).plan, run(B).plan]
    assert compute_set_hash(shop, plans) == compute_set_hash(shop, plans)
    others = {
        compute_set_hash(shop, plans),
        compute_set_hash(shop, [run(A).plan, run(B, value="y").plan]),
        compute_set_hash(shop, plans[::-1]),
        compute_set_hash(shop, plans[:1]),
        compute_set_hash(MirrorSet("shop", (A, B), ORDER), plans),
    }
    assert len(others) == 5


def test_a_set_stands_still_from_its_first_stop_to_its_last_promotion() -> None:
    late = [
        StepRecord(run="r", step=s.step, state=s.state, attempt=1, started_ms=s.started_ms + 500, ended_ms=99_000)
        for s in taken("report")
    ]
    assert measure_set_standstill_s([(run(A), taken("report")), (run(B), late)]) == 98.0
    assert measure_set_standstill_s([(run(A), taken("report")), (run(B), taken("drain"))]) is None


@pytest.mark.parametrize(
    ("first", "second", "is_known"),
    [
        ({}, {}, True),
        ({"east": 7200.0}, {}, False),
        ({}, {"north": -7200.0}, False),
        ({"east": 7200.0, "west": 7200.5}, {"east": 7200.1, "north": 7200.2}, True),
    ],
)
def test_a_set_whose_clusters_clocks_differ_stood_still_for_an_unknown_time(
    first: dict[str, float], second: dict[str, float], is_known: bool
) -> None:
    """Each mirror's times are by its destination's clock. The last one: only the machine's own is wrong."""

    def make_run(mirror: MirrorName, ahead_by_cluster: dict[str, float]) -> Run:
        warnings = tuple(Finding("clock_differs", c, ahead_s=s, in_plan=True) for c, s in ahead_by_cluster.items())
        made = run(mirror)
        return replace(made, plan=replace(made.plan, warnings=warnings))

    runs = [(make_run(A, first), taken("report")), (make_run(B, second), taken("report"))]
    assert (measure_set_standstill_s(runs) is not None) is is_known
    assert measure_set_standstill_s(runs[:1]) is not None, "one mirror's times are of one clock"


def test_the_page_of_a_set_says_how_each_mirror_stands_and_leads_to_its_report(tmp_path: Path) -> None:
    page = tmp_path / "set-shop-1" / "index.html"
    failed = SetPageMirror(
        run(MirrorName("<b>")), tuple(taken("canary", StepState.FAILED)), P.PAST_NO_RETURN, ("write on <west>",)
    )
    done = SetPageMirror(run(A, RunState.DONE), tuple(taken("report")), P.DONE, ())
    write_set_page(page, RunKind.FAILOVER, MirrorSet("shop", (A, B)), "shop-1", [done, failed])
    text = page.read_text()
    assert "1 of 2 mirrors moved" in text
    assert '<a href="../run-orders-failover-1/report.html">' in text
    assert "promoted, not done" in text
    assert "<td>no</td>" in text
    assert "<b>" not in text
    assert "write on &lt;west&gt;" in text


def configured(folder: Path, **sets: object) -> Path:
    path = folder / "mirrorbook.yaml"
    path.write_text(yaml.safe_dump({"clusters": {"east": {"bootstrap.servers": "h:1"}}, "sets": sets}))
    return path


def test_sets_are_read_from_mirrorbook_yaml(tmp_path: Path) -> None:
    path = configured(tmp_path, shop={"mirrors": ["orders", "payments"]}, one={"mirrors": ["a"], "order": "in_order"})
    assert load_config(path).sets == {
        "shop": MirrorSet("shop", (A, B), SIDE),
        "one": MirrorSet("one", (MirrorName("a"),), ORDER),
    }


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ([], "sets.shop: must be a mapping"),
        ({"mirrors": []}, "sets.shop.mirrors: must be a list"),
        ({"mirrors": ["a", 1]}, "sets.shop.mirrors: must be a list"),
        ({"mirrors": ["a", "a"]}, "a is listed twice"),
        ({"mirrors": ["a"], "order": "any"}, "'any' is neither side_by_side nor in_order"),
        ({"mirrors": ["a"], "first": "a"}, "must be a mapping with `mirrors`"),
    ],
)
def test_a_set_that_makes_no_sense_is_refused_with_its_place(tmp_path: Path, raw: object, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        load_config(configured(tmp_path, shop=raw))


def test_in_order_the_next_mirror_waits_for_a_run_and_the_last_run_keeps_nobody_waiting() -> None:
    one, two, other = MirrorName("one"), MirrorName("two"), MirrorName("other")
    ordered = MirrorSet("shop", (one, two), SetOrder.IN_ORDER)
    assert [find_next_mirror(name, ordered) for name in (one, two, other)] == [two, None, None]
    assert find_next_mirror(one, MirrorSet("shop", (one, two))) is None
