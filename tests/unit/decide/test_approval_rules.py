"""Whether enough people have approved a plan, and how a run remembers them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import msgspec
import pytest
from msgspec import UNSET

from mirror_core.cli import command_options, run_commands
from mirror_core.cli.run_commands import make_own_approval
from mirror_core.decide.approval_rules import (
    APPROVAL_VALIDITY_S,
    ApprovalPolicy,
    explain_expired_run,
    explain_missing_approvals,
    explain_not_approved,
    explain_outdated_plan,
    explain_stale_approvals,
    explain_stale_run_approval,
    explain_used_approvals,
    find_run_to_resume,
    is_in_effect,
    list_runs_begun_by,
    make_approval,
    select_valid_approvals,
    to_broker_clock,
)
from mirror_core.model.acl import AclPurpose, LedgerEntry
from mirror_core.model.audit_log import AuditEntry
from mirror_core.model.mirror import DesiredState
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.pending_fence import FenceAction, PendingFence
from mirror_core.model.run import Approval, Plan, Run, RunKind, RunMode, RunState, StepRecord, StepState, shorten_hash
from mirror_core.model.run_checkpoints import RecordedApproval
from mirror_core.rights.acl_rules import build_denial
from mirror_core.runbook.failover_conductor import has_disturbed_applications
from mirror_core.state.journal import make_begin_entry
from mirror_core.state.state_records import State
from tests.support.cluster_names import LINK
from tests.support.memory_state import MemoryLog
from tests.support.sentences import format_sentence

ANN = Approval(id="1", name="ann", at_ms=1000)
AT_MS = 2000
BEN = Approval(id="2", name="ben", at_ms=AT_MS)
SEEN = Plan(kind=RunKind.FAILOVER, mirror=MirrorName("m"), mode=RunMode.PLANNED, steps=(), bound_facts=())
RUN = Run(
    id="r", number=1, plan=SEEN, plan_hash=SEEN.hash, state=RunState.RUNNING, started_by="airflow", started_ms=1,
    desired=DesiredState.STARTED, conducted_by="airflow", approved_by="ann, ben", approvals=(ANN, BEN),
)  # fmt: skip

BEFORE_MS = RUN.started_ms - 2 * 3_600_000
"""By the clock of another machine, which is right: that of RUN's was two hours ahead."""


@pytest.mark.parametrize(
    ("approvals", "people", "said"),
    [
        ((ANN, BEN), 2, ""),
        ((ANN,), 1, ""),
        ((), 2, "2 people have to approve it, and so far nobody did"),
        ((ANN,), 2, "2 people have to approve it, and so far ann did"),
        ((ANN, ANN), 2, format_sentence("approved_already_by_ann")),
        ((ANN, Approval(id="1", name="ann2", at_ms=None)), 2, "ann2 has approved it already"),
        ((ANN, Approval(id="9", name="ann", at_ms=None)), 2, "ann has approved it already"),
        ((ANN, Approval(id="9", name=" Ann", at_ms=None)), 2, " Ann has approved it already"),
        ((replace(ANN, id="ann"), Approval(id="ANN", name="Ann B.", at_ms=None)), 2, "Ann B. has approved it already"),
    ],
)
def test_two_approvals_are_those_of_two_people(approvals: tuple[Approval, ...], people: int, said: str) -> None:
    found = "; ".join(explain_missing_approvals(approvals, people))
    assert found.startswith(said)
    assert bool(found) is bool(said)


def test_an_approval_of_days_ago_begins_nothing() -> None:
    hour_ms = round(APPROVAL_VALIDITY_S * 1000)
    assert explain_stale_approvals((), 10 * hour_ms) == (), "nobody was asked"
    assert explain_stale_approvals((ANN, BEN), AT_MS + hour_ms) == (), "the second one has looked at the same plan"
    [reason] = explain_stale_approvals((ANN, BEN), AT_MS + 48 * hour_ms)
    assert reason == format_sentence("approval_too_old_plan_anew", 2880, 60)
    [unknown] = explain_stale_approvals((Approval(id="1", name="ann", at_ms=None),), 0)
    assert "ann approved it nobody knows when" in unknown


