"""A mirror with both clusters' configuration, and whether these are the clusters it was created for."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from mirror_core.decide.clock_skew import to_broker_clock_ms
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.cluster_info import measure_clock_ahead_ms
from mirror_core.kafka.config import ClusterConfig, Config, load_config, register_config_text
from mirror_core.model.errors import (
    BadRequest,
    ConnectionRejected,
    Indeterminate,
    MirrorError,
    MissingPermission,
    Refused,
    Unreachable,
)
from mirror_core.model.logs import get_logger
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import DRILL_PREFIX, ClusterName, MirrorName, get_both_directions, is_reverse_mirror
from mirror_core.model.run import RunKind
from mirror_core.model.text import format_items
from mirror_core.model.timing import CLOCK_TIMEOUT_S, TIMEOUTS, now_ms
from mirror_core.state.state_records import State
from mirror_core.state.state_topic import read_state

_log = get_logger(__name__)

_READ_ROUND_TRIPS: Final = 4
"""For a first state read, in first response times."""


@dataclass(frozen=True, slots=True)
class MirrorLink:
    config: Config
    mirror: Mirror
    source: ClusterConfig
    destination: ClusterConfig


def load_clusters(path: Path) -> Config:
    return load_config(path)


def register_config(path: Path, text: str) -> None:
    """In this process only; on no disk."""
    register_config_text(path, text)


def read_cluster_state(config: Config, cluster: str) -> State:
    return read_state(config.cluster(cluster))


def make_mirror_link(config: Config, mirror: Mirror) -> MirrorLink:
    """A drill has no fence commands: its applications keep writing."""
    source, destination = config.cluster(mirror.source), config.cluster(mirror.destination)
    if mirror.name.startswith(DRILL_PREFIX):
        source, destination = (
            replace(cluster, ruling=cluster.ruling.without_commands()) for cluster in (source, destination)
        )
    return MirrorLink(config, mirror, source, destination)


def find_mirror_link(config: Config, name: str) -> tuple[MirrorLink, State]:
    """The mirror and its destination's state; returns once one cluster knows it.

    BadRequest: unknown, or credentials refused; Indeterminate: a cluster did not answer, or has an unreadable record.
    Only the destination counts: on a source, applications may write that topic.
    """
    unread: list[MirrorError] = []
    stray: list[MirrorError] = []
    known_mirrors: set[str] = set()
    has_state = False
    for cluster, result in read_states(config):
        if isinstance(result, MirrorError):
            unread.append(result)
            continue
        has_state = True
        try:
            result.require_readable(MirrorName(name))
        except Indeterminate as error:
            unread.append(error)  # may be foreign, and the mirror another cluster's
            continue
        mirror = result.mirrors.get(MirrorName(name))
        if mirror is not None and mirror.destination == cluster:
            return make_mirror_link(config, mirror), result
        if mirror is not None:
            stray.append(_make_stray_error(cluster, mirror))
        known_mirrors |= {known.name for known in result.mirrors.values() if known.destination == cluster}
    reasons = format_items(sorted(map(str, (*unread, *stray))))
    if unread:
        # People mend passwords; clusters may come back.
        kind = BadRequest if any(isinstance(e, BadRequest | MissingPermission) for e in unread) else Indeterminate
        if not has_state:
            raise kind(f"no cluster's state could be read, so mirror {name!r} cannot be found:{reasons}")
        raise kind(f"mirror {name!r} is not known to the clusters whose state could be read; these are left:{reasons}")
    raise BadRequest(
        f"unknown mirror {name!r}: there {_format_known(known_mirrors)}; see `mirrorbook mirror list`{reasons}"
    )


def _make_stray_error(cluster: ClusterName, mirror: Mirror) -> MirrorError:
    return BadRequest(
        f"cluster {cluster} has a record of mirror {mirror.name} towards {mirror.destination}, which is none of its "
        f"own: somebody else may have written it; or mirrorbook.yaml calls this cluster {mirror.destination} no more"
    )


def _format_known(mirrors: set[str]) -> str:
    return f"are {', '.join(sorted(mirrors))}" if mirrors else "are none"


def measure_clocks_ahead_ms(config: Config, clusters: Collection[ClusterName]) -> dict[ClusterName, int | None]:
    """This machine's clock, relative to each cluster's. In parallel: a silent one takes seconds."""
    measure = partial(measure_clock_ahead_ms, timeout_s=TIMEOUTS.monitor_response_s)
    with ThreadPoolExecutor(max(1, len(clusters))) as pool:
        return dict(zip(clusters, pool.map(measure, [config.clusters[name] for name in clusters]), strict=True))


def read_states(
    config: Config, timeout_s: float = TIMEOUTS.mirror_lookup_s
) -> Iterator[tuple[ClusterName, State | MirrorError]]:
    """In order of arrival. The limit is for silence: a large state gets more time."""
    results: queue.SimpleQueue[tuple[ClusterName, State | MirrorError]] = queue.SimpleQueue()

    def extend_deadline(name: ClusterName, cluster_timeout_s: float = timeout_s) -> None:
        deadlines[name] = time.monotonic() + cluster_timeout_s

    def read_cluster(name: ClusterName, cluster: ClusterConfig) -> None:
        try:
            # Measures the distance first.
            began_at = time.monotonic()
            with ClusterClient(cluster, timeout_s=timeout_s - 1) as client:
                client.metadata(())
            # The reader connects again and receives more.
            cluster_timeout_s = max(timeout_s, _READ_ROUND_TRIPS * (time.monotonic() - began_at))
            on_progress = partial(extend_deadline, name, cluster_timeout_s)
            on_progress()
            results.put((name, read_state(cluster, timeout_s=cluster_timeout_s - 1, on_progress=on_progress)))
        except MirrorError as error:
            _log.info("its state is not known: %s", error, cluster=name)
            results.put((name, error))

    deadlines: dict[ClusterName, float] = {}
    for name, cluster in config.clusters.items():
        extend_deadline(name)
        # No pool: a hanging thread must not block process exit.
        threading.Thread(target=read_cluster, args=(name, cluster), daemon=True).start()
    waiting = set(config.clusters)
    while waiting:
        try:
            next_deadline = min(deadlines[name] for name in waiting)
            name, result = results.get(timeout=max(0.0, next_deadline - time.monotonic()))
        except queue.Empty:
            for name in sorted(name for name in waiting if deadlines[name] <= time.monotonic()):
                waiting.discard(name)
                yield name, Indeterminate(f"cluster {name}: no answer within {timeout_s} s")
        else:
            if name in waiting:
                waiting.discard(name)
                yield name, result


def read_other_states(link: MirrorLink) -> Iterator[tuple[ClusterName, State | MirrorError]]:
    own_clusters = (link.mirror.source, link.mirror.destination)
    others = {name: cluster for name, cluster in link.config.clusters.items() if name not in own_clusters}
    return read_states(replace(link.config, clusters=others))


def read_source_state(link: MirrorLink) -> Iterator[tuple[ClusterName, State | MirrorError]]:
    """It may be another mirror's destination."""
    return read_states(replace(link.config, clusters={link.source.name: link.source}))


