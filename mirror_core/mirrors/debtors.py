from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from mirror_core.decide.standing import FenceDecision, FenceState
from mirror_core.mirrors.standing import check_fence, record_reported, wait_for_answer
from mirror_core.model.defects import format_error_location
from mirror_core.model.errors import LostOwnership, MirrorError
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.state.link import MirrorLink
from mirror_core.state.remembered import STATE_CACHE
from mirror_core.state.topic import read_state
from mirror_core.state.watchers import WatcherHeartbeats, extra_interval_s

MAX_PARALLEL_PROBES: Final = 8
"""A silent cluster costs seconds of each."""
PROBE_RETRY_S: Final = 2.0

ProbeOutcome = FenceDecision | MirrorError


def probe_each(links: Collection[MirrorLink]) -> dict[MirrorName, ProbeOutcome]:
    """Observe each old source once; a silent cluster delays nobody longer than one probe."""
    with STATE_CACHE.enable(), ThreadPoolExecutor(MAX_PARALLEL_PROBES) as pool:
        outcomes = pool.map(_probe_safely, links)
        return dict(zip((link.mirror.name for link in links), outcomes, strict=True))


def record_watched(
    links: Collection[MirrorLink], outcomes: Mapping[MirrorName, ProbeOutcome], watcher: str, interval_s: float
) -> None:
    """The next check comes within `interval_s`."""
    for cluster in {link.destination.name: link.destination for link in links}.values():
        links_here = [link for link in links if link.destination.name == cluster.name]
        with WatcherHeartbeats(cluster, watcher, interval_s + max(map(extra_interval_s, links_here))) as signs:
            for link in links_here:
                outcome = outcomes[link.mirror.name]
                if isinstance(outcome, FenceDecision) and outcome.state is not FenceState.NONE:
                    signs.send(link.mirror.name)


def list_silent_sources(
    links: Collection[MirrorLink], outcomes: Mapping[MirrorName, ProbeOutcome]
) -> dict[ClusterName, list[MirrorName]]:
    waiting: dict[ClusterName, list[MirrorName]] = {}
    for link in links:
        outcome = outcomes[link.mirror.name]
        if isinstance(outcome, FenceDecision) and outcome.is_silent:
            waiting.setdefault(link.source.name, []).append(link.mirror.name)
    return waiting


def probe_on_first_answer(links: Collection[MirrorLink], seconds: float) -> dict[MirrorName, ProbeOutcome]:
    """Observe mirrors of one source at its first answer; empty if that takes too long."""
    first, stop = next(iter(links)), threading.Event()
    with STATE_CACHE.enable():
        for destination in {link.destination.name: link.destination for link in links}.values():
            with suppress(MirrorError):  # cached, so that the probe at its first answer only reads on
                read_state(destination)
        return probe_each(links) if wait_for_answer(first, stop, seconds) else {}


def list_repeated_alarms(outcomes: Mapping[MirrorName, ProbeOutcome]) -> dict[MirrorName, tuple[str, ...]]:
    return {
        name: outcome.one_time_alarms
        for name, outcome in outcomes.items()
        if isinstance(outcome, FenceDecision) and outcome.one_time_alarms
    }


def record_reported_alarms(
    links: Collection[MirrorLink], alarms_by_mirror: Mapping[MirrorName, Collection[str]]
) -> None:
    for link in links:
        if alarms := alarms_by_mirror.get(link.mirror.name):
            record_reported(link, alarms)


def _probe_safely(link: MirrorLink) -> ProbeOutcome:
    """A defect becomes an error: it hides no other mirror's alarm."""
    try:
        outcome = _probe_once(link)
        if isinstance(outcome, MirrorError) and outcome.retryable and not isinstance(outcome, LostOwnership):
            time.sleep(PROBE_RETRY_S)
            outcome = _probe_once(link)
    except Exception as error:  # noqa: BLE001 - told by its type alone
        return MirrorError(f"a defect of Mirrorbook: {format_error_location(error)}")
    return outcome


def _probe_once(link: MirrorLink) -> ProbeOutcome:
    try:
        return check_fence(link)
    except MirrorError as error:
        return error
