"""A conductor and everybody else: what he decides by is what is, and nobody ends him who may not act anyway."""

from __future__ import annotations

import json
import secrets
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from mirror_core.decide.approval_rules import make_approval
from mirror_core.decide.command_rules import MirrorCommand
from mirror_core.decide.process_liveness import ConductorState, ConductorStatus
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.topics import NewTopic, create_topics, delete_topic
from mirror_core.mirrors import mirror_commands
from mirror_core.model.errors import Indeterminate, LostOwnership, Refused, Unreachable
from mirror_core.model.mirror import DesiredState, FailureKind, PartitionState
from mirror_core.model.names import ClusterIdentity, Partition, format_reverse_name
from mirror_core.model.parity_verdict import ParityRange, ParityResult
from mirror_core.model.run import Run, RunMode, RunState
from mirror_core.model.run_checkpoints import RecordedApproval, ShownPlan
from mirror_core.model.timing import now_ms
from mirror_core.parity.check import OnParityProgress
from mirror_core.runbook import divergent_tail_steps
from mirror_core.runbook.failback_steps import FailbackSteps, load_reverse_link
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.state import approvals, run_heartbeat
from mirror_core.state.mirror_link import find_mirror_link
from mirror_core.state.state_records import STATE_TOPIC, PartitionRecord
from mirror_core.state.writer import StateWriter, make_data_id
from tests.cluster.links import writer_of
from tests.drill.dying import Death
from tests.support.broker_faults import suspended
from tests.support.cli_process import Forked
from tests.support.failback_runs import failback_of, failed_over, go_home
from tests.support.failover_runs import app_topic, begin, denied
from tests.support.json_schemas import check_document
from tests.support.kafka_clients import TIMEOUT_S, Pair, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.waiting import patience, wait_until

pytestmark = pytest.mark.cluster


def mirrored_topic(pair: Pair, evidence: Path, partitions: int = 1) -> tuple[Mirrored, str]:
    topic = app_topic(pair, partitions)
    produce(pair.east, topic, 10)
    mirrored = new_mirror(pair, evidence, topic)
    mirrored.copy()
    return mirrored, topic


def test_a_partition_that_fails_while_the_rest_is_proven_stops_the_promotion(pair: Pair, tmp_path: Path) -> None:
    mirrored, topic = mirrored_topic(pair, tmp_path, 2)
    link, failed = mirrored.link, mirrored.statuses[Partition(topic, 1)]

    def parity(
        source: ClusterIdentity,
        destination: ClusterIdentity,
        ranges: Sequence[ParityRange],
        output: Path | None,
        on_progress: OnParityProgress | None = None,
    ) -> ParityResult:
        """It takes hours, in which the data plane goes on, and says what it finds."""
        kind, state = FailureKind.DIVERGED, PartitionState.FAILED
        with StateWriter(link.destination, make_data_id(link.mirror.name)) as data:
            data.put(PartitionRecord(link.mirror.name, replace(failed, state=state, kind=kind, reason="not the same")))
        return mirrored.services.parity(source, destination, ranges, output, on_progress)

    failover = Failover(link, replace(mirrored.services, parity=parity), started_by="test")
    run = begin(failover)
    with pytest.raises(Refused, match=f"failed partitions: approved was none, now it is 1: {topic}-1"):
        failover.drive(run)
    assert denied(pair.west, topic), "promoted although nobody approved of a partition that failed"
    failover.abort(run)
    now = mirrored.statuses[Partition(topic, 1)]
    assert (now.state, now.reason) == (PartitionState.FAILED, "not the same")


def test_who_asks_something_of_a_run_that_is_over_or_too_early_ends_no_conductor(pair: Pair, tmp_path: Path) -> None:
    mirrored, _ = mirrored_topic(pair, tmp_path)
    failover = mirrored.failover
    over = begin(failover)
    failover.abort(over)
    run = begin(failover)
    with writer_of(mirrored.link) as conductor:
        assert failover.abort(over).state is RunState.ABORTED
        with pytest.raises(Refused, match="the run is ABORTED"):
            failover.run_step(over, "prove")
        with pytest.raises(Refused, match="step prove is not done"):
            failover.run_step(run, "fence")
        conductor.put(conductor.state.runs[run])  # LostOwnership, if one of them had taken the mirror over
    failover.abort(run)


