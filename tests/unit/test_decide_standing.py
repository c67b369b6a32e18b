"""What a mirror owes its old source, and what is to be done about it: every case, without a cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_core.decide.failback import FailbackView
from mirror_core.decide.failback import decide as failback
from mirror_core.decide.failover import decide as failover
from mirror_core.decide.slipped import newly_slipped, shown_slip, slip_in_words, slipped_in, unknown_ends
from mirror_core.decide.standing import (
    Action,
    Shown,
    Standing,
    fenced_beside,
    judge,
    paid,
    pending,
    promoting,
    standing_of,
    waits_for_home,
    words,
)
from mirror_core.decide.view import Unseen, View
from mirror_core.mirrors.fence_lines import IN_ONE_LINE, fence_lines, lifted_by_hand
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Operation, Permission, Resource
from mirror_core.model.mirror import PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.offsets import NO_OFFSETS, Offsets
from mirror_core.model.ruling import Authorizer, Barred
from mirror_core.model.run import Mode, RunKind
from mirror_core.model.sighting import Sighting, TopicSeen
from mirror_core.model.standing import Debt, Owed
from tests.unit.test_decide_verbs import MIRROR, RUN

P, Q = Partition("t", 0), Partition("t", 1)
ENDS = Offsets.of({P: Offset(100)})
OWED = Debt(mirror=MirrorName("m"), cluster=ClusterName("east"), owed=Owed.FENCE, run="r", since_ms=1_000)
STANDS = replace(OWED, paid_ms=2_000, ends=ENDS)
WATCHED = replace(OWED, ends=ENDS, trouble="cluster east has no authorizer: it cannot be kept from taking writes")
LIFTING = replace(OWED, owed=Owed.UNFENCE)
WELL = Shown(barred=Barred.BY_DENIALS, ends={P: Offset(100)})
OPEN = replace(WELL, barred=Barred.BY_NOTHING)
BY_COMMAND = replace(STANDS, by_command=True)
CLOSABLE = replace(WELL, barred=Barred.BY_COMMAND, authorizer=Authorizer.FOREIGN)
FOREIGN = replace(OPEN, authorizer=Authorizer.FOREIGN)
SILENT = Unseen("no broker answered")
WRITTEN = {P: (Offset(100), Offset(103))}


@pytest.mark.parametrize(
    ("debt", "standing"),
    [
        (None, Standing.NOTHING),
        (OWED, Standing.OWED),
        (STANDS, Standing.STANDS),
        (WATCHED, Standing.WATCHED),
        (LIFTING, Standing.LIFTING),
    ],
)
def test_how_things_stand_is_told_by_the_record(debt: Debt | None, standing: Standing) -> None:
    assert standing_of(debt) is standing


@pytest.mark.parametrize("debt", [OWED, STANDS, WATCHED, LIFTING])
@pytest.mark.parametrize("seen", [SILENT, WELL, OPEN, replace(WELL, bare=("broker 1",), written=WRITTEN)])
def test_nothing_is_done_while_a_run_holds_the_mirror(debt: Debt, seen: Shown | Unseen) -> None:
    found = judge(debt, RUN, seen)
    assert (found.action, found.debt, found.alarms, found.silent) == (Action.NOTHING, None, (), False)
    assert RUN.id in found.lines[0]


def test_beside_a_failover_that_no_abort_undoes_the_cluster_is_kept_fenced() -> None:
    assert fenced_beside(OWED, RUN, turned=True)
    assert fenced_beside(STANDS, RUN, turned=True)
    assert not fenced_beside(OWED, RUN, turned=False)
    assert not fenced_beside(None, RUN, turned=True)
    assert not fenced_beside(LIFTING, RUN, turned=True)


def test_beside_a_failback_it_is_kept_fenced_until_the_debt_is_forgotten() -> None:
    """Its conductor may die before the first step has put the fence up."""
    failback = replace(RUN, plan=replace(RUN.plan, kind=RunKind.FAILBACK))
    assert fenced_beside(OWED, failback, turned=False)
    assert fenced_beside(STANDS, failback, turned=True)
    assert not fenced_beside(None, failback, turned=True)


@pytest.mark.parametrize(("debt", "waits"), [(None, True), (OWED, False), (STANDS, True), (LIFTING, False)])
def test_a_watcher_leaves_a_way_home_to_its_failback_unless_a_fence_is_pending_or_to_go(
    debt: Debt | None, waits: bool
) -> None:
    assert waits_for_home(MirrorName("m-back"), debt) is waits
    assert not waits_for_home(MirrorName("m"), debt)


@pytest.mark.parametrize("debt", [OWED, STANDS, WATCHED])
@pytest.mark.parametrize("seen", [SILENT, WELL, OPEN, replace(WELL, bare=("broker 1",), written=WRITTEN)])
def test_beside_a_run_nothing_is_recorded_and_people_are_called_as_behind_it(debt: Debt, seen: Shown | Unseen) -> None:
    found, behind = judge(debt, RUN, seen, beside=True), judge(debt, None, seen)
    assert (found.action, found.debt, found.held) == (Action.NOTHING, None, True)
    assert (found.lines, found.silent, found.written) == (behind.lines, behind.silent, behind.written)
    assert found.exposed is (debt is OWED and seen is not SILENT)
    called = tuple(pending(debt, (RUN.id,))) if found.exposed else ()
    assert found.alarms == (*called, *behind.alarms)


def test_a_cluster_that_answers_while_its_fence_is_pending_is_told_of() -> None:
    (stands,), (watched,) = pending(OWED, ("r",)), pending(OWED, ("another",))
    assert stands.startswith("cluster east answers, and its fence is pending, since failover r has not ended: ")
    assert "`mirrorbook failover resume m`" in stands
    assert watched == "cluster east answers, and its fence is pending: `mirrorbook mirror watch m` puts it up"
    for debt in (None, STANDS, WATCHED, LIFTING):
        assert tuple(pending(debt, ("r",))) == ()


@pytest.mark.parametrize("debt", [OWED, STANDS, WATCHED, LIFTING])
def test_a_silent_cluster_is_waited_for_when_something_is_to_be_paid(debt: Debt) -> None:
    found = judge(debt, None, SILENT)
    assert (found.action, found.alarms) == (Action.NOTHING, ())
    assert found.silent is (debt.paid_ms is None)
    assert "no answer: no broker answered" in found.lines


@pytest.mark.parametrize(
    ("debt", "seen", "action"),
    [
        (None, SILENT, Action.NOTHING),
        (OWED, WELL, Action.FENCE),
        (OWED, replace(WELL, bare=("broker 1",)), Action.FENCE),
        (WATCHED, WELL, Action.FENCE),  # it has an authorizer now
        (OWED, OPEN, Action.RECORD),
        (WATCHED, OPEN, Action.NOTHING),
        (STANDS, OPEN, Action.RECORD),  # it has lost its authorizer
        (STANDS, WELL, Action.NOTHING),
        (STANDS, replace(WELL, bare=("broker 1",)), Action.FENCE),
        (STANDS, replace(WELL, written=WRITTEN), Action.RECORD),
        (replace(STANDS, trouble="somebody writes there all the same: t-0"), WELL, Action.RECORD),
        (STANDS, replace(WELL, ends={P: Offset(100), Q: Offset(7)}), Action.RECORD),
        (STANDS, replace(WELL, ends={P: Offset(101)}), Action.NOTHING),  # a marker of a transaction that has ended
        (LIFTING, WELL, Action.UNFENCE),
        (LIFTING, OPEN, Action.UNFENCE),
        (OWED, FOREIGN, Action.RECORD),
        (BY_COMMAND, FOREIGN, Action.RECORD),  # its command was taken out of the configuration
        (OWED, CLOSABLE, Action.FENCE),
        (WATCHED, CLOSABLE, Action.FENCE),  # it has a command now
        (STANDS, CLOSABLE, Action.FENCE),  # it had ACLs before
        (BY_COMMAND, CLOSABLE, Action.NOTHING),
        (BY_COMMAND, replace(CLOSABLE, written=WRITTEN), Action.FENCE),
        (BY_COMMAND, replace(WELL, bare=("broker 1",)), Action.FENCE),  # it has ACLs now
        (LIFTING, CLOSABLE, Action.UNFENCE),
    ],
)
def test_what_is_done_by_what_is_seen(debt: Debt | None, seen: Shown | Unseen, action: Action) -> None:
    found = judge(debt, None, seen)
    assert found.action is action
    assert (found.debt is not None and found.debt != debt) is (action is Action.RECORD)
    assert not found.silent


def test_who_writes_all_the_same_is_told_at_every_look_and_recorded_once() -> None:
    seen = replace(WELL, ends={P: Offset(103)}, written=WRITTEN)
    first = judge(STANDS, None, seen)
    assert first.debt is not None
    assert first.debt == replace(STANDS, trouble="somebody writes there all the same: t-0")
    again = judge(first.debt, None, replace(seen, written={P: (Offset(100), Offset(900))}))
    assert again.action is Action.NOTHING
    assert "800 offset(s) that no fence stopped: t-0 [100, 900)" in again.alarms[0]


def test_a_cluster_that_cannot_be_fenced_is_said_to_be_so_and_pages_when_it_is_written() -> None:
    first = judge(OWED, None, OPEN)
    assert first.debt is not None
    assert (first.standing, first.debt.ends, first.alarms) == (Standing.WATCHED, ENDS, ())
    assert "has no authorizer" in first.debt.trouble
    assert judge(first.debt, None, replace(OPEN, written=WRITTEN)).alarms


def test_people_are_called_to_close_a_cluster_that_nothing_of_ours_can_close() -> None:
    """At every look: nobody sees whether they have done it."""
    first = judge(OWED, None, FOREIGN)
    assert first.debt is not None
    assert (first.standing, first.exposed) == (Standing.WATCHED, True)
    assert "not Kafka's, and no fence_command" in first.debt.trouble
    again = judge(first.debt, None, FOREIGN)
    assert again.action is Action.NOTHING
    assert again.exposed
    assert "close it by its own means, and give it fence_command" in again.alarms[0]
    beside = judge(first.debt, RUN, FOREIGN, beside=True)
    assert beside.held
    assert beside.exposed
    assert beside.alarms[0] == again.alarms[0]


def test_what_is_written_in_spite_of_its_command_calls_people_and_it_is_closed_again() -> None:
    found = judge(BY_COMMAND, None, replace(CLOSABLE, written=WRITTEN))
    assert "fence_command is called again" in found.alarms[0]
    assert "3 offset(s) that no fence stopped" in found.alarms[1]
    assert found.written == WRITTEN
    again = paid(BY_COMMAND, {P: Offset(103)}, 9_000, by_command=True)
    assert again == replace(BY_COMMAND, ends=Offsets.of({P: Offset(103)}))
    assert newly_slipped(again, BY_COMMAND, {P: status(P, 100)}) == {P: (100, 103)}


def test_a_fence_by_command_is_not_said_to_be_seen() -> None:
    assert "closed by its fence_command, which no broker can show" in next(words(BY_COMMAND))
    assert "fence_command" not in next(words(STANDS))
    assert not paid(BY_COMMAND, {}, 9_000).by_command, "it has ACLs now"


def test_a_fence_that_was_taken_away_pages_with_what_was_written_meanwhile() -> None:
    alarms = judge(STANDS, None, replace(WELL, bare=("broker 1",), written=WRITTEN)).alarms
    assert len(alarms) == 2
    assert "taken away and is put up again: broker 1" in alarms[0]


def test_a_fence_is_paid_once_and_its_ends_are_those_of_then() -> None:
    first = paid(replace(OWED, trouble="no"), {P: Offset(100)}, 2_000)
    assert first == STANDS
    later = paid(first, {P: Offset(120), Q: Offset(5)}, 9_000)
    assert later == replace(STANDS, ends=Offsets.of({P: Offset(100), Q: Offset(5)}))


def status(partition: Partition, lmo: int | None, reason: str | None = None) -> PartitionStatus:
    return PartitionStatus(
        partition=partition,
        state=PartitionState.STOPPED,
        source_topic_id="1",
        destination_topic_id="2",
        lmo=None if lmo is None else Offset(lmo),
        reason=reason,
    )


def test_people_are_called_for_what_slipped_in_once_and_again_for_what_a_late_broker_holds() -> None:
    known = {P: status(P, 97), Q: status(Q, 50)}
    assert newly_slipped(STANDS, OWED, known) == {P: (97, 100)}
    assert newly_slipped(STANDS, STANDS, known) == {}
    later = replace(STANDS, ends=Offsets.of({P: Offset(100), Q: Offset(60)}))
    assert newly_slipped(later, STANDS, known) == {Q: (50, 60)}
    assert newly_slipped(later, STANDS, {**known, Q: status(Q, 50, "diverged")}) == {}, "approved as it was"


@pytest.mark.parametrize(
    ("begun", "held_up", "expected"),
    [({"promote"}, False, True), (set(), True, True), ({"stand"}, False, False)],
)
def test_a_source_is_looked_at_beside_an_unplanned_run_that_is_held_up_also_before_it_promotes(
    begun: set[str], held_up: bool, expected: bool
) -> None:
    run = replace(RUN, id=OWED.run, plan=replace(RUN.plan, mode=Mode.UNPLANNED))
    steps = {(run.id, step) for step in begun}
    assert promoting(OWED, run, steps, held_up=held_up) is expected
    assert not promoting(OWED, replace(run, plan=replace(run.plan, mode=Mode.PLANNED)), steps, held_up=held_up)
    assert not promoting(OWED, replace(run, id="another"), steps, held_up=held_up)


def test_a_fence_that_stands_says_which_ends_are_unknown() -> None:
    known = {P: status(P, 97), Q: status(Q, 50)}
    assert unknown_ends(STANDS, known) == (Q,)
    assert unknown_ends(OWED, known) == unknown_ends(WATCHED, known) == ()
    assert unknown_ends(replace(STANDS, ends=Offsets.of({P: Offset(100), Q: Offset(60)})), known) == ()


def test_what_slipped_in_is_described_with_what_is_not_known_of_it() -> None:
    known = {P: status(P, 97), Q: status(Q, 50)}
    assert slip_in_words(None, known, None) == slip_in_words(OWED, known, None) == "none"
    assert slip_in_words(STANDS, known, None) == "3 offset(s): t-0 [97, 100); not known yet of t-1"
    assert slip_in_words(STANDS, {P: status(P, 100)}, None) == "none"


def test_what_slipped_in_lies_between_the_last_mirrored_offset_and_the_fence() -> None:
    R, S = Partition("t", 2), Partition("t", 3)
    debt = replace(STANDS, ends=Offsets.of({P: Offset(100), Q: Offset(50), R: Offset(9)}))
    known = {P: status(P, 97), Q: status(Q, 50), R: status(R, None), S: status(S, 4)}
    assert slipped_in(debt, known) == {P: (97, 100)}
    assert slipped_in(replace(debt, ends=NO_OFFSETS), known) == {}


def test_words_name_the_cluster_the_time_and_the_trouble() -> None:
    assert list(words(replace(OWED, trouble="no right"))) == [
        "east: fence pending since 1970-01-01 00:00:01 UTC; until it is in place, this cluster accepts writes",
        "no right",
    ]
    assert list(words(STANDS)) == ["east: its fence stands since 1970-01-01 00:00:02 UTC"]
    assert "run r was aborted" in next(words(LIFTING))


def test_lines_to_paste_name_all_that_the_ledger_and_the_mirror_know() -> None:
    def entry(
        resource: Resource, name: str, cluster: str = "east", purpose: AclPurpose = AclPurpose.FENCE
    ) -> LedgerEntry:
        acl = Acl(
            resource=resource, name=name, principal="User:*", operation=Operation.WRITE, permission=Permission.DENY
        )
        return LedgerEntry(mirror=MIRROR.name, cluster=ClusterName(cluster), acl=acl, purpose=purpose)

    entries = [
        entry(Resource.TOPIC, "a"),
        entry(Resource.TRANSACTIONAL_ID, "it's"),
        entry(Resource.TOPIC, "elsewhere", cluster="west"),
        entry(Resource.TOPIC, "staged", purpose=AclPurpose.STAGED),
    ]
    assert fence_lines(MIRROR, entries, [P, Q], "h:9093") == (
        "kafka-acls.sh --bootstrap-controller h:9093 --command-config ADMIN.properties --add "
        "--deny-principal 'User:*' --operation Write --topic a --topic t",
        "kafka-acls.sh --bootstrap-controller h:9093 --command-config ADMIN.properties --add "
        "--deny-principal 'User:*' --operation Write --transactional-id 'it'\"'\"'s'",
    )
    many = [Partition(f"t{n}", 0) for n in range(IN_ONE_LINE + 1)]
    lines = fence_lines(MIRROR, [], many)
    assert [line.count("--topic") for line in lines] == [IN_ONE_LINE, 1]
    assert all("--bootstrap-server BOOTSTRAP" in line for line in lines)
    assert fence_lines(MIRROR, [], []) == ()
    told, *by_hand = lifted_by_hand(MIRROR, entries, [P, Q], "h:9093")
    assert told.startswith("no run has fenced east for mirror m: what these lines put up is not Mirrorbook's.")
    assert by_hand == [
        "kafka-acls.sh --bootstrap-controller h:9093 --command-config ADMIN.properties --remove --force "
        "--deny-principal 'User:*' --operation Write --topic t",
    ], "what a run has entered is lifted with the run"
    assert lifted_by_hand(MIRROR, [*entries, entry(Resource.TOPIC, "t")], [P, Q]) == ()


def test_a_failbacks_plan_says_since_when_the_fence_stands_and_what_slipped_in() -> None:
    status = PartitionStatus(
        partition=P, state=PartitionState.STOPPED, source_topic_id="1", destination_topic_id="2", lmo=Offset(97)
    )
    view = FailbackView(
        mirror=MIRROR, statuses={P: status}, old=SILENT, new=SILENT, active_runs=(), debt=replace(STANDS, trouble="hm")
    )
    assert failback(view).plan.figures["standing fence"] == (
        "east: its fence stands since 1970-01-01 00:00:02 UTC; hm; 3 offset(s) were accepted before it stood"
    )
    assert "standing fence" not in failback(replace(view, debt=None)).plan.figures


def test_a_failovers_plan_warns_of_what_an_abort_still_owes() -> None:
    view = View(
        mirror=MIRROR,
        mode=Mode.PLANNED,
        statuses={},
        source=SILENT,
        destination=SILENT,
        lease=None,
        active_run=None,
        grants=(),
        forecast=None,
        now_ms=0,
        debt=LIFTING,
    )
    assert next(words(LIFTING)) in failover(view).plan.warnings
    assert failover(view).plan.hash == failover(replace(view, debt=None)).plan.hash, "it is shown, not approved"


def test_of_what_slipped_in_it_is_said_how_much_was_there_before() -> None:
    ranges = {P: (Offset(97), Offset(100)), Q: (Offset(5), Offset(6))}
    seen = Sighting(mirror=MIRROR.name, at_ms=1, topics=(TopicSeen(topic="t", ends=(99, 3)),))
    assert shown_slip(ranges, None) == "4 offset(s): t-0 [97, 100), t-1 [5, 6)"
    assert shown_slip(ranges, seen) == (
        "4 offset(s): t-0 [97, 100), t-1 [5, 6); at least 2 of them were there when it was last seen"
    )
    assert shown_slip({Q: ranges[Q]}, seen) == "1 offset(s): t-1 [5, 6)"
