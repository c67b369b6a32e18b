"""Whether enough people have approved a plan, and how a run remembers them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import pytest
from msgspec import UNSET

from mirror_core.cli.conducting import approval_of
from mirror_core.decide.approvals import HOLDS_S, approved_long_ago, expired, given, stale, taken_up, unmet, used_up
from mirror_core.model.acl import AclPurpose, LedgerEntry
from mirror_core.model.chronicle import Entry
from mirror_core.model.mirror import Desired
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.run import Approval, Mode, Plan, Run, RunKind, RunState, StepRecord, StepState
from mirror_core.model.standing import Debt, Owed
from mirror_core.rights.acls import denial
from mirror_core.runbook.failover import disturbing
from mirror_core.state.journal import begun
from mirror_core.state.records import State

ANN = Approval(id="1", name="ann", at_ms=1000)
AT_MS = 2000
BEN = Approval(id="2", name="ben", at_ms=AT_MS)
SEEN = Plan(kind=RunKind.FAILOVER, mirror=MirrorName("m"), mode=Mode.PLANNED, steps=(), bound=())
RUN = Run(
    id="r", plan=SEEN, plan_hash=SEEN.hash, state=RunState.RUNNING, started_by="airflow", started_ms=1,
    desired=Desired.STARTED, conducted_by="airflow", approved_by="ann, ben", approvals=(ANN, BEN),
)  # fmt: skip


@pytest.mark.parametrize(
    ("approvals", "people", "said"),
    [
        ((ANN, BEN), 2, ""),
        ((ANN,), 1, ""),
        ((), 2, "2 people have to approve it, and so far nobody did"),
        ((ANN,), 2, "2 people have to approve it, and so far ann did"),
        ((ANN, ANN), 2, "ann has approved it already: the next approval must be another person's"),
        ((ANN, Approval(id="1", name="ann2", at_ms=None)), 2, "ann2 has approved it already"),
        ((ANN, Approval(id="9", name="ann", at_ms=None)), 2, "ann has approved it already"),
    ],
)
def test_two_approvals_are_those_of_two_people(approvals: tuple[Approval, ...], people: int, said: str) -> None:
    found = "; ".join(unmet(approvals, people))
    assert found.startswith(said)
    assert bool(found) is bool(said)


def test_an_approval_of_days_ago_begins_nothing() -> None:
    hour_ms = round(HOLDS_S * 1000)
    assert stale((), 10 * hour_ms) == (), "nobody was asked"
    assert stale((ANN, BEN), AT_MS + hour_ms) == (), "the second one has looked at the same plan"
    [reason] = stale((ANN, BEN), AT_MS + 48 * hour_ms)
    assert reason == "ann, ben approved it 2880 minutes ago, and an approval holds for 60: plan anew, and ask again"
    [unknown] = stale((Approval(id="1", name="ann", at_ms=None),), 0)
    assert "ann approved it nobody knows when" in unknown


def test_a_task_that_is_cleared_days_later_stops_nobody_by_old_answers() -> None:
    hour_ms = round(HOLDS_S * 1000)
    late_ms = AT_MS + 48 * hour_ms
    assert expired(RUN, (), (), AT_MS + hour_ms) == ""
    assert expired(RUN, (), (), late_ms).startswith("it was approved, and a step of it was done last, 2880 minutes ago")
    assert expired(RUN, (replace(BEN, at_ms=late_ms),), (), late_ms) == "", "somebody has just said so"
    proof = StepRecord(
        run="r", step="prove", state=StepState.DONE, attempt=1, started_ms=AT_MS, ended_ms=late_ms - hour_ms
    )
    assert expired(RUN, (), (proof,), late_ms) == "", "its proof has taken days"
    assert expired(RUN, (), (replace(proof, state=StepState.FAILED),), late_ms)


def test_a_task_that_is_repeated_goes_on_with_its_own_run() -> None:
    later = replace(RUN, id="s", started_ms=2)
    runs = [RUN, later, replace(later, id="t", state=RunState.ABORTED, started_ms=3)]
    assert taken_up(runs, "m", RunKind.FAILOVER, "airflow") is later
    assert taken_up([replace(RUN, state=RunState.DONE)], "m", RunKind.FAILOVER, "airflow")
    for mirror, kind, conductor in (("n", RunKind.FAILOVER, "airflow"), ("m", RunKind.FAILBACK, "airflow")):
        assert taken_up(runs, mirror, kind, conductor) is None
    assert taken_up(runs, "m", RunKind.FAILOVER, "ann") is None


def test_an_approval_is_for_one_run() -> None:
    said = (ANN, BEN)
    begun = replace(RUN, approvals=said)
    for state in (RunState.ABORTED, RunState.ABORTING, RunState.SUPERSEDED):
        (why,) = used_up([replace(begun, state=state)], said)
        assert why.startswith(f"run r was begun by this approval and is {state}, and an approval is for one run")
    given_up = replace(begun, state=RunState.ABORTED)
    anew = (replace(ANN, at_ms=AT_MS + 1), replace(BEN, at_ms=AT_MS + 1))
    assert used_up([given_up], anew) == (), "both were asked once more"
    assert used_up([given_up], (ANN, anew[1])), "one of two was asked once more, and the other's approval is spent"
    assert used_up([replace(given_up, approvals=())], ()), "nobody is known to have said it: nor that it was said again"
    assert used_up([replace(begun, state=RunState.DONE)], said) == ()


def test_a_run_that_was_approved_long_ago_is_looked_at_again() -> None:
    hour_ms = round(HOLDS_S * 1000)
    assert approved_long_ago(RUN, AT_MS + hour_ms) == ""
    assert approved_long_ago(RUN, 0) == "", "a clock that is behind asks nobody"
    late = approved_long_ago(RUN, AT_MS + 3 * hour_ms)
    assert late == "run r was approved 180 minutes ago by ann, ben, and an approval holds for 60"
    by_command = replace(RUN, approvals=(), approved_by="")
    assert approved_long_ago(by_command, 1 + hour_ms) == ""
    assert "61 minutes ago by nobody" in approved_long_ago(by_command, 1 + hour_ms + 60_000)


def test_a_chronicle_begins_with_who_approved_and_when() -> None:
    entry = msgspec.json.decode(begun(State(), RUN).line, type=Entry)
    assert entry.body["approvals"] == [
        {"id": "1", "name": "ann", "at_ms": 1000},
        {"id": "2", "name": "ben", "at_ms": 2000},
    ]


HOUR_MS = round(HOLDS_S * 1000)
GIVEN = given("a1", "1", "ann", 1000)


def test_an_approval_is_journalled_with_its_id_its_time_and_its_limit() -> None:
    entry = msgspec.json.decode(begun(State(), replace(RUN, approvals=(GIVEN,))).line, type=Entry)
    assert entry.body["approvals"] == [
        {"id": "1", "name": "ann", "at_ms": 1000, "approval_id": "a1", "until_ms": 1000 + HOUR_MS}
    ]
    assert given("a1", "1", "ann", None).until_ms is UNSET


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
    assert stale((read,), 1000 + HOUR_MS) == ()
    assert stale((read,), 1001 + HOUR_MS)


@pytest.mark.parametrize("until_ms", [1000 + HOUR_MS // 2, 1000 + 100 * HOUR_MS])
def test_what_the_journal_says_makes_no_approval_valid_for_longer(until_ms: int) -> None:
    """It may be another Mirrorbook's, whose approvals hold for another time."""
    one = replace(GIVEN, until_ms=until_ms)
    run, last = replace(RUN, approvals=(one,)), min(until_ms, 1000 + HOUR_MS)
    for now, holds in ((last, True), (last + 1, False)):
        assert (stale((one,), now) == ()) is holds
        assert (approved_long_ago(run, now) == "") is holds
        assert (expired(run, (), (), now) == "") is holds
    [why] = stale((one,), last + 60_000)
    assert f"an approval holds for {(last - 1000) / 60_000:.0f}" in why


