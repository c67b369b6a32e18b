"""Whether anybody watches the old source of a failover: by signs of life, which never hinder who gives them."""

from __future__ import annotations

import gc
import socket
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.decide.failback_plan import FailbackSnapshot
from mirror_core.decide.failback_plan import decide_failback as failback
from mirror_core.decide.fence_state import FenceDecision, FenceState, find_fence_state
from mirror_core.decide.mirror_snapshot import MirrorSnapshot
from mirror_core.decide.plan_figures import list_plan_warnings
from mirror_core.decide.process_liveness import (
    WATCHER_GRACE_S,
    WATCHER_STEP,
    WatcherState,
    decide_watcher_status,
    find_watcher_heartbeat,
)
from mirror_core.mirrors import fence_watcher, mirror_commands
from mirror_core.model.config_sections import AuthorizerConfig, AuthorizerKind
from mirror_core.model.errors import Indeterminate, MirrorError, Unreachable
from mirror_core.model.findings import Finding, render_finding
from mirror_core.model.hooks import Hook, HookCommand
from mirror_core.model.mirror import DesiredState
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.pending_fence import PendingFence
from mirror_core.model.run_checkpoints import WatcherHeartbeat
from mirror_core.state import watcher_heartbeat
from mirror_core.state.journal import make_checkpoint
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.record_encoding import parse_mirror_name
from mirror_core.state.state_records import State, StateRecord, format_key
from mirror_core.state.watcher_heartbeat import WatcherHeartbeats, find_watcher_status
from tests.support.cluster_names import LINK
from tests.support.failback_views import view as failback_view  # noqa: F401 - a fixture
from tests.support.fence_states import LIFTING, OWED, STANDS, WATCHED
from tests.support.memory_state import MemoryAside, MemoryLog, fold
from tests.support.plan_views import view  # noqa: F401 - a fixture
from tests.support.sentences import format_sentence

NAME = LINK.mirror.name
NOW = 1_000_000_000
LEFT = replace(OWED, since_ms=NOW - 3_600_000)
SIGN = WatcherHeartbeat(by="mirrorbook mirror watch", host="desk", pid=7, at_ms=NOW, interval_s=60.0)


def of(debt: PendingFence | None, seconds: float | None, left_s: float = 3600.0) -> WatcherState:
    """`seconds`: so long ago the newest watcher gave a sign of life; `left_s`: so long ago a run left the cluster."""
    sign = None if seconds is None else replace(SIGN, at_ms=NOW - round(seconds * 1000))
    since = replace(debt, since_ms=NOW - round(left_s * 1000)) if debt else None
    return decide_watcher_status(NAME, since, sign, NOW).state


@pytest.mark.parametrize(
    ("seconds", "left_s", "watching"),
    [
        (None, 3600, WatcherState.UNKNOWN),
        (None, WATCHER_GRACE_S, WatcherState.AWAITED),
        (None, WATCHER_GRACE_S + 1, WatcherState.UNKNOWN),
        (None, -60, WatcherState.UNKNOWN),
        (0, 3600, WatcherState.ALIVE),
        (180, 3600, WatcherState.ALIVE),
        (181, 3600, WatcherState.MISSING),
        (181, WATCHER_GRACE_S, WatcherState.AWAITED),  # it watched behind an earlier failover
        (-1, 3600, WatcherState.ALIVE),  # clocks that NTP keeps differ by so much
        (-2, 3600, WatcherState.ALIVE),  # its clock is ahead: it wrote that at most so long ago, and a moment
        (-60, 3600, WatcherState.ALIVE),
        (-61, 3600, WatcherState.UNKNOWN),
        (-61, WATCHER_GRACE_S, WatcherState.UNKNOWN),
    ],
)
@pytest.mark.parametrize("debt", [OWED, STANDS, WATCHED, LIFTING])
def test_somebody_has_to_watch_while_a_fence_is_pending_or_stands(
    debt: PendingFence, seconds: float | None, left_s: float, watching: WatcherState
) -> None:
    assert of(debt, seconds, left_s) is watching


