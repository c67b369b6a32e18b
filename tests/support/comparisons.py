"""Comparisons, shared by tests."""

from __future__ import annotations

from pathlib import Path

import yaml

from mirror_core.model.names import ClusterName
from mirror_core.model.parity_verdict import ParityRange, ParityResult
from mirror_core.parity.check import LocalParity
from mirror_core.parity.compare import compare_task as compare_task
from tests.support.kafka_clients import Pair

EAST, WEST = ClusterName("east"), ClusterName("west")

CHUNK = 10


def compare(pair: Pair, *ranges: ParityRange, level: int = 3, output: Path | None = None) -> ParityResult:
    return LocalParity(pair.config_path, threads=2, level=level, chunk=CHUNK)(*pair.identities, ranges, output)


def found(result: ParityResult) -> list[tuple[str, int | None]]:
    return [(finding.kind, finding.offset) for finding in result.findings]


def write_misled_configuration(pair: Pair, *, misled: str = "west", leads_to: str = "east") -> Path:
    """As a machine may have it: the address of one cluster leads to the other."""
    document = yaml.safe_load(pair.config_path.read_text(encoding="utf-8"))
    document["clusters"][misled] = document["clusters"][leads_to]
    path = pair.config_path.with_name(f"misled-{misled}.yaml")
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path
