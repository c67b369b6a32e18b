"""Planned comparisons, shared by tests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from mirror_core.decide.parity_result import ParityRow
from mirror_core.decide.verification import VerificationBasis
from mirror_core.evidence.file_store import open_local_folder
from mirror_core.kafka.config import load_config
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.parity_verdict import ParityRange, ParityResult
from mirror_core.model.timing import now_ms
from mirror_core.parity.check import judge_comparison
from mirror_core.parity.parity_plan import ParityPlan, StoredBasis, make_parity_plan
from mirror_core.parity.parity_table import read_parity_rows
from tests.support.kafka_clients import Pair

EAST, WEST = ClusterName("east"), ClusterName("west")
NO_BASIS = StoredBasis.from_basis(VerificationBasis({}, {}, {}), None)


def planned(pair: Pair, ranges: Sequence[ParityRange], *, chunk: int = 10, span_bytes: int = 1_000) -> ParityPlan:
    config = load_config(pair.config_path)
    return make_parity_plan(
        config,
        MirrorName("m"),
        1,
        *pair.identities,
        ranges,
        NO_BASIS,
        planned_ms=now_ms(),
        chunk=chunk,
        span_bytes=span_bytes,
    )


def rows_of(plan: ParityPlan, table: Path) -> list[ParityRow]:
    return read_parity_rows(plan, open_local_folder(str(table)))


def judged(plan: ParityPlan, table: Path) -> ParityResult:
    return judge_comparison(
        plan.ranges,
        [*plan.ends, *rows_of(plan, table)],
        None,
        source=plan.source.name,
        destination=plan.destination.name,
        level=plan.level,
        started=time.time(),
        seconds=0.0,
        demands=None,
    )