@pytest.mark.parametrize(
    ("seconds", "left_s", "watching"),
    [(0, 3600, WatcherState.MISSING), (5, 60, WatcherState.MISSING), (90, 60, WatcherState.AWAITED)],
)
def test_a_watcher_that_was_stopped_watches_no_more(seconds: float, left_s: float, watching: WatcherState) -> None:
    sign = replace(SIGN, at_ms=NOW - round(seconds * 1000), ended=True)
    since = replace(OWED, since_ms=NOW - round(left_s * 1000))
    assert decide_watcher_status(NAME, since, sign, NOW).state is watching


@pytest.mark.parametrize("seconds", [None, 0, 3600, -60])
def test_where_no_fence_is_pending_nobody_has_to(seconds: float | None) -> None:
    assert of(None, seconds) is WatcherState.NOT_NEEDED
    found = decide_watcher_status(NAME, None, None, NOW)
    assert (str(found), found.alarms) == ("not needed", ())
    assert decide_watcher_status(MirrorName("drill.m"), OWED, None, NOW).state is WatcherState.NOT_NEEDED


def make_unwatched(state: WatcherState, debt: PendingFence, **values: object) -> Finding:
    known = {"watcher": "", "host": "", "pid": 0, "since_ms": debt.since_ms, "seen_ms": 0, **values}
    fence_state = find_fence_state(debt)
    return Finding("source_unwatched", "east", mirror=NAME, watcher_state=state, fence_state=fence_state, **known)


SIGNED: dict[str, object] = {"watcher": SIGN.by, "host": "desk", "pid": 7}


@pytest.mark.parametrize("debt", [LEFT, *(replace(debt, since_ms=0) for debt in (STANDS, WATCHED, LIFTING))])
def test_people_are_told_since_when_and_what_to_do(debt: PendingFence) -> None:
    at_ms = NOW - 600_000
    [alarm] = decide_watcher_status(NAME, debt, replace(SIGN, at_ms=at_ms), NOW).alarms
    assert alarm == make_unwatched(WatcherState.MISSING, debt, **SIGNED, since_ms=at_ms, seen_ms=at_ms)
    assert "`mirrorbook mirror watch m`" in render_finding(alarm)


def test_a_watcher_of_before_the_failover_is_missed_since_the_failover() -> None:
    [alarm] = decide_watcher_status(NAME, LEFT, replace(SIGN, at_ms=0), NOW).alarms
    assert alarm == make_unwatched(WatcherState.MISSING, LEFT, **SIGNED)


def test_what_is_not_known_is_told_with_its_reason() -> None:
    assert decide_watcher_status(NAME, LEFT, None, NOW).alarms == (make_unwatched(WatcherState.UNKNOWN, LEFT),)
    at_ms = NOW + 90_000
    assert decide_watcher_status(NAME, LEFT, replace(SIGN, at_ms=at_ms), NOW).alarms == (
        make_unwatched(WatcherState.UNKNOWN, LEFT, **SIGNED, since_ms=at_ms, seen_ms=at_ms),
    )
    well = decide_watcher_status(NAME, LEFT, replace(SIGN, at_ms=NOW - 4_000), NOW)
    assert (well.finding, well.alarms) == (Finding("source_watched", "east", **SIGNED, silent_s=4.0), ())
    new = decide_watcher_status(NAME, replace(LEFT, since_ms=NOW - 30_000), None, NOW)
    assert (new.finding, new.alarms) == (Finding("watcher_awaited", "east", age_s=30.0, run="r"), ())


def test_plans_warn_of_it(view: MirrorSnapshot, failback_view: FailbackSnapshot) -> None:  # noqa: F811
    alarms = decide_watcher_status(NAME, LEFT, None, NOW).alarms
    assert {*alarms} <= {*list_plan_warnings(replace(view, watcher_alarms=alarms))}
    assert {*alarms} <= {*failback(replace(failback_view, watcher_alarms=alarms)).plan.warnings}
    assert "" not in [*map(str, list_plan_warnings(view)), *failback(failback_view).plan.warnings]


