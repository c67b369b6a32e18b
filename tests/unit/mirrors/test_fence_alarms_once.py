"""An alarm that no later look would find again is told until it is noted that somebody was: never less than once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.decide.fence_state import FenceDecision, FenceObservation, decide_fence
from mirror_core.mirrors import fence_watcher
from mirror_core.mirrors.fence_watcher import check_fence, record_reported
from mirror_core.model.config_sections import WriteBarrier
from mirror_core.model.errors import Unreachable
from mirror_core.model.names import Offset
from mirror_core.model.pending_fence import PendingFence
from mirror_core.state import watcher_heartbeat
from mirror_core.state.state_records import PartitionRecord
from tests.support.cluster_names import LINK
from tests.support.fence_states import OWED, STANDS, WELL, P, status
from tests.support.memory_state import MemoryAside, MemoryLog
from tests.support.mirror_views import RUN

SLIPPED = "has what west never had"
LIFTED = "was removed and is applied again"


class Killed(BaseException):
    """The process ends here."""


class World:
    """A source that answers, the state of its mirror, and watchers that may die before any write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, debt: PendingFence) -> None:
        self.log = MemoryLog()
        self.log.put(LINK.mirror, PartitionRecord(LINK.mirror.name, status(P, 97)), debt)
        self.bare: tuple[str, ...] = ()
        self.dies: Callable[[PendingFence], bool] = lambda debt: False
        """Before this is written."""
        self.held = False
        for name, stands_in in {
            "read_state": lambda cluster: self.log.state,
            "take_control": self._door,
            "ClusterClient": _Client,
            "check_source_id": lambda link, client: None,
            "observe_fence": lambda *asked: replace(WELL, unfenced_brokers=self.bare),
            "list_fence_denials": lambda *asked: set(),
            "deny_all_writers": self._keep_out,
            "wait_until_still": lambda *asked: {P: Offset(100)},
            "list_since_offsets": lambda *asked: {},
            "with_uncopied": lambda link, log, source, fence, recorded: fence,
            "copy_announcement": lambda *asked: None,
            "read_active_cluster": lambda *asked: None,
        }.items():
            monkeypatch.setattr(fence_watcher, name, stands_in)
        monkeypatch.setattr(watcher_heartbeat, "NonFencingWriter", lambda cluster: MemoryAside(self.log))

    @contextmanager
    def _door(self, *asked: object) -> Iterator[Any]:
        def put(debt: PendingFence) -> None:
            if self.dies(debt):
                raise Killed
            self.log.put(debt)

        if self.held:
            raise Unreachable("west does not answer")
        yield SimpleNamespace(state=self.log.state, put=put, now_ms=self.log.now_ms)

    def _keep_out(self, *asked: object) -> frozenset[Any]:
        self.bare = ()
        return frozenset()

    def look(self) -> FenceDecision:
        return check_fence(LINK)

    @property
    def debt(self) -> PendingFence:
        return self.log.state.pending_fences[LINK.mirror.name]


class _Client:
    def __init__(self, *args: object, **options: object) -> None: ...

    def __enter__(self) -> _Client:
        return self

    def __exit__(self, *exc: object) -> None: ...


@pytest.mark.parametrize(
    ("debt", "bare", "words"),
    [
        (OWED, (), SLIPPED),
        (replace(STANDS, log_ends=replace(STANDS.log_ends, topics=())), (), SLIPPED),
        (STANDS, ("broker 1: 1 denial gone",), LIFTED),
    ],
    ids=["fenced", "a late broker", "taken away"],
)
def test_a_watcher_that_dies_before_it_tells_leaves_the_alarm_to_the_next_look(
    monkeypatch: pytest.MonkeyPatch, debt: PendingFence, bare: tuple[str, ...], words: str
) -> None:
    world = World(monkeypatch, debt)
    world.bare = bare
    first = world.look()
    assert words in "".join(first.alarms)
    second = world.look()  # the first watcher was killed when it had written, and before it told anybody
    assert second.alarms == first.alarms
    assert second.one_time_alarms == first.one_time_alarms
    record_reported(LINK, second.one_time_alarms)
    assert world.look().alarms == ()
    assert world.debt.unreported == ()
    assert world.debt.log_ends == STANDS.log_ends


def test_denials_that_are_put_up_again_are_noted_before_no_look_can_miss_them(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, STANDS)
    world.bare = ("broker 1: 1 denial gone",)
    seen = list[tuple[str, ...]]()

    def put_up(*asked: object) -> frozenset[Any]:
        seen.append(world.debt.unreported)
        world.bare = ()
        raise Killed

    monkeypatch.setattr(fence_watcher, "deny_all_writers", put_up)
    with pytest.raises(Killed):
        world.look()
    assert LIFTED in "".join(seen[0])
    assert LIFTED in "".join(world.look().alarms)


def test_what_cannot_be_noted_is_told_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, OWED)
    found = world.look()
    world.held = True
    record_reported(LINK, found.one_time_alarms)
    world.held = False
    assert world.look().alarms == found.alarms


def test_who_tells_first_hides_no_alarm_that_has_come_since(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, replace(STANDS, unreported=("an older one", "a newer one")))
    record_reported(LINK, ["an older one"])
    assert world.look().alarms == ("a newer one",)


def test_beside_a_run_nobody_is_told_again_since_nobody_could_note_it() -> None:
    debt = replace(STANDS, unreported=("told already, as far as anybody knows",))
    found = decide_fence(
        debt, RUN, FenceObservation(barred=WriteBarrier.DENY_ACLS, log_ends=WELL.log_ends), during_run=True
    )
    assert (found.alarms, found.one_time_alarms) == ((), ())
    assert decide_fence(debt, None, WELL).alarms == debt.unreported


@pytest.mark.parametrize("killed", ["before it is noted", "after it is noted", "never"])
def test_airflows_task_is_red_whenever_it_was_killed_before(monkeypatch: pytest.MonkeyPatch, killed: str) -> None:
    from airflow.sdk.exceptions import AirflowFailException
    from mirrorbook_airflow import fence_watch as tasks

    world = World(monkeypatch, OWED)
    run = SimpleNamespace(conf=None)
    context: Any = {"dag_run": run, "ti": SimpleNamespace(xcom_push=lambda key, value: None)}
    watch = tasks.WatchFences(task_id="watch")
    monkeypatch.setattr(tasks, "list_watched_links", lambda names: [LINK])
    world.look()  # a look that was killed after it had written
    found = tasks.probe_watched([])
    event = {"lines": found.lines, "alarms": found.alarms, "repeated_alarms": found.repeated_alarms}

    def dies(debt: PendingFence) -> bool:
        if killed == "after it is noted":
            world.log.put(debt)
        return killed != "never"

    world.dies = dies
    with pytest.raises(AirflowFailException if killed == "never" else Killed):
        watch.finish(context, event)
    world.dies = lambda debt: False
    with pytest.raises(AirflowFailException, match=SLIPPED):
        watch.finish(context, event)  # its next try has the same event
    assert not tasks.probe_watched([]).alarms