def test_a_task_that_reads_its_answer_again_has_the_same_approval() -> None:
    """Also the one of a run that an older Mirrorbook has begun, and that was given up."""
    given_up = replace(RUN, state=RunState.ABORTED, approvals=(ANN,))
    again = given("a1", ANN.id, ANN.name, ANN.at_ms)
    assert used_up([given_up], (again,))
    assert used_up([replace(given_up, approvals=(again,))], (ANN,)), "and the other way round"
    assert used_up([replace(given_up, approvals=(again,))], (replace(again, name="ann b."),)), "one id is one approval"
    assert used_up([given_up], (given("a2", ANN.id, ANN.name, AT_MS),)) == ()


def test_whoever_agrees_on_a_terminal_gives_one_approval_for_one_run() -> None:
    one, other = approval_of("ann@desk"), approval_of("ann@desk")
    assert (one.id, one.name) == ("ann@desk", "ann@desk")
    assert one.at_ms is not None
    assert one.until_ms == one.at_ms + HOUR_MS
    assert one.approval_id != other.approval_id


def test_a_fence_that_an_earlier_run_has_left_is_none_of_a_run_that_is_resumed() -> None:
    """Applications notice nothing of it yet, so its old approval is asked for again."""
    state = State()
    east, mirror = ClusterName("east"), RUN.plan.mirror
    state.put(LedgerEntry(mirror=mirror, cluster=east, acl=denial("t"), purpose=AclPurpose.FENCE))
    assert disturbing(state, RUN, east)
    state.put(Debt(mirror=mirror, cluster=east, owed=Owed.UNFENCE, run="an earlier one", since_ms=1))
    assert not disturbing(state, RUN, east)
    state.put(StepRecord(run=RUN.id, step="fence", state=StepState.DONE, attempt=1, started_ms=1))
    assert disturbing(state, RUN, east)
