"""Runs the tests of a stage in processes of pytest, shows how they get on, and gathers what they wrote down."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.gate.events import Collected, Ended, Event, Failure, events_in
from tests.gate.shards import Lane
from tests.gate.verdict import Run, file_of

SILENT_S: Final = 2400.0
"""Longer than any test takes. A process in which none has ended for so long hangs."""
END_S: Final = 120.0
"""To stop its brokers, a process that is told to stop gets so long."""
LOOK_S: Final = 0.5
LEAST: Final = 19
"""The greatest niceness."""
NICE: Final = 5
"""Of processes that run beside others: some 25 % of what one of those gets while all want to run."""
OK: Final = (0, 1, 5)
"""Exit codes of pytest that tests explain: all passed, some failed, none selected."""


@dataclass(slots=True)
class _Lane:
    """One lane's processes, one after the other, in a thread of their own."""

    name: str
    processes: Lane
    folder: Path
    marks: str
    env: Mapping[str, str]
    most_failures: int
    nice: int = 0
    broken: list[str] = field(default_factory=list)
    running: subprocess.Popen[bytes] | None = None
    stopped: bool = False

    def results(self) -> list[Path]:
        return [self.folder / f"{self.name}.{number}.jsonl" for number in range(1, len(self.processes) + 1)]

    def run(self) -> None:
        for arguments, result in zip(self.processes, self.results(), strict=True):
            if self.stopped:
                return
            log = result.with_suffix(".log")
            try:
                code = self._process(arguments, result, log)
            except OSError as error:  # no memory, no room
                self.broken.append(f"{self.name}: pytest could not be run: {error}")
                return
            if _unexplained(code, result):
                tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:]
                self.broken.append("\n".join([f"{self.name}: pytest ended with exit code {code}", *tail]))

    def _process(self, arguments: Sequence[str], result: Path, log: Path) -> int:
        with log.open("wb") as output:
            self.running = subprocess.Popen(
                command(result, self.marks, arguments, self.most_failures),
                stdout=output,
                stderr=output,
                env={**_inherited(), **self.env},
            )
            if self.nice:
                ours = os.getpriority(os.PRIO_PROCESS, 0)
                os.setpriority(os.PRIO_PROCESS, self.running.pid, min(LEAST, ours + self.nice))
            return self.running.wait()

    def stop(self, why: str, *, told: bool) -> None:
        """`told`: a terminal has sent it the signal, too. A second one would keep it from stopping its brokers."""
        self.stopped = True
        if self.running is not None and self.running.poll() is None:
            self.broken.append(f"{self.name}: {why}")
            if not told:
                self.running.send_signal(signal.SIGINT)
            try:
                self.running.wait(END_S)
            except subprocess.TimeoutExpired:
                self.running.kill()


def _unexplained(code: int, result: Path) -> bool:
    """Whether a process of pytest has ended in a way that its tests do not explain: such as before it had any."""
    events = [event for event, _ in events_in(result)]
    collected = any(isinstance(event, Collected) for event in events)
    return code not in OK or not collected or (code == 1 and not any(isinstance(e, Failure) for e in events))


def _inherited() -> dict[str, str]:
    """Each command that a test starts would compile all of our code anew, if what was compiled was not written down."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def command(result: Path, marks: str, arguments: Sequence[str], most_failures: int) -> list[str]:
    plugins = ("-p", "tests.gate.recorder", "--record", str(result), "-p", "no:cacheprovider")
    limits = (f"--maxfail={most_failures}", "-q", "--no-header")
    return [sys.executable, "-m", "pytest", *plugins, *limits, *(("-m", marks) if marks else ()), *arguments]


def run_lanes(
    lanes: Sequence[Lane],
    beside: Sequence[Lane] = (),
    *,
    name: str,
    folder: Path,
    marks: str,
    env: Mapping[str, str],
    most_failures: int,
    tell: Callable[[str], None],
) -> Run:
    """`beside`: with what the others leave of the CPUs. `folder`: gets what each process printed and wrote down.
    `most_failures`: a process that has seen so many stops. `tell`: is told what has ended, a line at a time."""
    started = time.monotonic()
    mine = [
        _Lane(f"{name}-{number}", lane, folder, marks, env, most_failures, nice=NICE if number > len(lanes) else 0)
        for number, lane in enumerate((*lanes, *beside), 1)
    ]
    threads = [threading.Thread(target=one.run, name=one.name) for one in mine]
    watch = _Watch([path for one in mine for path in one.results()], tell)
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            watch.look()
            for one in mine:
                last, ended = watch.latest.get(one.name, ("none", started))
                if time.monotonic() - ended > SILENT_S:
                    one.stop(f"no test has ended for {SILENT_S:.0f} s; the last one that did: {last}", told=False)
            time.sleep(LOOK_S)
    finally:
        for one in mine:
            one.stop("was interrupted", told=True)
        for thread in threads:
            thread.join()
    watch.look()
    broken = [line for one in mine for line in one.broken]
    return watch.run(broken, time.monotonic() - started)


class _Watch:
    """Reads what the processes write down, and tells of each file of tests that has ended."""

    def __init__(self, paths: Sequence[Path], tell: Callable[[str], None]) -> None:
        self._read = dict.fromkeys(paths, 0)
        self._tell = tell
        self._open: dict[str, set[str]] = {}
        self._ended: list[Ended] = []
        self._failures: list[Failure] = []
        self.latest: dict[str, tuple[str, float]] = {}
        """The test that ended last, by lane, and when that was seen, on `time.monotonic`'s clock."""

    def look(self) -> None:
        for path in self._read:
            for event, position in events_in(path, self._read[path]):
                self._read[path] = position
                self._take(event, path.name.split(".")[0])

    def _take(self, event: Event, lane: str) -> None:
        match event:
            case Collected(tests):
                for test in tests:
                    self._open.setdefault(file_of(test), set()).add(test)
            case Failure():
                self._failures.append(event)
                self._tell(f"  {lane}: FAILED {event.test} ({event.load})")
            case Ended(test, _, _):
                self._ended.append(event)
                self.latest[lane] = test, time.monotonic()
                file = file_of(test)
                self._open.setdefault(file, set()).discard(test)
                if not self._open[file]:
                    ended = [one for one in self._ended if file_of(one.test) == file]
                    self._tell(f"  {lane}: {file}: {len(ended)} in {sum(one.seconds for one in ended):.0f} s")

    def run(self, broken: Sequence[str], took_s: float) -> Run:
        counts: dict[str, int] = {}
        seconds: dict[str, float] = {}
        for one in self._ended:
            counts[one.outcome] = counts.get(one.outcome, 0) + 1
            seconds[file_of(one.test)] = seconds.get(file_of(one.test), 0.0) + one.seconds
        not_run = sorted(test for tests in self._open.values() for test in tests)
        told = list(broken)
        if not_run:
            told.append(f"{len(not_run)} test(s) were collected and not run, such as {not_run[0]}")
        return Run(
            counts=counts,
            passed=frozenset(one.test for one in self._ended if one.outcome == "passed"),
            failures=tuple(self._failures),
            broken=tuple(told),
            seconds=seconds,
            took_s=took_s,
        )