def read_both_states(link: MirrorLink, state: State) -> dict[ClusterName, State]:
    """`state`: the destination's. With the source's, if a failback may have recorded the other direction there."""
    name, states = link.mirror.name, {link.destination.name: state}
    has_failback = any(run.plan.mirror == name and run.plan.kind is RunKind.FAILBACK for run in state.runs.values())
    if has_failback or is_reverse_mirror(name):
        with suppress(MirrorError):
            states[link.source.name] = read_state(link.source, timeout_s=TIMEOUTS.plan_state_s)
    return states


def list_both_directions(mirror: Mirror, states: Mapping[ClusterName, State]) -> Iterator[tuple[Mirror, State]]:
    """The mirror and its way home, or the mirror that it leads home, as far as `states` of their destinations go."""
    pair = {mirror.source, mirror.destination}
    for cluster in pair & states.keys():
        for name in get_both_directions(mirror.name):
            recorded = states[cluster].mirrors.get(name)
            if recorded is not None and recorded.destination == cluster and recorded.source in pair:
                yield recorded, states[cluster]


def read_broker_time_ms(cluster: ClusterConfig) -> int:
    """By the clock of the cluster's controller; by this machine's where that one is unknown, or as near as NTP."""
    return to_broker_clock_ms(now_ms(), measure_clock_ahead_ms(cluster, timeout_s=CLOCK_TIMEOUT_S))


def check_cluster_ids(link: MirrorLink, source: ClusterClient, destination: ClusterClient) -> None:
    """Another cluster id under the same name is another cluster."""
    _check_ids(link, (source, link.mirror.source_id), (destination, link.mirror.destination_id))


def check_source_id(link: MirrorLink, source: ClusterClient) -> None:
    """Its address may lead to the new primary, which must not be fenced."""
    _check_ids(link, (source, link.mirror.source_id))


def is_source_answering(link: MirrorLink) -> bool:
    try:
        return _has_recorded_id(link)
    except MirrorError:
        return False


def is_source_alive(link: MirrorLink) -> bool:
    """True also where our login is refused: the source may take writes."""
    try:
        return _has_recorded_id(link)
    except Unreachable as error:
        return isinstance(error, ConnectionRejected)
    except MirrorError:
        return True


def _has_recorded_id(link: MirrorLink) -> bool:
    with ClusterClient(link.source, timeout_s=TIMEOUTS.liveness_probe_s) as source:
        return source.metadata(()).cluster_id == link.mirror.source_id


def _check_ids(link: MirrorLink, *sides: tuple[ClusterClient, str]) -> None:
    reasons = [
        f"cluster {client.name} is {current_id} now, and was {recorded_id} when the mirror was created: correct the"
        f" address in {link.config.path}, or delete the mirror and create it anew"
        for client, recorded_id in sides
        if (current_id := client.metadata(()).cluster_id) != recorded_id
    ]
    if reasons:
        raise Refused(f"mirror {link.mirror.name}: not the clusters it was created for", reasons, "cluster_replaced")
