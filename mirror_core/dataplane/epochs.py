"""An epoch, its assignments, and the length of the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from mirror_core.decide.assign import assign
from mirror_core.decide.epochs import LONGEST_S, looks_s, next_s
from mirror_core.decide.rate import shares
from mirror_core.model.copying import Assigned, Assignment, DriverAt, TaskReport
from mirror_core.model.logs import logger
from mirror_core.model.names import Partition
from mirror_core.state.link import Link

_log = logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    number: int
    start_ms: int
    stop_ms: int
    throttle: int | None
    """Bytes per second, of all tasks."""
    driver: DriverAt | None
    looks_s: float = 0.0


class Length:
    """A comparison that its task does not finish starts anew: a long one gets a longer epoch."""

    def __init__(self, usual_s: float, say: Callable[[str], None]) -> None:
        self._usual_s, self._say = usual_s, say
        self.s = usual_s
        self.looks_s = looks_s(usual_s)

    def heard(self, epoch: Epoch, reports: Iterable[TaskReport]) -> None:
        told = tuple(reports)
        cut_short, untold = sum(report.looks_cut_short for report in told), any(report.untold for report in told)
        was, lasted_s = self.s, (epoch.stop_ms - epoch.start_ms) / 1000
        self.s = next_s(self._usual_s, was, lasted_s, cut_short=cut_short > 0, untold=untold)
        if was == self._usual_s < self.s:
            self._say(
                f"comparing the logs of {cut_short} partition(s) takes longer than an epoch of {lasted_s:g} s: until "
                f"it is done epochs last longer, {LONGEST_S:g} s at most. What is heeded when an epoch begins (new "
                "topics, pause, throttle, recover) waits for that"
            )
        elif was > self._usual_s == self.s:
            self._say(f"logs are compared: epochs last {self.s:g} s again")


def assignments_of(
    link: Link, epoch: Epoch, given: Mapping[Partition, Assigned], lags: Mapping[Partition, int], slots: int
) -> list[Assignment]:
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
            looks_s=epoch.looks_s,
        )
        for number, (chosen, rate) in enumerate(zip(groups, rates, strict=True))
    ]
