"""Several mirrors at the same time: each in a thread."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.cli import failover as command
from mirror_core.cli import run_commands
from mirror_core.decide.steps import list_step_names, plan_steps
from mirror_core.model.config_sections import MirrorSet, format_source_set
from mirror_core.model.errors import LostOwnership, MirrorError, Refused, Unreachable
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.run import Run, RunKind, RunMode, RunState, StepRecord, StepState
from mirror_core.runbook import conductor, set_conductor, set_failover
from mirror_core.runbook.conductor import retry_until_done, run_parallel
from mirror_core.runbook.set_conductor import MemberRun, SetFailed
from mirror_core.runbook.set_failover import SetFailover, find_set
from mirror_core.state.journal import make_checkpoint
from mirror_core.state.point_of_no_return import PromotionCheck, SourceReturned
from mirror_core.state.state_records import State
from tests.support.cluster_names import LINK
from tests.support.mirror_views import MIRROR, RUN

A, B = MirrorName("a"), MirrorName("b")
STEPS = list_step_names(RunKind.FAILOVER)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conductor, "RETRY_PAUSE_S", 0.0)


def test_what_fails_for_a_moment_is_tried_again_beside_the_others() -> None:
    errors: list[MirrorError] = [Unreachable("for a moment")]
    log, said = list[str](), list[str]()

    def once(name: MirrorName) -> None:
        if name == A and errors:
            raise errors.pop()
        log.append(name)

    failed = run_parallel(
        {name: partial(retry_until_done, name, said.append, partial(once, name)) for name in (A, B)}, said.append
    )
    assert (sorted(log), failed, said) == (["a", "b"], {}, ["a: for a moment; once more"])


def test_who_loses_one_of_them_leaves_the_others_where_they_are() -> None:
    def lose() -> None:
        raise LostOwnership("x")

    with pytest.raises(LostOwnership, match=r"^a: x; the others wait where they are"):
        run_parallel({A: lose, B: lambda: None}, print)


def shop(
    monkeypatch: pytest.MonkeyPatch, conducted: Collection[str], *, ended: str = ""
) -> tuple[SetFailover, list[Any]]:
    """A set that Airflow moves, of two mirrors; ann has taken the first one over. And what its conductors are asked."""
    asked = list[Any]()

    def refuse(run_id: str, title: str, **known: bool) -> None:
        asked.append((run_id, known))
        if run_id in conducted:
            raise Refused(title, [f"it is conducted by {run_id}'s"], "run_conducted")

    def refuse_unfinished(run_id: str) -> None:
        raise Refused(f"run {run_id}", ["it is RUNNING"], "run_not_done")

    one: Any = SimpleNamespace(started_by="airflow", refuse_conducted=refuse, refuse_unfinished=refuse_unfinished)
    several = SetFailover(MirrorSet("shop", (A, B)), {A: one, B: one}, print_line=print)
    runs = {A: replace(RUN, id="a-1", conducted_by="ann"), B: replace(RUN, id="b-1", conducted_by="airflow")}
    runs = {name: replace(run, ended_ms=1) if name == ended else run for name, run in runs.items()}
    monkeypatch.setattr(
        SetFailover, "_read_member_runs", lambda self, attempt: {n: MemberRun(r, ()) for n, r in runs.items()}
    )
    return several, asked


def test_a_set_is_not_gone_on_with_by_airflow_while_a_person_conducts_one_of_its_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one that has lost it: its teardown leaves all of them alone."""
    several, asked = shop(monkeypatch, ["a-1", "b-1"])
    with pytest.raises(LostOwnership, match=r"a: failover of set shop, run a-1:\s+- it is conducted by a-1's"):
        several.refuse_taken_over("shop-1")
    assert [run for run, _ in asked] == ["a-1"]


