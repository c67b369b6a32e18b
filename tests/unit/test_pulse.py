"""A run's heartbeat, and the writer of its conductor: on producers as librdkafka's are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from mirror_core.decide import conducting
from mirror_core.decide.conducting import STEP, Conducted, Sign
from mirror_core.kafka.config import load_config
from mirror_core.model.checkpoint import Beat
from mirror_core.model.chronicle import Kind
from mirror_core.model.errors import LostOwnership, RemoteFault, Unreachable
from mirror_core.model.run import RunState, StepRecord, StepState
from mirror_core.state import pulse
from mirror_core.state.journal import Journal, checkpoint, told
from mirror_core.state.pulse import beating, begun_by, conducted, watched
from mirror_core.state.records import State
from mirror_core.state.topic import TRANSACTION_MS
from mirror_core.state.writer import StateWriter, control_id
from tests.memory import fold, journal_of
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

    def begin_transaction(self) -> None:
        self._check("begin", "ready")
        self.state, self.rows = "open", []

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
    made.put(RUN, begun_by(RUN.id, "me"))
    producer.taken[:-1] = []
    return made


class Plain:
    """A producer without transactions, whose broker is the other one's; it never says that nothing was taken."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.dropped = 0

    def produce(self, topic: str, *, key: str, value: bytes | None, partition: int) -> None:
        if self.producer.hangs:
            self.dropped += 1
        else:
            self.producer.taken.append([(key, value)])

    def poll(self, timeout: float) -> None: ...

    def flush(self, timeout: float) -> None: ...

    def purge(self) -> None: ...


