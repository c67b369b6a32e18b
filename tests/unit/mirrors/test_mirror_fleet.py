"""Several mirrors of one process: each ends and begins alone; what they tell is told together. No cluster is asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from mirror_core.dataplane.counters import Counters
from mirror_core.dataplane.driver import ReplicationOptions
from mirror_core.dataplane.progress import ProgressTracker, TaskProgress, sum_totals
from mirror_core.dataplane.prometheus_collector import MetricsCollector
from mirror_core.dataplane.task_runner import LocalRunner, RunnerGone
from mirror_core.mirrors import mirror_fleet
from mirror_core.mirrors.mirror_fleet import NO_TOTALS, Fleet, FleetMember
from mirror_core.model.errors import LostOwnership, Unreachable
from mirror_core.model.names import MirrorName
from mirror_core.state.mirror_link import MirrorLink
from tests.support.checked_threads import Work
from tests.support.metric_reports import MIRROR
from tests.support.sentences import format_sentence
from tests.support.waiting import patience, wait_until

TIMEOUT_S = patience(30.0)


class Scene:
    """A fleet on a thread of its own, whose members do what a test says instead of copying."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **actions: Callable[[], None]) -> None:
        self.stop = threading.Event()
        self.said: list[str] = []
        self.turns = dict.fromkeys(actions, 0)
        self.error: Exception | None = None

        def copied(member: FleetMember, link: MirrorLink) -> SimpleNamespace:
            self.turns[member.name] += 1
            actions[member.name]()
            return SimpleNamespace(failed={})

        monkeypatch.setattr(FleetMember, "_copy", copied)
        monkeypatch.setattr(mirror_fleet, "load_config", lambda path: None)
        monkeypatch.setattr(mirror_fleet, "find_mirror_link", lambda config, name: (None, None))
        monkeypatch.setattr(mirror_fleet, "check_may_run", lambda state, link: None)
        monkeypatch.setattr(mirror_fleet, "compute_next_delay_s", lambda code, ran_s, last_s: 0.01)
        members = [
            FleetMember(
                Path(), MirrorName(n), LocalRunner, ReplicationOptions(), stop=self.stop, print_line=self.said.append
            )
            for n in actions
        ]
        self.fleet = Fleet(members, self.stop)
        self.work = Work(self._run, "fleet").start()

    def _run(self) -> None:
        try:
            self.fleet.run()
        except RunnerGone as error:
            self.error = error

    def ends(self) -> None:
        self.work.join(TIMEOUT_S)


def failing(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


class _Counted(LostOwnership):
    """Says something else each time, as what counts seconds does."""

    asked = 0

    def __str__(self) -> str:
        self.asked += 1
        return f"{super().__str__()}, last heard of {self.asked} s ago"


def _wait(over: threading.Event) -> None:
    assert over.wait(TIMEOUT_S)


def test_whatever_ends_one_it_is_tried_again_said_once_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    errors = {"dead": Unreachable("no answer"), "taken": _Counted("another"), "ill": ValueError("a password")}
    actions = {name: failing(error) for name, error in errors.items()}
    scene = Scene(monkeypatch, well=lambda: _wait(over), **actions)
    try:
        wait_until(
            lambda: all(scene.turns[name] > 3 for name in errors), timeout_s=TIMEOUT_S, why="all are tried again"
        )
        assert scene.turns["well"] == 1
    finally:
        scene.stop.set()
        over.set()
        scene.ends()
    assert scene.error is None
    assert sorted(scene.said) == [
        "dead: not copied now, tried again: no answer",
        format_sentence("not_copied_because_of_a_defect"),
        format_sentence("not_copied_since_taken", 1),
    ]


def test_when_what_runs_tasks_is_dead_all_end_for_a_new_process_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, one=lambda: None, gone=failing(RunnerGone("Spark's process has ended")))
    try:
        scene.ends()
    finally:
        scene.stop.set()
    assert isinstance(scene.error, RunnerGone)
    assert scene.turns["gone"] == 1


def test_metrics_of_all_stand_under_one_name_each_and_tell_which_mirror() -> None:
    def member(name: str, shown: Collector | None) -> FleetMember:
        return cast(FleetMember, SimpleNamespace(name=name, collector=shown, progress=None, earlier_totals=NO_TOTALS))

    both = [MetricsCollector(replace(MIRROR, name=MirrorName(n)), Counters(), ProgressTracker()) for n in ("a", "b")]
    told = Fleet([member("a", both[0]), member("b", both[1]), member("paused", None)], threading.Event())
    registry = CollectorRegistry()
    registry.register(told)
    text: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]
    families = list(text_string_to_metric_families(text.decode()))  # type: ignore[no-untyped-call]
    assert len(families) == len({family.name for family in families})
    found = [s.labels["mirror"] for f in families for s in f.samples if s.name == "mirrorbook_data_plane_info"]
    assert found == ["a", "b"]


def test_totals_are_those_of_all_and_unknown_stays_unknown() -> None:
    one, two = ProgressTracker(lambda: 100.0), ProgressTracker(lambda: 100.0)
    one.update(TaskProgress(task=0, t=100.0, rows=[("t", 0, 5, 8, 5, 50, 0, 0)]), 1)
    two.update(TaskProgress(task=0, t=100.0, rows=[("t", 0, 1, None, 1, 10, 0, 0)]), 1)
    found = sum_totals([one.totals(), two.totals()])
    assert (found.partitions, found.unknown, found.lag, found.records, found.bytes) == (2, 1, 3, 6, 60)
    assert sum_totals([]).partitions == 0


@pytest.mark.parametrize("rate", [None, 50_000_000])
def test_each_of_several_mirrors_is_compared_beside_its_copying_at_the_rate_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, rate: int | None
) -> None:
    begun, synced = list[int](), list[object]()

    def proof(link: MirrorLink, bytes_per_s: int, *_: object) -> nullcontext[None]:
        begun.append(bytes_per_s)
        return nullcontext()

    def copying(*_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(run=lambda: SimpleNamespace(failed={}))

    def sync(link: object, *_: object) -> nullcontext[None]:
        synced.append(link)
        return nullcontext()

    monkeypatch.setattr(mirror_fleet, "BackgroundVerification", proof)
    monkeypatch.setattr(mirror_fleet, "BackgroundSync", sync)
    monkeypatch.setattr(mirror_fleet, "Replication", copying)
    stop, say = threading.Event(), list[str]().append
    member = FleetMember(
        Path(), MIRROR.name, LocalRunner, ReplicationOptions(), stop=stop, print_line=say, verify_bytes_per_s=rate
    )
    link = cast("MirrorLink", SimpleNamespace(mirror=MIRROR))
    member._copy(link)
    assert begun == ([rate] if rate else [])
    assert synced == [link], "with or without a rate"
