"""Which verb may act on which mirror, and what is said before it does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_core.decide.conducting import NOT_KNOWN, Conducted, Sign
from mirror_core.decide.verbs import (
    RULES,
    Seen,
    Verb,
    effects,
    held_by,
    interrupted,
    leads_home,
    refusals,
    strayed,
)
from mirror_core.mirrors.deletion import Deletion, DeletionChoice
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Operation, Permission, Resource
from mirror_core.model.mirror import Desired, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.run import Mode, Plan, Run, RunKind, RunState

MIRROR = Mirror(
    name=MirrorName("m"),
    source=ClusterName("east"),
    destination=ClusterName("west"),
    source_id="E",
    destination_id="W",
    topics=("t",),
    producer_id=1 << 62,
    desired=Desired.STARTED,
    created_ms=0,
)
RUN = Run(
    id="m-failover-1",
    plan=Plan(kind=RunKind.FAILOVER, mirror=MIRROR.name, mode=Mode.PLANNED, steps=(), bound=()),
    plan_hash="0" * 12,
    state=RunState.RUNNING,
    started_by="ann@desk",
    conducted_by="ann@desk",
    started_ms=0,
    desired=Desired.STARTED,
)


def status(index: int, state: PartitionState) -> PartitionStatus:
    return PartitionStatus(partition=Partition("t", index), state=state, source_topic_id="1", destination_topic_id="2")


def seen(desired: Desired = Desired.STARTED, *states: PartitionState, copier: str | None = None) -> Seen:
    return Seen(
        mirror=replace(MIRROR, desired=desired),
        run=None,
        statuses=[status(index, state) for index, state in enumerate(states)],
        copier=copier,
        writing_s=12.4 if copier else 0.0,
    )


@pytest.mark.parametrize(
    ("verb", "desired"),
    [
        (Verb.PAUSE, {Desired.STARTED}),
        (Verb.RESUME, {Desired.PAUSED}),
        (Verb.DELETE, {Desired.STOPPED}),
        *(
            (verb, set(Desired))
            for verb in (Verb.START, Verb.THROTTLE, Verb.SYNC, Verb.PROVE, Verb.STOP, Verb.RECOVER, Verb.WATCH)
        ),
    ],
)
def test_a_verb_is_for_mirrors_of_which_this_is_desired(verb: Verb, desired: set[Desired]) -> None:
    assert {d for d in Desired if not list(refusals(verb, seen(d)))} == desired


@pytest.mark.parametrize("verb", Verb)
def test_while_a_run_holds_the_mirror_every_verb_is_refused_with_all_its_reasons(verb: Verb) -> None:
    reasons = list(refusals(verb, replace(seen(Desired.PAUSED), run=RUN)))
    assert reasons[0] == held_by(RUN, NOT_KNOWN)
    assert reasons[1:] == list(refusals(verb, seen(Desired.PAUSED)))


@pytest.mark.parametrize("verb", Verb)
def test_a_mirror_that_is_gone_is_nobodys(verb: Verb) -> None:
    assert list(refusals(verb, replace(seen(), mirror=None))) == ["it has just been deleted"]


def test_only_a_start_minds_that_applications_have_moved() -> None:
    moved = replace(seen(Desired.STOPPED, PartitionState.FAILED, PartitionState.STOPPED), failed_over=True)
    [reason] = refusals(Verb.START, moved)
    assert reason.startswith("a failover has moved applications to cluster west: only a failback leads back")
    assert not list(refusals(Verb.DELETE, moved))
    assert not list(refusals(Verb.START, replace(moved, failed_over=False)))


def test_whoever_forgets_a_mirror_is_told_that_its_command_has_closed_a_cluster() -> None:
    [forgotten, closed] = effects(Verb.DELETE, replace(seen(Desired.STOPPED), closed=ClusterName("east")))
    assert closed.startswith("so is that the fence_command of cluster east has closed it")
    assert list(effects(Verb.DELETE, seen(Desired.STOPPED))) == [forgotten]


def test_a_way_home_is_not_started_by_hand_when_applications_are_home() -> None:
    ended = seen(Desired.STOPPED, PartitionState.STOPPED)
    back = replace(ended, mirror=replace(MIRROR, name=MirrorName("m-back"), homecoming="m-failback-1"))
    [reason] = refusals(Verb.START, back)
    assert reason.startswith("it was the way home of mirror m, and applications are home")
    assert not list(refusals(Verb.START, replace(back, statuses=[])))


def test_a_way_home_is_not_stopped_while_its_failback_needs_it_also_if_nobody_can_be_asked() -> None:
    way = replace(MIRROR, name=MirrorName("m-back"), homecoming="m-failback-1")
    [reason] = refusals(Verb.STOP, replace(seen(), mirror=way))
    assert "failback m-failback-1 cannot end without it" in reason
    assert not list(refusals(Verb.STOP, replace(seen(), mirror=replace(way, desired=Desired.STOPPED))))
    assert not list(refusals(Verb.PAUSE, replace(seen(), mirror=way)))


def test_a_way_home_belongs_to_its_failback_until_that_has_ended() -> None:
    failback = replace(RUN, plan=replace(RUN.plan, kind=RunKind.FAILBACK))
    [reason] = leads_home(MirrorName("m-back"), [RUN, failback])
    assert failback.id in reason
    assert not list(leads_home(MirrorName("m"), [failback]))
    assert not list(leads_home(MirrorName("m-back"), [replace(failback, ended_ms=1)]))


def test_what_was_stopped_goes_on_only_where_it_ended() -> None:
    p, west = Partition("t", 0), ClusterName("west")
    ended = replace(status(0, PartitionState.STOPPED), lmo=Offset(10))
    assert not list(strayed([ended], {p: Offset(10)}, west))
    assert not list(strayed([replace(ended, state=PartitionState.PAUSED, lmo=None)], {}, west))
    for end, words in ((11, "ended at 10, it ends at 11 now"), (9, "ended at 10, it ends at 9 now")):
        [reason] = strayed([ended], {p: Offset(end)}, west)
        assert reason.startswith("cluster west, t-0: ")
        assert words in reason
    [unseen] = strayed([ended], {}, west)
    assert "cannot be read now" in unseen
    [unknown] = strayed([replace(ended, lmo=None)], {p: Offset(10)}, west)
    assert "nobody knows where mirroring ended" in unknown


def test_a_mirror_whose_data_plane_lives_is_not_forgotten() -> None:
    assert list(refusals(Verb.DELETE, seen(Desired.STOPPED, copier="host/1/ab"))) == [
        "host/1/ab still runs its data plane: end that first"
    ]


def test_a_stop_says_what_it_ends_and_what_it_waits_for() -> None:
    lines = list(
        effects(Verb.STOP, seen(Desired.STARTED, PartitionState.MIRRORING, PartitionState.STOPPED, copier="h/1"))
    )
    assert lines == [
        "1 partitions become STOPPED",
        "h/1 runs its data plane, which ends by this",
        "its tasks may write for 12 s more: that is waited for",
    ]
    assert list(effects(Verb.STOP, seen())) == ["0 partitions become STOPPED"]


def test_the_run_and_the_way_on_are_named() -> None:
    assert "failover m-failover-1 is under way, begun by ann@desk" in held_by(RUN, NOT_KNOWN)
    assert "`mirrorbook failover resume m`" in held_by(RUN, NOT_KNOWN)
    assert "`mirrorbook failover abort m`" in held_by(RUN, NOT_KNOWN)
    assert "failover m-failover-1 began at this very moment" in interrupted(RUN)
    assert "`mirrorbook failover resume m`" in interrupted(RUN)


def test_who_is_held_up_by_a_run_learns_whether_anybody_conducts_it() -> None:
    heard = Conducted(sign=Sign.HEARD, by="ann@desk", host="desk", pid=7, age_s=3.2)
    gone = Conducted(sign=Sign.GONE, by="ann@desk", host="desk", pid=7, age_s=1_300.0)
    held = held_by(RUN, heard)
    assert "conducted by ann@desk on desk (process 7), seen 3 s ago: wait for its end" in held
    assert "resume" not in held, "it would be refused"
    assert "`mirrorbook failover abort m`" in held
    left = held_by(RUN, gone)
    assert "ann@desk on desk was not heard of for 21 min by this machine's clock; `resume` watches" in left
    assert "`mirrorbook failover resume m` goes" in left
    assert "wait" not in left
    [reason] = refusals(Verb.PAUSE, replace(seen(), run=RUN, conducted=gone))
    assert reason == left
    failback = replace(RUN, plan=replace(RUN.plan, kind=RunKind.FAILBACK))
    [reason] = leads_home(MirrorName("m-back"), [failback], lambda run: heard)
    assert str(heard) in reason


def test_what_cannot_be_undone_is_never_done_unasked() -> None:
    assert {verb for verb, rule in RULES.items() if not rule.undone} == {Verb.STOP, Verb.RECOVER, Verb.DELETE}
    assert RULES.keys() == set(Verb)


COPIED = tuple(
    LedgerEntry(
        mirror=MIRROR.name,
        cluster=MIRROR.destination,
        acl=Acl(resource=Resource.TOPIC, name=topic, principal="User:app", operation=Operation.READ),
        purpose=AclPurpose.COPIED,
    )
    for topic in ("a", "b")
)


def deletion(*, promoted: bool = False, keep: bool = False, restore: bool = False) -> Deletion:
    return Deletion(
        copied=COPIED,
        promoted=promoted,
        synced=frozenset({"a"}),
        unsynced=frozenset({"b"}),
        choice=DeletionChoice(keep_rights=keep, restore_settings=restore),
    )


def test_what_a_deletion_does_with_rights_and_settings_is_said_before() -> None:
    rights, settings = deletion().effects(MIRROR)
    assert rights.startswith(f"2 access rights copied to {MIRROR.destination} are withdrawn")
    assert "--keep-rights" in rights
    assert "--restore-settings" in settings
    kept, restored, unknown = deletion(keep=True, restore=True).effects(MIRROR)
    assert "stay: Mirrorbook forgets them, and prints the line that removes each" in kept
    assert restored.startswith("1 topics on ")
    assert unknown.endswith("the settings of b")


def test_applications_that_have_moved_keep_the_rights_that_they_need() -> None:
    for keep in (True, False):
        made = deletion(promoted=True, keep=keep, restore=True)
        assert (made.withdraws, made.restores) == (False, False)
        [line] = made.effects(MIRROR)
        assert "stay since applications have moved there" in line


def test_denials_among_what_is_withdrawn_are_counted() -> None:
    denial = replace(COPIED[0], acl=replace(COPIED[0].acl, permission=Permission.DENY))
    line, _ = replace(deletion(), copied=(denial, COPIED[1])).effects(MIRROR)
    assert "2 access rights copied to " in line
    assert "1 of them denials" in line
