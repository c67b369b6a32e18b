"""Whether anybody conducts a run, by its newest beat."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_core.decide.process_liveness import (
    CONDUCTOR_STEP,
    ConductorState,
    ConductorStatus,
    ProcessState,
    decide_conductor_status,
    decide_member_status,
    find_conductor_heartbeat,
    format_heartbeat_step,
)
from mirror_core.model.findings import Finding
from mirror_core.model.names import MirrorName
from mirror_core.model.run_checkpoints import Checkpoint, RunHeartbeat
from mirror_core.model.timing import CONDUCTOR_TIMEOUT_S
from mirror_core.state.journal import make_checkpoint
from tests.support.memory_state import journal_of
from tests.support.sentences import format_sentence

NOW = 1_000_000_000
B = MirrorName("b")
RUN = journal_of("m-failover-20260101T000000-abcd").run
BEAT = RunHeartbeat(
    token="t", by="me", host="desk", boot_id="b", pid=7, start_ticks=1, at_ms=NOW - 3_000, released=False
)


def now(
    beat: RunHeartbeat | None, *, at_ms: int = NOW, process: ProcessState = ProcessState.UNKNOWN
) -> ConductorStatus:
    return decide_conductor_status(RUN, beat, (at_ms - beat.at_ms) / 1000 if beat else 0.0, lambda beat: process)


def test_whoever_was_heard_of_just_now_conducts_it_and_nobody_goes_on_with_it() -> None:
    found = now(BEAT)
    assert found.state is ConductorState.ALIVE
    assert str(found) == "conducted by me on desk (process 7), seen 3 s ago"
    for take_over in (False, True):
        assert "conducted by me on desk (process 7), seen 3 s ago" in found.explain_refusal(can_take_over=take_over)
        assert ("`--take-over` takes the run from it" in found.explain_refusal(can_take_over=take_over)) is take_over


@pytest.mark.parametrize(
    ("beat", "age_ms", "process", "words"),
    [
        (replace(BEAT, released=True), 60_000, ProcessState.ENDED, "nobody conducts it: me stopped 63 s ago"),
        (
            BEAT,
            600_000,
            ProcessState.UNKNOWN,
            format_sentence("conductor_not_heard_of_resume_watches", 10),
        ),
        (BEAT, 0, ProcessState.ENDED, format_sentence("conductor_has_ended", 3)),
        (replace(BEAT, released=True), 0, ProcessState.ENDED, "nobody conducts it: me stopped 3 s ago"),
    ],
)
def test_a_run_that_nobody_conducts_is_gone_on_with(
    beat: RunHeartbeat, age_ms: int, process: ProcessState, words: str
) -> None:
    found = now(beat, at_ms=NOW + age_ms, process=process)
    assert str(found) == words
    assert not found.explain_refusal(can_take_over=True)


def test_a_part_of_a_set_that_waits_for_the_others_is_not_called_nobodys() -> None:
    found = status_of(3.0, released=True)
    assert found.state is ConductorState.UNKNOWN
    assert "unknown whether anybody conducts it: it is a part of shop-1" in str(found)
    assert "`mirrorbook failover run-set` goes on with all of them" in str(found)
    assert not found.explain_refusal(can_take_over=True)


def status_of(age_s: float, *, released: bool, process: ProcessState = ProcessState.UNKNOWN) -> ConductorStatus:
    run = replace(RUN, conducted_by="me", set_run="shop-1")
    return decide_conductor_status(run, replace(BEAT, released=released), age_s, lambda _: process)


@pytest.mark.parametrize("process", ProcessState)
@pytest.mark.parametrize("is_of_set", [False, True])
def test_whoever_let_go_of_a_run_may_sit_at_its_question(process: ProcessState, is_of_set: bool) -> None:
    """Only the end of its process tells that nobody does."""
    released = replace(BEAT, released=True)
    found = status_of(3.0, released=True, process=process) if is_of_set else now(released, process=process)
    assert found.state is (ConductorState.UNKNOWN if is_of_set else ConductorState.RELEASED)
    told = str(Finding("run_let_go", "me", host="desk", pid=7, process=process, ago="3 s ago"))
    assert (str(found) == told) is (not is_of_set or process is ProcessState.RUNNING)
    assert ("nobody conducts it" in str(found)) is (not is_of_set and process is ProcessState.ENDED)
    assert not found.explain_refusal(can_take_over=True)


@pytest.mark.parametrize(
    ("others", "state", "age_s"),
    [
        ({B: status_of(2.0, released=False)}, ConductorState.ALIVE, 2.0),
        ({B: status_of(20.0, released=True)}, ConductorState.RELEASED, 20.0),
        ({B: status_of(60.0, released=True)}, ConductorState.RELEASED, 30.0),
        ({B: None}, ConductorState.RELEASED, 30.0),
        ({B: status_of(2.0, released=False, process=ProcessState.ENDED)}, ConductorState.SILENT, 2.0),
        ({}, ConductorState.UNKNOWN, 30.0),
        ({B: replace(status_of(2.0, released=False), state=ConductorState.UNKNOWN)}, ConductorState.UNKNOWN, 30.0),
    ],
    ids=["at another", "let go of all", "of this one last", "other ended", "died", "kept elsewhere", "not known"],
)
def test_a_part_of_a_set_is_conducted_if_another_part_is(
    others: dict[MirrorName, ConductorStatus | None], state: ConductorState, age_s: float
) -> None:
    run = replace(RUN, conducted_by="me", set_run="shop-1", set_mirrors=(RUN.plan.mirror, B))
    found = decide_member_status(run, status_of(30.0, released=True), others)
    assert (found.state, found.age_s) == (state, age_s)


def test_silence_counts_from_a_limit_on() -> None:
    limit_ms = BEAT.at_ms + int(CONDUCTOR_TIMEOUT_S * 1000)
    assert now(BEAT, at_ms=limit_ms).state is ConductorState.ALIVE
    assert now(BEAT, at_ms=limit_ms + 1).state is ConductorState.SILENT


@pytest.mark.parametrize(
    ("beat", "why"),
    [
        (None, "me has left no heartbeat"),
        (replace(BEAT, by="another, before"), "me has left no heartbeat"),
        (replace(BEAT, at_ms=NOW + 5_000), "the clocks differ"),
    ],
)
def test_what_does_not_tell_of_now_is_unknown_and_refuses_nobody(beat: RunHeartbeat | None, why: str) -> None:
    found = now(beat)
    assert found.state is ConductorState.UNKNOWN
    assert why in str(found)
    assert not found.explain_refusal(can_take_over=True)


_KEPT = make_checkpoint(RUN.id, CONDUCTOR_STEP, BEAT)


@pytest.mark.parametrize("kept", [replace(_KEPT, version=2), replace(_KEPT, value="{}")])
def test_a_sign_that_this_mirrorbook_does_not_read_is_none(kept: Checkpoint) -> None:
    assert find_conductor_heartbeat(RUN.id, {(RUN.id, CONDUCTOR_STEP, "RunHeartbeat"): kept}) is None


def test_the_last_sign_of_life_is_that_of_whoever_took_it_last() -> None:
    later, stranger = replace(BEAT, at_ms=NOW), replace(BEAT, token="u", at_ms=NOW + 1)
    kept = {c.step: c for c in (make_checkpoint(RUN.id, format_heartbeat_step(b.token), b) for b in (later, stranger))}

    def found(said: RunHeartbeat) -> RunHeartbeat | None:
        return find_conductor_heartbeat(
            RUN.id,
            {
                (RUN.id, step, "RunHeartbeat"): c
                for step, c in {**kept, CONDUCTOR_STEP: make_checkpoint(RUN.id, CONDUCTOR_STEP, said)}.items()
            },
        )

    assert found(BEAT) == later
    assert found(replace(BEAT, token="v")) == replace(BEAT, token="v")
    assert found(replace(BEAT, released=True)) == replace(BEAT, released=True)


def test_clocks_that_differ_by_as_little_as_clocks_do_tell_all_the_same() -> None:
    assert str(now(replace(BEAT, at_ms=NOW + 300))) == "conducted by me on desk (process 7), seen 0 s ago"
