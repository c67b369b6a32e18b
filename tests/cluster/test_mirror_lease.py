"""The one door to a mirror: who may not act disturbs nobody, and says who holds it."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from mirror_core.dataplane.driver import Replication, ReplicationOptions
from mirror_core.dataplane.task_runner import LocalRunner
from mirror_core.decide.command_rules import MirrorCommand
from mirror_core.decide.mirror_change import FilterChange
from mirror_core.decide.steps import list_step_names
from mirror_core.mirrors import control, mirror_change, mirror_commands, partition_recovery
from mirror_core.mirrors.recovery_plan import RecoveryPlan
from mirror_core.model.errors import HeldByRun, LostOwnership
from mirror_core.model.mirror import DesiredState, PartitionState
from mirror_core.model.names import Partition, get_heartbeat_topic
from mirror_core.model.run import Run, RunKind, RunMode, RunState, StepState
from mirror_core.model.timing import read_steady_s
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.state import lease
from mirror_core.state.lease import take_over_lease
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import StateRecord, Tombstone
from mirror_core.state.writer import StateWriter, WriterId, make_control_id
from tests.cluster.desk import Desk
from tests.cluster.links import writer_of
from tests.support.cli_process import mirrorbook
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.sentences import format_sentence
from tests.support.unplanned_runs import begin
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def command(verb: MirrorCommand, name: str) -> tuple[str, ...]:
    """As an operator types it."""
    if verb is MirrorCommand.SYNC:
        return ("sync", name, "--yes")
    options = {
        MirrorCommand.THROTTLE: ("1MB/s",),
        MirrorCommand.SPLIT: ("--topics", "no-such-topic", "--into", f"{name}-part"),
        MirrorCommand.PAUSE_TOPICS: (".*",),
        MirrorCommand.RESUME_TOPICS: (".*",),
    }
    word, *flags = verb.split()
    return ("mirror", word, name, *flags, *options.get(verb, ()), "--yes")


TYPED: Final = tuple(
    verb for verb in MirrorCommand if verb not in (MirrorCommand.WATCH, MirrorCommand.PROVE, MirrorCommand.RECEIPTS)
)
"""What people ask of a mirror. A watcher acts by itself, and only says so while a run holds the mirror; so does a
comparison, whose answer stands though its progress is not saved then: `test_proof_reuse`. Of receipts something is
written down only where there is something to write: `test_receipts_compacted`."""
CALLS: Final[Mapping[MirrorCommand, Callable[[MirrorLink], object]]] = {
    MirrorCommand.START: mirror_commands.start_mirror,
    MirrorCommand.PAUSE: mirror_commands.pause_mirror,
    MirrorCommand.RESUME: mirror_commands.resume_mirror,
    MirrorCommand.THROTTLE: lambda link: mirror_commands.throttle_mirror(link, 1_000_000),
    MirrorCommand.SYNC: mirror_commands.run_sync,
    MirrorCommand.STOP: mirror_commands.stop_mirror,
    MirrorCommand.CHANGE: lambda link: mirror_change.change_mirror(link, FilterChange(groups=("another",)), ""),
    MirrorCommand.RECOVER: lambda link: partition_recovery.recover_partitions(link, RecoveryPlan((), ()), print),
    MirrorCommand.DELETE: mirror_commands.delete_mirror,
    MirrorCommand.SPLIT: lambda link: mirror_change.split_mirror(
        link, f"{link.mirror.name}-part", ("no-such-topic",), ""
    ),
    MirrorCommand.PAUSE_TOPICS: lambda link: mirror_commands.pause_topics(link, ["no-such-topic"]),
    MirrorCommand.RESUME_TOPICS: lambda link: mirror_commands.resume_topics(link, ["no-such-topic"]),
}
"""As Airflow does it, which asks nothing before."""


@pytest.mark.slow
def test_before_each_step_of_a_failover_every_verb_is_refused_and_the_run_never_knows(desk: Desk) -> None:
    topic = new_topic(desk.pair.east)
    sent = produce(desk.pair.east, topic, 40)
    mirrored = desk.started(topic)
    mirrored.copy()
    standing: list[str] = []
    """Steps before which verbs were tried, while one conductor had the mirror's state in its hands."""

    def operators_interfere(line: str) -> None:
        step, dots, _ = line.partition(" ...")
        if not dots:
            return
        # From a process of its own, as another operator's would be, one verb a step: each takes seconds to start.
        own = TYPED[len(standing) % len(TYPED)]
        standing.append(step)
        for verb in TYPED:
            typed = command(verb, mirrored.name)
            if verb is own:
                done = mirrorbook(*typed, "--config", str(desk.config))
                code, out, err = done.returncode, done.stdout, done.stderr
            else:
                said = desk.run(*typed)
                code, out, err = said.code, said.out, said.err
            assert (code, out) == (3, ""), f"{verb} before {step}: {out}{err}"
            assert f"error: mirror {mirrored.name}: {verb}:\n  - failover {run.id} is under way" in err
            with pytest.raises(HeldByRun, match=f"{verb}:\n  - failover {run.id} is under way"):
                CALLS[verb](mirrored.link)

    failover = Failover(mirrored.link, mirrored.services, started_by="test", print_line=operators_interfere)
    run = failover.begin(failover.plan(RunMode.PLANNED).hash)
    assert failover.drive(run.id).state is RunState.DONE
    taken = list(list_step_names(RunKind.FAILOVER))
    assert standing == taken
    _, steps = failover.read_status(run.id)
    assert [(s.step, s.state, s.attempt) for s in steps] == [
        (name, StepState.DONE, 1) for name in list_step_names(RunKind.FAILOVER)
    ]
    assert {p: (s.state, s.lmo) for p, s in mirrored.statuses.items()} == {
        Partition(topic, 0): (PartitionState.STOPPED, 40)
    }
    mirror = mirrored.link.mirror
    assert (mirror.desired, mirror.throttle) == (DesiredState.STOPPED, None)
    assert [record.value for record in read_all(desk.pair.west, topic)] == [value.value for value in sent]