def test_by_a_command_it_is_not_gone_on_with_while_anybody_conducts_one_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also somebody of the same name, at another terminal."""
    several, asked = shop(monkeypatch, ["a-1", "b-1"])
    with pytest.raises(Refused) as refused:
        several.refuse_conducted("shop-1", take_over=True)
    assert refused.value.reasons == (
        "run a-1: it is conducted by a-1's",
        "run b-1: it is conducted by b-1's",
    )
    assert sorted(asked) == [(run, {"take_over": True, "quietly": False}) for run in ("a-1", "b-1")]
    several, asked = shop(monkeypatch, [], ended="a")
    several.refuse_conducted("shop-1", quietly=True)
    assert asked == [("b-1", {"take_over": False, "quietly": True})]


def test_all_that_have_not_ended_are_named_together(monkeypatch: pytest.MonkeyPatch) -> None:
    several, _ = shop(monkeypatch, [])
    with pytest.raises(Refused) as refused:
        several.refuse_unfinished("shop-1")
    assert refused.value.reasons == ("run a-1: it is RUNNING", "run b-1: it is RUNNING")


class Asked(Exception):
    """A person is asked."""


@pytest.mark.parametrize("take_over", [False, True])
@pytest.mark.parametrize("cut_off", [False, True])
def test_run_set_looks_whether_anybody_conducts_it_before_it_asks(
    monkeypatch: pytest.MonkeyPatch, cut_off: bool, take_over: bool
) -> None:
    several, asked = shop(monkeypatch, ["a-1"])
    monkeypatch.setattr(SetFailover, "find_active_attempt", lambda self: None if cut_off else "shop-1")
    monkeypatch.setattr(SetFailover, "find_unbegun_attempt", lambda self: "shop-1" if cut_off else None)
    monkeypatch.setattr(SetFailover, "format_phases", lambda self, attempt: [])
    monkeypatch.setattr(command, "_make_set_failover", lambda *arguments, **options: several)

    def agree(question: str, yes: bool) -> None:
        raise Asked(question)

    monkeypatch.setattr(run_commands, "require_confirmation", agree)
    with pytest.raises(Asked if take_over else Refused):
        command.run_set("shop", take_over=take_over)
    assert bool(asked) is not take_over


def test_while_a_person_decides_about_a_set_somebody_else_may_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    several, asked = shop(monkeypatch, [])
    monkeypatch.setattr(SetFailover, "find_active_attempt", lambda self: "shop-1")
    monkeypatch.setattr(SetFailover, "format_phases", lambda self, attempt: [])
    monkeypatch.setattr(SetFailover, "is_undisturbed", lambda self, attempt: True)
    monkeypatch.setattr(SetFailover, "finish", lambda *arguments, **options: pytest.fail("it is somebody else's"))
    monkeypatch.setattr(command, "_make_set_failover", lambda *arguments, **options: several)
    monkeypatch.setattr(run_commands, "require_confirmation", lambda question, yes: None)
    monkeypatch.setattr(SetFailover, "prove", lambda self, attempt: {})
    monkeypatch.setattr(SetFailover, "read_statuses", lambda self, attempt: {})

    def refuse(self: SetFailover, attempt: str, **known: bool) -> None:
        asked.append(known)
        if known.get("quietly"):
            raise Refused("set", ["taken"], "run_conducted")

    monkeypatch.setattr(SetFailover, "refuse_conducted", refuse)
    with pytest.raises(Refused, match="taken"):
        command.run_set("shop")
    assert asked == [{"take_over": True}, {"quietly": True}]


@pytest.mark.parametrize("answers", [False, True])
@pytest.mark.parametrize("waits", [False, True])
def test_of_a_set_a_run_that_waits_for_a_word_is_kept_while_its_source_is_silent(
    monkeypatch: pytest.MonkeyPatch, waits: bool, answers: bool
) -> None:
    aborted = list[str]()

    def abort(run_id: str, *, only_mine: bool) -> Run:
        aborted.append(run_id)
        return RUN

    one: Any = SimpleNamespace(link=LINK, can_reach_source=lambda: answers, abort=abort)
    several = SetFailover(MirrorSet("shop", (A, B)), {A: one, B: one}, RunMode.UNPLANNED, print_line=print)
    run = replace(RUN, plan=replace(RUN.plan, mirror=A, mode=RunMode.UNPLANNED), id="a-1", state=RunState.RUNNING)
    standings = {A: MemberRun(run, (), waits)}
    monkeypatch.setattr(SetFailover, "_read_member_runs", lambda self, attempt: standings)
    (said,) = several.abort("shop-1")
    kept = waits and not answers
    assert said.startswith("a: kept: east answered" if kept else "a: given up")
    assert ("`mirrorbook failover resume a --leave-behind` goes on" in said) is kept
    assert aborted == ([] if kept else ["a-1"])

    promoted = StepRecord(run="b-1", step="promote", state=StepState.DONE, attempt=1, started_ms=1)
    there = replace(run, plan=replace(run.plan, mirror=B), id="b-1", state=RunState.DONE, ended_ms=1)
    standings[B] = MemberRun(there, (promoted,))
    (said,) = several.abort("shop-1")
    assert ("resume a --leave-behind" in said) is waits
    assert ("resume it" in said) is not waits


@pytest.mark.parametrize("waits", [False, True])
def test_of_a_set_nobody_is_told_to_resume_what_waits_for_a_word(waits: bool) -> None:
    assert ("failover resume m`" in MemberRun(RUN, (), waits).advice) is not waits


@pytest.mark.parametrize("given", [False, True])
def test_a_set_takes_back_a_promotion_that_has_given_nothing(monkeypatch: pytest.MonkeyPatch, given: bool) -> None:
    """The step has begun, and the destination did not let it grant anything: so the others are taken back, too."""
    state, aborted = State(), list[str]()
    run = replace(RUN, plan=replace(RUN.plan, mirror=A, steps=plan_steps(RunKind.FAILOVER, MIRROR)), set_run="shop-1")
    state.put(run)
    for step in STEPS[: STEPS.index("promote")]:
        state.put(StepRecord(run=run.id, step=step, state=StepState.DONE, attempt=1, started_ms=1, ended_ms=2))
    state.put(make_checkpoint(run.id, "promote", PromotionCheck(source_state="seen", rights_given=given)))
    state.put(StepRecord(run=run.id, step="promote", state=StepState.FAILED, attempt=1, started_ms=3, error="no"))

    def abort(run_id: str, *, only_mine: bool) -> Run:
        aborted.append(run_id)
        return run

    monkeypatch.setattr("mirror_core.runbook.set_conductor.read_state", lambda cluster: state)
    one: Any = SimpleNamespace(link=LINK, can_reach_source=lambda: True, abort=abort)
    several = SetFailover(MirrorSet("shop", (A,)), {A: one}, print_line=print)
    (said,) = several.abort("shop-1")
    assert said.startswith("a: kept: another mirror of the set is promoted" if given else "a: given up")
    assert aborted == ([] if given else [run.id])


@pytest.mark.parametrize("waits", [False, True])
def test_a_set_knows_which_of_its_runs_wait_for_a_word(monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    state = State()
    state.put(replace(RUN, plan=replace(RUN.plan, mirror=A, mode=RunMode.UNPLANNED), set_run="shop-1"))
    if waits:
        state.put(make_checkpoint(RUN.id, "promote", SourceReturned()))
    monkeypatch.setattr("mirror_core.runbook.set_conductor.read_state", lambda cluster: state)
    one: Any = SimpleNamespace(link=LINK)
    several = SetFailover(MirrorSet("shop", (A,)), {A: one}, RunMode.UNPLANNED, print_line=print)
    assert several._read_member_runs("shop-1")[A].awaits_confirmation is waits


def test_what_the_source_s_own_state_topic_says_is_no_part_of_a_set_of_all_its_mirrors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Applications may write a topic of that name on a cluster that is a source only."""
    source, destination = LINK.mirror.source, LINK.mirror.destination
    circle = replace(LINK.mirror, name=A, destination=source)
    true_state = State(mirrors={LINK.mirror.name: LINK.mirror})
    forged_state = State(mirrors={A: circle})
    monkeypatch.setattr(
        set_failover, "read_states", lambda config: iter([(destination, true_state), (source, forged_state)])
    )
    config = replace(LINK.config, clusters={source: LINK.source, destination: LINK.destination})
    found = find_set(config, format_source_set(source))
    assert found.mirrors == (LINK.mirror.name,)