def test_a_task_that_is_cleared_days_later_stops_nobody_by_old_answers() -> None:
    hour_ms = round(APPROVAL_VALIDITY_S * 1000)
    late_ms = AT_MS + 48 * hour_ms
    assert explain_expired_run(RUN, (), (), AT_MS + hour_ms) == ""
    assert explain_expired_run(RUN, (), (), late_ms).startswith(format_sentence("approved_and_a_step", 2880))
    assert explain_expired_run(RUN, (replace(BEN, at_ms=late_ms),), (), late_ms) == "", "somebody has just said so"
    proof = StepRecord(
        run="r", step="prove", state=StepState.DONE, attempt=1, started_ms=AT_MS, ended_ms=late_ms - hour_ms
    )
    assert explain_expired_run(RUN, (), (proof,), late_ms) == "", "its proof has taken days"
    assert explain_expired_run(RUN, (), (replace(proof, state=StepState.FAILED),), late_ms)


def test_a_task_that_is_repeated_goes_on_with_its_own_run() -> None:
    later = replace(RUN, id="s", number=2, started_ms=BEFORE_MS)
    runs = [RUN, later, replace(later, id="t", number=3, state=RunState.ABORTED)]
    assert find_run_to_resume(runs, "", ()) is later, "it has not ended: whichever plan is shown now"
    assert list_runs_begun_by(runs, "m", RunKind.FAILOVER, "airflow") == runs
    for mirror, kind, conductor in (
        ("n", RunKind.FAILOVER, "airflow"),
        ("m", RunKind.FAILBACK, "airflow"),
        ("m", RunKind.FAILOVER, "ann"),
    ):
        assert list_runs_begun_by(runs, mirror, kind, conductor) == []


def test_a_finished_run_is_taken_up_only_in_effect_and_by_its_own_plan() -> None:
    done = replace(RUN, state=RunState.DONE)
    assert find_run_to_resume([done], SEEN.hash, {"r"}) is done
    assert find_run_to_resume([done], SEEN.hash, ()) is None, "a failback has ended it"
    assert find_run_to_resume([done], "0" * 64, {"r"}) is None, "another plan was approved"
    older = replace(done, plan_hash=SEEN.hash[:12])
    assert find_run_to_resume([older], SEEN.hash, {"r"}) is older, "an older Mirrorbook recorded twelve digits"


def test_a_finished_failover_is_in_effect_until_something_else_is_begun_or_its_fence_is_not_owed() -> None:
    done = replace(RUN, state=RunState.DONE)
    debt = PendingFence(
        mirror=MirrorName("m"), cluster=ClusterName("east"), action=FenceAction.APPLY, run="r", since_ms=1
    )
    assert is_in_effect(done, [done], debt)
    assert not is_in_effect(done, [done], None), "the mirror was started anew, or taken home"
    assert not is_in_effect(done, [done], replace(debt, run="s"))
    assert not is_in_effect(done, [done], replace(debt, action=FenceAction.LIFT))
    home = replace(done, id="h", plan=replace(SEEN, kind=RunKind.FAILBACK), number=2, started_ms=BEFORE_MS)
    for state, before in ((RunState.RUNNING, False), (RunState.DONE, False), (RunState.ABORTED, True)):
        assert is_in_effect(done, [done, replace(home, state=state)], debt) is before
    other = replace(home, plan=replace(home.plan, mirror=MirrorName("n")))
    assert is_in_effect(done, [other, done], debt), "of another mirror"
    assert is_in_effect(home, [done, home], None)
    assert not is_in_effect(home, [done, home], debt), "it was failed over again"
    assert not is_in_effect(home, [home, replace(done, id="s", number=3, started_ms=BEFORE_MS)], None)


