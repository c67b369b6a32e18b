"""Polls clusters once for all open pages: an unreachable one delays none."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Generic, TypeVar

from mirror_core.decide.failover_readiness import PointWeight, ReadinessPoint, list_drift_points
from mirror_core.kafka.config import Config
from mirror_core.mirrors.describe import describe_with_loss
from mirror_core.mirrors.mirror_facts import FactKey
from mirror_core.mirrors.old_source_fence import find_returned_source
from mirror_core.model.errors import BadRequest, MirrorError
from mirror_core.model.findings import Finding
from mirror_core.model.logs import get_logger
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.timing import now_ms
from mirror_core.page.plots import STEP_S, PrometheusHistory, fetch_samples
from mirror_core.page.snapshots import (
    ClusterSnapshot,
    ClusterSnapshots,
    MirrorAssessment,
    MirrorSample,
    MirrorView,
    is_loss_current,
)
from mirror_core.runbook.failback_conductor import Failback
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.runbook.readiness_report import find_missing_rights, find_recorded_points
from mirror_core.runbook.run_services import Services
from mirror_core.state.mirror_link import (
    MirrorLink,
    make_mirror_link,
    measure_clocks_ahead_ms,
    read_broker_time_ms,
    read_states,
)
from mirror_core.state.state_cache import STATE_CACHE
from mirror_core.state.state_records import State
from mirror_core.sync.mirror_sync import preview_sync

T = TypeVar("T")
IDLE_TIMEOUT_S: Final = 15.0
"""Polling ends when nobody asked for so long."""


class BackgroundPoller(Generic[T]):
    def __init__(
        self,
        poll: Callable[[], T],
        interval_s: float,
        *,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        context: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`context`: entered while polling."""
        self._poll = poll
        self._interval_s = interval_s
        self._idle_timeout_s = idle_timeout_s
        self._context = context
        self._lock = threading.Lock()
        self._requested_s = 0.0
        self._is_running = False
        self._latest: T | None = None

    def get_latest(self) -> T | None:
        """None before the first poll has ended."""
        with self._lock:
            self._requested_s = time.monotonic()
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="mirrorbook-page", daemon=True).start()
            return self._latest

    @property
    def is_wanted(self) -> bool:
        """Requested within the idle timeout: a long poll may stop otherwise."""
        return time.monotonic() - self._requested_s <= self._idle_timeout_s

    def _run(self) -> None:
        try:
            with self._context():
                wanted = True
                while wanted:
                    begun_s = time.monotonic()
                    result = self._poll()
                    with self._lock:
                        self._latest = result
                    time.sleep(max(0.0, begun_s + self._interval_s - time.monotonic()))
                    wanted = self._must_go_on()
        except BaseException:
            with self._lock:
                self._is_running = False  # whoever asks next begins anew
            raise

    def _must_go_on(self) -> bool:
        with self._lock:
            self._is_running = self.is_wanted
            return self._is_running


