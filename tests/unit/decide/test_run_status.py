"""The last words of a run: true in each place where it can have stopped, and with a command that goes on from there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mirror_core.decide.process_liveness import ConductorState, ConductorStatus
from mirror_core.decide.run_status import (
    RunSituation,
    explain_only_copy,
    find_run_progress,
    format_newer_run,
    format_run_status,
    format_unknown_status,
)
from mirror_core.decide.steps import RUN_STEPS, WriteLocation, find_no_return_step, list_step_names
from mirror_core.model.figures import FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import DesiredState
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.pending_fence import FenceAction, PendingFence
from mirror_core.model.run import FailbackStrategy, Run, RunKind, RunMode, RunState, StepEvidence, StepRecord, StepState
from tests.support.mirror_views import FAILED_PARTITION, MIRROR, RUN
from tests.support.sentences import format_sentence

OWED = PendingFence(mirror=MIRROR.name, cluster=MIRROR.source, action=FenceAction.APPLY, run=RUN.id, since_ms=1)
PLANNED = (RunKind.FAILOVER, RunMode.PLANNED)
PLACES = [
    (kind, mode, step.name, state)
    for (kind, mode), steps in RUN_STEPS.items()
    for step in steps
    for state in (StepState.STARTED, StepState.FAILED)
]


def a_run(kind: RunKind, mode: RunMode, state: RunState) -> Run:
    return replace(RUN, plan=replace(RUN.plan, kind=kind, mode=mode), state=state)


def upto(kind: RunKind, mode: RunMode, last: str, state: StepState) -> Sequence[StepRecord]:
    steps = list_step_names(kind, mode)[: list_step_names(kind, mode).index(last) + 1]
    return [
        StepRecord(
            run=RUN.id,
            step=step,
            state=state if step == last else StepState.DONE,
            attempt=1,
            started_ms=10 * number,
            ended_ms=None if step == last and state is StepState.STARTED else 10 * number + 5,
        )
        for number, step in enumerate(steps)
    ]


def said(
    run: Run,
    steps: Sequence[StepRecord] = (),
    debt: PendingFence | None = None,
    *,
    copying: bool = True,
    turned: bool = False,
) -> str:
    ended = RunSituation(
        run=run, steps=steps, mirror=MIRROR, pending_fence=debt, is_past_no_return=turned, is_copying=copying
    )
    return " ".join(format_run_status(ended))


@pytest.mark.parametrize(
    ("failback_run", "new_plan"), [("", "failover plan orders-back"), ("f1", "failback resume orders")]
)
def test_a_partition_that_failed_after_the_plan_is_named_with_the_way_out(failback_run: str, new_plan: str) -> None:
    situation = RunSituation(
        run=a_run(*PLANNED, RunState.RUNNING),
        steps=upto(*PLANNED, "prove", StepState.FAILED),
        mirror=replace(MIRROR, name=MirrorName("orders-back"), failback_run=failback_run),
        pending_fence=None,
        is_past_no_return=False,
        is_copying=True,
        failed_since_plan=[FAILED_PARTITION],
    )
    text = " ".join(format_run_status(situation))
    assert "orders-0 has FAILED" in text
    assert "kind altered: other times. Next: " in text
    assert all(
        f"`mirrorbook {command}`" in text
        for command in ("failover abort orders-back", "mirror recover orders-back --dry-run", new_plan)
    )
    assert "failover resume" not in text


@pytest.mark.parametrize(("kind", "mode", "last", "state"), PLACES)
def test_a_clock_that_was_set_back_between_two_steps_changes_no_word(
    kind: RunKind, mode: RunMode, last: str, state: StepState
) -> None:
    """Or another machine, whose clock is behind, went on with the run."""
    run, steps = a_run(kind, mode, RunState.RUNNING), upto(kind, mode, last, state)
    hour_ms = 3_600_000
    late = [
        replace(
            step,
            started_ms=step.started_ms - number * hour_ms,
            ended_ms=None if step.ended_ms is None else step.ended_ms - number * hour_ms,
        )
        for number, step in enumerate(steps)
    ]
    assert said(run, late) == said(run, steps)
    assert find_run_progress(run, late).step == last


@pytest.mark.parametrize(("kind", "mode", "step", "state"), PLACES)
def test_a_run_that_stopped_anywhere_says_who_writes_and_how_to_go_on(
    kind: RunKind, mode: RunMode, step: str, state: StepState
) -> None:
    order = list_step_names(kind, mode)
    past = order.index(step) >= order.index(find_no_return_step(kind, mode))
    text = said(a_run(kind, mode, RunState.RUNNING), upto(kind, mode, step, state), turned=past)
    place = {
        StepState.FAILED: f"step {step} failed",
        StepState.DONE: f"it is after step {step}",
        StepState.STARTED: f"it is in step {step}",
    }
    assert f"has not ended: {place[state]}." in text
    assert f"`mirrorbook {kind} resume m` goes on" in text
    assert (f"`mirrorbook {kind} abort m`" in text) is not past
    assert ("There is no abort" in text) is past
    row = next(one for one in RUN_STEPS[kind, mode] if one.name == step)
    assert ("NOBODY CAN WRITE" in text) is (row.writes is WriteLocation.NOWHERE and not past)
    assert ("Some applications may write on west already" in text) is (row.writes is WriteLocation.NOWHERE and past)
    if (kind, mode) == PLANNED:
        assert ("--mode unplanned" in text) is not past


@pytest.mark.parametrize(("state", "words"), [(StepState.STARTED, "may be fenced"), (StepState.DONE, "is fenced")])
def test_a_fence_that_is_not_known_to_stand_is_not_called_one(state: StepState, words: str) -> None:
    run = a_run(*PLANNED, RunState.RUNNING)
    assert f"NOBODY CAN WRITE these topics: east {words}" in said(run, upto(*PLANNED, "fence", state))


def test_a_promotion_that_has_given_nothing_yet_can_still_be_given_up() -> None:
    text = said(a_run(*PLANNED, RunState.RUNNING), upto(*PLANNED, "promote", StepState.FAILED))
    assert "NOBODY CAN WRITE these topics: east is fenced" in text
    assert "`mirrorbook failover abort m` lets applications write on east again" in text


def test_where_nothing_can_be_denied_nobody_is_said_to_be_kept_from_writing() -> None:
    steps = [replace(step, evidence={"authorizer": False}) for step in upto(*PLANNED, "fence", StepState.DONE)]
    text = said(a_run(*PLANNED, RunState.RUNNING), steps)
    assert "NOBODY" not in text
    assert "Nothing keeps applications from writing: east has no authorizer" in text
    closed = [replace(step, evidence={**step.evidence, "fence_command": "done"}) for step in steps]
    assert "NOBODY CAN WRITE these topics: east is fenced" in said(a_run(*PLANNED, RunState.RUNNING), closed)


@pytest.mark.parametrize("kind", RunKind)
def test_a_run_that_is_over_leaves_the_word_to_a_newer_one(kind: RunKind) -> None:
    old = replace(a_run(*PLANNED, RunState.DONE), ended_ms=5)
    newer = replace(a_run(kind, RunMode.PLANNED, RunState.DONE), id="later", number=2, started_ms=-9, ended_ms=10)
    (line,) = format_newer_run(old, (old, newer))
    assert f"`mirrorbook {kind} status m` says who can write where now" in line
    assert format_newer_run(newer, (old, newer)) == ()
    assert format_newer_run(replace(old, ended_ms=None), (old, newer)) == ()


def test_a_run_that_waits_after_its_proof_has_stopped_nobody() -> None:
    text = said(a_run(*PLANNED, RunState.RUNNING), upto(*PLANNED, "prove", StepState.DONE))
    assert "Applications write on east." in text
    assert "abort m` gives it up, and nothing changes" in text


@pytest.mark.parametrize(
    ("debt", "words"),
    [
        (OWED, "east is NOT fenced yet"),
        (replace(OWED, applied_at_ms=2), "east is fenced: nobody but a super user"),
        (replace(OWED, applied_at_ms=2, by_command=True), "east is closed to applications by its fence_command"),
        (None, "Whether east is fenced is not recorded"),
    ],
)
def test_after_a_failover_it_is_said_whether_the_old_source_is_closed(debt: PendingFence | None, words: str) -> None:
    text = said(a_run(RunKind.FAILOVER, RunMode.UNPLANNED, RunState.DONE), debt=debt)
    assert "Applications write on west" in text
    assert words in text
    assert "`mirrorbook failback plan m`" in text
    assert ("`mirrorbook mirror watch m`" in text) is (
        debt is not None and (debt.applied_at_ms is None or debt.by_command)
    )


def test_hooks_that_failed_are_named_at_the_end() -> None:
    run, steps = a_run(*PLANNED, RunState.DONE), upto(*PLANNED, "switch", StepState.DONE)
    failed = [replace(step, evidence={FigureKey.FAILED_HOOKS: ("dns",)}) for step in steps]
    assert f"Hooks that failed: dns. `mirrorbook runs show {run.id}`" in said(run, failed)
    assert "Hooks" not in said(run, [replace(step, evidence={FigureKey.FAILED_HOOKS: ()}) for step in steps])


def test_what_certificates_prove_is_said_at_the_end_of_a_run_without_its_source() -> None:
    lost = (RunKind.FAILOVER, RunMode.UNPLANNED)
    run, steps = a_run(*lost, RunState.DONE), upto(*lost, "report", StepState.DONE)
    assert "Certificates" not in said(run, steps)
    seen: StepEvidence = {
        FigureKey.CERTIFICATES_VERDICT: "failed",
        FigureKey.CERTIFIED_OFFSETS: 0,
        FigureKey.CERTIFIABLE_OFFSETS: 9,
        FigureKey.NOT_AS_COPIED: ("a-0: altered",),
        FigureKey.NOT_PROVED: ("a-0",),
        FigureKey.NOT_PROVED_BECAUSE: (),
        FigureKey.TO_PROVE_MORE: "mirrorbook parity m",
    }
    text = said(run, [replace(step, evidence=seen) if step.step == "report" else step for step in steps])
    assert "Certificates of what west holds: NOT AS IT WAS COPIED: a-0: altered." in text
    assert "To prove more: `mirrorbook parity m`." in text
    seen = {**seen, FigureKey.TO_PROVE_MORE_FROM_SOURCE: "mirrorbook receipts rebuild m"}
    text = said(run, [replace(step, evidence=seen) if step.step == "report" else step for step in steps])
    assert "when east answers: `mirrorbook receipts rebuild m`." in text
    reasons = ("a task that was killed had copied it",)
    partly: StepEvidence = {
        **seen,
        FigureKey.NOT_AS_COPIED: (),
        FigureKey.CERTIFIED_OFFSETS: 4,
        FigureKey.NOT_PROVED_BECAUSE: reasons,
    }
    text = said(run, [replace(step, evidence=partly) if step.step == "report" else step for step in steps])
    assert "4 of 9 offsets" in text
    assert f"`mirrorbook runs show {run.id}`" in text
    assert reasons[0] not in text


def test_the_failover_that_leads_home_names_what_is_left_of_the_failback() -> None:
    back = replace(MIRROR, name=MirrorName("m-back"), source=ClusterName("west"), failback_run="m-failback-1")
    run = a_run(*PLANNED, RunState.DONE)
    lines = format_run_status(
        RunSituation(run=run, steps=(), mirror=back, pending_fence=None, is_past_no_return=True, is_copying=False)
    )
    assert "`mirrorbook failback resume m` protects" in lines[-1]


@pytest.mark.parametrize(
    ("debt", "words"),
    [
        (None, "Applications write on east, as before"),
        (replace(OWED, action=FenceAction.LIFT), format_sentence("fence_may_still_stand")),
    ],
)
def test_after_an_abort_it_is_said_whether_the_source_is_open(debt: PendingFence | None, words: str) -> None:
    assert words in said(a_run(*PLANNED, RunState.ABORTED), debt=debt)


@pytest.mark.parametrize("desired", DesiredState)
def test_a_mirror_that_nobody_copies_is_named_unless_it_is_meant_to_rest(desired: DesiredState) -> None:
    run = a_run(*PLANNED, RunState.ABORTED)
    ended = RunSituation(
        run=run,
        steps=(),
        mirror=replace(MIRROR, desired=desired),
        pending_fence=None,
        is_past_no_return=True,
        is_copying=False,
    )
    assert ("`mirrorbook supervise m`" in " ".join(format_run_status(ended))) is (desired is DesiredState.STARTED)


def test_who_looks_at_a_run_that_is_conducted_is_told_to_wait() -> None:
    heard = ConductorStatus(state=ConductorState.ALIVE, by="ann@desk", host="desk", pid=7, age_s=3.2)
    for state in (RunState.RUNNING, RunState.ABORTING):
        ended = RunSituation(
            run=a_run(*PLANNED, state),
            steps=(),
            mirror=MIRROR,
            pending_fence=None,
            is_past_no_return=False,
            is_copying=True,
            conductor=heard,
        )
        text = " ".join(format_run_status(ended))
        assert "It is conducted by ann@desk on desk (process 7), seen 3 s ago. Next: wait" in text
        assert "resume" not in text


def test_an_abort_that_was_cut_short_is_finished_by_resume_alone() -> None:
    text = said(a_run(*PLANNED, RunState.ABORTING), upto(*PLANNED, "fence", StepState.DONE))
    assert "`mirrorbook failover resume m` finishes the abort" in text
    assert "abort m`" not in text


def test_home_again_is_said_with_who_copies() -> None:
    run = a_run(RunKind.FAILBACK, RunMode.PLANNED, RunState.DONE)
    assert "Applications write on east again, and west mirrors it." in said(run)
    assert "west is NOT being updated now." in said(run, copying=False)
    assert "`mirrorbook supervise m`" in said(run, copying=False)
    assert "mirrors it" not in said(run, copying=False)
    assert "NOT" not in said(run)


def test_a_destination_that_is_silent_leaves_the_way_to_open_the_source() -> None:
    assert "`mirrorbook cluster unfence east --from FILE`" in " ".join(format_unknown_status(MIRROR))


@pytest.mark.parametrize("known_lines", [(), ("west WAS PROMOTED by run r",)])
def test_a_promoted_destination_that_is_silent_in_a_failback_does_not_lead_to_the_old_source(
    known_lines: tuple[str, ...],
) -> None:
    lost = Finding("promoted_state_unread", "west", source="east")
    first, *others = format_unknown_status(MIRROR, RunKind.FAILBACK, known_lines)
    assert f"{Finding('run_state_unread', 'west', mirror='m', run_kind='failback')}." == first
    assert others == [*(known_lines or (f"{lost}.",))]


@pytest.mark.parametrize("records", [0, 464])
def test_after_a_failback_what_was_saved_is_named_with_the_command_that_writes_it_back(records: int) -> None:
    steps = upto(RunKind.FAILBACK, RunMode.PLANNED, "salvage", StepState.DONE)
    evidence: StepEvidence = {"records": records, "folder": "/evidence/salvage"}
    steps = [replace(step, evidence=evidence if step.step == "salvage" else {}) for step in steps]
    text = said(a_run(RunKind.FAILBACK, RunMode.PLANNED, RunState.DONE), steps)
    assert ("`mirrorbook salvage replay /evidence/salvage --config" in text) is bool(records)


@pytest.mark.parametrize("strategy", FailbackStrategy)
@pytest.mark.parametrize(
    ("last", "state", "is_alone"),
    [
        ("salvage", StepState.DONE, False),
        ("align", StepState.STARTED, True),
        ("align", StepState.DONE, True),
        ("catch_up", StepState.FAILED, True),
        ("catch_up", StepState.DONE, False),
    ],
)
def test_the_new_primary_is_the_only_copy_from_align_until_the_old_source_has_caught_up(
    strategy: FailbackStrategy, last: str, state: StepState, is_alone: bool
) -> None:
    run = a_run(RunKind.FAILBACK, RunMode.PLANNED, RunState.RUNNING)
    run = replace(run, plan=replace(run.plan, strategies={"orders": strategy}))
    steps = upto(RunKind.FAILBACK, RunMode.PLANNED, last, state)
    told = explain_only_copy(MIRROR, run, steps)
    assert (told is not None) is (is_alone and strategy is FailbackStrategy.RECREATE)
    assert told is None or f"{told}." in said(run, steps)