POLICY = ApprovalPolicy(question="d/r1/plan", tasks=("approve", "approve_second"), approvers=frozenset(("1", "2")))


def recorded(approval: Approval, task: str = "approve", **other: str) -> RecordedApproval:
    about = {"question": POLICY.question, "approves": SEEN.hash, **other}
    return RecordedApproval(task=task, approval=approval, **about)


FIRST, SECOND = recorded(ANN), recorded(BEN, "approve_second")


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ((FIRST, SECOND), ""),
        ((), "2 people have to approve it, and so far nobody did"),
        ((FIRST,), "2 people have to approve it, and so far ann did"),
        ((FIRST, recorded(ANN, "approve_second")), "ann has approved it already"),
        ((FIRST, recorded(BEN, "go_ahead")), "2 people have to approve it"),
        ((FIRST, recorded(BEN, "approve_second", question="d/r2/plan")), "2 people have to approve it"),
        ((FIRST, recorded(replace(BEN, id="3"), "approve_second")), "ben (3) may not approve here"),
        ((FIRST, recorded(replace(BEN, id=""), "approve_second")), "ben () may not approve here"),
        (
            (FIRST, recorded(BEN, "approve_second", approves="0" * 64)),
            "task approve_second was answered about plan 0000",
        ),
        ((FIRST, recorded(replace(BEN, at_ms=None), "approve_second")), ""),
        (
            (recorded(replace(ANN, at_ms=None)), recorded(replace(BEN, at_ms=None), "approve_second")),
            "ann, ben approved",
        ),
    ],
)
def test_only_approvals_that_are_recorded_for_this_plan_by_those_who_may_count(
    known: tuple[RecordedApproval, ...], said: str
) -> None:
    found = "; ".join(explain_not_approved(POLICY, known, SEEN.hash, AT_MS))
    assert found.startswith(said)
    assert bool(found) is bool(said)


def test_a_recorded_approval_of_long_ago_begins_nothing_and_one_may_be_enough() -> None:
    alone = replace(POLICY, tasks=("approve",), approvers=None)
    assert explain_not_approved(alone, (FIRST,), SEEN.hash, AT_MS) == ()
    assert select_valid_approvals(alone, (SECOND, FIRST)) == (ANN,)
    assert select_valid_approvals(POLICY, (SECOND, FIRST)) == (ANN, BEN)
    assert (
        "approved it"
        in explain_not_approved(alone, (FIRST,), SEEN.hash, AT_MS + 2 * round(APPROVAL_VALIDITY_S * 1000))[0]
    )
    few, marked = explain_not_approved(alone, (), SEEN.hash, AT_MS)
    assert few == "1 person has to approve it, and so far nobody did"
    assert marked == format_sentence("task_that_is_marked_as_done")


def test_an_approval_is_for_one_run() -> None:
    said = (ANN, BEN)
    begun = replace(RUN, approvals=said)
    for state in (RunState.ABORTED, RunState.ABORTING, RunState.SUPERSEDED, RunState.DONE):
        (why,) = explain_used_approvals([replace(begun, state=state)], said)
        assert why.startswith(format_sentence("run_begun_by_this_approval", state))
    given_up = replace(begun, state=RunState.ABORTED)
    anew = (replace(ANN, at_ms=AT_MS + 1), replace(BEN, at_ms=AT_MS + 1))
    assert explain_used_approvals([given_up], anew) == (), "both were asked once more"
    assert explain_used_approvals([given_up], (ANN, anew[1])), (
        "one of two was asked once more, and the other's approval is spent"
    )


