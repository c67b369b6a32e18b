"""Whose word is believed of mirrors that are looked at again and again: by the metrics' server, and by the DR page."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.cli import readiness as cli
from mirror_core.decide.failover_plan import PlanDecision, decide_failover
from mirror_core.decide.failover_readiness import FreshnessKind, Readiness, UnplannedForecast
from mirror_core.decide.mirror_snapshot import StandstillForecast, UnseenCluster
from mirror_core.decide.process_liveness import CONDUCTOR_STEP, WatcherState, format_heartbeat_step
from mirror_core.decide.process_liveness import WATCHER_STEP as WATCH
from mirror_core.kafka.config import Config
from mirror_core.mirrors.readiness_metrics import ReadinessCollector
from mirror_core.model.errors import MirrorError, Unreachable
from mirror_core.model.mirror import DesiredState, GroupSyncTime, Lease
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.pending_fence import FenceAction, PendingFence
from mirror_core.model.run_checkpoints import RunHeartbeat, WatcherHeartbeat
from mirror_core.model.timing import now_ms
from mirror_core.page import poller
from mirror_core.runbook import readiness_report
from mirror_core.state.journal import make_checkpoint
from mirror_core.state.state_records import State, format_key
from tests.support.cluster_names import LINK
from tests.support.mirror_views import RUN
from tests.support.page_views import NO_CLUSTERS
from tests.support.readiness_views import VIEW

BOTH = Config(Path("mirrorbook.yaml"), {side.name: side for side in (LINK.source, LINK.destination)})
EAST, WEST = LINK.source.name, LINK.destination.name
STARTED = replace(LINK.mirror, desired=DesiredState.STARTED)


def state_of(*records: Any) -> State:
    made = State()
    for one in records:
        made.put(one)
    return made


class Served:
    """The server's own loop, with these answers at each look; it ends after the last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: dict[ClusterName, State | MirrorError]) -> None:
        self.shown, self.said, self.current = ReadinessCollector(), list[str](), list[bool]()
        stop, left = threading.Event(), iter(answers)

        def states(config: Config) -> Iterator[tuple[ClusterName, State | MirrorError]]:
            return iter(next(left).items())

        def told(found: Iterator[Readiness]) -> None:
            self.shown.update(found)
            if not answers[self._looks() :]:
                stop.set()

        @contextmanager
        def served(*given: object) -> Iterator[None]:
            yield

        self._count = 0
        monkeypatch.setattr(cli, "read_states", states)
        monkeypatch.setattr(cli, "serve_metrics", served)
        monkeypatch.setattr(cli, "print_line", lambda line, **more: self.said.append(line))
        monkeypatch.setattr(cli, "ReadinessCollector", lambda: SimpleNamespace(update=told))
        monkeypatch.setattr(cli, "LOOK_INTERVAL_S", 0.0)
        monkeypatch.setattr(cli, "threading", SimpleNamespace(Event=lambda: stop))
        monkeypatch.setattr(cli, "signal", SimpleNamespace(signal=lambda *given: None, SIGTERM=15, SIGINT=2))
        monkeypatch.setattr(cli, "_make_services", lambda path: None)
        monkeypatch.setattr(cli, "assess_readiness", self.look)

    def _looks(self) -> int:
        self._count += 1
        return self._count

    def look(
        self, link: Any, state: State, services: object, *, with_drift: bool, read_ms: int, current: bool
    ) -> Readiness:
        if link.mirror.name == "broken":
            raise ValueError("a step of another version")
        self.current.append(current)
        return Readiness(
            mirror=link.mirror,
            run_progress=None,
            points=(),
            figures={},
            unplanned=UnplannedForecast(refused=()),
            at_ms=1,
        )

    def desired(self) -> dict[str, float]:
        cli._serve_metrics(BOTH, ("", 0))
        samples = [s for one in self.shown.collect() if one.name == "mirrorbook_desired" for s in one.samples]
        return {f"{s.labels['mirror']} {s.labels['desired']}": s.value for s in samples if s.value}


