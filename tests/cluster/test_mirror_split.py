"""Topics of a mirror become another mirror's: nothing is copied again, lost or shifted, and they fail over alone."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.decide.mirror_change import FilterChange
from mirror_core.mirrors import mirror_change as mirror_change_module
from mirror_core.mirrors import mirror_commands, mirror_creation
from mirror_core.mirrors.mirror_change import change_mirror, finish_change, prepare_change, prepare_split, split_mirror
from mirror_core.mirrors.mirror_creation import create_mirror
from mirror_core.model.errors import HeldByRun, LostOwnership, Refused
from mirror_core.model.mirror import DesiredState, Mirror, PartitionState, TopicAccess
from mirror_core.model.names import MirrorName, Partition
from mirror_core.model.pending_fence import FenceAction, PendingFence
from mirror_core.model.run import RunMode, RunState
from mirror_core.state.state_topic import read_complete_state
from tests.cluster.desk import Desk
from tests.cluster.test_two_mirrors import home, there_and_home
from tests.support.broker_faults import killed
from tests.support.data_plane_thread import driving
from tests.support.failover_runs import acls, app_topic, begin, commit, committed, denied
from tests.support.kafka_clients import TIMEOUT_S, Pair, grant, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.replicate_process import PATIENCE_S, Progress, Writer, assert_prefix, at_work
from tests.support.unplanned_runs import begin as give_up
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


@pytest.fixture
def two(pair: Pair, tmp_path: Path) -> tuple[Mirrored, str, str]:
    """A mirror of two topics that `app` writes and a group reads, copied and synced."""
    stays, moves = app_topic(pair), app_topic(pair, retention_ms="86400000")
    group = f"g-{moves}"
    grant(pair.east, "app", ResourceType.GROUP, group, [AclOperation.READ])
    mirrored = new_mirror(pair, tmp_path, stays, moves, groups=(group,))
    for topic in (stays, moves):
        produce(pair.east, topic, 50)
        commit(pair.east, group, topic, 20)
    mirrored.copy()
    mirror_commands.run_sync(mirrored.link)
    return mirrored, stays, moves


def name_split(mirrored: Mirrored) -> MirrorName:
    return MirrorName(f"{mirrored.name}-split")


def split(mirrored: Mirrored, *topics: str) -> Mirrored:
    into = name_split(mirrored)
    plan = prepare_split(mirrored.link, mirrored.state, into, topics)
    split_mirror(mirrored.link, into, topics, plan.hash)
    return replace(mirrored, name=into)


def resume(*mirrors: Mirrored) -> None:
    for mirrored in mirrors:
        mirror_commands.resume_mirror(mirrored.link)


def topics_of(mirrored: Mirrored) -> set[str]:
    return {p.topic for p in mirrored.statuses if not p.topic.startswith("mirrorbook.")}


def is_equal(pair: Pair, topic: str) -> bool:
    return read_all(pair.west, topic) == read_all(pair.east, topic)


def test_a_split_under_load_copies_nothing_again_and_the_new_mirror_fails_over_alone(
    two: tuple[Mirrored, str, str],
) -> None:
    mirrored, stays, moves = two
    pair = mirrored.pair
    with ExitStack() as everything:
        everything.enter_context(Writer(pair.east, stays, 1))
        writes = everything.enter_context(ExitStack())
        writes.enter_context(Writer(pair.east, moves, 1))
        with driving(mirrored):
            wait_until(lambda: len(read_all(pair.west, moves)) > 80, timeout_s=TIMEOUT_S, why="it copies")
            mirror_commands.pause_mirror(mirrored.link)
        before = {topic: read_all(pair.west, topic) for topic in (stays, moves)}
        rights = acls(mirrored, "west")
        new = split(mirrored, moves)
        assert (topics_of(mirrored), topics_of(new)) == ({stays}, {moves})
        assert {topic: read_all(pair.west, topic) for topic in (stays, moves)} == before
        resume(mirrored, new)
        with driving(mirrored), driving(new):
            longer = 30 + len(before[moves])
            wait_until(lambda: len(read_all(pair.west, moves)) > longer, timeout_s=TIMEOUT_S, why="the new one copies")
            writes.close()
            wait_until(partial(is_equal, pair, moves), timeout_s=TIMEOUT_S, why="it has caught up")
            copied = read_all(pair.west, moves)
            assert copied[: len(before[moves])] == before[moves], "nothing was copied again"
            commit(pair.east, f"g-{moves}", moves, 40)
            for each in (mirrored, new):
                mirror_commands.run_sync(each.link)
            assert committed(pair.west, f"g-{moves}", moves) == 40, "20 is known to be the mirror's"
            assert acls(mirrored, "west") == rights, "readers keep their rights"
            assert new.failover.drive(begin(new.failover)).state is RunState.DONE
            assert not denied(pair.west, moves)
            assert denied(pair.east, moves)
            assert denied(pair.west, stays)
            assert not denied(pair.east, stays)
            assert committed(pair.west, f"g-{moves}", moves) == 40
            ahead = len(read_all(pair.east, stays))
            wait_until(lambda: len(read_all(pair.west, stays)) > ahead, timeout_s=TIMEOUT_S, why="the other goes on")
            everything.close()
            wait_until(partial(is_equal, pair, stays), timeout_s=TIMEOUT_S, why="it has caught up, too")
        assert read_all(pair.west, moves)[: len(copied)] == copied
        assert {s.state for s in mirrored.statuses.values()} == {PartitionState.MIRRORING}


def die(*args: object, **kwargs: object) -> None:
    raise InterruptedError


@pytest.mark.parametrize("desired", [DesiredState.PAUSED, DesiredState.STOPPED])
@pytest.mark.parametrize(
    "dies_at", ["take_over_lease", "prepare_split", "_list_split_records", "HeldLease.release", "the end"]
)
def test_a_split_that_was_killed_is_done_or_not_begun(
    two: tuple[Mirrored, str, str], monkeypatch: pytest.MonkeyPatch, dies_at: str, desired: DesiredState
) -> None:
    mirrored, stays, moves = two
    pair, new = mirrored.pair, replace(mirrored, name=name_split(mirrored))
    if desired is DesiredState.PAUSED:
        mirror_commands.pause_mirror(mirrored.link)
    else:
        mirror_commands.stop_mirror(mirrored.link)
    recorded = {p: s for p, s in mirrored.statuses.items() if p.topic in (stays, moves)}
    plan = prepare_split(mirrored.link, mirrored.state, new.name, (moves,))
    if dies_at != "the end":
        with monkeypatch.context() as patched:
            target = "mirror_core.state.lease" if "." in dies_at else mirror_change_module.__name__
            patched.setattr(f"{target}.{dies_at}", die)
            patched.setattr(mirror_change_module, "make_owner_name", lambda: f"{socket.gethostname()}/{2**22 + 1}/dead")
            with pytest.raises(InterruptedError):
                split_mirror(mirrored.link, new.name, (moves,), plan.hash)
    if dies_at in ("take_over_lease", "prepare_split", "_list_split_records"):
        assert (topics_of(mirrored), topics_of(new)) == ({stays, moves}, set())
        split_mirror(mirrored.link, new.name, (moves,), plan.hash)
    elif dies_at == "the end":
        split_mirror(mirrored.link, new.name, (moves,), plan.hash)
    both = {**mirrored.statuses, **new.statuses}
    assert (topics_of(mirrored), topics_of(new)) == ({stays}, {moves})
    assert {p: s for p, s in both.items() if p.topic in (stays, moves)} == recorded
    with pytest.raises(Refused, match="it exists already on cluster west"):
        prepare_split(mirrored.link, mirrored.state, new.name, (moves,))
    for each in (mirrored, new):
        assert each.link.mirror.desired is desired
        if desired is DesiredState.PAUSED:
            resume(each)
        else:
            mirror_commands.start_mirror(each.link)
    for topic in (stays, moves):
        produce(pair.east, topic, 10)
    for each in (mirrored, new):
        each.copy()
    for topic in (stays, moves):
        assert is_equal(pair, topic)
        assert len(read_all(pair.west, topic)) == 60


def test_a_data_plane_that_wakes_up_after_a_split_records_and_copies_nothing_of_what_moved(
    two: tuple[Mirrored, str, str], tmp_path: Path
) -> None:
    mirrored, stays, moves = two
    pair = mirrored.pair
    second_folder = tmp_path / "second"
    second_folder.mkdir()
    with ExitStack() as everything:
        writers = everything.enter_context(ExitStack())
        for topic in (stays, moves):
            writers.enter_context(Writer(pair.east, topic, 1))
        copied = Progress(mirrored, "west", moves)
        first = everything.enter_context(at_work(mirrored, "local", tmp_path))
        copied.reaches(100, first)
        first.psutil.suspend()
        mirror_commands.pause_mirror(mirrored.link)
        new = split(mirrored, moves)
        resume(new)
        second = everything.enter_context(at_work(new, "local", second_folder))
        reached = copied.total()
        copied.reaches(reached + 50, second)
        first.psutil.resume()
        assert first.ends() == 5, first.said
        assert (topics_of(mirrored), topics_of(new)) == ({stays}, {moves})
        writers.close()
        wait_until(partial(is_equal, pair, moves), timeout_s=PATIENCE_S, why="all is copied, at the same offsets")
        assert second.code is None, second.said
        assert_prefix(read_all(pair.west, stays), read_all(pair.east, stays))
    resume(mirrored)
    mirrored.copy()
    assert is_equal(pair, stays)
    assert {s.state for s in new.statuses.values()} == {PartitionState.MIRRORING}


def test_the_source_dies_before_the_new_mirror_has_done_anything_and_it_is_moved_with_all_that_was_staged(
    two: tuple[Mirrored, str, str],
) -> None:
    mirrored, stays, moves = two
    pair = mirrored.pair
    mirror_commands.pause_mirror(mirrored.link)
    new = split(mirrored, moves)
    with killed(pair.east):
        run = give_up(new.failover)
        assert new.failover.drive(run.id).state is RunState.DONE
        assert not denied(pair.west, moves)
        assert denied(pair.west, stays)
        assert committed(pair.west, f"g-{moves}", moves) == 20
        assert len(read_all(pair.west, moves)) == 51, "50, and the one that was just written"
        assert not mirrored.failover.decide(RunMode.UNPLANNED).reasons, "the rest may follow"


def test_a_mirror_that_had_been_over_and_home_is_split_and_both_move_and_come_home(
    two: tuple[Mirrored, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Denials from the way home stand on both clusters, and records of it on the source."""
    mirrored, stays, moves = two
    pair = mirrored.pair
    there_and_home(mirrored)
    mirror_commands.run_sync(mirrored.link)
    mirror_commands.pause_mirror(mirrored.link)
    with monkeypatch.context() as patched:
        patched.setattr(mirror_change_module, "_list_split_records", die)
        with pytest.raises(InterruptedError):
            split(mirrored, moves)
    assert topics_of(mirrored) == {stays, moves}
    new = split(mirrored, moves)
    resume(mirrored, new)
    for each, own, other in [(new, moves, stays), (mirrored, stays, moves)]:
        produce(pair.east, own, 10)
        each.copy()
        assert each.failover.drive(begin(each.failover)).state is RunState.DONE
        assert not denied(pair.west, own)
        assert denied(pair.east, own)
        assert denied(pair.west, other)
        assert not denied(pair.east, other)
        home(each)
        assert denied(pair.west, own)
        assert not denied(pair.east, own)
        each.copy()
        assert is_equal(pair, own)