@pytest.mark.parametrize("uid", [0, 1234, 4_000_000_000])
def test_who_approves_on_the_command_line_is_the_user_of_the_process(uid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {0: "root", 1234: "ann"}
    monkeypatch.setattr("os.getuid", lambda: uid)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: SimpleNamespace(pw_name=names[uid]))
    monkeypatch.setattr("socket.gethostname", lambda: "vm")
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "eve")
    monkeypatch.delenv("SUDO_USER", raising=False)
    assert command_options.find_operator() == f"{names.get(uid, f'uid {uid}')}@vm"
    monkeypatch.setenv("SUDO_USER", "ben")
    assert command_options.find_operator() == (
        "root@vm (sudo by ben)" if uid == 0 else f"{names.get(uid, f'uid {uid}')}@vm"
    )


def test_a_plan_with_another_hash_is_out_of_date() -> None:
    assert (len(SEEN.hash), len(shorten_hash(SEEN.hash))) == (64, 12)
    assert explain_outdated_plan(SEEN, SEEN.hash) == explain_outdated_plan(SEEN, None) == ()
    assert explain_outdated_plan(SEEN, "0" * 64) == (
        format_sentence("plan_is_out_of_date", "000000000000", SEEN.hash[:12]),
    )


def test_a_run_that_was_approved_long_ago_is_looked_at_again() -> None:
    hour_ms = round(APPROVAL_VALIDITY_S * 1000)
    assert explain_stale_run_approval(RUN, AT_MS + hour_ms) == ""
    assert explain_stale_run_approval(RUN, 0) == "", "a clock that is behind asks nobody"
    late = explain_stale_run_approval(RUN, AT_MS + 3 * hour_ms)
    assert late == format_sentence("run_approved_too_long_ago", 180, 60)
    by_command = replace(RUN, approvals=(), approved_by="")
    assert explain_stale_run_approval(by_command, 1 + hour_ms) == ""
    assert "61 minutes ago by nobody" in explain_stale_run_approval(by_command, 1 + hour_ms + 60_000)


def test_a_chronicle_begins_with_who_approved_and_when() -> None:
    entry = msgspec.json.decode(make_begin_entry(MemoryLog(), RUN).line, type=AuditEntry)
    assert entry.body["approvals"] == [
        {"id": "1", "name": "ann", "at_ms": 1000},
        {"id": "2", "name": "ben", "at_ms": 2000},
    ]


HOUR_MS = round(APPROVAL_VALIDITY_S * 1000)
GIVEN = make_approval("a1", "1", "ann", 1000)


def test_an_approval_is_journalled_with_its_id_its_time_and_its_limit() -> None:
    entry = msgspec.json.decode(make_begin_entry(MemoryLog(), replace(RUN, approvals=(GIVEN,))).line, type=AuditEntry)
    assert entry.body["approvals"] == [
        {"id": "1", "name": "ann", "at_ms": 1000, "approval_id": "a1", "until_ms": 1000 + HOUR_MS}
    ]
    assert make_approval("a1", "1", "ann", None).until_ms is UNSET


@dataclass(frozen=True, kw_only=True)
class Older:
    """An approval as it was before it had an id and a limit."""

    id: str
    name: str
    at_ms: int | None


def test_an_older_mirrorbook_reads_it_and_an_older_ones_is_read_and_written_as_it_was() -> None:
    older = msgspec.json.decode(msgspec.json.encode(GIVEN), type=Older)
    assert older == Older(id="1", name="ann", at_ms=1000)
    before = msgspec.json.encode(older)
    read = msgspec.json.decode(before, type=Approval)
    assert (read.approval_id, read.until_ms) == (UNSET, UNSET)
    assert msgspec.json.encode(read) == before
    assert explain_stale_approvals((read,), 1000 + HOUR_MS) == ()
    assert explain_stale_approvals((read,), 1001 + HOUR_MS)


