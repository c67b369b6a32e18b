"""A run's heartbeat, and the writer of its conductor."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from mirror_core.decide import process_liveness
from mirror_core.decide.process_liveness import CONDUCTOR_STEP, ConductorState, format_heartbeat_step
from mirror_core.kafka.config import load_config
from mirror_core.kafka.transactional_producer import ProducerFenced
from mirror_core.model.audit_log import AuditEntryKind
from mirror_core.model.errors import BadRequest, LostOwnership, RemoteFault, Unreachable
from mirror_core.model.run import RunState, StepRecord, StepState
from mirror_core.model.run_checkpoints import RunHeartbeat
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.state import non_transactional_writer, run_heartbeat
from mirror_core.state.journal import Journal, make_audit_entry, make_checkpoint
from mirror_core.state.run_heartbeat import find_conductor_status, make_released_heartbeat, send_heartbeats
from mirror_core.state.state_records import State
from mirror_core.state.state_topic import STATE_TRANSACTION_MS
from mirror_core.state.writer import StateWriter, make_control_id
from mirror_core.wire.batch import NO_TIMESTAMP
from tests.support.cluster_names import LINK
from tests.support.memory_state import fold, journal_of
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until

RUN = journal_of("m-failover-20260101T000000-abcd", "one").run
BEAT = f"checkpoint/{RUN.id}/{CONDUCTOR_STEP}/RunHeartbeat"
PLACE = f"checkpoint/{RUN.id}/{CONDUCTOR_STEP}."
Rows = list[tuple[str, bytes | None]]


class Producer:
    """What brokers took, write by write; it answers as a `TransactionalProducer` does."""

    def __init__(self) -> None:
        self.taken: list[Rows] = []
        self.state = "ready"
        self.number = 0
        self.rows: Rows = []
        self.hangs = self.fenced = False
        self.before_commit: Callable[[], object] = int

    def write(self, rows: Iterable[tuple[str, bytes | None]], timeout_s: float) -> None:
        if self.fenced:
            raise ProducerFenced
        assert self.state == "ready", "the write before was not settled"
        self.state, self.rows = "open", list(rows)
        self.before_commit()
        self.commit()

    def commit(self) -> None:
        self.state = "committing"
        self._check()
        self.taken.append(self.rows)
        self.state = "ready"

    def finish_transaction(self, timeout_s: float) -> bool:
        if self.state == "ready":
            return False
        if self.state == "committing":
            self.commit()
            return False
        self._check()
        self.state = "ready"
        return True

    @property
    def keys(self) -> list[list[str]]:
        return [[key for key, _ in rows] for rows in self.taken]

    def _check(self) -> None:
        if self.fenced:
            raise ProducerFenced
        if self.hangs:
            raise Unreachable("no answer in time")


@pytest.fixture
def producer() -> Producer:
    return Producer()


@pytest.fixture
def writer(producer: Producer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateWriter:
    """It has begun the run, as this Mirrorbook does."""

    def read_whole(cluster: object) -> State:
        return fold(row for rows in producer.taken for row in rows)

    path = tmp_path / "mirrorbook.yaml"
    path.write_text('clusters: {west: {bootstrap.servers: "127.0.0.1:1"}}', encoding="utf-8")
    monkeypatch.setattr("mirror_core.state.writer.read_complete_state", read_whole)
    made = StateWriter(load_config(path).cluster("west"), make_control_id(RUN.plan.mirror), timeout_s=0.0)
    made._producer = producer  # type: ignore[assignment]
    made.put(RUN, make_released_heartbeat(RUN.id, "me"))
    producer.taken[:-1] = []
    return made


class Plain:
    """A producer without transactions, whose broker is the other one's; it never says that nothing was taken."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.dropped = 0
        self.raises = list[Exception]()

    def current(self) -> Plain:
        return self

    def produce(self, topic: str, *, key: str, value: bytes | None, **more: object) -> None:
        assert (more["partition"], more["timestamp"]) == (0, NO_TIMESTAMP)
        if self.raises:
            raise self.raises.pop()
        if self.producer.hangs:
            self.dropped += 1
        else:
            self.producer.taken.append([(key, value)])

    def poll(self, timeout: float) -> None: ...

    def flush(self, timeout: float) -> int:
        return int(self.producer.hangs)

    def purge(self) -> None: ...