def test_a_topic_that_was_kept_closed_returns_to_the_new_mirror(two: tuple[Mirrored, str, str]) -> None:
    mirrored, stays, moves = two
    pair, closed = mirrored.pair, app_topic(mirrored.pair, prefix=f"{moves}-")
    produce(pair.east, closed, 5)

    def change(each: Mirrored, wanted: FilterChange) -> None:
        change_mirror(each.link, wanted, prepare_change(each.link, each.state, wanted).plan.hash)
        assert finish_change(each.link, timeout_s=TIMEOUT_S)

    change(mirrored, FilterChange(topics=(stays, f"{moves}.*")))
    mirrored.copy()
    change(mirrored, FilterChange(exclude_topics=(closed,), access=TopicAccess.CLOSED))
    mirror_commands.pause_mirror(mirrored.link)
    new = split(mirrored, f"{moves}.*")
    assert topics_of(new) == {moves}
    assert list(new.state.departures[new.name]) == [closed]
    assert not mirrored.state.departures.get(mirrored.name)
    resume(mirrored, new)
    change(new, FilterChange(exclude_topics=()))
    produce(pair.east, closed, 5)
    new.copy()
    assert is_equal(pair, closed)
    assert len(read_all(pair.west, closed)) == 10
    assert new.statuses[Partition(closed, 0)].state is PartitionState.MIRRORING


