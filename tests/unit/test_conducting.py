"""Whether anybody conducts a run, by its newest beat."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_core.decide.conducting import STEP, Conducted, Sign, judged, newest, place
from mirror_core.model.checkpoint import Beat, Checkpoint
from mirror_core.model.clock import CONDUCTED_S
from mirror_core.state.journal import checkpoint
from tests.memory import journal_of

NOW = 1_000_000_000
RUN = journal_of("m-failover-20260101T000000-abcd").run
BEAT = Beat(token="t", by="me", host="desk", boot="b", pid=7, started=1, at_ms=NOW - 3_000, released=False)


def now(beat: Beat | None, *, at_ms: int = NOW, ended: bool = False) -> Conducted:
    return judged(RUN, beat, (at_ms - beat.at_ms) / 1000 if beat else 0.0, lambda beat: ended)


def test_whoever_was_heard_of_just_now_conducts_it_and_nobody_goes_on_with_it() -> None:
    found = now(BEAT)
    assert found.sign is Sign.HEARD
    assert str(found) == "conducted by me on desk (process 7), seen 3 s ago"
    for take_over in (False, True):
        assert "conducted by me on desk (process 7), seen 3 s ago" in found.refusal(take_over=take_over)
        assert ("`--take-over` takes the run from it" in found.refusal(take_over=take_over)) is take_over


@pytest.mark.parametrize(
    ("beat", "age_ms", "ended", "words"),
    [
        (replace(BEAT, released=True), 60_000, False, "nobody conducts it: me let go of it 63 s ago"),
        (
            BEAT,
            600_000,
            False,
            "me on desk was not heard of for 10 min by this machine's clock; `resume` watches for a sign of life",
        ),
        (BEAT, 0, True, "nobody conducts it: me on desk was last seen 3 s ago, and its process has ended"),
        (replace(BEAT, released=True), 0, True, "nobody conducts it: me let go of it 3 s ago"),
    ],
)
def test_a_run_that_nobody_conducts_is_gone_on_with(beat: Beat, age_ms: int, ended: bool, words: str) -> None:
    found = now(beat, at_ms=NOW + age_ms, ended=ended)
    assert str(found) == words
    assert not found.refusal(take_over=True)


def test_a_part_of_a_set_that_waits_for_the_others_is_not_called_nobodys() -> None:
    found = judged(
        replace(RUN, conducted_by="me", part_of="shop-1"), replace(BEAT, released=True), 3.0, lambda _: False
    )
    assert found.sign is Sign.UNKNOWN
    assert "unknown whether anybody conducts it: it is a part of shop-1" in str(found)
    assert "`mirrorbook failover run-set` goes on with all of them" in str(found)
    assert not found.refusal(take_over=True)


def test_silence_counts_from_a_limit_on() -> None:
    limit_ms = BEAT.at_ms + int(CONDUCTED_S * 1000)
    assert now(BEAT, at_ms=limit_ms).sign is Sign.HEARD
    assert now(BEAT, at_ms=limit_ms + 1).sign is Sign.GONE


@pytest.mark.parametrize(
    ("beat", "why"),
    [
        (None, "me tells no sign of life, as older Mirrorbooks do"),
        (replace(BEAT, by="another, before"), "me tells no sign of life"),
        (replace(BEAT, at_ms=NOW + 5_000), "the clocks differ"),
    ],
)
def test_what_does_not_tell_of_now_is_unknown_and_refuses_nobody(beat: Beat | None, why: str) -> None:
    found = now(beat)
    assert found.sign is Sign.UNKNOWN
    assert why in str(found)
    assert not found.refusal(take_over=True)


_KEPT = checkpoint(RUN.id, STEP, BEAT)


@pytest.mark.parametrize("kept", [replace(_KEPT, version=2), replace(_KEPT, value="{}")])
def test_a_sign_that_this_mirrorbook_does_not_read_is_none(kept: Checkpoint) -> None:
    assert newest(RUN.id, {(RUN.id, STEP, "Beat"): kept}) is None


def test_the_last_sign_of_life_is_that_of_whoever_took_it_last() -> None:
    later, stranger = replace(BEAT, at_ms=NOW), replace(BEAT, token="u", at_ms=NOW + 1)
    kept = {c.step: c for c in (checkpoint(RUN.id, place(b.token), b) for b in (later, stranger))}

    def found(said: Beat) -> Beat | None:
        return newest(
            RUN.id, {(RUN.id, step, "Beat"): c for step, c in {**kept, STEP: checkpoint(RUN.id, STEP, said)}.items()}
        )

    assert found(BEAT) == later
    assert found(replace(BEAT, token="v")) == replace(BEAT, token="v")
    assert found(replace(BEAT, released=True)) == replace(BEAT, released=True)


def test_clocks_that_differ_by_as_little_as_clocks_do_tell_all_the_same() -> None:
    assert str(now(replace(BEAT, at_ms=NOW + 300))) == "conducted by me on desk (process 7), seen 0 s ago"
