"""Whoever conducts a run, watched by one who wants to go on with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.cli import failback, failover
from mirror_core.cli import run_commands as common
from mirror_core.decide.failover_plan import decide_failover
from mirror_core.decide.process_liveness import CONDUCTOR_STEP, ConductorState, ConductorStatus
from mirror_core.model.config_sections import MirrorSet
from mirror_core.model.errors import BadRequest, Refused
from mirror_core.model.findings import Finding
from mirror_core.model.run import RunMode, RunState
from mirror_core.model.run_checkpoints import RunHeartbeat
from mirror_core.model.timing import now_ms
from mirror_core.runbook.failback_conductor import Failback
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.runbook.run_services import Services
from mirror_core.runbook.set_failover import SetFailover
from mirror_core.state import run_heartbeat
from mirror_core.state.journal import make_checkpoint
from mirror_core.state.run_heartbeat import HeartbeatMonitor
from mirror_core.state.state_records import State
from tests.support.cluster_names import LINK
from tests.support.failover_views import healthy_view
from tests.support.memory_state import journal_of
from tests.support.sentences import format_sentence

RUN = journal_of("m-failover-20260101T000000-abcd").run


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
    monkeypatch.setattr(run_heartbeat, "time", made)
    return made


HOUR_MS = 3_600_000
ELSEWHERE = replace(run_heartbeat._make_heartbeat("me"), host="elsewhere")


def looks(*beats: RunHeartbeat | None) -> Callable[[], State]:
    """One after the other; the last one is seen for ever."""
    left = list(beats)

    def look() -> State:
        state = State()
        state.put(RUN)
        beat = left.pop(0) if len(left) > 1 else left[0]
        if beat is not None:
            state.put(make_checkpoint(RUN.id, CONDUCTOR_STEP, beat))
        return state

    return look


def seen(*beats: RunHeartbeat | None) -> tuple[ConductorStatus, list[str]]:
    said = list[str]()
    return HeartbeatMonitor(RUN.id).wait_for_status(looks(*beats), said.append, take_over=True), said


@pytest.mark.parametrize("apart_ms", [-HOUR_MS, 0, HOUR_MS])
def test_who_moves_lives_and_who_does_not_is_gone_whatever_his_clock_says(clock: Clock, apart_ms: int) -> None:
    beat = replace(ELSEWHERE, at_ms=ELSEWHERE.at_ms + apart_ms)
    moved, said = seen(beat, beat, replace(beat, at_ms=beat.at_ms + 1))
    assert moved.state is ConductorState.ALIVE
    assert [line.split("; ", 1)[1] for line in said] == [format_sentence("watching_for_another_heartbeat", 30)]
    began = clock.now
    still, _ = seen(beat)
    assert still.state is ConductorState.SILENT
    assert 30 < clock.now - began < 32


def test_another_one_who_takes_it_meanwhile_has_it(clock: Clock) -> None:
    found, _ = seen(ELSEWHERE, replace(ELSEWHERE, token="another"))
    assert found.state is ConductorState.ALIVE


def test_a_look_that_takes_long_is_no_silence(clock: Clock) -> None:
    """Brokers hang while it is made: what it shows may have come at any time until then."""
    look = looks(ELSEWHERE, ELSEWHERE, replace(ELSEWHERE, token="another"))

    def slow() -> State:
        clock.sleep(60.0)
        return look()

    assert HeartbeatMonitor(RUN.id).wait_for_status(slow, lambda line: None).state is ConductorState.ALIVE


def test_the_same_dead_one_is_waited_for_once_and_what_comes_meanwhile_is_heard(clock: Clock) -> None:
    watch, said = HeartbeatMonitor(RUN.id), list[str]()
    assert watch.wait_for_status(looks(ELSEWHERE), said.append).state is ConductorState.SILENT
    clock.now += 600
    began = clock.now
    assert watch.wait_for_status(looks(ELSEWHERE), said.append).state is ConductorState.SILENT
    later = replace(ELSEWHERE, at_ms=ELSEWHERE.at_ms + 1)
    for beat in (later, replace(ELSEWHERE, token="another")):
        assert watch.wait_for_status(looks(beat), said.append).state is ConductorState.ALIVE
    assert (
        watch.wait_for_status(looks(replace(ELSEWHERE, token="another", released=True)), said.append).state
        is ConductorState.RELEASED
    )
    assert (clock.now, len(said)) == (began, 1)


@pytest.mark.parametrize(
    ("beat", "sign"),
    [
        (None, ConductorState.UNKNOWN),
        (replace(ELSEWHERE, released=True), ConductorState.RELEASED),
        (replace(run_heartbeat._make_heartbeat("me"), start_ticks=1), ConductorState.SILENT),
        (replace(ELSEWHERE, by="another, before"), ConductorState.UNKNOWN),
    ],
)
def test_what_is_certain_is_waited_for_by_nobody(beat: RunHeartbeat | None, sign: ConductorState, clock: Clock) -> None:
    began = clock.now
    said, watch = list[str](), HeartbeatMonitor(RUN.id)
    for _ in range(2):
        found = watch.wait_for_status(looks(beat), said.append)
    assert clock.now == began
    assert found.state is sign
    assert said == ([f"run {RUN.id}: {found}"] if sign is ConductorState.UNKNOWN else []), (
        "it is let through in silence"
    )


def test_who_lets_go_meanwhile_refuses_nobody(clock: Clock) -> None:
    assert seen(ELSEWHERE, replace(ELSEWHERE, released=True))[0].state is ConductorState.RELEASED


def test_a_dead_way_home_is_waited_for_once(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Applications may be fenced meanwhile."""
    said = list[str]()
    monkeypatch.setattr("mirror_core.runbook.conductor.read_complete_state", lambda cluster: looks(ELSEWHERE)())
    monkeypatch.setattr("mirror_core.runbook.failback_conductor.load_reverse_link", lambda link: link)
    home = Failback(LINK, cast("Any", None), started_by="me", print_line=said.append)
    under_way = replace(RUN, state=RunState.RUNNING)
    monkeypatch.setattr(Failback, "find_active_reverse_run", lambda self, run: under_way)
    monkeypatch.setattr(Failover, "find_active_run", lambda self: under_way)
    monkeypatch.setattr(Failback, "drive", lambda self, run_id, **agreed: under_way)
    monkeypatch.setattr(Failover, "drive", lambda self, run_id, **agreed: under_way)
    monkeypatch.setattr(Failover, "has_disturbed", lambda self, run: True)
    monkeypatch.setattr(failback, "find_run", lambda *arguments: (LINK, replace(RUN, id="m-failback-1")))
    monkeypatch.setattr(failback, "make_conductor", lambda *arguments, **options: home)
    monkeypatch.setattr(failback, "status_on_failure", lambda by, run, *failures: nullcontext())
    for name in ("_confirm_again", "confirm_again"):
        monkeypatch.setattr(failback, name, lambda by, run, **options: "")
    monkeypatch.setattr(failback, "print_outcome", lambda by, run, **options: None)
    monkeypatch.setattr(home, "refuse_conducted", lambda run_id, title, take_over: None)
    failback.resume("m")
    assert len(said) == 1