_log = get_logger(__name__)
POLL_INTERVAL_S: Final = 2.0
ASSESSMENT_INTERVAL_S: Final = 30.0
"""Plans and drift need many more requests."""
MAX_PARALLEL_MIRRORS: Final = 4
"""Per pair of clusters: an unreachable one delays no other."""
MAX_SAMPLES: Final = 1800
"""One hour at two seconds."""
MirrorRoute = tuple[ClusterName, ClusterName]
"""Source and destination."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PollerSettings:
    """From the process that serves the pages; read anew for every poll."""

    load_config: Callable[[], Config]
    """All clusters that it knows. Raises BadRequest."""
    list_unusable_clusters: Callable[[Path], Mapping[str, str]]
    """The configuration lacks them. Reasons by cluster."""
    make_services: Callable[[Path], Services]
    get_prometheus_address: Callable[[], str]
    """Empty: the past is unknown."""
    add_clusters_advice: str
    """How both clusters of a mirror become known."""


class ClusterPoller:
    def __init__(self, settings: PollerSettings) -> None:
        self._settings = settings
        self._cluster_poller = BackgroundPoller(self._poll_clusters, POLL_INTERVAL_S, context=STATE_CACHE.enable)
        self._lock = threading.Lock()
        self._cluster_snapshots: dict[ClusterName, ClusterSnapshot] = {}  # replaced as a whole, by one thread
        self._view_pollers: dict[MirrorName, BackgroundPoller[MirrorView]] = {}
        self._assessment_pollers: dict[MirrorName, BackgroundPoller[MirrorAssessment]] = {}
        self._readiness_pollers: dict[MirrorRoute, BackgroundPoller[None]] = {}
        self._readiness: dict[MirrorName, MirrorAssessment] = {}
        self._samples: dict[MirrorName, deque[MirrorSample]] = {}
        self._history_pollers: dict[MirrorName, BackgroundPoller[PrometheusHistory]] = {}
        self._slots: dict[MirrorRoute | None, threading.Semaphore] = {}

    def get_clusters(self) -> ClusterSnapshots | None:
        return self._cluster_poller.get_latest()

    def get_view(self, mirror: MirrorName) -> MirrorView | None:
        with self._lock:
            poller = self._view_pollers.setdefault(
                mirror, BackgroundPoller(partial(self._view_mirror, mirror), POLL_INTERVAL_S)
            )
        return poller.get_latest()

    def get_history(self, mirror: MirrorName) -> PrometheusHistory | None:
        """None without Prometheus, or before its first response."""
        address = self._settings.get_prometheus_address()
        if not address:
            return None
        with self._lock:
            poller = self._history_pollers.setdefault(
                mirror, BackgroundPoller(partial(_fetch_history, address, mirror), STEP_S)
            )
        return poller.get_latest()

    def get_assessment(self, mirror: MirrorName) -> MirrorAssessment | None:
        with self._lock:
            poller = self._assessment_pollers.setdefault(
                mirror, BackgroundPoller(partial(self._assess_mirror, mirror), ASSESSMENT_INTERVAL_S)
            )
        return poller.get_latest()

    def get_readiness(self, mirror: Mirror) -> MirrorAssessment | None:
        """Without drift and failback. Mirrors of one pair of clusters are assessed in turn."""
        route = mirror.source, mirror.destination
        with self._lock:
            poller = self._readiness_pollers.setdefault(
                route, BackgroundPoller(partial(self._assess_route, route), ASSESSMENT_INTERVAL_S)
            )
        poller.get_latest()
        return self._readiness.get(mirror.name)

    # -- looks, each in a thread of its own -----------------------------------------------------------------------

    def _poll_clusters(self) -> ClusterSnapshots:
        begun = now_ms()
        config = _run_poll(self._settings.load_config)
        if isinstance(config, PollFailure):
            self._cluster_snapshots = {
                name: replace(snapshot, links={}, unreachable_reason=config.text)
                for name, snapshot in self._cluster_snapshots.items()
            }
            return ClusterSnapshots(begun, self._cluster_snapshots, {}, config.text)
        states: dict[ClusterName, State] = {}
        unusable = self._settings.list_unusable_clusters(config.path)
        unreachable = {ClusterName(name): why for name, why in unusable.items()}
        for cluster, cluster_state in read_states(config):
            if isinstance(cluster_state, MirrorError):
                unreachable[cluster] = str(cluster_state)
            else:
                states[cluster] = cluster_state
        clocks = measure_clocks_ahead_ms(config, states)
        snapshots: dict[ClusterName, ClusterSnapshot] = {
            name: ClusterSnapshot(state, {}, begun, clock_ahead_ms=clocks[name]) for name, state in states.items()
        }
        snapshots |= {
            name: replace(self._cluster_snapshots[name], unreachable_reason=why)
            for name, why in unreachable.items()
            if name in self._cluster_snapshots
        }
        # Also of those that are silent: what is looked at is what the configuration says now, not what it said.
        self._cluster_snapshots = {
            name: replace(
                snapshot,
                links={
                    m.name: make_mirror_link(config, m)
                    for m in _list_mirrors_towards(name, snapshot.state, config.clusters)
                },
            )
            for name, snapshot in snapshots.items()
        }
        return ClusterSnapshots(
            begun, self._cluster_snapshots, unreachable, sets=tuple(config.sets.values()), copy_to=config.evidence_copy
        )

    def _view_mirror(self, mirror: MirrorName) -> MirrorView:
        with self._get_slot(mirror):
            begun = now_ms()
            described = _run_poll(lambda: describe_with_loss(*self._find_link(mirror), now_ms()))
            found = _run_poll(lambda: self._find_returned(mirror))
            returned = None if isinstance(found, PollFailure) else found
            if isinstance(described, PollFailure):
                samples = self._add_sample(mirror, MirrorSample(begun, None, None, None))
                return MirrorView(begun, None, None, samples, described.text, returned)
        description, loss = described
        positions = [row.position for row in description.rows]
        lag = description.facts[FactKey.LAG].value
        sample = MirrorSample(
            begun,
            lag if isinstance(lag, int) else None,
            loss.missing_in_all if is_loss_current(loss) else None,
            None if None in positions else sum(p or 0 for p in positions),
        )
        return MirrorView(begun, description, loss, self._add_sample(mirror, sample), returned=returned)

    def _find_returned(self, mirror: MirrorName) -> Finding | None:
        answering = {n: c.state for n, c in self._cluster_snapshots.items() if not c.unreachable_reason}
        return find_returned_source(self._find_link(mirror)[0], answering)

    def _assess_mirror(self, mirror: MirrorName) -> MirrorAssessment:
        with self._get_slot(mirror):
            readiness = self._assess_readiness(mirror)
            if readiness.decision is None:
                return readiness
            refusals = _run_poll(lambda: self._list_failback_refusals(mirror))
            failback = (refusals.text,) if isinstance(refusals, PollFailure) else refusals
            drift = _run_poll(lambda: preview_sync(*self._find_link(mirror)).rows)
            missing_rights = _run_poll(lambda: tuple(find_missing_rights(self._find_link(mirror)[0])))
        unknown = [
            ReadinessPoint(PointWeight.UNKNOWN, finding)
            for finding in (
                Finding("rights_unknown", mirror, reason=missing_rights.text)
                if isinstance(missing_rights, PollFailure)
                else None,
                Finding("drift_unknown", mirror, reason=drift.text) if isinstance(drift, PollFailure) else None,
            )
            if finding is not None
        ]
        points = (*readiness.points, *unknown, *(() if isinstance(missing_rights, PollFailure) else missing_rights))
        if isinstance(drift, PollFailure):
            return replace(readiness, failback_refusals=failback, drift_error=drift.text, points=points)
        points = (*points, *list_drift_points(mirror, drift))
        return replace(readiness, failback_refusals=failback, drift=tuple(drift), drift_error="", points=points)

    def _assess_route(self, route: MirrorRoute) -> None:
        cluster = self._cluster_snapshots.get(route[1])
        for mirror in list(cluster.state.mirrors.values()) if cluster else ():
            if (mirror.source, mirror.destination) == route and self._readiness_pollers[route].is_wanted:
                self._readiness[mirror.name] = self._assess_readiness(mirror.name)

    def _assess_readiness(self, mirror: MirrorName) -> MirrorAssessment:
        begun = now_ms()
        assessment = _run_poll(lambda: self._decide_failover(mirror, begun))
        return (
            MirrorAssessment(begun, None, None, assessment.text, "not looked at")
            if isinstance(assessment, PollFailure)
            else assessment
        )

    def _decide_failover(self, mirror: MirrorName, begun_ms: int) -> MirrorAssessment:
        link, state = self._find_link(mirror)
        run = Failover(link, self._settings.make_services(link.config.path), started_by="the DR page")
        decision, unplanned = run.decide_both_modes()
        return MirrorAssessment(
            begun_ms,
            decision,
            None,
            drift_error="not looked at",
            desired=link.mirror.desired,
            unplanned=unplanned,
            points=tuple(find_recorded_points(mirror, state, read_broker_time_ms(link.destination))),
        )

    def _list_failback_refusals(self, mirror: MirrorName) -> tuple[str, ...]:
        link, _ = self._find_link(mirror)
        failback = Failback(link, self._settings.make_services(link.config.path), started_by="the DR page")
        return tuple(map(str, failback.decide().reasons))

    def _get_slot(self, mirror: MirrorName) -> threading.Semaphore:
        mirrors = (t.links[mirror].mirror for t in self._cluster_snapshots.values() if mirror in t.links)
        route = next(((known_mirror.source, known_mirror.destination) for known_mirror in mirrors), None)
        with self._lock:
            return self._slots.setdefault(route, threading.Semaphore(MAX_PARALLEL_MIRRORS))

    def _find_link(self, mirror: MirrorName) -> tuple[MirrorLink, State]:
        for cluster in self._cluster_snapshots.values():
            if mirror in cluster.links:
                return cluster.links[mirror], cluster.state
        raise BadRequest(f"mirror {mirror}: {self._settings.add_clusters_advice}")

    def _add_sample(self, mirror: MirrorName, sample: MirrorSample) -> tuple[MirrorSample, ...]:
        samples = self._samples.setdefault(mirror, deque(maxlen=MAX_SAMPLES))
        samples.append(sample)
        return tuple(samples)


def _fetch_history(address: str, mirror: MirrorName) -> PrometheusHistory:
    samples = _run_poll(lambda: fetch_samples(address, mirror, now_ms()))
    return PrometheusHistory((), samples.text) if isinstance(samples, PollFailure) else PrometheusHistory(samples)


def _list_mirrors_towards(cluster: ClusterName, state: State, clusters: Collection[str]) -> list[Mirror]:
    """Records of other destinations are not trusted."""
    return [m for m in state.mirrors.values() if m.destination == cluster and {cluster, m.source} <= {*clusters}]


@dataclass(frozen=True, slots=True)
class PollFailure:
    text: str


def _run_poll(poll: Callable[[], T]) -> T | PollFailure:
    try:
        return poll()
    except MirrorError as error:
        return PollFailure(str(error))
    except Exception as error:  # noqa: BLE001 - said without a text that nobody checked for secrets
        _log.warning("a look failed: %s", type(error).__name__)
        return PollFailure(f"not expected: {type(error).__name__}; see the log of the page's server")