# -- in the state topic ----------------------------------------------------------------------------------------------


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
def aside(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> MemoryAside:
    made = MemoryAside(log)
    monkeypatch.setattr(watcher_heartbeat, "NonFencingWriter", lambda cluster: made)
    return made


def test_a_sign_of_life_is_read_as_it_was_given(log: MemoryLog, aside: MemoryAside) -> None:
    log.put(LEFT)
    with WatcherHeartbeats(LINK.destination, "DAG mirror_watch", 75.0) as signs:
        signs.send(NAME)
        signs.send(MirrorName("drill.m"))
    [given] = log.state.checkpoints.values()
    read = fold([*State().to_rows(LEFT), *State().to_rows(given)])
    sign = find_watcher_heartbeat(NAME, read.checkpoints)
    assert sign is not None
    assert (sign.by, sign.interval_s) == ("DAG mirror_watch", 75.0)
    assert str(find_watcher_status(read, NAME, None)).startswith(
        f"DAG mirror_watch on {sign.host} (process {sign.pid}), seen 0."
    )
    assert find_watcher_status(fold(State().to_rows(LEFT)), NAME, None).state is WatcherState.UNKNOWN, (
        "an older version's state"
    )


def test_no_version_is_held_up_by_a_sign_of_life_that_it_cannot_read() -> None:
    newer = replace(make_checkpoint(NAME, WATCHER_STEP, SIGN), version=SIGN.VERSION + 1)
    broken = replace(make_checkpoint(NAME, WATCHER_STEP, SIGN), value="{")
    key = format_key(newer)
    odd = [make_checkpoint(NAME, WATCHER_STEP, replace(SIGN, at_ms=at_ms)) for at_ms in (-(10**17), 10**17)]
    endless = make_checkpoint(NAME, WATCHER_STEP, replace(SIGN, interval_s=1e9))
    for record in (newer, broken, *odd, endless):
        state = fold([*State().to_rows(LEFT), *State().to_rows(record)])
        assert find_watcher_status(state, NAME, None).state is WatcherState.UNKNOWN
        state.require_readable(NAME)
    state.apply(key, b"damaged")
    state.require_readable(NAME)  # not about a mirror that somebody wants to act on
    assert parse_mirror_name(key) is None


@pytest.mark.parametrize("here_h", [-2, 0, 2])
@pytest.mark.parametrize("there_h", [-2, 0, 2])
@pytest.mark.parametrize(("age_s", "state"), [(5, WatcherState.ALIVE), (3_000, WatcherState.MISSING)])
def test_a_watcher_is_judged_by_the_brokers_clock_however_wrong_others_are(
    here_h: int, there_h: int, age_s: int, state: WatcherState
) -> None:
    """`here_h`: how far this machine's clock is ahead; `there_h`: the watcher's, and that of who failed over."""
    hour_ms, brokers_ms = 3_600_000, 1_800_000_000_000
    sign = replace(SIGN, at_ms=brokers_ms - age_s * 1000 + there_h * hour_ms)
    left = replace(LEFT, since_ms=brokers_ms - hour_ms + there_h * hour_ms)
    read = State()
    for record, ago_s in ((left, 3_600), (make_checkpoint(NAME, WATCHER_STEP, sign), age_s)):
        for key, value in State().to_rows(record):
            read.apply(key, value, brokers_ms - ago_s * 1000)
    found = find_watcher_status(read, NAME, here_h * hour_ms, brokers_ms + here_h * hour_ms)
    assert found.state is state


def test_a_debt_that_cannot_be_read_is_not_taken_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from mirrorbook_airflow import mirror_lookup

    state = State()
    state.put(LEFT)
    state.apply(format_key(LEFT), b"of another version")
    status = find_watcher_status(state, NAME, None)
    assert status.state is WatcherState.UNKNOWN
    assert [(alarm.code, alarm.subject) for alarm in status.alarms] == [("watch_need_unknown", NAME)]
    monkeypatch.setattr(mirror_lookup, "_measure_clocks", lambda clusters: dict.fromkeys(clusters))
    monkeypatch.setattr(mirror_lookup, "_list_recorded_mirrors", lambda: iter([(state, LINK.mirror)]))
    [alarm] = mirror_lookup.list_unwatched_alarms(())
    assert alarm == f"mirror m: {status}"


def test_a_mirror_that_is_deleted_takes_its_signs_along(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def door(*asked: object) -> Iterator[MemoryLog]:
        yield log

    monkeypatch.setattr(mirror_commands, "take_control", door)
    other = make_checkpoint(MirrorName("other"), WATCHER_STEP, SIGN)
    log.put(replace(LINK.mirror, desired=DesiredState.STOPPED), make_checkpoint(NAME, WATCHER_STEP, SIGN), other)
    mirror_commands.delete_mirror(LINK)
    assert list(log.state.checkpoints.values()) == [other]


# -- who watches -----------------------------------------------------------------------------------------------------

PENDING = FenceDecision(state=FenceState.PENDING)
SILENT = replace(PENDING, is_silent=True, is_held_by_run=True)
NOTHING = FenceDecision(state=FenceState.NONE)


class Watch:
    """`standing.watch`, at these findings one after the other; so many seconds pass with each look."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *found: FenceDecision | MirrorError, seconds: float = 10.0
    ) -> None:
        self.now_s = 1.0
        left, stop = iter(found), threading.Event()

        def look(link: MirrorLink) -> FenceDecision:
            self.now_s += seconds
            one = next(left)
            if isinstance(one, MirrorError):
                raise one
            return one

        monkeypatch.setattr(fence_watcher, "check_fence", look)
        monkeypatch.setattr(fence_watcher, "wait_for_answer", lambda link, stop: False)
        monkeypatch.setattr(fence_watcher, "FENCE_CHECK_INTERVAL_S", 0.0)
        monkeypatch.setattr(fence_watcher, "HELD_CHECK_INTERVAL_S", 0.0)
        monkeypatch.setattr(watcher_heartbeat, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        self.told = list[FenceDecision]()
        fence_watcher.watch_fence(LINK, stop, self.told.append)


def test_a_watcher_gives_a_sign_of_life_at_most_every_half_minute_also_when_the_source_is_silent(
    log: MemoryLog, aside: MemoryAside, monkeypatch: pytest.MonkeyPatch
) -> None:
    Watch(monkeypatch, *[PENDING] * 4, NOTHING)
    assert len(log.keys) == 2, "after 10 s and after 40 s"
    Watch(monkeypatch, SILENT, SILENT, NOTHING, seconds=60.0)
    assert len(log.keys) == 4
    assert set(log.keys) == {f"checkpoint/{NAME}/{WATCHER_STEP}/WatcherHeartbeat"}


def test_a_watcher_that_is_stopped_says_so(log: MemoryLog, aside: MemoryAside, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    monkeypatch.setattr(fence_watcher, "check_fence", lambda link: PENDING)
    fence_watcher.watch_fence(LINK, stop, lambda decision: stop.set())
    heartbeat = find_watcher_heartbeat(NAME, log.state.checkpoints)
    assert heartbeat is not None
    assert heartbeat.ended


def test_who_has_nothing_to_watch_or_does_not_see_the_state_gives_none(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher_heartbeat, "NonFencingWriter", None)
    Watch(monkeypatch, Unreachable("west does not answer"), NOTHING)
    assert log.keys == []


def test_a_watcher_whose_signs_are_not_taken_watches_on_and_says_so(
    log: MemoryLog, aside: MemoryAside, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    aside.refuses = "TOPIC_AUTHORIZATION_FAILED"
    watch = Watch(monkeypatch, PENDING, PENDING, NOTHING, seconds=30.0)
    assert (watch.told, log.keys) == ([PENDING, PENDING, NOTHING], [])
    said = format_sentence("watcher_heartbeat_not_written")
    assert caplog.text.count(said) == 2
    assert "TOPIC_AUTHORIZATION_FAILED" in caplog.text

    def none(cluster: object) -> None:
        raise ValueError("hush")

    monkeypatch.setattr(watcher_heartbeat, "NonFencingWriter", none)
    assert len(Watch(monkeypatch, PENDING, NOTHING).told) == 2
    assert caplog.text.count(said) == 3
    assert "hush" not in caplog.text


def test_a_watcher_whose_last_sign_is_not_answered_leaves_no_client_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher_heartbeat, "_FLUSH_TIMEOUT_S", 0.1)
    silent = socket.create_server(("127.0.0.1", 0))
    where = {"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}"}
    cluster = replace(LINK.destination, control=where)
    with silent, WatcherHeartbeats(cluster, "x", 60.0) as signs:
        signs.send(NAME)
        left = weakref.ref(signs._writer)
        assert left() is not None
    del signs
    gc.collect()
    assert left() is None, "its threads and sockets stay with it"


def test_a_client_whose_sign_was_lost_is_made_anew(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """It loads its certificate once: looks, which load it each time, go on when that was renewed."""
    made = list[MemoryAside]()

    def new(cluster: object) -> MemoryAside:
        made.append(MemoryAside(log))
        made[-1].refuses = "_MSG_TIMED_OUT" if len(made) == 1 else ""
        return made[-1]

    monkeypatch.setattr(watcher_heartbeat, "NonFencingWriter", new)
    Watch(monkeypatch, *[PENDING] * 6, NOTHING, seconds=30.0)
    assert len(made) == 2
    assert log.keys, "signs of the second client"


def test_a_watcher_at_work_with_a_slow_fence_command_is_not_missed(
    log: MemoryLog, aside: MemoryAside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to 10 minutes, in which no look ends: `timeout_s` of `fence_command`."""
    hook = Hook(name="fence_command", call=HookCommand(argv=("close",)), timeout_s=600.0)
    ruling = AuthorizerConfig(authorizer=AuthorizerKind.FOREIGN, fence_command=hook, unfence_command=hook)
    monkeypatch.setattr(sys.modules[__name__], "LINK", replace(LINK, source=replace(LINK.source, ruling=ruling)))
    Watch(monkeypatch, SILENT, NOTHING)
    sign = find_watcher_heartbeat(NAME, log.state.checkpoints)
    assert sign is not None
    later_ms = sign.at_ms + 500_000
    assert decide_watcher_status(NAME, replace(LEFT, since_ms=0), sign, later_ms).state is WatcherState.ALIVE


def test_of_many_mirrors_those_that_were_looked_at_are_told_each_on_its_own_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logs = {name: MemoryLog() for name in ("west", "north")}
    monkeypatch.setattr(watcher_heartbeat, "NonFencingWriter", lambda cluster: MemoryAside(logs[cluster.name]))

    def link(name: str, destination: str) -> MirrorLink:
        side = replace(LINK.destination, name=ClusterName(destination))
        return replace(LINK, mirror=replace(LINK.mirror, name=MirrorName(name)), destination=side)

    found: dict[str, Any] = {"a": PENDING, "b": SILENT, "c": NOTHING, "d": Indeterminate("broken"), "e": PENDING}
    links = [link(name, "north" if name == "e" else "west") for name in found]
    fence_watcher.record_watched(links, found, "DAG mirror_watch", 60.0)  # type: ignore[arg-type]
    assert logs["west"].keys == [f"checkpoint/{name}/{WATCHER_STEP}/WatcherHeartbeat" for name in ("a", "b")]
    assert logs["north"].keys == [f"checkpoint/e/{WATCHER_STEP}/WatcherHeartbeat"]


@pytest.mark.parametrize(
    ("records", "alarms"), [((), 0), ((LEFT,), 1), ((LEFT, make_checkpoint(NAME, WATCHER_STEP, SIGN)), 1)]
)
def test_the_hourly_task_is_red_where_nobody_watches(
    monkeypatch: pytest.MonkeyPatch, records: tuple[StateRecord, ...], alarms: int
) -> None:
    from airflow.sdk.exceptions import AirflowFailException
    from mirrorbook_airflow import mirror_lookup
    from mirrorbook_airflow.fence_watch import CheckWatchers

    state = State()
    for one in records:
        state.put(one)
    monkeypatch.setattr(mirror_lookup, "_measure_clocks", lambda clusters: dict.fromkeys(clusters))
    monkeypatch.setattr(mirror_lookup, "_list_recorded_mirrors", lambda: iter([(state, LINK.mirror)]))
    task = CheckWatchers(task_id="watchers")
    assert len(mirror_lookup.list_unwatched_alarms(())) == len(mirror_lookup.list_unwatched_alarms([NAME])) == alarms
    assert mirror_lookup.list_unwatched_alarms(["other"]) == []
    context: Any = {"params": {"mirrors": []}}
    if not alarms:
        task.execute(context)
        return
    with pytest.raises(AirflowFailException, match=r"mirror m: .*(watches|watched) cluster east"):
        task.execute(context)