class GivesUp:
    """Who is asked to abort a run, and whether anybody conducts it."""

    def __init__(self, *beats: RunHeartbeat | None) -> None:
        self.failover = Failover(LINK, cast("Any", None), started_by="me")
        self.look = looks(*beats)
        self.aborted = list[str]()
        self.told = list[Finding]()

    def list_effects(self) -> Iterator[Finding]:
        self.told.append(Finding("abort_awaits_source", "east", mirror="m", mode=RunMode.UNPLANNED))
        yield from self.told

    def give_up(self, monkeypatch: pytest.MonkeyPatch, *, take_over: bool) -> None:
        monkeypatch.setattr("mirror_core.runbook.conductor.read_complete_state", lambda cluster: self.look())
        monkeypatch.setattr(common, "read_state", lambda cluster: self.look())
        monkeypatch.setattr(common, "status_on_failure", lambda by, run: nullcontext())
        monkeypatch.setattr(common, "print_outcome", lambda by, run, **options: None)
        monkeypatch.setattr(Failover, "abort", lambda by, run_id: self.aborted.append(run_id))
        effects = self.list_effects()
        common.abort_run(self.failover, RUN, "Abort?", effects, take_over=take_over, yes=True, as_json=False)


def test_who_would_give_a_run_up_is_refused_while_somebody_conducts_it(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = GivesUp(ELSEWHERE, replace(ELSEWHERE, at_ms=ELSEWHERE.at_ms + 1))
    with pytest.raises(Refused, match=r"abort:\n.*conducted by me on elsewhere .*`--take-over` takes the run from it"):
        one.give_up(monkeypatch, take_over=False)
    assert one.aborted == []


@pytest.mark.parametrize("beat", [ELSEWHERE, replace(ELSEWHERE, released=True), None])
def test_a_run_that_nobody_conducts_is_given_up(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, beat: RunHeartbeat | None
) -> None:
    one = GivesUp(beat)
    one.give_up(monkeypatch, take_over=False)
    assert one.aborted == [RUN.id]


def test_nobody_is_waited_for_where_the_run_has_ended(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    one = GivesUp(ELSEWHERE)
    monkeypatch.setattr(Failover, "refuse_conducted", lambda *arguments, **options: pytest.fail("it has ended"))
    monkeypatch.setattr("tests.unit.cli.test_watched_run.RUN", replace(RUN, state=RunState.ABORTED, ended_ms=1))
    one.give_up(monkeypatch, take_over=False)
    assert one.aborted == [RUN.id]


def test_who_takes_a_run_over_to_give_it_up_is_told_first_who_conducts_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def agree(question: str, yes: bool) -> None:
        raise Refused(question, [capsys.readouterr().out], "not_confirmed")

    monkeypatch.setattr(common, "require_confirmation", agree)
    monkeypatch.setattr(run_heartbeat, "measure_clock_ahead_ms", lambda cluster, timeout_s: None)
    one = GivesUp(replace(ELSEWHERE, at_ms=now_ms()))
    with pytest.raises(Refused, match="conducted by me on elsewhere"):
        one.give_up(monkeypatch, take_over=True)
    assert one.aborted == []


@pytest.mark.parametrize("take_over", [False, True])
def test_nobody_is_asked_about_an_abort_that_comes_too_late(monkeypatch: pytest.MonkeyPatch, take_over: bool) -> None:
    one = GivesUp(ELSEWHERE)
    monkeypatch.setattr(common, "require_confirmation", lambda question, yes: pytest.fail("it was asked"))
    monkeypatch.setattr("tests.unit.cli.test_watched_run.RUN", replace(RUN, state=RunState.DONE, ended_ms=1))
    with pytest.raises(Refused, match="failback plan"):
        one.give_up(monkeypatch, take_over=take_over)
    assert (one.aborted, one.told) == ([], []), "nobody is told what an abort would do"


@pytest.mark.parametrize("take_over", [False, True])
@pytest.mark.parametrize("of", [failover, failback])
def test_both_kinds_are_given_up_like_this(of: Any, take_over: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, conductor = list[bool](), SimpleNamespace(has_disturbed=lambda run: False)
    monkeypatch.setattr(of, "find_run", lambda *arguments: (LINK, RUN))
    monkeypatch.setattr(of, "make_conductor", lambda *arguments, **options: conductor)
    monkeypatch.setattr(of, "abort_run", lambda *given, **options: asked.append(options["take_over"]))
    of.abort("m", take_over=take_over)
    assert asked == [take_over]


@pytest.mark.parametrize(
    ("heartbeat", "silent", "take_over", "begins"),
    [
        (ELSEWHERE, False, False, False),
        (ELSEWHERE, False, True, True),
        (ELSEWHERE, True, False, True),
        (replace(ELSEWHERE, released=True), False, False, True),
    ],
)
@pytest.mark.parametrize("of_set", [False, True])
def test_an_unplanned_failover_ends_a_conducted_planned_run_of_a_living_source_only_by_take_over(
    heartbeat: RunHeartbeat,
    silent: bool,
    take_over: bool,
    begins: bool,
    of_set: bool,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by = Failover(LINK, cast(Services, None), started_by="test")
    decision = decide_failover(replace(healthy_view(), mode=RunMode.UNPLANNED))
    later = heartbeat if heartbeat.released else replace(heartbeat, at_ms=heartbeat.at_ms + 1)
    look = looks(heartbeat, later)
    monkeypatch.setattr(by, "find_active_run", lambda: RUN)
    monkeypatch.setattr("mirror_core.runbook.conductor.read_complete_state", lambda cluster: look())
    monkeypatch.setattr(by, "decide_unplanned", lambda: (decision, silent))

    def begin() -> None:
        if of_set:
            mirrors = MirrorSet("shop", (LINK.mirror.name,))
            several = SetFailover(mirrors, {LINK.mirror.name: by}, RunMode.UNPLANNED, print_line=lambda line: None)
            failover._refuse_living_sources(several, several.decide(), None, yes=False, take_over=take_over)
            raise Refused("begun", [])
        failover.run("m", mode=RunMode.UNPLANNED, take_over=take_over)

    def confirm(*arguments: object, **options: object) -> bool:
        raise Refused("begun", [])

    monkeypatch.setattr(failover, "find_mirror", lambda config, name: (LINK, None))
    monkeypatch.setattr(failover, "make_conductor", lambda *arguments, **options: by)
    monkeypatch.setattr(failover, "confirm_plan", confirm)
    with pytest.raises(Refused) as refused:
        begin()
    assert (refused.value.summary == "begun") is begins
    if not begins:
        assert RUN.id in refused.value.summary
        assert "--take-over" in str(refused.value)


def test_a_planned_failover_takes_over_nothing() -> None:
    with pytest.raises(BadRequest, match="--take-over"):
        failover.run("m", take_over=True)


def test_a_set_that_takes_its_own_run_up_again_asks_nobody_who_conducts_it() -> None:
    state, said = State(), list[str]()
    state.put(replace(RUN, set_run="shop-1"))
    for process, lines in ((run_heartbeat._make_heartbeat("me"), 0), (ELSEWHERE, 1)):
        state.put(make_checkpoint(RUN.id, CONDUCTOR_STEP, replace(process, by=RUN.conducted_by, released=True)))
        found = HeartbeatMonitor(RUN.id).wait_for_status(lambda: state, said.append)
        assert (found.state, len(said)) == (ConductorState.UNKNOWN, lines)
