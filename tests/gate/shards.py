"""Which process runs which files of tests, and in which order: decided by a checked-in table, so always the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

UNKNOWN_S: Final = 5.0
"""Assumed of a file that the table does not have yet."""

Process = tuple[str, ...]
Lane = tuple[Process, ...]


def lanes(groups: Sequence[Sequence[str]], durations: Mapping[str, float], count: int) -> tuple[Lane, ...]:
    """Share files out to `count` lanes, longest first, each to the lane that has least to do so far.

    The files of the first group may share a process with each other. Each further group stays together in a process
    of its own: what it starts is slow to come by, or must not be beside others.
    """
    alone = [tuple(_longest_first(group, durations)) for group in groups[1:] if group]
    made: list[list[Process]] = [[] for _ in range(count)]
    shared: list[list[str]] = [[] for _ in range(count)]
    load = [0.0] * count
    for process in sorted(alone, key=lambda files: (-_sum(files, durations), files)):
        lane = load.index(min(load))
        made[lane].append(process)
        load[lane] += _sum(process, durations)
    for file in _longest_first(groups[0], durations):
        lane = load.index(min(load))
        shared[lane].append(file)
        load[lane] += durations.get(file, UNKNOWN_S)
    for lane, files in enumerate(shared):
        if files:
            made[lane].append(tuple(files))
    return tuple(tuple(processes) for processes in made if processes)


def _longest_first(files: Sequence[str], durations: Mapping[str, float]) -> list[str]:
    return sorted(files, key=lambda file: (-durations.get(file, UNKNOWN_S), file))


def _sum(files: Sequence[str], durations: Mapping[str, float]) -> float:
    return sum(durations.get(file, UNKNOWN_S) for file in files)