@pytest.mark.parametrize("until_ms", [1000 + HOUR_MS // 2, 1000 + 100 * HOUR_MS])
def test_what_the_journal_says_makes_no_approval_valid_for_longer(until_ms: int) -> None:
    """It may be another Mirrorbook's, whose approvals hold for another time."""
    one = replace(GIVEN, until_ms=until_ms)
    run, last = replace(RUN, approvals=(one,)), min(until_ms, 1000 + HOUR_MS)
    for now, holds in ((last, True), (last + 1, False)):
        assert (explain_stale_approvals((one,), now) == ()) is holds
        assert (explain_stale_run_approval(run, now) == "") is holds
        assert (explain_expired_run(run, (), (), now) == "") is holds
    [why] = explain_stale_approvals((one,), last + 60_000)
    assert f"an approval holds for {(last - 1000) / 60_000:.0f}" in why


def test_a_task_that_reads_its_answer_again_has_the_same_approval() -> None:
    """Also the one of a run that an older Mirrorbook has begun, and that was given up."""
    given_up = replace(RUN, state=RunState.ABORTED, approvals=(ANN,))
    again = make_approval("a1", ANN.id, ANN.name, ANN.at_ms)
    assert explain_used_approvals([given_up], (again,))
    assert explain_used_approvals([replace(given_up, approvals=(again,))], (ANN,)), "and the other way round"
    assert explain_used_approvals([replace(given_up, approvals=(again,))], (replace(again, name="ann b."),)), (
        "one id is one approval"
    )
    assert explain_used_approvals([given_up], (make_approval("a2", ANN.id, ANN.name, AT_MS),)) == ()


def test_whoever_agrees_on_a_terminal_gives_one_approval_for_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_commands, "read_broker_time_ms", lambda cluster: AT_MS)
    one, other = make_own_approval("ann@desk", LINK), make_own_approval("ann@desk", LINK)
    assert (one.id, one.name) == ("ann@desk", "ann@desk")
    assert (one.at_ms, one.until_ms) == (AT_MS, AT_MS + HOUR_MS)
    assert one.approval_id != other.approval_id


def test_a_fence_that_an_earlier_run_has_left_is_none_of_a_run_that_is_resumed() -> None:
    """Applications notice nothing of it yet, so its old approval is asked for again."""
    state = State()
    east, mirror = ClusterName("east"), RUN.plan.mirror
    state.put(LedgerEntry(mirror=mirror, cluster=east, acl=build_denial("t"), purpose=AclPurpose.FENCE))
    assert has_disturbed_applications(state, RUN, east)
    state.put(PendingFence(mirror=mirror, cluster=east, action=FenceAction.LIFT, run="an earlier one", since_ms=1))
    assert not has_disturbed_applications(state, RUN, east)
    state.put(StepRecord(run=RUN.id, step="fence", state=StepState.DONE, attempt=1, started_ms=1))
    assert has_disturbed_applications(state, RUN, east)


HOUR_MS = 3_600_000


@pytest.mark.parametrize("hours", [2, -2])
@pytest.mark.parametrize(("age_ms", "is_valid"), [(60_000, True), (2 * HOUR_MS, False), (-2 * HOUR_MS, True)])
def test_an_answer_is_as_old_by_the_brokers_clock_as_by_airflows(hours: int, age_ms: int, *, is_valid: bool) -> None:
    """One that is newer than now, by an API server whose clock is ahead, counts as given now."""
    here_ms = 100 * HOUR_MS
    brokers_ms = here_ms + hours * HOUR_MS
    given = make_approval("a", "ann", "Ann", here_ms - age_ms)
    approval = to_broker_clock(given, here_ms, here_ms - brokers_ms)
    assert approval.at_ms == brokers_ms - max(0, age_ms)
    assert (approval.approval_id, approval.until_ms) == ("a", approval.at_ms + HOUR_MS)
    assert (explain_stale_approvals([approval], brokers_ms) == ()) is is_valid
    assert explain_stale_approvals([approval], brokers_ms + HOUR_MS + 1)


def test_an_answer_of_an_unknown_time_stays_one() -> None:
    given = make_approval("a", "ann", "Ann", None)
    assert to_broker_clock(given, HOUR_MS, 0) == given