def test_on_the_command_line_a_split_is_shown_refused_and_done_by_its_hash(
    desk: Desk, two: tuple[Mirrored, str, str]
) -> None:
    mirrored, stays, moves = two
    into = name_split(mirrored)
    asked = ("mirror", "split", mirrored.name, "--topics", moves, "--into", into)
    running = desk.run(*asked, "--yes")
    assert (running.code, f"mirrorbook mirror pause {mirrored.name}" in running.err) == (3, True), running.err
    assert desk.run("mirror", "pause", mirrored.name, "--yes").code == 0
    for patterns, reason in [
        (["t-never"], "the mirror carries no such topic"),
        ([stays, moves], "nothing would be left of it"),
    ]:
        options = [option for pattern in patterns for option in ("--topics", pattern)]
        refused = desk.run("mirror", "split", mirrored.name, *options, "--into", into, "--yes")
        assert (refused.code, reason in " ".join(refused.err.split())) == (3, True), refused.err
    other = app_topic(desk.pair, prefix=f"{moves}-")
    wider = desk.run("mirror", "split", mirrored.name, "--topics", f"{moves}.*", "--into", into, "--yes")
    assert (wider.code, f"{other} on east would start, too" in " ".join(wider.err.split())) == (3, True), wider.err
    document = desk.config.read_text(encoding="utf-8")
    desk.config.write_text(f"{document}\nmirrors: {{{mirrored.name}: {{hold_deletions: 24h}}}}\n", encoding="utf-8")
    shorter = desk.run(*asked, "--yes")
    assert (shorter.code, f"is longer for {mirrored.name} than for {into}" in " ".join(shorter.err.split())) == (
        3,
        True,
    )
    together = f"{document}\nmirrors: {{{mirrored.name}: {{together: [[{stays}, {moves}]]}}}}\n"
    desk.config.write_text(together, encoding="utf-8")
    torn = desk.run(*asked, "--yes")
    assert (torn.code, f"topics {stays}, {moves} belong together" in " ".join(torn.err.split())) == (3, True), torn.err
    desk.config.write_text(document, encoding="utf-8")
    assert desk.run("mirror", "split", mirrored.name, "--topics", moves, "--into", mirrored.name, "--yes").code == 3
    assert desk.run("mirror", "split", mirrored.name, "--topics", moves, "--into", "no/name").code == 2
    assert desk.run("mirror", "split", mirrored.name, "--into", into).code == 2
    plan = json.loads(desk.run(*asked, "--dry-run", "--json").out)
    assert (plan["moved"], plan["into"], plan["refused"]) == ([moves], into, [])
    assert topics_of(mirrored) == {stays, moves}, "nothing was done"
    assert desk.run(*asked, "--plan-hash", "0" * 64).code == 3
    done = desk.run(*asked, "--plan-hash", plan["hash"])
    assert done.code == 0, done.err
    assert f"mirrorbook mirror resume {into}" in done.out
    assert topics_of(replace(mirrored, name=MirrorName(into))) == {moves}
    assert desk.run(*asked, "--yes").code == 3, "it exists"


