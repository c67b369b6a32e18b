"""`mirror check`: judges readiness and drift with Great Expectations. Reads no records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from mirror_core.decide.expectation_config import JudgedTable, UserExpectations
from mirror_core.decide.failover_readiness import list_readiness_rows
from mirror_core.evidence.expectation_suites import READINESS, SYNC, TableExpectations
from mirror_core.evidence.expectations import TableJudgement, combine_verdicts, judge_tables, quiet_great_expectations
from mirror_core.model.errors import MirrorError
from mirror_core.model.files import report_write_errors
from mirror_core.model.json_documents import JsonDocument
from mirror_core.model.parity_verdict import ParityVerdict
from mirror_core.model.run import RunMode
from mirror_core.model.sync_state import WRITING_ACTIONS, DriftRow, SyncAction, SyncCategory
from mirror_core.runbook.snapshot_reader import take_snapshot
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import State
from mirror_core.sync.mirror_sync import SyncReport, preview_sync

CHECK_NAME: Final = "check"
CHECK_ADVICE: Final = "make room and rights there, or give another folder: --output"


class ExpectationDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One expectation's result."""

    expectation: str
    by: str
    """The file's place or tier; empty: Mirrorbook."""
    held: bool | None
    """Null: unknown."""
    where: str
    """Where it failed, or what was found."""


class SuiteDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One table's results."""

    suite: JudgedTable
    verdict: ParityVerdict
    rows: int
    """Rows judged."""
    expectations: tuple[ExpectationDocument, ...]


class CheckDocument(JsonDocument, frozen=True, kw_only=True):
    """Readiness and drift of a mirror, judged."""

    mirror: str
    verdict: ParityVerdict
    tiers: tuple[str, ...]
    """Tiers that apply to this mirror."""
    suites: tuple[SuiteDocument, ...]
    trouble: tuple[str, ...]
    """What could not be read, and why."""
    report: str
    """The Data Docs' start page; empty: none requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorCheck:
    mirror: str
    verdict: ParityVerdict
    tiers: tuple[str, ...]
    rows: dict[JudgedTable, int]
    judged: dict[JudgedTable, TableJudgement]
    trouble: tuple[str, ...]
    report: str

    @property
    def unmet(self) -> tuple[str, ...]:
        held = (
            (suite, expectation)
            for suite, judged in self.judged.items()
            for expectation in judged.held
            if not expectation.held
        )
        lines = (f"{suite}: {'' if expectation.known else 'not known: '}{expectation}" for suite, expectation in held)
        return (*(f"not looked at: {line}" for line in self.trouble), *lines)

    @property
    def document(self) -> CheckDocument:
        suites = (
            SuiteDocument(
                suite=suite,
                verdict=judged.verdict,
                rows=self.rows[suite],
                expectations=tuple(
                    ExpectationDocument(
                        expectation=expectation.what,
                        by=expectation.by,
                        held=expectation.held if expectation.held or expectation.known else None,
                        where=expectation.where,
                    )
                    for expectation in judged.held
                ),
            )
            for suite, judged in self.judged.items()
        )
        return CheckDocument(
            mirror=self.mirror,
            verdict=self.verdict,
            tiers=self.tiers,
            suites=tuple(suites),
            trouble=self.trouble,
            report=self.report,
        )


def check_mirror(
    link: MirrorLink, state: State, user_expectations: UserExpectations, output: Path | None
) -> MirrorCheck:
    with quiet_great_expectations():
        pass  # fail before any cluster is read
    trouble = list[str]()
    try:
        drift = tuple(_to_sync_rows(preview_sync(link, state)))
    except MirrorError as error:
        trouble.append(f"sync: {error}")
        drift = ()
    snapshot = take_snapshot(link, state, RunMode.PLANNED, offsets=False)
    readiness_rows = [asdict(row) for row in list_readiness_rows(snapshot, state.runs.values())]
    tables = [
        (
            TableExpectations(suite=READINESS, user_expectations=user_expectations),
            pa.Table.from_pylist(readiness_rows, schema=READINESS.schema),
        ),
        (
            TableExpectations(suite=SYNC, user_expectations=user_expectations),
            pa.Table.from_pylist(list(drift), schema=SYNC.schema),
        ),
    ]
    judged = judge_tables(tables, output / "data-docs" if output else None)
    checked = MirrorCheck(
        mirror=link.mirror.name,
        verdict=combine_verdicts(expectation for result in judged for expectation in result.held),
        tiers=tuple(tier.name for tier in user_expectations.tiers),
        rows={demands.suite.table_kind: table.num_rows for demands, table in tables},
        judged={demands.suite.table_kind: result for (demands, _), result in zip(tables, judged, strict=True)},
        trouble=tuple(trouble),
        report=judged[0].docs,
    )
    if output is not None:
        with report_write_errors(CHECK_NAME, output, CHECK_ADVICE):
            for demands, table in tables:
                pq.write_table(table, output / f"{demands.suite.table_kind}.parquet", compression="zstd")
            (output / "result.json").write_bytes(msgspec.json.format(msgspec.json.encode(checked.document)))
    return checked


def _to_sync_rows(report: SyncReport) -> Iterator[dict[str, object]]:
    rows = list(report.rows)
    differing = {row.topic for row in rows if row.part in (SyncCategory.TOPICS, SyncCategory.CONFIGS)}
    rows += [
        DriftRow(part=SyncCategory.TOPICS, subject=name, action=SyncAction.EQUAL)
        for name in sorted(report.topics - differing)
    ]
    for row in rows:
        yield {
            "part": row.part,
            "subject": row.subject,
            "topic": row.topic if row.part is not SyncCategory.GROUPS or row.topic in report.topics else "",
            "source": row.source,
            "destination": row.destination,
            "action": row.action,
            "pending": row.action in WRITING_ACTIONS and not row.done,
            "reason": row.reason,
        }
