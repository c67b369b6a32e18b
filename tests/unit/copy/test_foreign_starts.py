"""Whose records end a destination log, by what its leader and its batch headers say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.copy import log_inspection
from mirror_core.copy.log_inspection import find_foreign_starts
from mirror_core.decide.gaps_and_resume import NO_MARKER, to_first_marker_epoch
from mirror_core.kafka.log_offsets import PartitionProducer
from mirror_core.kafka.log_snapshot import LogSnapshot, LogSnapshots
from mirror_core.model.names import Offset, Partition
from mirror_core.wire.batch import BatchHeader

P0, OWN, OTHER = Partition("orders", 0), 1 << 62, 7
Runs = tuple[tuple[int, int, int], ...]
"""Producer id, and the first and the next offset that it wrote."""


class West:
    """A destination with one log of these runs."""

    def __init__(self, runs: Runs, next_sequence: int | None, filled: int | None = None) -> None:
        self.name, self.timeout_s, self.config, self.principal = "west", 1.0, None, None
        self.runs, end = runs, Offset(runs[-1][2] if runs else 0)
        epoch = NO_MARKER if filled is None else to_first_marker_epoch(filled)
        own = () if next_sequence is None else (PartitionProducer(OWN, 0, next_sequence - 1, epoch, -1, 1),)
        log = LogSnapshot(start=Offset(0), end_before=end, producers=own, high_watermark=end, end_after=end)
        self.logs: Mapping[Partition, LogSnapshot] = {P0: log}
        self.end = end

    def leaders(self, partitions: object) -> dict[int, list[Partition]]:
        return {1: [P0]}

    def read_headers(self, client: object, link: object, p: Partition, start: int, end: int) -> Iterator[BatchHeader]:
        for producer, first, after in self.runs:
            if first < end and after > start:
                yield BatchHeader(first, 500, 0, 2, 0, 0, after - first - 1, 1, 2, producer, 0, 0, after - first)


def found(
    monkeypatch: pytest.MonkeyPatch, west: West, reported: dict[Partition, int]
) -> dict[Partition, Offset | None]:
    reader = SimpleNamespace(leader_connection=lambda p: None)
    monkeypatch.setattr(log_inspection, "snapshot_logs", lambda *a: LogSnapshots(logs=west.logs, unknown={}))
    monkeypatch.setattr(log_inspection, "LogReader", lambda *a, **k: nullcontext(reader))
    monkeypatch.setattr(log_inspection, "FetchLink", lambda *a, **k: None)
    monkeypatch.setattr(log_inspection, "_read_headers", west.read_headers)
    client: Any = west
    return find_foreign_starts(client, OWN, reported, {P0: west.end})


@pytest.mark.parametrize(
    ("runs", "starts"),
    [(((OWN, 0, 120),), {}), (((OWN, 0, 110), (OTHER, 110, 120)), {P0: 110})],
    ids=["ours", "half of it ours"],
)
def test_what_others_write_into_a_half_filled_gap_is_not_ours(
    monkeypatch: pytest.MonkeyPatch, runs: Runs, starts: dict[Partition, Offset | None]
) -> None:
    assert found(monkeypatch, West(runs, 100, filled=50), {P0: 100}) == starts


@pytest.mark.parametrize(
    ("west", "starts"),
    [
        (West(((OWN, 0, 100),), 100), {}),
        (West(((OWN, 0, 100), (OTHER, 100, 130)), 100), {P0: 100}),
        (West(((OTHER, 0, 60), (OWN, 60, 100), (OTHER, 100, 130)), 100), {P0: 100}),
        (West(((OTHER, 0, 60), (OWN, 60, 100)), 100), {}),
        (West(((OWN, 0, 100),), 80), {}),
        (West(((OWN, 0, 110),), 100, filled=50), {}),
        (West(((OTHER, 0, 60),), None), {P0: None}),
        (West(((OTHER, 0, 60), (OWN, 60, 100)), None), {}),
        (West(((OWN, 0, 100), (OTHER, 100, 5_000)), None), {P0: 100}),
        (West(((OWN, 0, 100), (OTHER, 100, 20_000)), None), {P0: None}),
        (West((), None), {}),
    ],
    ids=[
        "ours",
        "behind",
        "on both sides",
        "before",
        "markers forgotten",
        "half filled",
        "adopted",
        "forgotten",
        "forgotten, and others behind",
        "forgotten, and too many others behind",
        "empty",
    ],
)
def test_without_a_report_what_others_wrote_behind_ours_is_found(
    monkeypatch: pytest.MonkeyPatch, west: West, starts: dict[Partition, Offset | None]
) -> None:
    assert found(monkeypatch, west, {}) == starts


def test_without_a_report_and_without_an_answer_of_the_leader_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    west = West(((OWN, 0, 100),), 100)
    west.logs = {}
    assert found(monkeypatch, west, {}) == {P0: None}