def test_a_mirror_that_a_run_holds_or_that_was_failed_over_is_not_split(two: tuple[Mirrored, str, str]) -> None:
    mirrored, _, moves = two
    mirror_commands.pause_mirror(mirrored.link)
    into = name_split(mirrored)
    state = mirrored.state
    state.pending_fences[mirrored.name] = PendingFence(
        mirror=mirrored.name, cluster=mirrored.link.source.name, action=FenceAction.LIFT, run="r", since_ms=1
    )
    [reason] = prepare_split(mirrored.link, state, into, (moves,)).refused
    assert "is yet to be lifted" in reason
    plan = prepare_split(mirrored.link, mirrored.state, into, (moves,))
    run = begin(mirrored.failover)
    with pytest.raises(HeldByRun):
        split_mirror(mirrored.link, into, (moves,), plan.hash)
    assert mirrored.failover.drive(run).state is RunState.DONE
    again = prepare_split(mirrored.link, mirrored.state, into, (moves,))
    assert "it can be split after a failback" in again.refused[0]
    with pytest.raises(Refused, match="it can be split after a failback"):
        split_mirror(mirrored.link, into, (moves,), again.hash)


def pause_beside_creation(mirrored: Mirrored) -> Callable[[], Mirror]:
    """Returns what creates another mirror under the name that a split takes."""
    into, topic = name_split(mirrored), app_topic(mirrored.pair)
    mirror_commands.pause_mirror(mirrored.link)
    return partial(create_mirror, mirrored.config, into, source="east", destination="west", topics=(topic,), groups=())


