"""Several mirrors in one process: each is copied when it may be, else its fence is watched."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Final

from prometheus_client import Metric
from prometheus_client.registry import Collector

from mirror_core.dataplane import prometheus_collector
from mirror_core.dataplane.counters import Counters
from mirror_core.dataplane.driver import Replication, ReplicationOptions, check_may_run
from mirror_core.dataplane.epoch_results import ReplicationSummary
from mirror_core.dataplane.progress import ProgressTotals, ProgressTracker, sum_totals
from mirror_core.dataplane.task_runner import Runner, RunnerGone
from mirror_core.decide.fence_state import FenceDecision, FenceState
from mirror_core.kafka.config import load_config
from mirror_core.mirrors import fence_metrics, fence_watcher
from mirror_core.mirrors.background_work import BackgroundSync, BackgroundVerification
from mirror_core.model.errors import MirrorError, Refused
from mirror_core.model.findings import identify_trouble
from mirror_core.model.logs import get_logger, log_context
from mirror_core.model.names import MirrorName, Partition
from mirror_core.state.mirror_link import MirrorLink, find_mirror_link
from mirror_core.supervisor.supervisor import compute_next_delay_s

_log = get_logger(__name__)
NO_TOTALS: Final = sum_totals([])


class FleetMember:
    def __init__(
        self,
        config_path: Path,
        name: MirrorName,
        start_runner: Callable[[], Runner],
        options: ReplicationOptions,
        *,
        stop: threading.Event,
        print_line: Callable[[str], None],
        verify_bytes_per_s: int | None = None,
    ) -> None:
        """`verify_bytes_per_s`: read of each cluster; None: no verification."""
        self.name = name
        self.failed: Mapping[Partition, str] = {}
        self.progress: ProgressTracker | None = None
        self.earlier_totals = NO_TOTALS
        """Before the current `progress`."""
        self.collector: Collector | None = None
        self._config_path = config_path
        self._start_runner = start_runner
        self._options = options
        self._stop = stop
        self._print = print_line
        self._verify_bytes_per_s = verify_bytes_per_s
        self._reported_troubles: set[tuple[str, ...]] = set()
        self._last_decision: FenceDecision | None = None

    def run(self) -> None:
        """Until stopped. Raises RunnerGone only."""
        delay_s = 0.0
        with log_context(mirror=self.name):
            while not self._stop.is_set():
                began = time.monotonic()
                code = self._run_once()
                delay_s = compute_next_delay_s(code, time.monotonic() - began, delay_s)
                self._stop.wait(delay_s)

    def _run_once(self) -> int:
        """Exit code."""
        try:
            # Read each time: a fix in the configuration takes effect without disturbing other mirrors.
            link, state = find_mirror_link(load_config(self._config_path), self.name)
            try:
                check_may_run(state, link)
                self.failed = self._copy(link).failed
            except Refused as refused:
                self._report_stopped(refused, str(refused))
                self._watch_fence(link)
                return Refused.exit_code
        except RunnerGone:
            raise
        except MirrorError as error:
            self._report_stopped(error, str(error))
            return error.exit_code
        except Exception as error:  # noqa: BLE001 - the other mirrors go on; without a text that nobody checked
            _log.debug("a defect", exc_info=True)
            self._report_stopped(error, f"{type(error).__name__}: a defect of Mirrorbook, `--debug` shows all of it")
            return 1
        finally:
            self.collector = None
        return 0

    def _copy(self, link: MirrorLink) -> ReplicationSummary:
        counters, progress = Counters(), ProgressTracker()
        self.collector, self.progress = prometheus_collector.MetricsCollector(link.mirror, counters, progress), progress
        options = replace(self._options, progress=progress)
        copying = Replication(
            link, self._start_runner_and_report, options, stop=self._stop, report_line=self._report, counters=counters
        )
        verify_bytes_per_s = self._verify_bytes_per_s
        try:
            with (
                BackgroundSync(link, counters, self._report),
                BackgroundVerification(link, verify_bytes_per_s, counters, self._report)
                if verify_bytes_per_s
                else nullcontext(),
            ):
                return copying.run()
        finally:
            totals, self.progress = progress.totals(), None
            self.earlier_totals = sum_totals(
                [self.earlier_totals, replace(NO_TOTALS, records=totals.records, bytes=totals.bytes)]
            )

    def _start_runner_and_report(self) -> Runner:
        runner = self._start_runner()
        self._reported_troubles.clear()  # report the same reason again after this
        self._last_decision = None
        self._report("copies")
        return runner

    def _watch_fence(self, link: MirrorLink) -> None:
        exposition = fence_metrics.FenceCollector(link.mirror)
        self.collector = exposition

        def on_decision(decision: FenceDecision) -> None:
            exposition.update(decision)
            is_reported = decision.is_same_trouble(self._last_decision)
            if not is_reported and (decision.alarms or decision.state is not FenceState.NONE):
                for line in (*decision.lines, *(f"alarm: {alarm}" for alarm in decision.alarms)):
                    self._report(line)
            self._last_decision = decision

        fence_watcher.watch_fence(link, self._stop, on_decision, watcher="mirrorbook replicate")

    def _report_stopped(self, error: Exception, text: str) -> None:
        trouble = identify_trouble(error)
        if trouble not in self._reported_troubles:
            self._report(f"not copied now, tried again: {text}")
        self._reported_troubles.add(trouble)

    def _report(self, text: str) -> None:
        self._print(f"{self.name}: {text}")


class Fleet(Collector):
    def __init__(self, members: Sequence[FleetMember], stop: threading.Event) -> None:
        self._members = tuple(members)
        self._stop = stop
        self._runner_gone: RunnerGone | None = None

    def run(self) -> None:
        """Returns when all leases are released. RunnerGone: a new process is needed."""
        threads = [threading.Thread(target=self._run_member, args=(m,), name=f"mirror-{m.name}") for m in self._members]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._runner_gone is not None:
            raise self._runner_gone

    def totals(self) -> ProgressTotals:
        current_totals = [p.totals() for p in [member.progress for member in self._members] if p is not None]
        return sum_totals([*current_totals, *(member.earlier_totals for member in self._members)])

    def collect(self) -> Iterable[Metric]:
        """Label `mirror` tells samples apart."""
        metrics_by_name = dict[str, Metric]()
        for collector in [member.collector for member in self._members]:
            for metric in collector.collect() if collector is not None else ():
                metrics_by_name.setdefault(
                    metric.name, Metric(metric.name, metric.documentation, metric.type, metric.unit)
                )
                metrics_by_name[metric.name].samples += metric.samples
        return metrics_by_name.values()

    def _run_member(self, member: FleetMember) -> None:
        try:
            member.run()
        except RunnerGone as error:
            self._runner_gone = error
            self._stop.set()
