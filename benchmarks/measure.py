"""CPU seconds and memory of processes, by sampling: what has ended between two samples is still counted."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

SAMPLE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Reading:
    """What was used since it was first seen."""

    cpu_s: float
    """User and system time."""
    peak_rss_bytes: int
    """The most that all its processes had resident at one time; pages they share count more than once.

    Sampled; of the copier's first process the kernel remembers the peak.
    """


class Meter:
    """While entered, watches a copier with all its descendants, and brokers, which have none."""

    def __init__(self, copier: int, brokers: Mapping[str, int]) -> None:
        self._copier = psutil.Process(copier)
        self._brokers = {name: psutil.Process(pid) for name, pid in brokers.items()}
        names = ("copier", *brokers)
        self._cpu: dict[str, dict[tuple[int, float], float]] = {name: {} for name in names}
        self._peak = dict.fromkeys(names, 0)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="meter", daemon=True)

    def __enter__(self) -> Self:
        self._sample()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def read(self) -> dict[str, Reading]:
        """Now, of `copier` and of each broker."""
        self._sample()
        with self._lock:
            return {name: Reading(sum(used.values()), self._peak[name]) for name, used in self._cpu.items()}

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        # Looking for descendants reads all of /proc, so brokers are spared it.
        with self._lock:
            self._take("copier", _tree(self._copier))
            for name, broker in self._brokers.items():
                self._take(name, [broker])
            self._peak["copier"] = max(self._peak["copier"], _high_water(self._copier.pid))

    def _take(self, name: str, processes: list[psutil.Process]) -> None:
        rss = 0
        for process in processes:
            try:
                times, memory = process.cpu_times(), process.memory_info()
            except psutil.NoSuchProcess:
                continue  # its last sample stays counted
            self._cpu[name][process.pid, process.create_time()] = times.user + times.system
            rss += memory.rss
        self._peak[name] = max(self._peak[name], rss)


def _tree(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _high_water(pid: int) -> int:
    """The most bytes that one process has ever had resident (Linux: VmHWM); 0 where that isn't known."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)
