"""A mirror with the configuration of both clusters, found by name."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, Config, hold_config, load_config
from mirror_core.model.errors import BadRequest, Indeterminate, MirrorError, MissingPermission
from mirror_core.model.limits import LIMITS
from mirror_core.model.logs import logger
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import DRILL, ClusterName, MirrorName
from mirror_core.state.records import State
from mirror_core.state.topic import read_state

_log = logger(__name__)

_READING: Final = 4
"""For a first state read, in first response times."""


@dataclass(frozen=True, slots=True)
class Link:
    config: Config
    mirror: Mirror
    source: ClusterConfig
    destination: ClusterConfig


def configured(path: Path) -> Config:
    return load_config(path)


def hold(path: Path, text: str) -> None:
    """In this process only; on no disk."""
    hold_config(path, text)


def state_on(config: Config, cluster: str) -> State:
    return read_state(config.cluster(cluster))


def link_of(config: Config, mirror: Mirror) -> Link:
    """A drill has no fence commands: its applications keep writing."""
    source, destination = config.cluster(mirror.source), config.cluster(mirror.destination)
    if mirror.name.startswith(DRILL):
        source, destination = (replace(side, ruling=side.ruling.without_commands()) for side in (source, destination))
    return Link(config, mirror, source, destination)


def find(config: Config, name: str) -> tuple[Link, State]:
    """The mirror and its destination's state; returns once one cluster knows it.

    BadRequest: unknown, or credentials refused; Indeterminate: a cluster did not answer, or has an unreadable record.
    Only the destination counts: on a source, applications may write that topic.
    """
    silent: list[MirrorError] = []
    elsewhere: list[MirrorError] = []
    mirrors: set[str] = set()
    for cluster, answer in states(config):
        if isinstance(answer, MirrorError):
            silent.append(answer)
            continue
        try:
            answer.require(MirrorName(name))
        except Indeterminate as error:
            silent.append(error)  # may be foreign, and the mirror another cluster's
            continue
        mirror = answer.mirrors.get(MirrorName(name))
        if mirror is not None and mirror.destination == cluster:
            return link_of(config, mirror), answer
        if mirror is not None:
            elsewhere.append(_elsewhere(cluster, mirror))
        mirrors |= {one.name for one in answer.mirrors.values() if one.destination == cluster}
    reasons = "".join(f"\n  - {reason}" for reason in sorted(map(str, (*silent, *elsewhere))))
    if silent:
        # People mend passwords; clusters may come back.
        kind = BadRequest if any(isinstance(e, BadRequest | MissingPermission) for e in silent) else Indeterminate
        raise kind(f"mirror {name!r} is not known to the clusters whose state could be read; these are left:{reasons}")
    raise BadRequest(f"unknown mirror {name!r}: there {_are(mirrors)}; see `mirrorbook mirror list`{reasons}")


def _elsewhere(cluster: ClusterName, mirror: Mirror) -> MirrorError:
    return BadRequest(
        f"cluster {cluster} has a record of mirror {mirror.name} towards {mirror.destination}, which is none of its "
        f"own: somebody else may have written it; or mirrorbook.yaml calls this cluster {mirror.destination} no more"
    )


def _are(mirrors: set[str]) -> str:
    return f"are {', '.join(sorted(mirrors))}" if mirrors else "are none"


def states(
    config: Config, timeout_s: float = LIMITS.state_owner_s
) -> Iterator[tuple[ClusterName, State | MirrorError]]:
    """In order of arrival. The limit is for silence: a large state gets more time."""
    answers: queue.SimpleQueue[tuple[ClusterName, State | MirrorError]] = queue.SimpleQueue()

    def heard_from(name: ClusterName, patience_s: float = timeout_s) -> None:
        silent_after[name] = time.monotonic() + patience_s

    def look(name: ClusterName, cluster: ClusterConfig) -> None:
        try:
            # Measures the distance first.
            asked = time.monotonic()
            with ClusterClient(cluster, timeout_s=timeout_s - 1) as client:
                client.metadata(())
            # The reader connects again and receives more.
            patience_s = max(timeout_s, _READING * (time.monotonic() - asked))
            heard = partial(heard_from, name, patience_s)
            heard()
            answers.put((name, read_state(cluster, timeout_s=patience_s - 1, heard=heard)))
        except MirrorError as error:
            _log.info("its state is not known: %s", error, cluster=name)
            answers.put((name, error))

    silent_after: dict[ClusterName, float] = {}
    for name, cluster in config.clusters.items():
        heard_from(name)
        # No pool: a hanging thread must not block process exit.
        threading.Thread(target=look, args=(name, cluster), daemon=True).start()
    waiting = set(config.clusters)
    while waiting:
        try:
            next_silent = min(silent_after[name] for name in waiting)
            name, answer = answers.get(timeout=max(0.0, next_silent - time.monotonic()))
        except queue.Empty:
            for name in sorted(name for name in waiting if silent_after[name] <= time.monotonic()):
                waiting.discard(name)
                yield name, Indeterminate(f"cluster {name}: no answer within {timeout_s} s")
        else:
            if name in waiting:
                waiting.discard(name)
                yield name, answer


def states_beside(link: Link) -> Iterator[tuple[ClusterName, State | MirrorError]]:
    """Neither side of this mirror."""
    sides = (link.mirror.source, link.mirror.destination)
    others = {name: cluster for name, cluster in link.config.clusters.items() if name not in sides}
    return states(replace(link.config, clusters=others))


def state_of_source(link: Link) -> Iterator[tuple[ClusterName, State | MirrorError]]:
    """It may be another mirror's destination."""
    return states(replace(link.config, clusters={link.source.name: link.source}))