def test_a_run_that_hides_behind_the_open_transaction_of_a_dead_owner_is_waited_for(pair: Pair, tmp_path: Path) -> None:
    mirrored, _ = mirrored_topic(pair, tmp_path)
    failover = mirrored.failover
    plan = failover.plan(RunMode.PLANNED)
    run = Run(
        id=f"{mirrored.name}-failover-20260101T000000-0000",
        number=1,
        plan=plan,
        plan_hash=plan.hash,
        state=RunState.RUNNING,
        started_by="another",
        started_ms=now_ms(),
        desired=DesiredState.STARTED,
        conducted_by="another",
    )
    dead = Producer({**pair.west.client_config("admin"), "transactional.id": f"tx-{secrets.token_hex(4)}"})
    dead.init_transactions(TIMEOUT_S)
    with writer_of(mirrored.link) as conductor, ThreadPoolExecutor(1) as pool:
        dead.begin_transaction()
        dead.produce(STATE_TOPIC, key="lease/nobody", partition=0)
        assert dead.flush(TIMEOUT_S) == 0
        conductor.put(run)
        second = pool.submit(failover.begin, plan.hash)
        wait((second,), 2.0)  # it has looked, and does not believe what it sees; or it is about to: both are right
        dead.abort_transaction(TIMEOUT_S)
        with pytest.raises(Refused, match=f"{run.id} holds mirror"):
            second.result(TIMEOUT_S)
        conductor.put(replace(run, state=RunState.ABORTED, ended_ms=now_ms()))


def test_a_record_that_cannot_be_read_lets_no_verb_take_the_mirror_over(pair: Pair, tmp_path: Path) -> None:
    mirrored, _ = mirrored_topic(pair, tmp_path)
    link, key = mirrored.link, f"run/{mirrored.name}-failover-20260101T000000-0000"
    stranger = Producer(pair.west.client_config("admin"))
    with writer_of(link) as conductor:
        stranger.produce(STATE_TOPIC, b"garbage", key=key, partition=0)
        assert stranger.flush(TIMEOUT_S) == 0
        with pytest.raises(Indeterminate, match=f"key {key}: it is not readable"):
            mirror_commands.pause_mirror(link)
        conductor.put(conductor.state.mirrors[mirrored.name])
    stranger.produce(STATE_TOPIC, None, key=key, partition=0)
    assert stranger.flush(TIMEOUT_S) == 0
    assert mirror_commands.pause_mirror(link).desired is DesiredState.PAUSED


def command(mirrored: Mirrored, *words: str, log: str = "said", before: Callable[[], object] = int) -> Forked:
    """A command of a failover or a failback."""
    where = ["--config", str(mirrored.config.path)]
    if not {"status", "abort"} & {*words}:
        where += ["--runner", "local", "--evidence", str(mirrored.evidence)]
    return Forked(*words, *where, mirrored.name, log=mirrored.evidence / log, before=before)


def said(mirrored: Mirrored, *words: str) -> tuple[int, str]:
    """How such a command ended, and what it printed."""
    code = command(mirrored, *words).wait(patience(TIMEOUT_S))
    return code, (mirrored.evidence / "said").read_text(encoding="utf-8")


def now(mirrored: Mirrored) -> ConductorStatus:
    state = mirrored.state
    run = state.active_run(mirrored.name)
    assert run is not None
    return run_heartbeat.find_conductor_status(state, run, None)