@pytest.fixture(autouse=True)
def nobody_tells_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are no brokers."""
    monkeypatch.setattr(readiness_report, "measure_clock_ahead_ms", lambda cluster, timeout_s: None)
    monkeypatch.setattr(poller, "measure_clocks_ahead_ms", lambda config, clusters: dict.fromkeys(clusters))


def test_only_a_destination_is_believed_about_a_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    forged = state_of(replace(LINK.mirror, desired=DesiredState.STOPPED))
    served = Served(monkeypatch, {EAST: forged, WEST: state_of(STARTED)})
    assert served.desired() == {f"{LINK.mirror.name} STARTED": 1.0}


def test_a_mirror_that_cannot_be_judged_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(STARTED, name=MirrorName("broken"))
    served = Served(monkeypatch, {WEST: state_of(broken, STARTED)})
    assert served.desired() == {f"{LINK.mirror.name} STARTED": 1.0}
    (said,) = served.said
    assert said.startswith("mirror broken: not looked at: a defect of Mirrorbook: ValueError")


def test_what_a_cluster_said_before_it_fell_silent_is_kept_and_known_to_be_old(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(monkeypatch, {WEST: state_of(STARTED)}, {WEST: Unreachable("west: no answer")})
    assert served.desired() == {f"{LINK.mirror.name} STARTED": 1.0}
    assert served.current == [True, False]


def test_by_an_old_state_nobody_is_said_not_to_conduct(monkeypatch: pytest.MonkeyPatch) -> None:
    """The conductor may be at work: it is this host that does not hear the destination any more."""

    def silent(*given: object, **more: object) -> State:
        raise Unreachable("west: no answer")

    monkeypatch.setattr("mirror_core.runbook.failover_conductor.read_state", silent)
    beat = RunHeartbeat(
        token="t", by=RUN.conducted_by, host="elsewhere", boot_id="b", pid=99, start_ticks=1, at_ms=now_ms() - 200_000
    )
    state = state_of(
        LINK.mirror,
        RUN,
        make_checkpoint(RUN.id, CONDUCTOR_STEP, beat),
        make_checkpoint(RUN.id, format_heartbeat_step("t"), beat),
    )
    services: Any = None
    assert readiness_report.assess_readiness(LINK, state, services, with_drift=False).is_conducted is False
    assert (
        readiness_report.assess_readiness(LINK, state, services, with_drift=False, current=False).is_conducted is None
    )


def test_the_page_describes_a_mirror_by_the_word_of_its_destination(monkeypatch: pytest.MonkeyPatch) -> None:
    forged, real = state_of(replace(LINK.mirror, desired=DesiredState.STOPPED)), state_of(STARTED)
    monkeypatch.setattr(poller, "read_states", lambda config: iter([(EAST, forged), (WEST, real)]))
    page = poller.ClusterPoller(replace(NO_CLUSTERS, load_config=lambda: BOTH))
    page._poll_clusters()
    link, state = page._find_link(LINK.mirror.name)
    assert state is real
    assert link.mirror.desired is DesiredState.STARTED


def test_signs_are_as_old_as_they_were_when_the_state_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """With many mirrors of a dead site a round of looks takes minutes: none was read meanwhile."""
    debt = PendingFence(
        mirror=LINK.mirror.name, cluster=EAST, action=FenceAction.APPLY, run="r", since_ms=now_ms() - 3_600_000
    )
    read_ms = now_ms() - 170_000
    sign = WatcherHeartbeat(by="DAG mirror_watch", host="desk", pid=7, at_ms=read_ms - 20_000, interval_s=60.0)
    known = state_of(STARTED, debt, make_checkpoint(LINK.mirror.name, WATCH, sign))

    class Silent:
        def __init__(self, *given: object, **more: object) -> None: ...

        def decide_both_modes(self) -> None:
            raise Unreachable("east does not answer")

    monkeypatch.setattr(readiness_report, "Failover", Silent)
    found = readiness_report.assess_readiness(LINK, known, None, with_drift=False, read_ms=read_ms)  # type: ignore[arg-type]
    assert found.watcher is not None
    assert found.watcher.state is WatcherState.ALIVE
    assert found.predicted_s is None, "no plan could be made"


@pytest.mark.parametrize(("forecast", "seconds"), [(StandstillForecast(2.5, "last drill"), 2.5), (None, None)])
def test_a_look_knows_what_never_was_and_how_long_a_failover_would_take(
    monkeypatch: pytest.MonkeyPatch, forecast: StandstillForecast | None, seconds: float | None
) -> None:
    class Foreseen:
        def __init__(self, *given: object, **more: object) -> None: ...

        def decide_both_modes(self) -> tuple[PlanDecision, UnplannedForecast]:
            return decide_failover(replace(VIEW, forecast=forecast)), UnplannedForecast(refused=())

    monkeypatch.setattr(readiness_report, "Failover", Foreseen)
    synced = GroupSyncTime(mirror=LINK.mirror.name, synced_ms=4_000, followed=True)
    found = readiness_report.assess_readiness(LINK, state_of(STARTED, synced), None, with_drift=False)  # type: ignore[arg-type]
    assert found.predicted_s == seconds
    assert found.newest_ms == {FreshnessKind.GROUPS: 4_000, FreshnessKind.DRILL: None}, (
        "there is no partition to compare"
    )


@pytest.mark.parametrize(("moved", "looked_at"), [(False, [WEST]), (True, [])])
def test_a_silent_source_is_told_of_once_and_a_moved_mirror_of_no_drift(
    monkeypatch: pytest.MonkeyPatch, moved: bool, looked_at: list[str]
) -> None:
    class Dead:
        def __init__(self, *given: object, **more: object) -> None: ...

        def decide_both_modes(self) -> tuple[PlanDecision, UnplannedForecast]:
            return decide_failover(replace(VIEW, source=UnseenCluster("refused"))), UnplannedForecast(refused=())

    looked = list[str]()

    def look(side: Any) -> Any:
        looked.append(side.name)
        return SimpleNamespace(rights=(), expiring_producers=())

    monkeypatch.setattr(readiness_report, "Failover", Dead)
    monkeypatch.setattr(readiness_report, "check_cluster", look)
    fence = PendingFence(mirror=LINK.mirror.name, cluster=EAST, action=FenceAction.APPLY, run="r", since_ms=1)
    link = replace(LINK, mirror=replace(STARTED, desired=DesiredState.STOPPED) if moved else STARTED)
    state = state_of(link.mirror, *([fence] if moved else []))
    found = readiness_report.assess_readiness(link, state, None, with_drift=True)  # type: ignore[arg-type]
    assert looked == looked_at
    assert sum("refused" in str(point) for point in found.points) == 1


def test_a_state_topic_that_lost_its_beginning_is_a_point_of_readiness() -> None:
    def find_codes(state: State) -> set[str]:
        points = readiness_report.find_recorded_points(LINK.mirror.name, state, now_ms())
        return {point.finding.code for point in points if point.remedy}

    assert find_codes(State(log_start_offset=7)) - find_codes(State()) == {"state_records_deleted"}


def test_a_mirror_that_was_restored_to_another_state_topic_is_a_point_of_readiness() -> None:
    def find_codes(recorded_in: str, topic_id: str) -> set[str]:
        state = State(topic_id=topic_id)
        state.put(replace(STARTED, state_topic_id=recorded_in))
        points = readiness_report.find_recorded_points(STARTED.name, state, now_ms())
        return {point.finding.code for point in points if point.remedy}

    assert find_codes("a", "b") - find_codes("a", "a") == {"state_topic_replaced"}
    assert find_codes("", "b") == find_codes("a", "") == find_codes("a", "a"), "of older mirrors nobody knows"


@pytest.mark.parametrize("writer_ahead_ms", [0, 7_200_000, -7_200_000])
def test_a_sync_is_as_old_as_its_beginning_however_long_it_took(writer_ahead_ms: int) -> None:
    """By the clock of the lease's owner, which may be wrong."""
    now, name = now_ms(), LINK.mirror.name
    lease = Lease(mirror=name, owner="o", generation=1, heartbeat_ms=now + writer_ahead_ms, writers_until_ms=now)
    groups = GroupSyncTime(mirror=name, synced_ms=now - 720_000 + writer_ahead_ms, followed=False)
    state = state_of(lease, groups)
    state.append_times |= {format_key(lease): now, format_key(groups): now}
    points = {point.finding.code: point.finding for point in readiness_report.find_recorded_points(name, state, now)}
    assert points["done_long_ago"].values["kind"] == FreshnessKind.GROUPS