@pytest.fixture
def plain(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> Plain:
    """Of a conductor that beats without a pause."""
    made = Plain(producer)
    monkeypatch.setattr(run_heartbeat, "RUN_HEARTBEAT_S", 0.001)
    monkeypatch.setattr(non_transactional_writer, "RenewingProducer", lambda *arguments: made)
    return made


def step(state: StepState = StepState.STARTED) -> StepRecord:
    return StepRecord(run=RUN.id, step="one", state=state, attempt=1, started_ms=1)


def sign(producer: Producer) -> ConductorState:
    state = fold(row for rows in producer.taken for row in rows)
    return find_conductor_status(state, state.runs[RUN.id], None).state


# -- the writer ------------------------------------------------------------------------------------------------------


def test_a_write_that_was_not_answered_is_settled_before_the_next_one(writer: StateWriter, producer: Producer) -> None:
    producer.hangs = True
    with pytest.raises(Unreachable):
        writer.put(step())
    with pytest.raises(Unreachable, match="no answer in time"):  # nor is it another's doing
        writer.put(step(StepState.FAILED))
    producer.hangs = False
    writer.put(step(StepState.DONE))
    assert producer.keys[1:] == [[f"step/{RUN.id}/one"]] * 2, "the first commit was asked for; the second never begun"
    assert writer.state.steps[RUN.id, "one"].state is StepState.DONE


def test_what_is_told_after_a_late_commit_has_the_next_number(writer: StateWriter, producer: Producer) -> None:
    producer.hangs = True
    with pytest.raises(Unreachable):
        writer.put(step(), make_audit_entry(writer, RUN, AuditEntryKind.STEP, step()))
    producer.hangs = False
    failed = step(StepState.FAILED)
    writer.put(failed, make_audit_entry(writer, RUN, AuditEntryKind.STEP, failed))
    assert writer.state.audit_entries[RUN.id].keys() == {0, 1}, "a line was written over"
    assert writer.state.audit_lines(RUN.id) == writer.read().audit_lines(RUN.id)
    assert [state in line for state, line in zip(("STARTED", "FAILED"), writer.read().audit_lines(RUN.id), strict=True)]


def test_of_a_transaction_that_was_left_open_it_is_known_since_when(writer: StateWriter, producer: Producer) -> None:
    producer.hangs = True
    with pytest.raises(Unreachable):
        writer.put(step())
    assert writer._open_since is not None
    writer._open_since -= STATE_TRANSACTION_MS / 1000
    producer.fenced = True
    with pytest.raises(LostOwnership, match="Or nobody has: the write took 10 s"):
        writer.put(step(StepState.FAILED))


@pytest.mark.parametrize("after", [False, True])
def test_a_write_that_was_interrupted_does_not_hinder_the_last_word(
    writer: StateWriter, producer: Producer, after: bool
) -> None:
    def interrupted() -> None:
        producer.before_commit = int
        if after:
            producer.commit()
        raise KeyboardInterrupt

    producer.before_commit = interrupted
    with pytest.raises(KeyboardInterrupt):
        writer.put(step())
    writer.put(RUN)
    assert producer.keys[1:] == [[f"step/{RUN.id}/one"]] * after + [[f"run/{RUN.id}"]]
    assert bool(writer.state.steps) is after


# -- the pulse -------------------------------------------------------------------------------------------------------


def test_a_run_is_taken_before_anything_else_is_written_and_let_go_of_at_the_end(
    writer: StateWriter, producer: Producer
) -> None:
    with send_heartbeats(writer, RUN.id, "me"):
        assert sign(producer) is ConductorState.ALIVE
        writer.put(step())
    taken, acted, released = producer.keys[1:]
    assert acted == [f"step/{RUN.id}/one"]
    assert taken == released, "the place for beats is made, and taken away again, together with these two words"
    assert sign(producer) is ConductorState.RELEASED
    assert not any(key.startswith(PLACE) for key, value in producer.taken[-1] if value is not None)


def test_in_a_long_step_it_beats_in_a_place_of_its_own(writer: StateWriter, producer: Producer, plain: Plain) -> None:
    with send_heartbeats(writer, RUN.id, "me"):
        wait_until(lambda: len(producer.taken) > 4, timeout_s=10, why="beats")
        assert sign(producer) is ConductorState.ALIVE
    (place,) = {key for keys in producer.keys[2:-1] for key in keys}
    assert place.startswith(PLACE)
    assert producer.keys[1] == producer.keys[-1] == [BEAT, place]
    assert (place, None) in producer.taken[-1], "apart from that he lets go, it would look like another sign of life"
    assert sign(producer) is ConductorState.RELEASED


def test_beats_that_brokers_do_not_take_cost_the_conductor_nothing(
    writer: StateWriter, producer: Producer, plain: Plain
) -> None:
    with send_heartbeats(writer, RUN.id, "me"):
        producer.hangs = True
        wait_until(lambda: plain.dropped > 1, timeout_s=10, why="beats are not taken")
        assert producer.state == "ready", "a transaction is open, which brokers end"
        producer.hangs = False
        writer.put(step())
    assert writer.state.steps
    assert sign(producer) is ConductorState.RELEASED


@pytest.mark.usefixtures("plain")
def test_a_run_that_has_ended_is_not_conducted_any_more(writer: StateWriter, producer: Producer) -> None:
    with send_heartbeats(writer, RUN.id, "me") as stop:
        wait_until(lambda: len(producer.taken) > 4, timeout_s=10, why="beats")
        stop()  # as a conductor does: a beat that came later would stay
        Journal(writer, RUN.id, ("one",)).end(RunState.DONE)
    assert not writer.refresh().checkpoints


def test_a_run_that_ended_before_it_was_taken_gets_no_sign_of_life(writer: StateWriter, producer: Producer) -> None:
    Journal(writer, RUN.id, ("one",)).end(RunState.DONE)
    before = len(producer.taken)
    with send_heartbeats(writer, RUN.id, "me"):
        pass
    assert len(producer.taken) == before


def test_that_another_one_conducts_is_written_with_his_first_sign_of_life(
    writer: StateWriter, producer: Producer
) -> None:
    """Apart from each other they would be of two conductors, and whoever looks in between would refuse nobody."""
    with send_heartbeats(writer, RUN.id, "another", [replace(RUN, conducted_by="another")]):
        assert {BEAT, f"run/{RUN.id}"} < set(producer.keys[-1])
        assert sign(producer) is ConductorState.ALIVE


def test_what_a_killed_conductor_has_left_is_forgotten_by_the_next_one(writer: StateWriter, producer: Producer) -> None:
    killed = run_heartbeat._make_heartbeat("me")
    writer.put(
        make_checkpoint(RUN.id, CONDUCTOR_STEP, killed),
        make_checkpoint(RUN.id, process_liveness.format_heartbeat_step(killed.token), killed),
    )
    with send_heartbeats(writer, RUN.id, "me"):
        assert process_liveness.format_heartbeat_step(killed.token) not in {
            step for _, step, _ in writer.refresh().checkpoints
        }


def test_a_beat_that_came_after_the_end_of_its_run_is_forgotten_by_the_next_run(
    writer: StateWriter, producer: Producer
) -> None:
    late = run_heartbeat._make_heartbeat("me")
    ended, open_ = replace(RUN, id="m-ended", ended_ms=1), replace(RUN, id="m-open")
    writer.put(
        ended,
        open_,
        *(make_checkpoint(run.id, process_liveness.format_heartbeat_step(late.token), late) for run in (ended, open_)),
    )
    with send_heartbeats(writer, RUN.id, "me"):
        left = {
            run
            for run, step, _ in writer.refresh().checkpoints
            if step == process_liveness.format_heartbeat_step(late.token)
        }
        assert left == {"m-open"}


def test_who_has_lost_the_run_and_beats_all_the_same_neither_has_it_nor_hides_who_has(
    writer: StateWriter, producer: Producer
) -> None:
    lost, has = run_heartbeat._make_heartbeat("me"), run_heartbeat._make_heartbeat("me")
    later = replace(lost, at_ms=has.at_ms + 5)
    writer.put(
        make_checkpoint(RUN.id, CONDUCTOR_STEP, has),
        make_checkpoint(RUN.id, process_liveness.format_heartbeat_step(has.token), has),
    )
    writer.put(make_checkpoint(RUN.id, process_liveness.format_heartbeat_step(lost.token), later))
    assert process_liveness.find_conductor_heartbeat(RUN.id, writer.refresh().checkpoints) == has


@pytest.mark.parametrize("error", [RemoteFault("broker gone"), KeyboardInterrupt(), LostOwnership("of a lease")])
def test_a_step_that_fails_or_is_interrupted_lets_go(
    writer: StateWriter, producer: Producer, error: BaseException
) -> None:
    with pytest.raises(type(error)), send_heartbeats(writer, RUN.id, "me"):
        raise error
    assert sign(producer) is ConductorState.RELEASED


def test_who_has_lost_the_run_says_nothing_more_of_it(writer: StateWriter, producer: Producer) -> None:
    def loses() -> None:
        with send_heartbeats(writer, RUN.id, "me"):
            producer.fenced = True
            raise LostOwnership("the first word")

    with pytest.raises(LostOwnership, match="the first word"):
        loses()
    assert [keys[0] for keys in producer.keys[1:]] == [BEAT]


def test_the_beats_end_before_the_run_is_closed(writer: StateWriter, producer: Producer, plain: Plain) -> None:
    """Whoever is killed afterwards, while evidence is bundled, has left nothing."""
    with send_heartbeats(writer, RUN.id, "me") as stop:
        wait_until(lambda: len(producer.taken) > 4, timeout_s=10, why="beats")
        Journal(writer, RUN.id, ("one",), stop).end(RunState.DONE)
        assert not [t for t in threading.enumerate() if t.name.startswith("pulse")]
        assert not writer.read().checkpoints


def test_an_end_that_was_not_answered_and_stands_is_the_last_word(writer: StateWriter, producer: Producer) -> None:
    def ends() -> None:
        with send_heartbeats(writer, RUN.id, "me") as stop:
            producer.hangs = True
            try:
                Journal(writer, RUN.id, ("one",), stop).end(RunState.DONE)
            finally:
                producer.hangs = False

    with pytest.raises(Unreachable):
        ends()
    state = writer.read()
    assert state.runs[RUN.id].ended_ms is not None
    assert not state.checkpoints, "a record of a run that has ended stays for ever"


@pytest.mark.parametrize("error", [BufferError("full"), KafkaException(KafkaError(KafkaError._UNKNOWN_TOPIC))])
def test_a_beat_that_fails_is_said_and_not_the_last_one(
    writer: StateWriter, producer: Producer, plain: Plain, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    plain.raises = [error]
    with send_heartbeats(writer, RUN.id, "me"):
        wait_until(lambda: len(producer.taken) > 4, timeout_s=10, why="beats")
    assert f"a beat was not written: {type(error).__name__}" in caplog.text


def test_without_a_client_for_beats_the_run_goes_on_and_its_log_says_so(
    writer: StateWriter, producer: Producer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(*arguments: object) -> None:
        raise BadRequest("cluster west: ssl.ca.location: no such file")

    monkeypatch.setattr(non_transactional_writer, "RenewingProducer", none)
    monkeypatch.setattr(run_heartbeat, "RUN_HEARTBEAT_S", 0.001)
    warning = format_sentence("no_heartbeat_written", 30, "west")
    with send_heartbeats(writer, RUN.id, "me"):
        writer.put(step())
        wait_until(lambda: warning in caplog.text, timeout_s=10, why="its log says so")
    assert sign(producer) is ConductorState.RELEASED


def test_what_becomes_of_the_last_beats_does_not_hide_how_the_block_ended(
    writer: StateWriter, producer: Producer, plain: Plain
) -> None:
    def loses() -> None:
        with send_heartbeats(writer, RUN.id, "me"):
            wait_until(lambda: len(producer.taken) > 4, timeout_s=10, why="beats")
            producer.fenced = True
            plain.raises = [KafkaException(KafkaError(KafkaError._UNKNOWN_TOPIC))] * 1000
            raise LostOwnership("the first word")

    with pytest.raises(LostOwnership, match="the first word"):
        loses()


def test_who_has_lost_the_run_takes_his_beats_away(writer: StateWriter, producer: Producer, plain: Plain) -> None:
    """They may be later than what the next one knows of, who forgets what he knows of when the run ends."""
    with send_heartbeats(writer, RUN.id, "me"):
        wait_until(lambda: len(producer.taken) > 4, timeout_s=10, why="beats")
        producer.fenced = True
    assert producer.taken[-1][0][0].startswith(PLACE)
    assert producer.taken[-1][0][1] is None


def test_of_brokers_that_hang_nothing_is_asked_at_the_end(
    writer: StateWriter, producer: Producer, plain: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        with send_heartbeats(writer, RUN.id, "me"):
            producer.hangs = True
            wait_until(lambda: plain.dropped > 0, timeout_s=10, why="a beat is not taken")
            raise KeyboardInterrupt

    before = writer.timeout_s
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (producer.state, writer.timeout_s) == ("ready", before), "it waits for the same brokers once more"


def test_the_last_word_reads_no_state(writer: StateWriter, producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes as long as brokers that hang let it."""

    def fails() -> None:
        with send_heartbeats(writer, RUN.id, "me"):
            writer._open_since = 1.0  # of a write that was not answered, nobody knows what came of it
            raise Unreachable("the step")

    with monkeypatch.context() as patched:
        patched.setattr(
            "mirror_core.state.writer.read_complete_state", lambda cluster: pytest.fail("the state was read")
        )
        with pytest.raises(Unreachable, match="the step"):
            fails()


# -- two who go on with a run ----------------------------------------------------------------------------------------


@pytest.fixture
def by(writer: StateWriter, monkeypatch: pytest.MonkeyPatch) -> Failover:
    """Whoever conducts it; reads what the writer has written."""
    made = Failover(LINK, cast("Any", None), started_by="me")
    monkeypatch.setattr(made, "_open_control_writer", lambda: nullcontext(writer))
    monkeypatch.setattr("mirror_core.runbook.conductor.read_complete_state", lambda cluster: writer.read())
    return made


def test_of_two_who_watched_a_dead_one_the_second_is_refused(
    by: Failover, writer: StateWriter, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = replace(run_heartbeat._make_heartbeat("me"), host="elsewhere")
    writer.put(make_checkpoint(RUN.id, CONDUCTOR_STEP, elsewhere))
    monkeypatch.setattr(run_heartbeat, "CONDUCTOR_TIMEOUT_S", -1.0)
    monkeypatch.setattr(process_liveness, "CONDUCTOR_TIMEOUT_S", -1.0)
    by.refuse_conducted(RUN.id, "title", take_over=True)
    monkeypatch.setattr(process_liveness, "CONDUCTOR_TIMEOUT_S", 30.0)
    writer.put(make_checkpoint(RUN.id, CONDUCTOR_STEP, replace(elsewhere, token="first")))
    before = len(producer.taken)
    with pytest.raises(LostOwnership, match="it is conducted by me on elsewhere") as lost, by._conduct(RUN.id):
        pass
    assert "--take-over" not in str(lost.value)
    assert len(producer.taken) == before
    writer.put(make_checkpoint(RUN.id, CONDUCTOR_STEP, replace(elsewhere, token="first", released=True)))
    for _ in range(2):
        with by._conduct(RUN.id):
            assert sign(producer) is ConductorState.ALIVE, "who has it is not asked again"


@pytest.mark.parametrize("here_h", [-2, 0, 2])
@pytest.mark.parametrize("there_h", [-2, 0, 2])
@pytest.mark.parametrize(("age_s", "state"), [(5, ConductorState.ALIVE), (60, ConductorState.SILENT)])
def test_a_conductor_is_judged_by_the_brokers_clock_however_wrong_others_are(
    here_h: int, there_h: int, age_s: int, state: ConductorState
) -> None:
    """`here_h`: how far this machine's clock is ahead; `there_h`: the conductor's."""
    hour_ms, brokers_ms = 3_600_000, 1_800_000_000_000
    beat = RunHeartbeat(
        token="t", by=RUN.conducted_by, host="elsewhere", boot_id="b", pid=1, start_ticks=1,
        at_ms=brokers_ms - age_s * 1000 + there_h * hour_ms,
    )  # fmt: skip
    first = replace(beat, at_ms=beat.at_ms - 100_000)
    read = State()
    for step, sent, ago_s in ((CONDUCTOR_STEP, first, age_s + 100), (format_heartbeat_step("t"), beat, age_s)):
        for key, value in State().to_rows(make_checkpoint(RUN.id, step, sent)):
            read.apply(key, value, brokers_ms - ago_s * 1000)
    status = find_conductor_status(read, RUN, here_h * hour_ms, brokers_ms + here_h * hour_ms)
    assert (status.state, status.age_s) == (state, age_s)
    assert status.last_seen_ms == brokers_ms + here_h * hour_ms - age_s * 1000, "by this machine's clock"