@dataclass(frozen=True, slots=True)
class Asking:
    """A comparison that takes hours: nothing is written to the journal, and somebody asks for the run meanwhile."""

    mirrored: Mirrored
    commands: Sequence[tuple[str, ...]]
    seen: list[ConductorStatus] = field(default_factory=list)
    answers: list[tuple[int, str]] = field(default_factory=list)

    def __call__(
        self,
        source: ClusterIdentity,
        destination: ClusterIdentity,
        ranges: Sequence[ParityRange],
        output: Path | None,
        on_progress: OnParityProgress | None = None,
    ) -> ParityResult:
        first = now(self.mirrored).last_seen_ms or 0
        wait_until(
            lambda: (now(self.mirrored).last_seen_ms or 0) > first, timeout_s=TIMEOUT_S, why="somebody is heard of"
        )
        self.seen.append(now(self.mirrored))
        self.answers.extend(said(self.mirrored, "failover", *words) for words in self.commands)
        return self.mirrored.services.parity(source, destination, ranges, output, on_progress)


def test_in_a_long_step_a_run_is_seen_to_be_conducted_and_nobody_else_resumes_it(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrored, topic = mirrored_topic(pair, tmp_path)
    monkeypatch.setattr(run_heartbeat, "RUN_HEARTBEAT_S", 0.2)
    monkeypatch.setattr(run_heartbeat, "_FLUSH_TIMEOUT_S", TIMEOUT_S)
    give_up_east = ("run", "--mode", "unplanned")
    parity = Asking(mirrored, [("resume",), ("abort", "--yes"), give_up_east, (*give_up_east, "--yes")])
    conductor = Failover(mirrored.link, replace(mirrored.services, parity=parity), started_by="ann@desk")
    run = begin(conductor)
    assert now(mirrored).state is ConductorState.RELEASED
    assert conductor.drive(run).state is RunState.DONE
    assert [(one.state, one.by) for one in parity.seen] == [(ConductorState.ALIVE, "ann@desk")]
    assert {code for code, _ in parity.answers} == {Refused.exit_code}
    *conducted, (_, unattended) = parity.answers
    for _, words in conducted:
        assert "conducted by ann@desk on" in " ".join(words.split())
    assert "east answers" in " ".join(unattended.split())
    assert not [kept for kept in mirrored.state.checkpoints if kept[0] == run], "a beat came after the end"
    assert read_all(pair.west, topic) == read_all(pair.east, topic)


@pytest.mark.parametrize(
    ("words", "state"),
    [
        (("resume", "--take-over"), RunState.DONE),
        pytest.param(("abort", "--take-over", "--yes"), RunState.ABORTED, marks=pytest.mark.slow),
    ],
)
def test_a_run_is_taken_over_from_a_conductor_that_hangs_and_beats_and_that_one_ends(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], state: RunState
) -> None:
    mirrored, topic = mirrored_topic(pair, tmp_path)
    monkeypatch.setattr(run_heartbeat, "RUN_HEARTBEAT_S", 0.2)
    monkeypatch.setattr(
        run_heartbeat, "_FLUSH_TIMEOUT_S", TIMEOUT_S
    )  # beats that slow brokers take later are left to the next run
    parity = Asking(mirrored, [words])
    conductor = Failover(mirrored.link, replace(mirrored.services, parity=parity), started_by="ann@desk")
    run = begin(conductor)
    with pytest.raises(LostOwnership):
        conductor.drive(run)
    [(code, told)] = parity.answers
    assert code == 0, told
    ended = mirrored.state.runs[run]
    assert (ended.state, ended.conducted_by == "ann@desk") == (state, False)
    assert not [kept for kept in mirrored.state.checkpoints if kept[0] == run], "its beats are left"
    assert read_all(pair.west, topic) == read_all(pair.east, topic)


def test_a_run_whose_conductor_was_killed_is_resumed_at_once(pair: Pair, tmp_path: Path) -> None:
    mirrored, topic = mirrored_topic(pair, tmp_path)
    first = command(mirrored, "failover", "run", "--yes", log="first", before=Death("prove", 1, tmp_path / "actions"))
    assert first.wait(patience(TIMEOUT_S)) == -signal.SIGKILL
    code, words = said(mirrored, "failover", "status", "--json")
    check_document(("failover", "status", "--json"), words)
    shown = json.loads(words)["conducted"]
    assert (code, shown["state"], shown["pid"]) == (0, "silent", first.pid)
    assert shown["text"].endswith("and its process has ended")
    code, words = said(mirrored, "failover", "resume")
    assert code == 0, words
    assert "watching" not in words
    assert read_all(pair.west, topic) == read_all(pair.east, topic)


