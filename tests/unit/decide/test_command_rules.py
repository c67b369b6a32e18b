"""Which verb may act on which mirror, and what is said before it does."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from mirror_core.decide.command_rules import (
    COMMAND_RULES,
    CommandContext,
    MirrorCommand,
    explain_failback_hold,
    explain_held_by,
    explain_interruption,
    explain_not_copied,
    explain_refusals,
    find_moved_log_ends,
    list_effects,
)
from mirror_core.decide.process_liveness import UNKNOWN_CONDUCTOR, ConductorState, ConductorStatus
from mirror_core.decide.steps import RunVerb
from mirror_core.mirrors.mirror_commands import DeletionChoice, DeletionPlan
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Operation, Permission, Resource
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import DesiredState, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.run import RunKind
from tests.support.mirror_views import MIRROR, RUN
from tests.support.sentences import format_sentence

VERBS = (RunVerb.RESUME, RunVerb.ABORT)


def status(index: int, state: PartitionState) -> PartitionStatus:
    return PartitionStatus(partition=Partition("t", index), state=state, source_topic_id="1", destination_topic_id="2")


def seen(
    desired: DesiredState = DesiredState.STARTED, *states: PartitionState, copier: str | None = None
) -> CommandContext:
    return CommandContext(
        mirror=replace(MIRROR, desired=desired),
        run=None,
        statuses=[status(index, state) for index, state in enumerate(states)],
        copier=copier,
        tasks_may_write_s=12.4 if copier else 0.0,
    )


@pytest.mark.parametrize(
    ("verb", "desired"),
    [
        (MirrorCommand.PAUSE, {DesiredState.STARTED}),
        (MirrorCommand.RESUME, {DesiredState.PAUSED}),
        (MirrorCommand.PAUSE_TOPICS, {DesiredState.STARTED, DesiredState.PAUSED}),
        (MirrorCommand.RESUME_TOPICS, {DesiredState.STARTED, DesiredState.PAUSED}),
        (MirrorCommand.DELETE, {DesiredState.STOPPED}),
        *(
            (verb, set(DesiredState))
            for verb in (
                MirrorCommand.START,
                MirrorCommand.THROTTLE,
                MirrorCommand.SYNC,
                MirrorCommand.PROVE,
                MirrorCommand.STOP,
                MirrorCommand.RECOVER,
                MirrorCommand.WATCH,
            )
        ),
    ],
)
def test_a_verb_is_for_mirrors_of_which_this_is_desired(verb: MirrorCommand, desired: set[DesiredState]) -> None:
    assert {d for d in DesiredState if not list(explain_refusals(verb, seen(d)))} == desired


@pytest.mark.parametrize("verb", MirrorCommand)
def test_while_a_run_holds_the_mirror_every_verb_is_refused_with_all_its_reasons(verb: MirrorCommand) -> None:
    reasons = list(explain_refusals(verb, replace(seen(DesiredState.PAUSED), run=RUN, run_verbs=VERBS)))
    assert reasons[0] == explain_held_by(RUN, UNKNOWN_CONDUCTOR, VERBS)
    assert reasons[1:] == list(explain_refusals(verb, seen(DesiredState.PAUSED)))


@pytest.mark.parametrize("verb", MirrorCommand)
def test_a_mirror_that_is_gone_is_nobodys(verb: MirrorCommand) -> None:
    assert list(explain_refusals(verb, replace(seen(), mirror=None))) == [Finding("mirror_deleted")]


def test_only_a_start_minds_that_applications_have_moved() -> None:
    moved = replace(seen(DesiredState.STOPPED, PartitionState.FAILED, PartitionState.STOPPED), has_failed_over=True)
    [reason] = explain_refusals(MirrorCommand.START, moved)
    assert reason == Finding("started_after_failover", "m", destination="west")
    assert not list(explain_refusals(MirrorCommand.DELETE, moved))
    assert not list(explain_refusals(MirrorCommand.START, replace(moved, has_failed_over=False)))


def test_whoever_forgets_a_mirror_is_told_that_its_command_has_closed_a_cluster() -> None:
    [forgotten, closed] = list_effects(
        MirrorCommand.DELETE, replace(seen(DesiredState.STOPPED), fenced_by_command=ClusterName("east"))
    )
    assert closed == Finding("fence_command_will_be_forgotten", "east")
    assert forgotten == Finding("partitions_will_be_forgotten", "m", count=0)
    assert list(list_effects(MirrorCommand.DELETE, seen(DesiredState.STOPPED))) == [forgotten]


def test_a_way_home_is_not_started_by_hand_when_applications_are_home() -> None:
    ended = seen(DesiredState.STOPPED, PartitionState.STOPPED)
    back = replace(ended, mirror=replace(MIRROR, name=MirrorName("m-back"), failback_run="m-failback-1"))
    [reason] = explain_refusals(MirrorCommand.START, back)
    assert reason == Finding("way_home_over", "m-back", failback_of="m")
    assert not list(explain_refusals(MirrorCommand.START, replace(back, statuses=[])))


def test_a_way_home_is_not_stopped_while_its_failback_needs_it_also_if_nobody_can_be_asked() -> None:
    way = replace(MIRROR, name=MirrorName("m-back"), failback_run="m-failback-1")
    [reason] = explain_refusals(MirrorCommand.STOP, replace(seen(), mirror=way))
    assert (reason.code, reason.values["run"], reason.values["failback_of"]) == ("way_home_needed", "m-failback-1", "m")
    assert not list(
        explain_refusals(MirrorCommand.STOP, replace(seen(), mirror=replace(way, desired=DesiredState.STOPPED)))
    )
    assert not list(explain_refusals(MirrorCommand.PAUSE, replace(seen(), mirror=way)))


@pytest.mark.parametrize("command", [MirrorCommand.CHANGE, MirrorCommand.SPLIT])
def test_the_topics_of_a_way_home_are_those_that_it_was_made_for(command: MirrorCommand) -> None:
    way = replace(MIRROR, name=MirrorName("m-back"), failback_run="m-failback-1", desired=DesiredState.PAUSED)
    [reason] = explain_refusals(command, replace(seen(), mirror=way))
    assert (reason.code, reason.values["failback_of"]) == ("filters_fixed_by_way_home", "m")


def test_a_way_home_belongs_to_its_failback_until_that_has_ended() -> None:
    failback = replace(RUN, plan=replace(RUN.plan, kind=RunKind.FAILBACK))
    [reason] = explain_failback_hold(MirrorName("m-back"), [RUN, failback])
    assert (reason.code, reason.values["run"], reason.values["is_way_home"]) == (
        "command_held_by_run",
        failback.id,
        True,
    )
    assert not list(explain_failback_hold(MirrorName("m"), [failback]))
    assert not list(explain_failback_hold(MirrorName("m-back"), [replace(failback, ended_ms=1)]))


def test_what_was_stopped_goes_on_only_where_it_ended() -> None:
    p, west = Partition("t", 0), ClusterName("west")
    ended = replace(status(0, PartitionState.STOPPED), lmo=Offset(10))
    assert not list(find_moved_log_ends([ended], {p: Offset(10)}, west))
    assert not list(find_moved_log_ends([replace(ended, state=PartitionState.PAUSED, lmo=None)], {}, west))
    for end in (11, 9):
        [reason] = find_moved_log_ends([ended], {p: Offset(end)}, west)
        assert reason == Finding("log_end_moved", "t-0", destination="west", lmo=10, end=end)
    [unseen] = find_moved_log_ends([ended], {}, west)
    assert unseen == Finding("log_end_unreadable", "t-0", destination="west", lmo=10)
    [unknown] = find_moved_log_ends([replace(ended, lmo=None)], {p: Offset(10)}, west)
    assert unknown == Finding("last_mirrored_offset_unknown", "t-0", destination="west")


def test_a_mirror_whose_data_plane_lives_is_not_forgotten() -> None:
    assert list(explain_refusals(MirrorCommand.DELETE, seen(DesiredState.STOPPED, copier="host/1/ab"))) == [
        Finding("data_plane_runs", "m", owner="host/1/ab")
    ]


def test_a_stop_says_what_it_ends_and_what_it_waits_for() -> None:
    lines = list(
        list_effects(
            MirrorCommand.STOP,
            seen(DesiredState.STARTED, PartitionState.MIRRORING, PartitionState.STOPPED, copier="h/1"),
        )
    )
    assert lines == [
        Finding("partitions_will_stop", "m", count=1),
        Finding("data_plane_will_end", "m", owner="h/1"),
        Finding("tasks_may_write", "m", seconds=12.4),
    ]
    assert list(list_effects(MirrorCommand.STOP, seen())) == [Finding("partitions_will_stop", "m", count=0)]


def test_the_run_and_the_way_on_are_named() -> None:
    held = explain_held_by(RUN, UNKNOWN_CONDUCTOR, VERBS)
    assert (held.code, held.subject, held.values) == (
        "command_held_by_run",
        "m",
        {
            "run": "m-failover-1",
            "run_kind": "failover",
            "started_by": "ann@desk",
            "conductor_state": "unknown",
            "conductor": str(UNKNOWN_CONDUCTOR),
            "verbs": VERBS,
            "is_way_home": False,
        },
    )
    assert "`mirrorbook failover resume m`" in str(held)
    assert "`mirrorbook failover abort m`" in str(held)
    interrupted = explain_interruption(RUN)
    assert interrupted == Finding("run_interrupted", "m", run="m-failover-1", run_kind="failover")
    assert "`mirrorbook failover resume m`" in str(interrupted)


def test_who_is_held_up_by_a_run_learns_whether_anybody_conducts_it() -> None:
    heard = ConductorStatus(state=ConductorState.ALIVE, by="ann@desk", host="desk", pid=7, age_s=3.2)
    gone = ConductorStatus(state=ConductorState.SILENT, by="ann@desk", host="desk", pid=7, age_s=1_300.0)
    held = str(explain_held_by(RUN, heard, VERBS))
    assert format_sentence("conducted_by_ann_wait", 7, 3) in held
    assert "resume" not in held, "it would be refused"
    assert "`mirrorbook failover abort m --take-over`" in held
    left = str(explain_held_by(RUN, gone, VERBS))
    assert format_sentence("conductor_not_heard_of", 21) in left
    assert "`mirrorbook failover resume m` goes" in left
    assert "wait" not in left
    [reason] = explain_refusals(MirrorCommand.PAUSE, replace(seen(), run=RUN, run_verbs=VERBS, conductor=gone))
    assert str(reason) == left
    failback = replace(RUN, plan=replace(RUN.plan, kind=RunKind.FAILBACK))
    [reason] = explain_failback_hold(MirrorName("m-back"), [failback], lambda run: heard)
    assert (reason.values["conductor"], reason.values["conductor_state"]) == (str(heard), "alive")


@pytest.mark.parametrize("conductor", ConductorState)
def test_past_its_point_of_no_return_nobody_is_told_to_abort_a_run(conductor: ConductorState) -> None:
    status = ConductorStatus(state=conductor, by="ann@desk", host="desk", pid=7, age_s=3.2, unknown_because="why")
    assert "abort" not in str(explain_held_by(RUN, status, (RunVerb.RESUME,)))


def test_what_cannot_be_undone_is_never_done_unasked() -> None:
    assert {verb for verb, rule in COMMAND_RULES.items() if not rule.undo_command} == {
        MirrorCommand.STOP,
        MirrorCommand.RECOVER,
        MirrorCommand.CHANGE,
        MirrorCommand.SPLIT,
        MirrorCommand.DELETE,
    }
    assert COMMAND_RULES.keys() == set(MirrorCommand)


COPIED = tuple(
    LedgerEntry(
        mirror=MIRROR.name,
        cluster=MIRROR.destination,
        acl=Acl(resource=Resource.TOPIC, name=topic, principal="User:app", operation=Operation.READ),
        purpose=AclPurpose.COPIED,
    )
    for topic in ("a", "b")
)


def deletion(*, promoted: bool = False, keep: bool = False, restore: bool = False) -> DeletionPlan:
    return DeletionPlan(
        copied=COPIED,
        promoted=promoted,
        synced=frozenset({"a"}),
        unsynced=frozenset({"b"}),
        choice=DeletionChoice(keep_rights=keep, restore_settings=restore),
    )


def test_what_a_deletion_does_with_rights_and_settings_is_said_before() -> None:
    rights, settings = deletion().format_effects(MIRROR)
    assert rights.startswith(f"2 access rights copied to {MIRROR.destination} are withdrawn")
    assert "--keep-rights" in rights
    assert "--restore-settings" in settings
    kept, restored, unknown = deletion(keep=True, restore=True).format_effects(MIRROR)
    assert format_sentence("denials_stay_and_are_forgotten") in kept
    assert restored.startswith("1 topics on ")
    assert unknown.endswith("the settings of b")


def test_applications_that_have_moved_keep_the_rights_that_they_need() -> None:
    for keep in (True, False):
        made = deletion(promoted=True, keep=keep, restore=True)
        assert (made.removes_rights, made.restores_settings) == (False, False)
        [line] = made.format_effects(MIRROR)
        assert "stay since applications have moved there" in line


def test_denials_among_what_is_withdrawn_are_counted() -> None:
    denial = replace(COPIED[0], acl=replace(COPIED[0].acl, permission=Permission.DENY))
    line, _ = replace(deletion(), copied=(denial, COPIED[1])).format_effects(MIRROR)
    assert "2 access rights copied to " in line
    assert "1 of them denials" in line


@pytest.mark.parametrize(
    ("changes", "has_failed_over", "command"),
    [
        ({"desired": DesiredState.PAUSED}, False, "mirrorbook mirror resume m"),
        ({"desired": DesiredState.STOPPED}, False, "mirrorbook mirror start m"),
        ({"desired": DesiredState.STOPPED}, True, "mirrorbook failback plan m"),
        ({"desired": DesiredState.STOPPED, "failback_run": "m-failback-1"}, True, ""),
    ],
)
def test_whoever_may_not_copy_is_told_what_would_be_taken(
    changes: dict[str, Any], has_failed_over: bool, command: str
) -> None:
    reason = explain_not_copied(replace(MIRROR, **changes), has_failed_over=has_failed_over)
    assert re.findall(r"`([^`]*)`", str(reason)) == ([command] if command else [])