def test_a_run_that_begins_in_the_moment_of_taking_over_is_told_and_can_be_resumed(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(pair.east)
    produce(pair.east, topic, 5)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    before = mirrored.link.mirror
    failover = mirrored.failover
    begun: list[str] = []

    class JustBefore(StateWriter):
        """Another operator is a moment faster: his run begins between our look and our taking the id."""

        def __enter__(self) -> StateWriter:
            begun.append(failover.begin(failover.plan(RunMode.PLANNED).hash).id)
            return super().__enter__()

    with monkeypatch.context() as patched:
        patched.setattr(control, "StateWriter", JustBefore)
        with pytest.raises(HeldByRun) as refused:
            mirror_commands.pause_mirror(mirrored.link)
    assert refused.value.reasons == (format_sentence("failover_began_at_the_same_moment", begun[0], 5, mirrored.name),)
    assert mirrored.link.mirror == before
    assert failover.drive(begun[0]).state is RunState.DONE


def test_a_dry_run_says_what_would_be_done_or_why_not_and_writes_nothing(desk: Desk) -> None:
    topic = new_topic(desk.pair.east)
    produce(desk.pair.east, topic, 5)
    mirrored = desk.started(topic)
    mirrored.copy()
    before = desk.traces()
    refused = {
        MirrorCommand.RESUME: "it is STARTED",
        MirrorCommand.DELETE: "it is STARTED: stop it first",
        MirrorCommand.CHANGE: "this changes nothing: the mirror has these filters already",
        MirrorCommand.SPLIT: f"it is STARTED: `mirrorbook mirror pause {mirrored.name}` first",
    }
    for verb in TYPED:
        said = desk.run(*command(verb, mirrored.name), "--dry-run")
        assert said.code == (3 if verb in refused else 0), f"{verb}: {said}"
        assert said.out or verb is MirrorCommand.SPLIT, f"{verb} says nothing"
        reason = refused.get(verb)
        assert said.err == (f"error: mirror {mirrored.name}: {verb}:\n  - {reason}\n" if reason else "")
    assert desk.traces() == before


def test_off_a_terminal_only_what_is_easily_undone_goes_on_without_being_agreed_to(desk: Desk) -> None:
    mirrored = desk.started(new_topic(desk.pair.east))
    for verb in (
        MirrorCommand.PAUSE,
        MirrorCommand.RESUME,
        MirrorCommand.THROTTLE,
        MirrorCommand.START,
        MirrorCommand.SYNC,
    ):
        said = desk.run(*command(verb, mirrored.name)[:-1])
        assert said.code == 0, f"{verb}: {said.err}"
    before = desk.traces()
    said = desk.run("mirror", "stop", mirrored.name)
    assert (said.code, said.err) == (
        3,
        format_sentence("confirmation_required"),
    )
    assert desk.traces() == before


class Terminal(io.StringIO):
    """A person who types this."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("verb", [MirrorCommand.PAUSE, MirrorCommand.STOP, MirrorCommand.SYNC])
def test_on_a_terminal_a_person_is_asked_and_a_no_changes_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, verb: MirrorCommand
) -> None:
    mirrored = desk.started(new_topic(desk.pair.east))
    typed = command(verb, mirrored.name)[:-1]
    before = desk.traces()
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    said = desk.run(*typed)
    assert (said.code, said.err) == (3, "error: cancelled:\n  - nothing was changed\n")
    assert desk.traces() == before
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert desk.run(*typed).code == 0
    assert desk.traces() != before


def test_a_stop_beside_a_running_data_plane_records_where_the_last_task_ended(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east)
    mirrored = new_mirror(pair, tmp_path, topic)
    stop = threading.Event()
    options = ReplicationOptions(epoch_s=8.0)  # so that some of it is left, whoever is held up before the stop
    copying = Replication(mirrored.link, LocalRunner, options, stop=stop, report_line=lambda line: None)
    with ThreadPoolExecutor(1) as pool:
        driver = pool.submit(copying.run)
        try:
            produce(pair.east, topic, 200)
            wait_until(
                lambda: mirrored.statuses and read_all(pair.west, topic), timeout_s=TIMEOUT_S, why="records are copied"
            )
            produce(pair.east, topic, 200)  # some are still on their way while it is stopped
            said: list[str] = []
            ends = mirror_commands.stop_mirror(mirrored.link, said.append)
            with pytest.raises(LostOwnership):
                driver.result(TIMEOUT_S)
        finally:
            stop.set()
    assert any("tasks that may still write" in line for line in said)
    assert ends[Partition(topic, 0)] == len(read_all(pair.west, topic))
    assert {p.topic for p in ends} - {topic} == {get_heartbeat_topic(mirrored.name)}
    assert {s.lmo for s in mirrored.statuses.values()} == set(ends.values())


def test_a_stop_that_was_taken_over_while_it_waited_records_nothing_and_the_next_one_finishes(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(pair.east)
    produce(pair.east, topic, 7)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    link, passed_s = mirrored.link, 0
    end_s = read_steady_s() + 60
    take_over_lease(link.destination, mirrored.name, "of a dead driver").renew(writers_end_s=end_s)

    def clock() -> float:
        """A second passes between two looks at it."""
        nonlocal passed_s
        passed_s += 1
        return read_steady_s() + passed_s

    monkeypatch.setattr(lease, "read_steady_s", clock)

    def another_takes_over(line: str) -> None:
        writer_of(link).__enter__()

    monkeypatch.setattr(control, "MAX_ATTEMPTS", 1)
    with pytest.raises(LostOwnership):
        mirror_commands.stop_mirror(link, another_takes_over)
    assert read_steady_s() + passed_s >= end_s, "it would have read LMOs while tasks may still write"
    assert {(s.state, s.lmo) for s in mirrored.statuses.values()} == {(PartitionState.MIRRORING, None)}
    assert mirror_commands.stop_mirror(link) == {Partition(topic, 0): 7}
    assert {(s.state, s.lmo) for s in mirrored.statuses.values()} == {(PartitionState.STOPPED, 7)}


@pytest.fixture
def met(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirrored]:
    """A mirror of which a sync takes the state over before the first thing is written about it."""
    mirrored = new_mirror(pair, tmp_path, new_topic(pair.east))
    mirrored.copy()
    link, begun, put = mirrored.link, list[WriterId](), StateWriter.put

    def meeting(writer: StateWriter, *records: StateRecord | Tombstone) -> None:
        if not begun:
            begun.append(writer.id)
            mirror_commands.run_sync(link)
        put(writer, *records)

    monkeypatch.setattr(StateWriter, "put", meeting)
    yield mirrored
    assert begun == [make_control_id(mirrored.name)]


def test_what_a_person_asks_for_is_done_though_a_sync_takes_over_in_the_middle(met: Mirrored) -> None:
    mirror_commands.pause_mirror(met.link)
    assert met.link.mirror.desired is DesiredState.PAUSED


def test_a_mirror_is_stopped_though_a_sync_takes_over_in_the_middle(met: Mirrored) -> None:
    mirror_commands.stop_mirror(met.link)
    assert met.link.mirror.desired is DesiredState.STOPPED
    assert {s.state for s in met.statuses.values()} == {PartitionState.STOPPED}


def test_a_run_begins_though_a_sync_takes_over_in_the_middle(met: Mirrored) -> None:
    run = begin(met.failover, RunMode.PLANNED)
    active = met.state.active_run(met.name)
    assert active is not None
    assert active.id == run.id


def test_a_run_that_begins_in_the_middle_is_not_insisted_against(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(pair.east)
    produce(pair.east, topic, 7)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    link, runs, put = mirrored.link, list[Run](), StateWriter.put

    def met_by_a_run(writer: StateWriter, *records: StateRecord | Tombstone) -> None:
        if not runs:
            runs.append(Run)  # type: ignore[arg-type]  # what the run writes goes through here, too
            runs[0] = begin(mirrored.failover, RunMode.PLANNED)
        put(writer, *records)

    monkeypatch.setattr(StateWriter, "put", met_by_a_run)
    with pytest.raises(HeldByRun):
        mirror_commands.pause_mirror(link)
    assert mirrored.link.mirror.desired is DesiredState.STARTED
    mirrored.failover.drive(runs[0].id)


def test_other_clusters_under_the_same_names_are_refused(desk: Desk) -> None:
    topic = new_topic(desk.pair.east)
    produce(desk.pair.east, topic, 5)
    mirrored = desk.started(topic)
    there = mirrored.link.mirror.source_id
    desk.change("east", bootstrap_servers=desk.pair.west.bootstrap)
    before = desk.traces()
    for typed in (("replicate", mirrored.name, "--runner", "local", "--until-caught-up"), ("sync", mirrored.name)):
        said = desk.run(*typed)
        assert said.code == 3, said
        assert format_sentence("cluster_is_not_that_of_creation", mirrored.name, "east") in said.err
        assert format_sentence("cluster_at_creation", there, desk.config) in said.err
    assert {**desk.traces(), "west state": 0, "files": 0} == {**before, "west state": 0, "files": 0}