def test_a_mirror_that_is_created_within_a_split_under_its_name_is_refused(
    two: tuple[Mirrored, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrored, stays, moves = two
    create = pause_beside_creation(mirrored)
    list_records = mirror_change_module._list_split_records

    def list_meanwhile(*args: Any) -> Any:
        with pytest.raises(Refused, match="is making it"):
            create()
        return list_records(*args)

    monkeypatch.setattr(mirror_change_module, "_list_split_records", list_meanwhile)
    new = split(mirrored, moves)
    assert new.link.mirror.topics == (moves,)
    assert (topics_of(mirrored), topics_of(new)) == ({stays}, {moves})


def test_a_split_within_a_creation_of_its_name_keeps_what_it_moved(
    two: tuple[Mirrored, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrored, stays, moves = two
    create = pause_beside_creation(mirrored)

    def split_meanwhile(*args: Any, **changes: Any) -> Any:
        monkeypatch.undo()
        split(mirrored, moves)
        return replace(*args, **changes)

    monkeypatch.setattr(mirror_creation, "replace", split_meanwhile)
    with pytest.raises(LostOwnership):
        create()
    new = replace(mirrored, name=name_split(mirrored))
    assert (new.link.mirror.topics, new.link.mirror.producer_id) == ((moves,), mirrored.link.mirror.producer_id)
    assert (topics_of(mirrored), topics_of(new)) == ({stays}, {moves})


def test_a_run_that_began_meanwhile_finds_its_denials_on_the_source_as_they_were(
    two: tuple[Mirrored, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrored, _, moves = two
    there_and_home(mirrored)
    mirror_commands.run_sync(mirrored.link)
    mirror_commands.pause_mirror(mirrored.link)
    into = name_split(mirrored)
    plan = prepare_split(mirrored.link, mirrored.state, into, (moves,))
    before = read_complete_state(mirrored.link.source).ledger
    assert any(entry.acl.name == moves for entry in before.values())

    def prepare_while_a_run_begins(*args: Any) -> Any:
        prepared = prepare_split(*args)
        if not mirrored.state.active_run(mirrored.name):
            begin(mirrored.failover)
        return prepared

    monkeypatch.setattr(mirror_change_module, "prepare_split", prepare_while_a_run_begins)
    with pytest.raises(HeldByRun):
        split_mirror(mirrored.link, into, (moves,), plan.hash)
    assert read_complete_state(mirrored.link.source).ledger == before
