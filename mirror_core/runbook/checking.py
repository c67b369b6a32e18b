"""`mirror check`: judges readiness and drift with Great Expectations.

Changes nothing and reads no records. What could not be read is never a pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from mirror_core.decide.expected import Expected, Judging
from mirror_core.decide.ready_rows import readiness
from mirror_core.evidence.expectations import Judged, great_expectations, judge_tables, verdict_of
from mirror_core.evidence.suites import READINESS, SYNC, Demands
from mirror_core.model.documents import Document
from mirror_core.model.drift import CHANGES, Action, DriftRow, Part
from mirror_core.model.errors import MirrorError
from mirror_core.model.files import writing
from mirror_core.model.parity import Verdict
from mirror_core.model.run import Mode
from mirror_core.runbook.observe import observe
from mirror_core.state.link import Link
from mirror_core.state.records import State
from mirror_core.sync.cycle import SyncReport, survey

WHAT: Final = "check"
ADVICE: Final = "make room and rights there, or give another folder: --output"


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

    suite: Judging
    verdict: Verdict
    rows: int
    """Rows judged."""
    expectations: tuple[ExpectationDocument, ...]


class CheckDocument(Document, frozen=True, kw_only=True):
    """Readiness and drift of a mirror, judged."""

    mirror: str
    verdict: Verdict
    tiers: tuple[str, ...]
    """Tiers that apply to this mirror."""
    suites: tuple[SuiteDocument, ...]
    trouble: tuple[str, ...]
    """What could not be read, and why."""
    report: str
    """The Data Docs' start page; empty: none requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    mirror: str
    verdict: Verdict
    tiers: tuple[str, ...]
    rows: dict[Judging, int]
    judged: dict[Judging, Judged]
    trouble: tuple[str, ...]
    report: str

    @property
    def unmet(self) -> tuple[str, ...]:
        held = ((suite, one) for suite, judged in self.judged.items() for one in judged.held if not one.held)
        lines = (f"{suite}: {'' if one.known else 'not known: '}{one}" for suite, one in held)
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
                        expectation=one.what,
                        by=one.by,
                        held=one.held if one.held or one.known else None,
                        where=one.where,
                    )
                    for one in judged.held
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


def check(link: Link, state: State, more: Expected, output: Path | None) -> Checked:
    with great_expectations():
        pass  # fail before any cluster is read
    trouble = list[str]()
    try:
        drift = tuple(_sync_rows(survey(link, state)))
    except MirrorError as error:
        trouble.append(f"sync: {error}")
        drift = ()
    view = observe(link, state, Mode.PLANNED, offsets=False)
    found = [asdict(row) for row in readiness(view, state.runs.values())]
    tables = [
        (Demands(suite=READINESS, more=more), pa.Table.from_pylist(found, schema=READINESS.schema)),
        (Demands(suite=SYNC, more=more), pa.Table.from_pylist(list(drift), schema=SYNC.schema)),
    ]
    judged = judge_tables(tables, output / "data-docs" if output else None)
    checked = Checked(
        mirror=link.mirror.name,
        verdict=verdict_of(held for one in judged for held in one.held),
        tiers=tuple(tier.name for tier in more.tiers),
        rows={demands.suite.judging: table.num_rows for demands, table in tables},
        judged={demands.suite.judging: one for (demands, _), one in zip(tables, judged, strict=True)},
        trouble=tuple(trouble),
        report=judged[0].docs,
    )
    if output is not None:
        with writing(WHAT, output, ADVICE):
            for demands, table in tables:
                pq.write_table(table, output / f"{demands.suite.judging}.parquet", compression="zstd")
            (output / "result.json").write_bytes(msgspec.json.format(msgspec.json.encode(checked.document)))
    return checked


def _sync_rows(report: SyncReport) -> Iterator[dict[str, object]]:
    rows = list(report.rows)
    differing = {row.topic for row in rows if row.part in (Part.TOPICS, Part.CONFIGS)}
    rows += [
        DriftRow(part=Part.TOPICS, subject=name, source="", destination="", action=Action.EQUAL)
        for name in sorted(report.topics - differing)
    ]
    for row in rows:
        yield {
            "part": row.part,
            "subject": row.subject,
            "topic": row.topic if row.part is not Part.GROUPS or row.topic in report.topics else "",
            "source": row.source,
            "destination": row.destination,
            "action": row.action,
            "pending": row.action in CHANGES and not row.done,
            "reason": row.reason,
        }
