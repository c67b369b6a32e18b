"""What a mirror owes its old source, and what is to be done about it: every case, without a cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_core.decide.failback_plan import FailbackSnapshot
from mirror_core.decide.failback_plan import decide_failback as failback
from mirror_core.decide.failover_plan import decide_failover as failover
from mirror_core.decide.fence_state import (
    FenceNextAction,
    FenceObservation,
    FenceState,
    decide_fence,
    describe_fence,
    find_fence_state,
    find_late_ranges,
    find_new_late_ranges,
    find_unknown_ends,
    format_late_ranges,
    format_late_writes,
    is_promoting,
    is_waiting_for_failback,
    mark_applied,
    must_fence_during_run,
    warn_pending_fence,
)
from mirror_core.decide.mirror_snapshot import MirrorSnapshot, UnseenCluster
from mirror_core.mirrors.fence_manual_commands import MAX_NAMES_PER_LINE, format_fence_commands, format_manual_lift
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Operation, Permission, Resource
from mirror_core.model.config_sections import AuthorizerKind, WriteBarrier
from mirror_core.model.errors import RemoteFault, Unreachable
from mirror_core.model.figures import FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import PartitionState, PartitionStatus
from mirror_core.model.names import NO_OFFSETS, ClusterName, MirrorName, Offset, Partition, PartitionOffsets
from mirror_core.model.pending_fence import LateSplit, PendingFence
from mirror_core.model.run import RunKind, RunMode
from mirror_core.model.source_observation import ObservedTopic, SourceObservation
from tests.support.fence_states import ENDS, LIFTING, OWED, STANDS, WATCHED, WELL, P, Q, status
from tests.support.mirror_views import MIRROR, RUN
from tests.support.sentences import format_sentence

OPEN = replace(WELL, barred=WriteBarrier.NONE)
BY_COMMAND = replace(STANDS, by_command=True)
CLOSABLE = replace(WELL, barred=WriteBarrier.COMMAND, authorizer=AuthorizerKind.FOREIGN)
FOREIGN = replace(OPEN, authorizer=AuthorizerKind.FOREIGN)
SILENT = UnseenCluster("no broker answered")
WRITTEN = {P: (Offset(100), Offset(103))}


@pytest.mark.parametrize(
    ("debt", "standing"),
    [
        (None, FenceState.NONE),
        (OWED, FenceState.PENDING),
        (STANDS, FenceState.APPLIED),
        (WATCHED, FenceState.WATCHED_ONLY),
        (LIFTING, FenceState.LIFTING),
    ],
)
def test_how_things_stand_is_told_by_the_record(debt: PendingFence | None, standing: FenceState) -> None:
    assert find_fence_state(debt) is standing


@pytest.mark.parametrize("debt", [OWED, STANDS, WATCHED, LIFTING])
@pytest.mark.parametrize(
    "seen", [SILENT, WELL, OPEN, replace(WELL, unfenced_brokers=("broker 1",), written_ranges=WRITTEN)]
)
def test_nothing_is_done_while_a_run_holds_the_mirror(
    debt: PendingFence, seen: FenceObservation | UnseenCluster
) -> None:
    found = decide_fence(debt, RUN, seen)
    assert (found.action, found.pending_fence, found.alarms, found.is_silent) == (
        FenceNextAction.NOTHING,
        None,
        (),
        False,
    )
    assert RUN.id in found.lines[0]


def test_beside_a_failover_that_no_abort_undoes_the_cluster_is_kept_fenced() -> None:
    assert must_fence_during_run(OWED, RUN, is_past_no_return=True)
    assert must_fence_during_run(STANDS, RUN, is_past_no_return=True)
    assert not must_fence_during_run(OWED, RUN, is_past_no_return=False)
    assert not must_fence_during_run(None, RUN, is_past_no_return=True)
    assert not must_fence_during_run(LIFTING, RUN, is_past_no_return=True)


def test_beside_a_failback_it_is_kept_fenced_until_the_debt_is_forgotten() -> None:
    """Its conductor may die before the first step has put the fence up."""
    failback = replace(RUN, plan=replace(RUN.plan, kind=RunKind.FAILBACK))
    assert must_fence_during_run(OWED, failback, is_past_no_return=False)
    assert must_fence_during_run(STANDS, failback, is_past_no_return=True)
    assert not must_fence_during_run(None, failback, is_past_no_return=True)


@pytest.mark.parametrize(("debt", "waits"), [(None, True), (OWED, False), (STANDS, True), (LIFTING, False)])
def test_a_watcher_leaves_a_way_home_to_its_failback_unless_a_fence_is_pending_or_to_go(
    debt: PendingFence | None, waits: bool
) -> None:
    assert is_waiting_for_failback(MirrorName("m-back"), debt) is waits
    assert not is_waiting_for_failback(MirrorName("m"), debt)


@pytest.mark.parametrize("debt", [OWED, STANDS, WATCHED])
@pytest.mark.parametrize(
    "seen", [SILENT, WELL, OPEN, replace(WELL, unfenced_brokers=("broker 1",), written_ranges=WRITTEN)]
)
def test_beside_a_run_nothing_is_recorded_and_people_are_called_as_behind_it(
    debt: PendingFence, seen: FenceObservation | UnseenCluster
) -> None:
    found, behind = decide_fence(debt, RUN, seen, during_run=True), decide_fence(debt, None, seen)
    assert (found.action, found.pending_fence, found.is_held_by_run) == (FenceNextAction.NOTHING, None, True)
    assert (found.lines, found.is_silent, found.written_ranges) == (
        behind.lines,
        behind.is_silent,
        behind.written_ranges,
    )
    assert found.is_exposed is (debt is OWED and seen is not SILENT)
    called = tuple(map(str, warn_pending_fence(debt, (RUN.id,)))) if found.is_exposed else ()
    assert found.alarms == (*called, *behind.alarms)


def test_a_cluster_that_answers_while_its_fence_is_pending_is_told_of() -> None:
    (stands,), (watched,) = warn_pending_fence(OWED, ("r",)), warn_pending_fence(OWED, ("another",))
    assert stands == Finding("fence_awaits_run", "east", mirror="m", run="r")
    assert "`mirrorbook failover resume m`" in str(stands)
    assert watched == Finding("fence_awaits_watcher", "east", mirror="m")
    for debt in (None, STANDS, WATCHED, LIFTING):
        assert tuple(warn_pending_fence(debt, ("r",))) == ()


@pytest.mark.parametrize("debt", [OWED, STANDS, WATCHED, LIFTING])
def test_a_silent_cluster_is_waited_for_when_something_is_to_be_paid(debt: PendingFence) -> None:
    found = decide_fence(debt, None, SILENT)
    assert (found.action, found.alarms) == (FenceNextAction.NOTHING, ())
    assert found.is_silent is (debt.applied_at_ms is None)
    assert "no answer: no broker answered" in found.lines


@pytest.mark.parametrize(
    ("debt", "seen", "action"),
    [
        (None, SILENT, FenceNextAction.NOTHING),
        (OWED, WELL, FenceNextAction.APPLY),
        (OWED, replace(WELL, unfenced_brokers=("broker 1",)), FenceNextAction.APPLY),
        (WATCHED, WELL, FenceNextAction.APPLY),  # it has an authorizer now
        (OWED, OPEN, FenceNextAction.RECORD),
        (WATCHED, OPEN, FenceNextAction.NOTHING),
        (STANDS, OPEN, FenceNextAction.RECORD),  # it has lost its authorizer
        (STANDS, WELL, FenceNextAction.NOTHING),
        (STANDS, replace(WELL, unfenced_brokers=("broker 1",)), FenceNextAction.APPLY),
        (STANDS, replace(WELL, written_ranges=WRITTEN), FenceNextAction.RECORD),
        (replace(STANDS, trouble=Finding("fence_bypassed", "east", partitions=[P])), WELL, FenceNextAction.RECORD),
        (STANDS, replace(WELL, log_ends={P: Offset(100), Q: Offset(7)}), FenceNextAction.RECORD),
        (
            STANDS,
            replace(WELL, log_ends={P: Offset(101)}),
            FenceNextAction.NOTHING,
        ),  # a marker of a transaction that has ended
        (LIFTING, WELL, FenceNextAction.LIFT),
        (LIFTING, OPEN, FenceNextAction.LIFT),
        (OWED, FOREIGN, FenceNextAction.RECORD),
        (BY_COMMAND, FOREIGN, FenceNextAction.RECORD),  # its command was taken out of the configuration
        (OWED, CLOSABLE, FenceNextAction.APPLY),
        (WATCHED, CLOSABLE, FenceNextAction.APPLY),  # it has a command now
        (STANDS, CLOSABLE, FenceNextAction.APPLY),  # it had ACLs before
        (BY_COMMAND, CLOSABLE, FenceNextAction.NOTHING),
        (BY_COMMAND, replace(CLOSABLE, written_ranges=WRITTEN), FenceNextAction.APPLY),
        (BY_COMMAND, replace(WELL, unfenced_brokers=("broker 1",)), FenceNextAction.APPLY),  # it has ACLs now
        (LIFTING, CLOSABLE, FenceNextAction.LIFT),
    ],
)
def test_what_is_done_by_what_is_seen(
    debt: PendingFence | None, seen: FenceObservation | UnseenCluster, action: FenceNextAction
) -> None:
    found = decide_fence(debt, None, seen)
    assert found.action is action
    assert (found.pending_fence is not None and found.pending_fence != debt) is (action is FenceNextAction.RECORD)
    assert not found.is_silent


def test_who_writes_all_the_same_is_told_at_every_look_and_recorded_once() -> None:
    seen = replace(WELL, log_ends={P: Offset(103)}, written_ranges=WRITTEN)
    first = decide_fence(STANDS, None, seen)
    assert first.pending_fence is not None
    assert first.pending_fence == replace(STANDS, trouble=Finding("fence_bypassed", "east", partitions=[P]))
    again = decide_fence(first.pending_fence, None, replace(seen, written_ranges={P: (Offset(100), Offset(900))}))
    assert again.action is FenceNextAction.NOTHING
    assert "800 offsets that no fence stopped: t-0 [100, 900)" in again.alarms[0]


def test_a_cluster_that_cannot_be_fenced_is_said_to_be_so_and_pages_when_it_is_written() -> None:
    first = decide_fence(OWED, None, OPEN)
    assert first.pending_fence is not None
    assert (first.state, first.pending_fence.log_ends, first.alarms) == (FenceState.WATCHED_ONLY, ENDS, ())
    assert first.pending_fence.trouble == Finding("fence_unavailable", "east", authorizer="kafka", partitions=())
    (alarm,) = decide_fence(first.pending_fence, None, replace(OPEN, written_ranges=WRITTEN)).alarms
    assert "Mirrorbook cannot fence east" in alarm


def test_people_are_called_to_close_a_cluster_that_nothing_of_ours_can_close() -> None:
    """At every look: nobody sees whether they have done it."""
    first = decide_fence(OWED, None, FOREIGN)
    assert first.pending_fence is not None
    assert (first.state, first.is_exposed) == (FenceState.WATCHED_ONLY, True)
    assert first.pending_fence.trouble == Finding("fence_unavailable", "east", authorizer="foreign", partitions=())
    again = decide_fence(first.pending_fence, None, FOREIGN)
    assert again.action is FenceNextAction.NOTHING
    assert again.is_exposed
    assert "close it by its own means" in again.alarms[0]
    beside = decide_fence(first.pending_fence, RUN, FOREIGN, during_run=True)
    assert beside.is_held_by_run
    assert beside.is_exposed
    assert beside.alarms[0] == again.alarms[0]


def test_what_is_written_in_spite_of_its_command_calls_people_and_it_is_closed_again() -> None:
    found = decide_fence(BY_COMMAND, None, replace(CLOSABLE, written_ranges=WRITTEN))
    assert "fence_command is called again" in found.alarms[0]
    assert "3 offsets that no fence stopped" in found.alarms[1]
    assert found.written_ranges == WRITTEN
    again = mark_applied(BY_COMMAND, {P: Offset(103)}, 9_000, by_command=True)
    assert again == replace(BY_COMMAND, log_ends=PartitionOffsets.from_mapping({P: Offset(103)}))
    assert find_new_late_ranges(again, BY_COMMAND, {P: status(P, 100)}) == {P: (100, 103)}


def test_a_fence_by_command_is_not_said_to_be_seen() -> None:
    for debt in (BY_COMMAND, STANDS):
        found = next(describe_fence(debt))
        assert (found.code, found.values["by_command"]) == ("fence_applied", debt is BY_COMMAND)
    assert not mark_applied(BY_COMMAND, {}, 9_000).by_command, "it has ACLs now"


def test_a_fence_that_was_taken_away_pages_with_what_was_written_meanwhile() -> None:
    alarms = decide_fence(STANDS, None, replace(WELL, unfenced_brokers=("broker 1",), written_ranges=WRITTEN)).alarms
    assert len(alarms) == 2
    assert "removed and is applied again: broker 1" in alarms[0]


def test_a_fence_is_paid_once_and_its_ends_are_those_of_then() -> None:
    first = mark_applied(replace(OWED, trouble=Finding("fence_not_confirmed", "east")), {P: Offset(100)}, 2_000)
    assert first == STANDS
    later = mark_applied(first, {P: Offset(120), Q: Offset(5)}, 9_000)
    assert later == replace(STANDS, log_ends=PartitionOffsets.from_mapping({P: Offset(100), Q: Offset(5)}))


def test_people_are_called_for_what_slipped_in_once_and_again_for_what_a_late_broker_holds() -> None:
    known = {P: status(P, 97), Q: status(Q, 50)}
    assert find_new_late_ranges(STANDS, OWED, known) == {P: (97, 100)}
    assert find_new_late_ranges(STANDS, STANDS, known) == {}
    later = replace(STANDS, log_ends=PartitionOffsets.from_mapping({P: Offset(100), Q: Offset(60)}))
    assert find_new_late_ranges(later, STANDS, known) == {Q: (50, 60)}
    assert find_new_late_ranges(later, STANDS, {**known, Q: status(Q, 50, "diverged")}) == {}, "approved as it was"


@pytest.mark.parametrize(
    ("begun", "held_up", "expected"),
    [({"promote"}, False, True), (set(), True, True), ({"stand"}, False, False)],
)
def test_a_source_is_looked_at_beside_an_unplanned_run_that_is_held_up_also_before_it_promotes(
    begun: set[str], held_up: bool, expected: bool
) -> None:
    run = replace(RUN, id=OWED.run, plan=replace(RUN.plan, mode=RunMode.UNPLANNED))
    steps = {(run.id, step) for step in begun}
    assert is_promoting(OWED, run, steps, is_stalled=held_up) is expected
    assert not is_promoting(OWED, replace(run, plan=replace(run.plan, mode=RunMode.PLANNED)), steps, is_stalled=held_up)
    assert not is_promoting(OWED, replace(run, id="another"), steps, is_stalled=held_up)


def test_a_fence_that_stands_says_which_ends_are_unknown() -> None:
    known = {P: status(P, 97), Q: status(Q, 50)}
    assert find_unknown_ends(STANDS, known) == (Q,)
    assert find_unknown_ends(OWED, known) == find_unknown_ends(WATCHED, known) == ()
    assert (
        find_unknown_ends(
            replace(STANDS, log_ends=PartitionOffsets.from_mapping({P: Offset(100), Q: Offset(60)})), known
        )
        == ()
    )


def test_what_slipped_in_is_described_with_what_is_not_known_of_it() -> None:
    known = {P: status(P, 97), Q: status(Q, 50)}
    assert format_late_writes(None, known, None) == format_late_writes(OWED, known, None) == ""
    assert format_late_writes(STANDS, known, None) == "3 offsets: t-0 [97, 100); not known yet of t-1"
    assert format_late_writes(STANDS, {P: status(P, 100)}, None) == ""


def test_what_slipped_in_lies_between_the_last_mirrored_offset_and_the_fence() -> None:
    R, S = Partition("t", 2), Partition("t", 3)
    debt = replace(STANDS, log_ends=PartitionOffsets.from_mapping({P: Offset(100), Q: Offset(50), R: Offset(9)}))
    known = {P: status(P, 97), Q: status(Q, 50), R: status(R, None), S: status(S, 4)}
    assert find_late_ranges(debt, known) == {P: (97, 100)}
    assert find_late_ranges(replace(debt, log_ends=NO_OFFSETS), known) == {}


def test_words_name_the_cluster_the_time_and_the_trouble() -> None:
    trouble = Finding("fence_attempt_failed", "east", reason="no right")
    assert list(describe_fence(replace(OWED, trouble=trouble))) == [
        Finding("fence_pending", "east", since_ms=1_000),
        trouble,
    ]
    for error, told in ((Unreachable("no broker answers"), 1), (RemoteFault("no right"), 2)):
        failed = OWED.record_failure(error)
        assert len(list(describe_fence(failed))) == 2
        assert len(list(describe_fence(failed, is_answering=True))) == told
    assert list(describe_fence(STANDS)) == [Finding("fence_applied", "east", since_ms=2_000, by_command=False)]
    assert list(describe_fence(WATCHED))[:1] == [Finding("fence_impossible", "east", since_ms=1_000)]
    assert list(describe_fence(LIFTING)) == [Finding("fence_lifting", "east", run="r", since_ms=1_000)]


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
    assert format_fence_commands(MIRROR, entries, [P, Q], "h:9093") == (
        "kafka-acls.sh --bootstrap-controller h:9093 --command-config ADMIN.properties --add "
        "--deny-principal 'User:*' --operation Write --topic a --topic t",
        "kafka-acls.sh --bootstrap-controller h:9093 --command-config ADMIN.properties --add "
        "--deny-principal 'User:*' --operation Write --transactional-id 'it'\"'\"'s'",
    )
    many = [Partition(f"t{n}", 0) for n in range(MAX_NAMES_PER_LINE + 1)]
    lines = format_fence_commands(MIRROR, [], many)
    assert [line.count("--topic") for line in lines] == [MAX_NAMES_PER_LINE, 1]
    assert all("--bootstrap-server BOOTSTRAP" in line for line in lines)
    assert format_fence_commands(MIRROR, [], []) == ()
    told, *by_hand = format_manual_lift(MIRROR, entries, [P, Q], "h:9093")
    assert told.startswith(format_sentence("no_run_has_fenced", "east"))
    assert by_hand == [
        "kafka-acls.sh --bootstrap-controller h:9093 --command-config ADMIN.properties --remove --force "
        "--deny-principal 'User:*' --operation Write --topic t",
    ], "what a run has entered is lifted with the run"
    assert format_manual_lift(MIRROR, [*entries, entry(Resource.TOPIC, "t")], [P, Q]) == ()


def test_a_failbacks_plan_says_since_when_the_fence_stands_and_what_slipped_in() -> None:
    status = PartitionStatus(
        partition=P, state=PartitionState.STOPPED, source_topic_id="1", destination_topic_id="2", lmo=Offset(97)
    )
    trouble = Finding("fence_bypassed", "east", partitions=[P])
    view = FailbackSnapshot(
        mirror=MIRROR,
        statuses={P: status},
        old_source=SILENT,
        new_primary=SILENT,
        active_runs=(),
        pending_fence=replace(STANDS, trouble=trouble),
    )
    figures = failback(view).plan.figures
    assert (figures[FigureKey.FENCE_STATE], figures[FigureKey.FENCE_SINCE_MS]) == (FenceState.APPLIED, 2_000)
    assert figures[FigureKey.FENCE_PROBLEM] == str(trouble)
    assert figures[FigureKey.ACCEPTED_BEFORE_FENCE_OFFSETS] == 3
    assert FigureKey.FENCE_STATE not in failback(replace(view, pending_fence=None)).plan.figures


def test_a_failovers_plan_warns_of_what_an_abort_still_owes() -> None:
    view = MirrorSnapshot(
        mirror=MIRROR,
        mode=RunMode.PLANNED,
        statuses={},
        source=SILENT,
        destination=SILENT,
        lease=None,
        active_run=None,
        grants=(),
        forecast=None,
        now_ms=0,
        pending_fence=LIFTING,
    )
    assert next(describe_fence(LIFTING)) in failover(view).plan.warnings
    assert failover(view).plan.hash == failover(replace(view, pending_fence=None)).plan.hash, (
        "it is shown, not approved"
    )


def test_late_ranges_are_parted_where_the_failover_was_by_the_records_times() -> None:
    R, S = Partition("t", 2), Partition("t", 3)
    at = {P: Offset(98), Q: Offset(5), R: Offset(20)}
    debt = STANDS.add_since_offsets(at)
    late = {P: (Offset(97), Offset(100)), Q: (Offset(7), Offset(9)), R: (Offset(3), Offset(9))}
    assert debt.split_late_ranges({**late, S: (Offset(0), Offset(2))}) == LateSplit(
        before={P: (Offset(97), Offset(98)), R: (Offset(3), Offset(9))},
        since={P: (Offset(98), Offset(100)), Q: (Offset(7), Offset(9))},
        unknown={S: (Offset(0), Offset(2))},
    )
    assert debt.add_since_offsets({P: Offset(1), S: Offset(4)}) == STANDS.add_since_offsets({**at, S: Offset(4)})
    parted = Finding(
        "late_ranges_parted",
        "east",
        taken=4,
        taken_ranges="t-0 [98, 100), t-1 [7, 9)",
        lost=7,
        lost_ranges="t-0 [97, 98), t-2 [3, 9)",
    )
    assert format_late_ranges(late, None, debt) == str(parted)
    assert format_late_ranges(late, None, STANDS) == format_late_ranges(late, None), (
        "an older version recorded no times"
    )


def test_of_what_slipped_in_it_is_said_how_much_was_there_before() -> None:
    ranges = {P: (Offset(97), Offset(100)), Q: (Offset(5), Offset(6))}
    seen = SourceObservation(mirror=MIRROR.name, at_ms=1, topics=(ObservedTopic(topic="t", ends=(99, 3)),))
    assert format_late_ranges(ranges, None) == "4 offsets: t-0 [97, 100), t-1 [5, 6)"
    assert format_late_ranges(ranges, seen) == (
        format_sentence("late_offsets_at_least", 4, "t-0", "[97, 100)", "t-1", "[5, 6)", 2)
    )
    assert format_late_ranges({Q: ranges[Q]}, seen) == "1 offset: t-1 [5, 6)"
