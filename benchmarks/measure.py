"""CPU seconds and memory of process trees, by sampling: what has ended between two samples is still counted."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import psutil

SAMPLE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Reading:
    """What a tree has used since it was first seen."""

    cpu_s: float
    peak_rss_bytes: int
    """The most that all processes of the tree had resident at one time; pages they share count more than once."""


class Meter:
    """Watches named processes, each with all its descendants, while entered."""

    def __init__(self, **pids: int) -> None:
        self._roots = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._cpu: dict[str, dict[tuple[int, float], float]] = {name: {} for name in pids}
        self._peak = dict.fromkeys(pids, 0)
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
        """Now."""
        self._sample()
        with self._lock:
            return {name: Reading(sum(self._cpu[name].values()), self._peak[name]) for name in self._roots}

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        with self._lock:
            for name, root in self._roots.items():
                rss = 0
                for process in _tree(root):
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
