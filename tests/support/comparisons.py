"""Comparisons, shared by tests."""

from __future__ import annotations

from pathlib import Path

from mirror_core.model.names import ClusterName
from mirror_core.model.parity_verdict import ParityRange, ParityResult
from mirror_core.parity.check import LocalParity
from mirror_core.parity.compare import compare_task as compare_task
from tests.support.kafka_clients import Pair

EAST, WEST = ClusterName("east"), ClusterName("west")

CHUNK = 10


def compare(pair: Pair, *ranges: ParityRange, level: int = 3, output: Path | None = None) -> ParityResult:
    return LocalParity(pair.config_path, threads=2, level=level, chunk=CHUNK)(EAST, WEST, ranges, output)


def found(result: ParityResult) -> list[tuple[str, int | None]]:
    return [(finding.kind, finding.offset) for finding in result.findings]
