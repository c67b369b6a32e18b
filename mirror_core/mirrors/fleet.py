"""Several mirrors in one process, each independent of the others' failures.

Each is copied whenever it may be; else its fence is watched; when it ends, it is tried again.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Final

from prometheus_client import Metric
from prometheus_client.registry import Collector

from mirror_core.dataplane import metrics
from mirror_core.dataplane.allowed import refuse_to_run
from mirror_core.dataplane.counters import Counters
from mirror_core.dataplane.driver import Options, Replication
from mirror_core.dataplane.progress import Progress, Totals, added
from mirror_core.dataplane.results import Summary
from mirror_core.dataplane.runner import Runner, RunnerGone
from mirror_core.decide.standing import Judgement, Standing
from mirror_core.kafka.config import load_config
from mirror_core.mirrors import standing, standing_metrics
from mirror_core.mirrors.background import BackgroundProof
from mirror_core.model.errors import MirrorError, Refused
from mirror_core.model.logs import about, logger
from mirror_core.model.names import MirrorName, Partition
from mirror_core.state.link import Link, find
from mirror_core.supervisor.supervisor import next_delay_s

_log = logger(__name__)
NOTHING: Final = added([])
_FIGURES = re.compile(r"\d+(\.\d+)?")


class Member:
    def __init__(
        self,
        config_path: Path,
        name: MirrorName,
        start_runner: Callable[[], Runner],
        options: Options,
        *,
        stop: threading.Event,
        say: Callable[[str], None],
        prove_at: int | None = None,
    ) -> None:
        """`verify_bytes_per_s`: read of each cluster; None: no verification."""
        self.name = name
        self.failed: Mapping[Partition, str] = {}
        self.progress: Progress | None = None
        self.before = NOTHING
        """Before the current `progress`."""
        self.shown: Collector | None = None
        self._config_path = config_path
        self._start_runner = start_runner
        self._options = options
        self._stop = stop
        self._print = say
        self._prove_at = prove_at
        self._said: set[str] = set()
        self._judged: Judgement | None = None

    def run(self) -> None:
        """Runs until stopped. Raises RunnerGone only."""
        delay_s = 0.0
        with about(mirror=self.name):
            while not self._stop.is_set():
                began = time.monotonic()
                code = self._turn()
                delay_s = next_delay_s(code, time.monotonic() - began, delay_s)
                self._stop.wait(delay_s)

    def _turn(self) -> int:
        """Returns the exit code of an equivalent process."""
        try:
            # Read each time: a fix in the configuration takes effect without disturbing other mirrors.
            link, state = find(load_config(self._config_path), self.name)
            try:
                refuse_to_run(state, link)
                self.failed = self._copied(link).failed
            except Refused as refused:
                self._end(str(refused))
                self._look_after(link)
                return Refused.exit_code
        except RunnerGone:
            raise
        except MirrorError as error:
            self._end(str(error))
            return error.exit_code
        except Exception as error:  # noqa: BLE001 - the other mirrors go on; without a text that nobody checked
            _log.debug("a defect", exc_info=True)
            self._end(f"{type(error).__name__}: a defect of Mirrorbook, `--debug` shows all of it")
            return 1
        finally:
            self.shown = None
        return 0

    def _copied(self, link: Link) -> Summary:
        counters, progress = Counters(), Progress()
        self.shown, self.progress = metrics.Exposition(link.mirror, counters, progress), progress
        options = replace(self._options, progress=progress)
        copying = Replication(link, self._begun, options, stop=self._stop, say=self._say, counters=counters)
        rate = self._prove_at
        try:
            with BackgroundProof(link, rate, counters, self._say) if rate else nullcontext():
                return copying.run()
        finally:
            told, self.progress = progress.totals(), None
            self.before = added([self.before, replace(NOTHING, records=told.records, bytes=told.bytes)])

    def _begun(self) -> Runner:
        runner = self._start_runner()
        self._said.clear()  # report the same reason again after this
        self._judged = None
        self._say("copies")
        return runner

    def _look_after(self, link: Link) -> None:
        shown = standing_metrics.Exposition(link.mirror)
        self.shown = shown

        def told(found: Judgement) -> None:
            shown.tell(found)
            if found != self._judged and (found.alarms or found.standing is not Standing.NOTHING):
                for line in (*found.lines, *(f"alarm: {alarm}" for alarm in found.alarms)):
                    self._say(line)
            self._judged = found

        standing.watch(link, self._stop, told, by="mirrorbook replicate")

    def _end(self, words: str) -> None:
        """Once, not at each attempt."""
        kind = _FIGURES.sub("", words)  # ages, generations
        if kind not in self._said:
            self._say(f"not copied now, tried again: {words}")
        self._said.add(kind)

    def _say(self, text: str) -> None:
        self._print(f"{self.name}: {text}")


class Fleet(Collector):
    def __init__(self, members: Sequence[Member], stop: threading.Event) -> None:
        self._members = tuple(members)
        self._stop = stop
        self._gone: RunnerGone | None = None

    def run(self) -> None:
        """Returns when all leases are released. RunnerGone: a new process is needed."""
        threads = [threading.Thread(target=self._one, args=(m,), name=f"mirror-{m.name}") for m in self._members]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._gone is not None:
            raise self._gone

    def totals(self) -> Totals:
        now = [p.totals() for p in [member.progress for member in self._members] if p is not None]
        return added([*now, *(member.before for member in self._members)])

    def collect(self) -> Iterable[Metric]:
        """Samples differ in the label `mirror`."""
        found = dict[str, Metric]()
        for shown in [member.shown for member in self._members]:
            for metric in shown.collect() if shown is not None else ():
                found.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type, metric.unit))
                found[metric.name].samples += metric.samples
        return found.values()

    def _one(self, member: Member) -> None:
        try:
            member.run()
        except RunnerGone as error:
            self._gone = error
            self._stop.set()
