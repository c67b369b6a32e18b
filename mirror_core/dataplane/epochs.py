"""An epoch of the data plane, and what its tasks are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirror_core.decide.assign import assign
from mirror_core.decide.rate import shares
from mirror_core.model.copying import Assigned, Assignment, DriverAt
from mirror_core.model.logs import logger
from mirror_core.model.names import Partition
from mirror_core.state.link import Link

_log = logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """What all of its tasks have in common."""

    number: int
    start_ms: int
    stop_ms: int
    throttle: int | None
    """Bytes per second, of all tasks together."""
    driver: DriverAt | None
    """Who is told the progress."""


def assignments_of(
    link: Link, epoch: Epoch, given: Mapping[Partition, Assigned], lags: Mapping[Partition, int], slots: int
) -> list[Assignment]:
    """The work of at most so many tasks, shared out by lags."""
    groups = assign(lags, slots)
    rates = shares(epoch.throttle, groups, lags)
    _log.debug("%d partitions for %d tasks", len(lags), len(groups), epoch=epoch.number)
    return [
        Assignment(
            mirror=link.mirror.name,
            source=link.mirror.source,
            destination=link.mirror.destination,
            config_path=str(link.config.path),
            producer_id=link.mirror.producer_id,
            gaps=link.mirror.gaps,
            partitions=tuple(given[p] for p in chosen),
            epoch=epoch.number,
            task=number,
            start_ms=epoch.start_ms,
            stop_ms=epoch.stop_ms,
            throttle=rate,
            driver=epoch.driver,
        )
        for number, (chosen, rate) in enumerate(zip(groups, rates, strict=True))
    ]
