"""A run's heartbeat, and the writer that its conductor shares with it: on a producer as librdkafka's is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from mirror_core.decide.conducting import STEP, Sign
from mirror_core.kafka.config import load_config
from mirror_core.model.errors import LostOwnership, RemoteFault, Unreachable
from mirror_core.model.run import Run, RunState, StepRecord, StepState
from mirror_core.state import pulse
from mirror_core.state.journal import Journal
from mirror_core.state.pulse import beat_of, beating, conducted
from mirror_core.state.records import State
from mirror_core.state.writer import StateWriter, control_id
from tests.memory import fold, journal_of
from tests.threads import Work
from tests.waiting import wait_until

RUN = journal_of("m-failover-20260101T000000-abcd", "one").run
BEAT = f"checkpoint/{RUN.id}/{STEP}/Beat"
Rows = list[tuple[str, bytes | None]]


def fault(code: int, *, retriable: bool = False) -> KafkaException:
    return KafkaException(KafkaError(code, "", False, retriable))


class Producer:
    """What brokers took, transaction by transaction; its calls answer in each state as librdkafka's do (2.16)."""

    def __init__(self) -> None:
        self.taken: list[Rows] = []
        self.state = "ready"
        self.rows: Rows = []
        self.hangs = self.fenced = False
        self.before_commit: Callable[[], object] = int
        self.writers = set[str]()

    def begin_transaction(self) -> None:
        self._check("begin", "ready")
        self.state, self.rows = "open", []
        self.writers.add(threading.current_thread().name)

    def produce(self, topic: str, *, key: str, value: bytes | None, partition: int) -> None:
        assert self.state == "open"
        self.rows.append((key, value))

    def commit_transaction(self, timeout: float) -> None:
        self._check("commit", "open", "committing")
        self.before_commit()
        self._answered("committing")
        self.taken.append(self.rows)
        self.state = "ready"

    def abort_transaction(self, timeout: float) -> None:
        self._check("abort", "open", "aborting")
        self._answered("aborting")
        self.state = "ready"

    @property
    def keys(self) -> list[list[str]]:
        return [[key for key, _ in rows] for rows in self.taken]

    def _check(self, call: str, *states: str) -> None:
        if self.fenced:
            raise fault(KafkaError._FENCED)
        if self.state not in states:
            under_way = self.state in ("committing", "aborting")
            raise fault(KafkaError._CONFLICT if under_way else KafkaError._STATE, retriable=under_way)

    def _answered(self, otherwise: str) -> None:
        if self.hangs:
            self.state = otherwise
            raise fault(KafkaError._TIMED_OUT, retriable=True)


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
    monkeypatch.setattr("mirror_core.state.writer.read_whole", read_whole)
    made = StateWriter(load_config(path).cluster("west"), control_id(RUN.plan.mirror), timeout_s=0.0)
    made._producer = producer  # type: ignore[assignment]
    made.put(RUN, beat_of(RUN.id, "me", released=True))
    producer.taken[:-1] = []
    return made


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that waits for nothing to ride with."""
    monkeypatch.setattr(pulse, "FIRST_S", 0.0)
    monkeypatch.setattr(pulse, "BEAT_S", 0.001)


def step(state: StepState = StepState.STARTED) -> StepRecord:
    return StepRecord(run=RUN.id, step="one", state=state, attempt=1, started_ms=1)


def sign(producer: Producer) -> Sign:
    return conducted(fold(row for rows in producer.taken for row in rows), RUN).sign


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


def test_what_a_late_commit_has_written_is_known_when_the_next_write_is_made(
    writer: StateWriter, producer: Producer
) -> None:
    producer.hangs = True
    with pytest.raises(Unreachable):
        writer.put(step())
    assert not writer.state.steps
    producer.hangs = False
    writer.riders = lambda records: (beat_of(RUN.id, f"knows {len(writer.state.steps)}", released=False),)
    writer.put(RUN)
    assert b"knows 1" in (producer.taken[-1][-1][1] or b"")


@pytest.mark.parametrize("after", [False, True])
def test_a_write_that_was_interrupted_does_not_hinder_the_last_word(
    writer: StateWriter, producer: Producer, after: bool
) -> None:
    def interrupted() -> None:
        producer.before_commit = int
        if after:
            producer.commit_transaction(1)
        raise KeyboardInterrupt

    producer.before_commit = interrupted
    with pytest.raises(KeyboardInterrupt):
        writer.put(step())
    writer.put(RUN)
    assert producer.keys[1:] == [[f"step/{RUN.id}/one"]] * after + [[f"run/{RUN.id}"]]
    assert bool(writer.state.steps) is after


def test_a_beat_that_brokers_do_not_take_is_settled_by_the_next_write_which_goes_through(
    writer: StateWriter, producer: Producer
) -> None:
    writer.riders = lambda records: () if records else (beat_of(RUN.id, "me", released=False),)
    producer.hangs = True
    with pytest.raises(Unreachable):
        writer.beat()
    producer.hangs = False
    writer.put(step())
    assert producer.keys[1:] == [[BEAT], [f"step/{RUN.id}/one"]]


def test_who_has_lost_the_mirror_is_told_so_ever_after(writer: StateWriter, producer: Producer) -> None:
    producer.fenced = True
    writer.riders = lambda records: (beat_of(RUN.id, "me", released=False),)
    with pytest.raises(LostOwnership) as first:
        writer.beat()
    producer.fenced = False
    with pytest.raises(LostOwnership) as later:
        writer.put(step())
    assert str(later.value) == str(first.value)


def test_two_threads_write_one_after_the_other(writer: StateWriter, producer: Producer) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def waits() -> None:
        producer.before_commit = int
        begun.set()
        assert go_on.wait(10)

    producer.before_commit = waits
    first = Work(lambda: writer.put(step())).start()
    assert begun.wait(10)
    second = Work(lambda: writer.put(RUN)).start()
    go_on.set()
    first.join()
    second.join()
    assert producer.keys[1:] == [[f"step/{RUN.id}/one"], [f"run/{RUN.id}"]]


# -- the pulse -------------------------------------------------------------------------------------------------------


def test_a_beat_rides_with_the_first_word_and_the_last_one_lets_go(writer: StateWriter, producer: Producer) -> None:
    with beating(writer, RUN.id, "me"):
        writer.put(step())
        assert sign(producer) is Sign.HEARD
        writer.put(step(StepState.DONE))
    assert producer.keys[1:] == [[f"step/{RUN.id}/one", BEAT], [f"step/{RUN.id}/one"], [BEAT]]
    assert sign(producer) is Sign.RELEASED


@pytest.mark.usefixtures("eager")
def test_in_a_long_step_a_thread_beats_alone(writer: StateWriter, producer: Producer) -> None:
    with beating(writer, RUN.id, "me"):
        wait_until(lambda: len(producer.taken) > 3, timeout_s=10, why="beats")
        assert sign(producer) is Sign.HEARD
    assert {tuple(keys) for keys in producer.keys[1:]} == {(BEAT,)}
    assert any(name.startswith("pulse") for name in producer.writers)
    assert sign(producer) is Sign.RELEASED


def test_nothing_is_written_alone_while_words_carry_beats(writer: StateWriter, producer: Producer) -> None:
    made = pulse.Pulse(writer, RUN.id, "me")
    made.start()
    before = made._alone_at
    writer.put(step())
    assert made._alone_at > before + pulse.RIDE_S
    made.close()
    assert producer.keys[1:] == [[f"step/{RUN.id}/one", BEAT], [BEAT]]


@pytest.mark.usefixtures("eager")
def test_a_run_that_has_ended_gets_no_beat(writer: StateWriter, producer: Producer) -> None:
    with beating(writer, RUN.id, "me"):
        wait_until(lambda: sign(producer) is Sign.HEARD, timeout_s=10, why="it beats")
        Journal(writer, RUN.id, ("one",)).end(RunState.DONE)
        ended = len(producer.taken)
        writer.put(step())
    assert producer.keys[ended:] == [[f"step/{RUN.id}/one"]]
    assert (BEAT, None) in producer.taken[ended - 1]
    assert not writer.refresh().checkpoints


def test_a_run_that_an_older_mirrorbook_began_gets_its_first_beat_from_the_conductors_thread(
    writer: StateWriter, producer: Producer
) -> None:
    writer.state.checkpoints.clear()
    with beating(writer, RUN.id, "me"):
        assert producer.keys[1:] == [[BEAT]]
    assert threading.current_thread().name in producer.writers


@pytest.mark.parametrize("error", [RemoteFault("broker gone"), KeyboardInterrupt()])
def test_a_step_that_fails_or_is_interrupted_lets_go(
    writer: StateWriter, producer: Producer, error: BaseException
) -> None:
    with pytest.raises(type(error)), beating(writer, RUN.id, "me"):
        raise error
    assert sign(producer) is Sign.RELEASED


def test_who_has_lost_the_run_says_nothing_more_of_it(writer: StateWriter, producer: Producer) -> None:
    producer.fenced = True
    with pytest.raises(LostOwnership, match="the first word"), beating(writer, RUN.id, "me"):
        raise LostOwnership("the first word")
    assert producer.keys[1:] == []


def test_who_has_lost_something_else_lets_go_of_the_run(writer: StateWriter, producer: Producer) -> None:
    with pytest.raises(LostOwnership), beating(writer, RUN.id, "me"):
        raise LostOwnership("another process copies it")
    assert producer.keys[1:] == [[BEAT]]
    assert sign(producer) is Sign.RELEASED


def test_a_thread_that_can_write_nothing_tries_again_only_when_the_next_beat_is_due(
    writer: StateWriter, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "FIRST_S", 0.0)
    producer.hangs = True
    with pytest.raises(Unreachable):
        writer.put(step())
    tried, beat = threading.Event(), writer.beat

    def trying() -> None:
        tried.set()
        beat()

    monkeypatch.setattr(writer, "beat", trying)
    made = pulse.Pulse(writer, RUN.id, "me")
    made.start()
    assert tried.wait(10)
    assert made._alone_at > made._ride_at + pulse.BEAT_S / 2
    made.close()


@pytest.mark.usefixtures("eager")
def test_a_loss_that_the_thread_meets_first_is_the_conductors_at_his_next_word(
    writer: StateWriter, producer: Producer
) -> None:
    with beating(writer, RUN.id, "me"):
        producer.fenced = True
        wait_until(lambda: bool(writer._lost), timeout_s=10, why="the thread has met it")
        with pytest.raises(LostOwnership, match="another process has taken over this mirror"):
            writer.put(step())
    assert not [keys for keys in producer.keys if f"step/{RUN.id}/one" in keys]


@pytest.mark.usefixtures("eager")
def test_a_destination_that_takes_no_beat_ends_no_step(writer: StateWriter, producer: Producer) -> None:
    with beating(writer, RUN.id, "me"):
        producer.hangs = True
        wait_until(lambda: producer.state == "committing", timeout_s=10, why="a beat is not answered")
        producer.hangs = False
        writer.put(step())
    assert writer.state.steps
    assert sign(producer) is Sign.RELEASED


def test_whose_run_it_is_is_said_with_the_beat(writer: StateWriter, producer: Producer) -> None:
    taken: Run = replace(RUN, conducted_by="ben@desk")
    with beating(writer, RUN.id, "ben@desk"):
        writer.put(taken)
        found = conducted(writer.state, taken)
        assert (found.sign, found.by) == (Sign.HEARD, "ben@desk")
