"""The journal: order of steps, repetition, failure, loss of ownership."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import ClassVar

import pytest

from mirror_core.model.errors import BadRequest, Indeterminate, LostOwnership, Refused, RemoteFault
from mirror_core.model.run import RunState, StepEvidence, StepState
from mirror_core.state.journal import Journal
from mirror_core.state.state_records import StateRecord, Tombstone
from tests.support.memory_state import MemoryLog, journal_of


@pytest.fixture
def journal() -> Journal:
    return journal_of("r1", "one", "two")


def test_intent_is_written_before_the_act_and_evidence_after(journal: Journal) -> None:
    seen: list[StepState] = []

    def act() -> StepEvidence:
        record = journal.record("one")
        assert record is not None
        seen.append(record.state)
        return {"n": 1}

    assert journal.perform("one", act).evidence == {"n": 1}
    assert seen == [StepState.STARTED]
    assert journal.is_done("one")
    assert journal.next_step() == "two"


def test_a_done_step_is_not_done_again(journal: Journal) -> None:
    journal.perform("one", dict)

    def never() -> StepEvidence:
        raise AssertionError("acted twice")

    assert journal.perform("one", never).attempt == 1


def test_a_step_waits_for_the_one_before(journal: Journal) -> None:
    with pytest.raises(Refused, match="step one is not done"):
        journal.perform("two", dict)


def test_an_attempt_knows_when_the_first_one_began(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count(1_000)
    monkeypatch.setattr(journal.log, "now_ms", lambda: next(clock))

    def fails() -> StepEvidence:
        raise RemoteFault("broker gone")

    begun = []
    for _ in range(2):
        with pytest.raises(RemoteFault):
            journal.perform("one", fails)
        record = journal.record("one")
        assert record is not None
        begun.append((record.started_ms, record.first_attempt_ms))
    begun.append((journal.perform("one", dict).started_ms, journal.perform("one", dict).first_attempt_ms))
    assert begun[0][0] < begun[1][0] < begun[2][0]
    assert {first for _, first in begun} == {begun[0][0]}, "what it had done may have stood since"


def test_failure_is_recorded_and_the_next_attempt_begins_anew(journal: Journal) -> None:
    def fails() -> StepEvidence:
        raise RemoteFault("broker gone")

    with pytest.raises(RemoteFault):
        journal.perform("one", fails)
    record = journal.record("one")
    assert record is not None
    assert (record.state, record.error) == (StepState.FAILED, "broker gone")
    again = journal.perform("one", lambda: {"n": 2})
    assert (again.attempt, again.error, again.evidence) == (2, "", {"n": 2})


def test_after_lost_ownership_nothing_more_is_written(journal: Journal) -> None:
    def fenced() -> StepEvidence:
        raise LostOwnership("another process took over")

    with pytest.raises(LostOwnership):
        journal.perform("one", fenced)
    assert isinstance(journal.log, MemoryLog)
    assert journal.log.keys == ["run/r1", "step/r1/one", "audit/r1/0"]


def test_no_step_is_taken_in_a_run_that_ended(journal: Journal) -> None:
    journal.end(RunState.ABORTED)
    with pytest.raises(Refused, match="ABORTED"):
        journal.perform("one", dict)


def test_unknown_step_and_run_are_the_callers_mistake(journal: Journal) -> None:
    with pytest.raises(BadRequest, match="no step 'three'"):
        journal.perform("three", dict)
    with pytest.raises(BadRequest, match="unknown run"):
        _ = Journal(journal.log, "r2", ("one",)).run


@dataclass(frozen=True, slots=True)
class Seen:
    VERSION: ClassVar[int] = 1
    ends: tuple[tuple[str, int], ...]


def test_what_a_step_keeps_is_there_for_later_ones_and_after_a_crash(journal: Journal) -> None:
    def fails() -> StepEvidence:
        journal.save_checkpoint("one", Seen((("t", 1),)))
        journal.save_checkpoint("one", Seen((("t", 2),)))
        raise RemoteFault("broker gone")

    with pytest.raises(RemoteFault):
        journal.perform("one", fails)
    assert journal.load_checkpoint("one", Seen) == Seen((("t", 2),))
    assert journal.load_checkpoint("two", Seen) is None


def test_what_a_step_leaves_is_written_with_its_end_and_not_without(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes, put = list[list[str]](), MemoryLog.put

    def noted(log: MemoryLog, *records: StateRecord | Tombstone) -> None:
        writes.append([type(record).__name__ for record in records])
        put(log, *records)

    def leaves(number: int, *, fails: bool) -> StepEvidence:
        journal.save_at_end("one", Seen((("t", number),)))
        if fails:
            raise RemoteFault("broker gone")
        return {}

    monkeypatch.setattr(MemoryLog, "put", noted)
    with pytest.raises(RemoteFault):
        journal.perform("one", lambda: leaves(1, fails=True))
    assert journal.load_checkpoint("one", Seen) is None
    journal.perform("one", lambda: leaves(2, fails=False))
    assert journal.load_checkpoint("one", Seen) == Seen((("t", 2),))
    assert writes == [["StepRecord", "AuditLine"]] * 3 + [["Checkpoint", "StepRecord", "AuditLine"]]


def test_a_value_of_another_version_is_not_guessed_at(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    journal.save_checkpoint("one", Seen(()))
    monkeypatch.setattr(Seen, "VERSION", 2)
    with pytest.raises(Indeterminate, match=r"what step one kept \(Seen\) is of version 1, this Mirrorbook reads 2"):
        journal.load_checkpoint("one", Seen)


def test_a_run_that_ends_forgets_what_its_steps_kept_for_each_other(journal: Journal) -> None:
    journal.save_checkpoint("one", Seen(()))
    journal.end(RunState.DONE)
    assert not journal.log.state.checkpoints