@pytest.mark.parametrize("is_ready", [False, True])
def test_a_destination_that_stops_answering_hides_no_other_mirror(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_ready: bool
) -> None:
    """It dies before any is promoted: the other one is taken back. While both are promoted: the other one goes on."""
    away = replace(LINK, destination=replace(LINK.destination, name=ClusterName("away")))
    state, silent, aborted = State(), list[str](), list[str]()
    done_steps = STEPS[: STEPS.index("promote")] if is_ready else STEPS[:1]
    for name in (A, B):
        state.put(replace(RUN, id=f"{name}-1", plan=replace(RUN.plan, mirror=name), set_run="shop-1-ab"))
        for step in done_steps:
            state.put(StepRecord(run=f"{name}-1", step=step, state=StepState.DONE, attempt=1, started_ms=1, ended_ms=2))

    def read(cluster: Any, **options: Any) -> State:
        if cluster.name in silent:
            raise Unreachable(f"cluster {cluster.name} is silent")
        return state

    def go_on(run_id: str, *steps: object, agreed_by: str) -> None:
        if run_id == "b-1":
            silent.append("away")
            raise MirrorError("the request failed")
        if is_ready:
            state.put(replace(state.runs[run_id], state=RunState.DONE, ended_ms=9))
        for step in STEPS[: STEPS.index("promote")]:
            state.put(StepRecord(run=run_id, step=step, state=StepState.DONE, attempt=1, started_ms=1, ended_ms=2))

    def abort(run_id: str, *, only_mine: bool) -> Run:
        aborted.append(run_id)
        return RUN

    monkeypatch.setattr(set_conductor, "read_state", read)
    monkeypatch.setattr(set_conductor, "read_mirror_status", lambda link, run_id: (f"{run_id} was asked",))
    services = SimpleNamespace(evidence_dir=tmp_path)
    members: dict[MirrorName, Any] = {
        name: SimpleNamespace(
            link=link, services=services, drive=go_on, run_steps=go_on, abort=abort, can_reach_source=lambda: True
        )
        for name, link in ((A, LINK), (B, away))
    }
    several = SetFailover(MirrorSet("shop", (A, B)), members, print_line=lambda line: None)
    with pytest.raises(SetFailed, match="b: the request failed") as failed:
        several.finish("shop-1-ab")
    page = several.page_path("shop-1-ab").read_text(encoding="utf-8")
    assert "its destination was not read" in page
    assert "cluster away is silent" in page
    assert "a-1 was asked" in page
    assert aborted == ([] if is_ready else ["a-1"]), "the other one is not waited for, nor is the silent one known"
    assert ("b: not given up: cluster away is silent" in str(failed.value)) is not is_ready


