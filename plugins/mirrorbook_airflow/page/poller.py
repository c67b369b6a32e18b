"""What the page knows: looks at the clusters by the core's functions, shared by all who have the page open.

Routes only take what the last look found, with the moment at which it began: a cluster that hangs holds up no page, and
what it said before is shown with its age.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from mirror_core.decide.failover_readiness import PointWeight, ReadinessPoint, list_drift_points
from mirror_core.mirrors.describe import describe_with_loss
from mirror_core.model.errors import BadRequest, MirrorError
from mirror_core.model.logs import get_logger
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.timing import now_ms
from mirror_core.runbook.failback_conductor import Failback
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.runbook.readiness_report import find_missing_rights, find_recorded_points
from mirror_core.state.mirror_link import MirrorLink, load_clusters, make_mirror_link, read_states
from mirror_core.state.state_cache import STATE_CACHE
from mirror_core.state.state_records import State
from mirror_core.sync.mirror_sync import preview_sync
from mirrorbook_airflow.airflow_variables import CLUSTERS_VARIABLE
from mirrorbook_airflow.hooks import current_config, unusable_connections
from mirrorbook_airflow.mirror_lookup import known_clusters
from mirrorbook_airflow.page.mirror_state import Clusters, Judged, Sample, Seen, Told, is_current
from mirrorbook_airflow.page.on_demand import OnDemand
from mirrorbook_airflow.page.prometheus_history import STEP_S, Past, past
from mirrorbook_airflow.params import prometheus
from mirrorbook_airflow.worker_services import services

T = TypeVar("T")

_log = get_logger(__name__)
LOOK_S: Final = 2.0
JUDGED_S: Final = 30.0
"""Between two looks at all that a plan is made from, and at drift: they ask for much more."""
AT_ONCE: Final = 4
"""Mirrors between the same clusters that are looked at at the same time: where one of these is silent, others do not
wait for it."""
SAMPLES: Final = 1800
"""Kept of each mirror for the plots: an hour, if somebody looks all the time."""
CONFIG: Final = "dr-page"
Route = tuple[ClusterName, ClusterName]
"""From where, and where to."""


class Looking:
    """All looks of this process."""

    def __init__(self) -> None:
        self._clusters = OnDemand(self._look_at_clusters, LOOK_S, around=STATE_CACHE.enable)
        self._lock = threading.Lock()
        self._told: dict[ClusterName, Told] = {}  # replaced as a whole, by one thread
        self._seen: dict[MirrorName, OnDemand[Seen]] = {}
        self._judged: dict[MirrorName, OnDemand[Judged]] = {}
        self._ready: dict[Route, OnDemand[None]] = {}
        self._judged_in_turn: dict[MirrorName, Judged] = {}
        self._samples: dict[MirrorName, deque[Sample]] = {}
        self._past: dict[MirrorName, OnDemand[Past]] = {}
        self._slots: dict[Route | None, threading.Semaphore] = {}

    def clusters(self) -> Clusters | None:
        return self._clusters.latest()

    def seen(self, mirror: MirrorName) -> Seen | None:
        """Of a mirror that `clusters` knows."""
        with self._lock:
            one = self._seen.setdefault(mirror, OnDemand(partial(self._look, mirror), LOOK_S))
        return one.latest()

    def past(self, mirror: MirrorName) -> Past | None:
        """What the deployment's Prometheus remembers of it. None: there is none, or it has not answered yet."""
        address = prometheus()
        if not address:
            return None
        with self._lock:
            one = self._past.setdefault(mirror, OnDemand(partial(_remembered, address, mirror), STEP_S))
        return one.latest()

    def judged(self, mirror: MirrorName) -> Judged | None:
        """Of a mirror that `clusters` knows."""
        with self._lock:
            one = self._judged.setdefault(mirror, OnDemand(partial(self._judge, mirror), JUDGED_S))
        return one.latest()

    def ready(self, mirror: Mirror) -> Judged | None:
        """The same without what differs between both sides, and what speaks against a failback. Those between the same
        clusters are judged one after the other: where one of these is silent, mirrors of others do not wait for it."""
        route = mirror.source, mirror.destination
        with self._lock:
            one = self._ready.setdefault(route, OnDemand(partial(self._judge_in_turn, route), JUDGED_S))
        one.latest()
        return self._judged_in_turn.get(mirror.name)

    # -- looks, each in a thread of its own -----------------------------------------------------------------------

    def _look_at_clusters(self) -> Clusters:
        begun = now_ms()
        config = _tried(lambda: load_clusters(current_config(CONFIG, known_clusters())))
        if isinstance(config, Trouble):
            self._told = {name: replace(one, links={}, silent=config.words) for name, one in self._told.items()}
            return Clusters(begun, self._told, {}, config.words)
        found: dict[ClusterName, State] = {}
        silent = {ClusterName(name): why for name, why in unusable_connections(config.path).items()}
        for cluster, answer in read_states(config):
            if isinstance(answer, MirrorError):
                silent[cluster] = str(answer)
            else:
                found[cluster] = answer
        told: dict[ClusterName, Told] = {name: Told(state, {}, begun) for name, state in found.items()}
        told |= {name: replace(self._told[name], silent=why) for name, why in silent.items() if name in self._told}
        # Also of those that are silent: what is looked at is what Airflow's connections say now, not what they said.
        self._told = {
            name: replace(
                one, links={m.name: make_mirror_link(config, m) for m in _towards(name, one.state, config.clusters)}
            )
            for name, one in told.items()
        }
        return Clusters(begun, self._told, silent, sets=tuple(config.sets.values()), copy_to=config.evidence_copy)

    def _look(self, mirror: MirrorName) -> Seen:
        with self._slot(mirror):
            begun = now_ms()
            found = _tried(lambda: describe_with_loss(*self._told_of(mirror), now_ms()))
            if isinstance(found, Trouble):
                return Seen(begun, None, None, self._kept(mirror, Sample(begun, None, None, None)), found.words)
        description, loss = found
        positions = [row.position for row in description.rows]
        lag = description.facts["lag"]
        sample = Sample(
            begun,
            None if lag is None else int(lag),
            loss.known_missing if is_current(loss) else None,
            None if None in positions else sum(p or 0 for p in positions),
        )
        return Seen(begun, description, loss, self._kept(mirror, sample))

    def _judge(self, mirror: MirrorName) -> Judged:
        with self._slot(mirror):
            ready = self._readiness(mirror)
            if ready.decision is None:
                return ready
            back = _tried(lambda: self._objections(mirror))
            failback = (back.words,) if isinstance(back, Trouble) else back
            drift = _tried(lambda: preview_sync(*self._told_of(mirror)).rows)
            lacking = _tried(lambda: tuple(find_missing_rights(self._told_of(mirror)[0])))
        unknown = [
            ReadinessPoint(PointWeight.WARNING, f"{what} not known: {look.words}")
            for what, look in (("rights are", lacking), ("drift is", drift))
            if isinstance(look, Trouble)
        ]
        points = (*ready.points, *unknown, *(() if isinstance(lacking, Trouble) else lacking))
        if isinstance(drift, Trouble):
            return replace(ready, failback=failback, drift_trouble=drift.words, points=points)
        points = (*points, *list_drift_points(mirror, drift))
        return replace(ready, failback=failback, drift=tuple(drift), drift_trouble="", points=points)

    def _judge_in_turn(self, route: Route) -> None:
        told = self._told.get(route[1])
        for mirror in list(told.state.mirrors.values()) if told else ():
            if (mirror.source, mirror.destination) == route and self._ready[route].wanted:
                self._judged_in_turn[mirror.name] = self._readiness(mirror.name)

    def _readiness(self, mirror: MirrorName) -> Judged:
        begun = now_ms()
        found = _tried(lambda: self._foresee(mirror, begun))
        return Judged(begun, None, None, found.words, "not looked at") if isinstance(found, Trouble) else found

    def _foresee(self, mirror: MirrorName, begun_ms: int) -> Judged:
        link, state = self._told_of(mirror)
        run = Failover(link, services(link.config.path, (), ""), started_by="the DR page")
        decision, unplanned = run.decide_both_modes()
        return Judged(
            begun_ms,
            decision,
            None,
            drift_trouble="not looked at",
            desired=link.mirror.desired,
            unplanned=unplanned,
            points=tuple(find_recorded_points(mirror, state, begun_ms)),
        )

    def _objections(self, mirror: MirrorName) -> tuple[str, ...]:
        """Against a failback."""
        link, _ = self._told_of(mirror)
        return Failback(link, services(link.config.path, (), ""), started_by="the DR page").decide().reasons

    def _slot(self, mirror: MirrorName) -> threading.Semaphore:
        known = (t.links[mirror].mirror for t in self._told.values() if mirror in t.links)
        route = next(((one.source, one.destination) for one in known), None)
        with self._lock:
            return self._slots.setdefault(route, threading.Semaphore(AT_ONCE))

    def _told_of(self, mirror: MirrorName) -> tuple[MirrorLink, State]:
        for told in self._told.values():
            if mirror in told.links:
                return told.links[mirror], told.state
        raise BadRequest(f"mirror {mirror}: add both of its clusters to the Variable {CLUSTERS_VARIABLE}")

    def _kept(self, mirror: MirrorName, sample: Sample) -> tuple[Sample, ...]:
        kept = self._samples.setdefault(mirror, deque(maxlen=SAMPLES))
        kept.append(sample)
        return tuple(kept)


def _remembered(address: str, mirror: MirrorName) -> Past:
    found = _tried(lambda: past(address, mirror, now_ms()))
    return Past((), found.words) if isinstance(found, Trouble) else Past(found)


def _towards(cluster: ClusterName, state: State, clusters: Collection[str]) -> list[Mirror]:
    """Mirrors towards this cluster by its own word, of which both are configured. What it says of others is not
    believed: applications may write a topic on the source."""
    return [m for m in state.mirrors.values() if m.destination == cluster and {cluster, m.source} <= {*clusters}]


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a look found nothing, for the page."""

    words: str


def _tried(look: Callable[[], T]) -> T | Trouble:
    """A look that fails is part of what is shown, also when it is Airflow's database or its secrets that fail."""
    try:
        return look()
    except MirrorError as error:
        return Trouble(str(error))
    except Exception as error:  # noqa: BLE001 - said without a text that nobody checked for secrets
        _log.warning("a look failed: %s", type(error).__name__)
        return Trouble(f"not expected: {type(error).__name__}; see the log of Airflow's API server")