def test_what_a_hanging_destination_does_not_take_in_time_ends_no_conductor(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrored, _ = mirrored_topic(pair, tmp_path)
    monkeypatch.setattr(run_heartbeat, "RUN_HEARTBEAT_S", 0.1)
    monkeypatch.setattr(
        run_heartbeat, "_FLUSH_TIMEOUT_S", TIMEOUT_S
    )  # a broker that is slow for a moment is let go of all the same

    def beats() -> object:
        before = now(mirrored).last_seen_ms or 0
        return wait_until(lambda: (now(mirrored).last_seen_ms or 0) > before, timeout_s=TIMEOUT_S, why="it beats")

    run = begin(mirrored.failover)
    with writer_of(mirrored.link) as writer, run_heartbeat.send_heartbeats(writer, run, "test"):
        beats()
        with suspended(pair.west):
            writer.timeout_s = 1.0
            with pytest.raises(Unreachable):
                writer.put(writer.state.runs[run])
        writer.timeout_s = TIMEOUT_S
        writer.put(writer.state.runs[run])  # LostOwnership, if anything is in its way
        beats()
    assert now(mirrored).state is ConductorState.RELEASED
    mirrored.failover.abort(run)


@pytest.mark.slow
def test_a_failback_that_slept_before_it_deletes_a_topic_does_not_hit_its_successor(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrored, topic = mirrored_topic(pair, tmp_path)
    failover = mirrored.failover
    failover.drive(begin(failover))
    produce(pair.east, topic, 3)  # a tail, so that the topic is to be created anew
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    failback.run_step(run.id, "salvage")

    def asleep(steps: FailbackSteps, old: ClusterClient, partitions: object, kept: str) -> None:
        """Another conductor goes on meanwhile, as far as you like: applications may be home again."""
        delete_topic(old, topic, old.metadata([topic]).topics[topic].id)
        create_topics(old, [NewTopic(name=topic, partitions=1, replication_factor=1)])
        produce(pair.east, topic, 7)

    with monkeypatch.context() as patched:
        patched.setattr(divergent_tail_steps, "refuse_growth", asleep)
        failback.run_step(run.id, "align")
    assert len(read_all(pair.east, topic)) == 7


@pytest.mark.slow
def test_the_reverse_mirror_is_not_ended_while_applications_need_it_to_come_home(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    sent = produce(pair.east, topic, 10)
    mirrored = failed_over(pair, tmp_path, topic)
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    assert failback.drive(run.id).state is RunState.RUNNING
    back = load_reverse_link(mirrored.link)
    assert back.mirror.name == format_reverse_name(mirrored.name)
    for verb in (mirror_commands.stop_mirror, mirror_commands.delete_mirror):
        with pytest.raises(Refused, match=f"way home .*: failback {run.id} "):
            verb(back)
    with writer_of(back) as conductor:
        with pytest.raises(Refused, match="is not failed over yet: applications are still on west"):
            failback.run_step(run.id, "reprotect")
        conductor.put(conductor.state.mirrors[back.mirror.name])
    go_home(failback, run.id)
    assert mirror_commands.preview(back, MirrorCommand.STOP).refusal is None
    assert read_all(pair.east, topic) == sent


@pytest.mark.slow
def test_a_failback_is_not_resumed_while_somebody_conducts_the_failover_that_leads_home(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_heartbeat, "RUN_HEARTBEAT_S", 0.2)
    topic = app_topic(pair)
    sent = produce(pair.east, topic, 10)
    mirrored = failed_over(pair, tmp_path, topic)
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    assert failback.find_active_reverse_run(run) is None
    assert failback.drive(run.id).state is RunState.RUNNING
    home = failback.make_reverse_failover()
    led = home.begin(home.plan(RunMode.PLANNED).hash)
    with writer_of(home.link) as writer, run_heartbeat.send_heartbeats(writer, led.id, home.started_by):
        writer.put(led)
        code, words = said(mirrored, "failback", "resume", "--yes")
        assert (code, f"run {led.id}: resume" in " ".join(words.split())) == (Refused.exit_code, True), words
    assert mirrored.state.runs[run.id].conducted_by == failback.started_by, "who was refused took it over all the same"
    code, words = said(mirrored, "failback", "resume", "--yes")
    assert code == 0, words
    assert mirrored.state.runs[run.id].state is RunState.DONE
    assert read_all(pair.east, topic) == sent


def test_an_approval_that_was_used_up_is_gone_and_another_question_keeps_its_own(pair: Pair, tmp_path: Path) -> None:
    """Airflow's tasks use one up as soon as the action is done."""
    mirrored, _ = mirrored_topic(pair, tmp_path)
    link, name = mirrored.link, mirrored.name

    def find(question: str) -> list[str]:
        state = find_mirror_link(link.config, name)[1]
        return [record.approval.name for record in approvals.find_approvals(state, name, question)]

    questions = ("mirror_control/r1/show", "mirror_control/r2/show")
    for question in questions:
        for person in ("ann", "ben"):
            approval = make_approval(f"{question}/{person}", person, person, now_ms())
            given = RecordedApproval(question=question, task=person, approves="0" * 64, approval=approval)
            approvals.record_approval(link.destination, name, given)
    assert [sorted(find(question)) for question in questions] == [["ann", "ben"]] * 2
    approvals.use_up_approvals(link.destination, find_mirror_link(link.config, name)[1], name, questions[0])
    assert [sorted(find(question)) for question in questions] == [[], ["ann", "ben"]]


def test_a_plan_that_is_shown_anew_needs_new_answers(pair: Pair, tmp_path: Path) -> None:
    """Whoever deletes a run of a DAG and triggers one of the same id gets no answer of the one before."""
    mirrored, _ = mirrored_topic(pair, tmp_path)
    link, name, question = mirrored.link, mirrored.name, "mirror_failover/r1/plan"
    approval = make_approval(f"{question}/ann", "ann", "ann", now_ms())
    given = RecordedApproval(question=question, task="approve", approves="0" * 64, approval=approval)
    approvals.record_approval(link.destination, name, given)

    def find(wanted: str) -> tuple[RecordedApproval, ...]:
        return approvals.find_approvals(find_mirror_link(link.config, name)[1], name, wanted)

    for shown, left in (("mirror_failover/r2/plan", (given,)), (question, ())):
        plan = ShownPlan(question=shown, plan_hash="0" * 64, body_sha256="", at_ms=now_ms())
        approvals.record_plan(link.destination, find_mirror_link(link.config, name)[1], name, plan)
        assert find(question) == left


def test_a_planned_run_that_waits_for_a_transaction_says_so_and_ends_when_another_run_takes_its_place(
    pair: Pair, tmp_path: Path
) -> None:
    mirrored, topic = mirrored_topic(pair, tmp_path)
    producer = Producer({**pair.east.client_config("admin"), "transactional.id": topic, "log_level": 0})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(TIMEOUT_S)
    waits, unplanned = list[str](), list[str]()

    def take_its_place(line: str) -> None:
        if line.startswith("fence: waiting"):
            waits.append(line)
            plan = mirrored.failover.plan(RunMode.UNPLANNED)
            unplanned.append(mirrored.failover.begin(plan.hash, RunMode.UNPLANNED).id)

    conductor = Failover(mirrored.link, mirrored.services, started_by="ann@desk", print_line=take_its_place)
    run = begin(conductor)
    with pytest.raises(LostOwnership):
        conductor.drive(run)
    [line] = waits
    assert f"transaction '{topic}' is Ongoing" in line
    assert mirrored.state.runs[run].state is RunState.SUPERSEDED
    assert mirrored.failover.abort(unplanned[0]).state is RunState.ABORTED