@pytest.mark.parametrize("aborts", [True, False])
def test_a_set_of_which_one_was_aborted_is_given_up_and_the_way_to_begin_anew_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, aborts: bool
) -> None:
    state = State()
    for name, run_state in ((A, RunState.ABORTED), (B, RunState.RUNNING)):
        ended_ms = 5 if run_state is RunState.ABORTED else None
        run = replace(RUN, id=f"{name}-1", plan=replace(RUN.plan, mirror=name), set_run="shop-1-ab")
        state.put(replace(run, state=run_state, ended_ms=ended_ms))

    def abort(run_id: str, *, only_mine: bool) -> Run:
        if not aborts:
            raise Unreachable("its source is silent")
        state.put(aborted := replace(state.runs[run_id], state=RunState.ABORTED, ended_ms=6))
        return aborted

    monkeypatch.setattr(set_conductor, "read_state", lambda cluster, **options: state)
    monkeypatch.setattr(set_conductor, "read_mirror_status", lambda link, run_id: ())
    services = SimpleNamespace(evidence_dir=tmp_path)
    member: Any = SimpleNamespace(link=LINK, services=services, abort=abort)
    several = SetFailover(MirrorSet("shop", (A, B)), {A: member, B: member}, print_line=lambda line: None)
    with pytest.raises(SetFailed) as failed:
        several.finish("shop-1-ab")
    assert ("`mirrorbook failover run-set shop`" in str(failed.value)) is aborts


def test_a_mirror_that_led_home_is_not_brought_home_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    destination = LINK.mirror.destination
    back = replace(LINK.mirror, name=A, failback_run="m-failback-1")
    state = State(mirrors={LINK.mirror.name: LINK.mirror, A: back})
    monkeypatch.setattr(set_failover, "read_states", lambda config: iter([(destination, state)]))
    monkeypatch.setattr(set_failover, "find_recorded_access", lambda mirror, states: None)
    config = replace(LINK.config, clusters={LINK.mirror.source: LINK.source, destination: LINK.destination})
    name = format_source_set(LINK.mirror.source)
    assert find_set(config, name, RunKind.FAILBACK).mirrors == (LINK.mirror.name,)
    assert find_set(config, name).mirrors == (A, LINK.mirror.name)