@pytest.fixture
def plain(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> Plain:
    """Of a conductor that beats without a pause."""
    made = Plain(producer)
    monkeypatch.setattr(pulse, "BEAT_S", 0.001)
    monkeypatch.setattr(pulse, "client", lambda *arguments: made)
    return made


def step(state: StepState = StepState.STARTED) -> StepRecord:
    return StepRecord(run=RUN.id, step="one", state=state, attempt=1, started_ms=1)


def sign(producer: Producer) -> Sign:
    state = fold(row for rows in producer.taken for row in rows)
    return conducted(state, state.runs[RUN.id]).sign


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
        writer.put(step(), told(writer.state, RUN, Kind.STEP, step()))
    producer.hangs = False
    failed = step(StepState.FAILED)
    writer.put(failed, told(writer.state, RUN, Kind.STEP, failed))
    assert writer.state.told[RUN.id].keys() == {0, 1}, "a line was written over"
    assert writer.state.chronicle(RUN.id) == writer.read().chronicle(RUN.id)
    assert [state in line for state, line in zip(("STARTED", "FAILED"), writer.read().chronicle(RUN.id), strict=True)]


def test_of_a_transaction_that_was_left_open_it_is_known_since_when(writer: StateWriter, producer: Producer) -> None:
    producer.hangs = True
    with pytest.raises(Unreachable):
        writer.put(step())
    assert writer._opened is not None
    writer._opened -= TRANSACTION_MS / 1000
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
            producer.commit_transaction(1)
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
    with beating(writer, RUN.id, "me"):
        assert sign(producer) is Sign.HEARD
        writer.put(step())
    assert producer.keys[1:] == [[BEAT], [f"step/{RUN.id}/one"], [BEAT]]
    assert sign(producer) is Sign.RELEASED


def test_in_a_long_step_it_beats_in_a_place_of_its_own(writer: StateWriter, producer: Producer, plain: Plain) -> None:
    with beating(writer, RUN.id, "me"):
        wait_until(lambda: len(producer.taken) > 4, timeout_s=10, why="beats")
        assert sign(producer) is Sign.HEARD
    assert producer.keys[1] == producer.keys[-1] == [BEAT]
    (place,) = {key for keys in producer.keys[2:-1] for key in keys}
    assert place.startswith(f"checkpoint/{RUN.id}/{STEP}.")
    assert (place, None) in producer.taken[-2]
    assert sign(producer) is Sign.RELEASED


def test_beats_that_brokers_do_not_take_cost_the_conductor_nothing(
    writer: StateWriter, producer: Producer, plain: Plain
) -> None:
    with beating(writer, RUN.id, "me"):
        producer.hangs = True
        wait_until(lambda: plain.dropped > 1, timeout_s=10, why="beats are not taken")
        assert producer.state == "ready", "a transaction is open, which brokers end"
        producer.hangs = False
        writer.put(step())
    assert writer.state.steps
    assert sign(producer) is Sign.RELEASED


@pytest.mark.usefixtures("plain")
def test_a_run_that_has_ended_is_not_conducted_any_more(writer: StateWriter, producer: Producer) -> None:
    with beating(writer, RUN.id, "me"):
        wait_until(lambda: len(producer.taken) > 4, timeout_s=10, why="beats")
        Journal(writer, RUN.id, ("one",)).end(RunState.DONE)
    assert not writer.refresh().checkpoints


def test_a_run_that_ended_before_it_was_taken_gets_no_sign_of_life(writer: StateWriter, producer: Producer) -> None:
    Journal(writer, RUN.id, ("one",)).end(RunState.DONE)
    before = len(producer.taken)
    with beating(writer, RUN.id, "me"):
        pass
    assert len(producer.taken) == before


def test_that_another_one_conducts_is_written_with_his_first_sign_of_life(
    writer: StateWriter, producer: Producer
) -> None:
    """Apart from each other they would be of two conductors, and whoever looks in between would refuse nobody."""
    with beating(writer, RUN.id, "another", [replace(RUN, conducted_by="another")]):
        assert sorted(producer.keys[-1]) == [BEAT, f"run/{RUN.id}"]
        assert sign(producer) is Sign.HEARD


def test_what_a_killed_conductor_has_left_is_forgotten_by_the_next_one(writer: StateWriter, producer: Producer) -> None:
    killed = pulse._beat_of("me")
    writer.put(checkpoint(RUN.id, STEP, killed), checkpoint(RUN.id, conducting.place(killed.token), killed))
    with beating(writer, RUN.id, "me"):
        assert len(writer.refresh().checkpoints) == 1


def test_who_has_lost_the_run_and_beats_all_the_same_neither_has_it_nor_hides_who_has(
    writer: StateWriter, producer: Producer
) -> None:
    lost, has = pulse._beat_of("me"), pulse._beat_of("me")
    later = replace(lost, at_ms=has.at_ms + 5)
    writer.put(checkpoint(RUN.id, STEP, has), checkpoint(RUN.id, conducting.place(has.token), has))
    writer.put(checkpoint(RUN.id, conducting.place(lost.token), later))
    assert conducting.newest(RUN.id, writer.refresh().checkpoints) == has


@pytest.mark.parametrize("error", [RemoteFault("broker gone"), KeyboardInterrupt(), LostOwnership("of a lease")])
def test_a_step_that_fails_or_is_interrupted_lets_go(
    writer: StateWriter, producer: Producer, error: BaseException
) -> None:
    with pytest.raises(type(error)), beating(writer, RUN.id, "me"):
        raise error
    assert sign(producer) is Sign.RELEASED


def test_who_has_lost_the_run_says_nothing_more_of_it(writer: StateWriter, producer: Producer) -> None:
    def loses() -> None:
        with beating(writer, RUN.id, "me"):
            producer.fenced = True
            raise LostOwnership("the first word")

    with pytest.raises(LostOwnership, match="the first word"):
        loses()
    assert producer.keys[1:] == [[BEAT]]


# -- whoever watches it ----------------------------------------------------------------------------------------------


class Clock:
    """Of whoever watches: it goes on while he sleeps."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(pulse, "time", made)
    return made


HOUR_MS = 3_600_000
ELSEWHERE = replace(pulse._beat_of("me"), host="elsewhere")


def looks(*beats: Beat | None) -> Callable[[], State]:
    """One after the other; the last one is seen for ever."""
    left = list(beats)

    def look() -> State:
        state = State()
        state.put(RUN)
        beat = left.pop(0) if len(left) > 1 else left[0]
        if beat is not None:
            state.put(checkpoint(RUN.id, STEP, beat))
        return state

    return look


def seen(*beats: Beat | None) -> tuple[Conducted, list[str]]:
    said = list[str]()
    return watched(looks(*beats), RUN.id, said.append), said


@pytest.mark.parametrize("apart_ms", [-HOUR_MS, 0, HOUR_MS])
def test_who_moves_lives_and_who_does_not_is_gone_whatever_his_clock_says(clock: Clock, apart_ms: int) -> None:
    beat = replace(ELSEWHERE, at_ms=ELSEWHERE.at_ms + apart_ms)
    moved, said = seen(beat, beat, replace(beat, at_ms=beat.at_ms + 1))
    assert (moved.sign, bool(moved.refusal())) == (Sign.HEARD, True)
    assert "--take-over" in moved.refusal()
    assert ["watching up to 30 s" in line for line in said] == [True]
    began = clock.now
    still, _ = seen(beat)
    assert (still.sign, still.refusal()) == (Sign.GONE, "")
    assert 30 < clock.now - began < 32


def test_another_one_who_takes_it_meanwhile_has_it(clock: Clock) -> None:
    found, _ = seen(ELSEWHERE, replace(ELSEWHERE, token="another"))
    assert found.refusal()


def test_a_look_that_takes_long_is_no_silence(clock: Clock) -> None:
    """Brokers hang while it is made: what it shows may have come at any time until then."""
    look = looks(ELSEWHERE, ELSEWHERE, replace(ELSEWHERE, token="another"))

    def slow() -> State:
        clock.sleep(60.0)
        return look()

    assert watched(slow, RUN.id, lambda line: None).sign is Sign.HEARD


@pytest.mark.parametrize(
    ("beat", "sign"),
    [
        (None, Sign.UNKNOWN),
        (replace(ELSEWHERE, released=True), Sign.RELEASED),
        (replace(pulse._beat_of("me"), started=1), Sign.GONE),
        (replace(ELSEWHERE, by="another, before"), Sign.UNKNOWN),
    ],
)
def test_what_is_certain_is_waited_for_by_nobody(beat: Beat | None, sign: Sign, clock: Clock) -> None:
    began = clock.now
    found, said = seen(beat)
    assert clock.now == began
    assert (found.sign, found.refusal(), said) == (sign, "", [])


def test_who_lets_go_meanwhile_refuses_nobody(clock: Clock) -> None:
    assert seen(ELSEWHERE, replace(ELSEWHERE, released=True))[0].sign is Sign.RELEASED
