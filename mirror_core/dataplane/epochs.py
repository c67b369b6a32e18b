"""An epoch, its assignments, and the length of the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from mirror_core.decide.assign import assign_partitions
from mirror_core.decide.epochs import MAX_EPOCH_S, compute_comparison_s, compute_epoch_s
from mirror_core.decide.rate import share_rate
from mirror_core.model.copying import Assignment, DriverAddress, PartitionAssignment, TaskReport
from mirror_core.model.logs import get_logger
from mirror_core.model.names import Partition
from mirror_core.state.link import MirrorLink

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyEpoch:
    number: int
    start_ms: int
    stop_ms: int
    throttle: int | None
    """Bytes per second, of all tasks."""
    driver: DriverAddress | None
    comparison_grace_s: float = 0.0


class EpochLength:
    """A comparison that its task does not finish starts anew: a long one gets a longer epoch."""

    def __init__(self, usual_s: float, report_line: Callable[[str], None]) -> None:
        self._usual_s, self._report_line = usual_s, report_line
        self.seconds = usual_s
        self.comparison_grace_s = compute_comparison_s(usual_s)

    def update(self, epoch: CopyEpoch, reports: Iterable[TaskReport]) -> None:
        report_list = tuple(reports)
        interrupted, comparisons_unknown = (
            sum(report.interrupted_comparisons for report in report_list),
            any(report.comparisons_unknown for report in report_list),
        )
        previous_s, lasted_s = self.seconds, (epoch.stop_ms - epoch.start_ms) / 1000
        self.seconds = compute_epoch_s(
            self._usual_s, previous_s, lasted_s, was_cut_short=interrupted > 0, is_unknown=comparisons_unknown
        )
        if previous_s == self._usual_s < self.seconds:
            self._report_line(
                f"comparing the logs of {interrupted} partition(s) takes longer than an epoch of {lasted_s:g} s: until "
                f"it is done epochs last longer, {MAX_EPOCH_S:g} s at most. What is heeded when an epoch begins (new "
                "topics, pause, throttle, recover) waits for that"
            )
        elif previous_s > self._usual_s == self.seconds:
            self._report_line(f"logs are compared: epochs last {self.seconds:g} s again")


def build_assignments(
    link: MirrorLink,
    epoch: CopyEpoch,
    assigned_partitions: Mapping[Partition, PartitionAssignment],
    lags: Mapping[Partition, int],
    slots: int,
) -> list[Assignment]:
    groups = assign_partitions(lags, slots)
    rates = share_rate(epoch.throttle, groups, lags)
    _log.debug("%d partitions for %d tasks", len(lags), len(groups), epoch=epoch.number)
    return [
        Assignment(
            mirror=link.mirror.name,
            source=link.mirror.source,
            destination=link.mirror.destination,
            config_path=str(link.config.path),
            producer_id=link.mirror.producer_id,
            gaps=link.mirror.gaps,
            partitions=tuple(assigned_partitions[p] for p in group),
            epoch=epoch.number,
            task=number,
            start_ms=epoch.start_ms,
            stop_ms=epoch.stop_ms,
            throttle=rate,
            driver_address=epoch.driver,
            comparison_grace_s=epoch.comparison_grace_s,
        )
        for number, (group, rate) in enumerate(zip(groups, rates, strict=True))
    ]
