"""A salvage's page: counts and offsets, no contents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from mirror_core.evidence.html_templates import load_template
from mirror_core.model.files import report_write_errors
from mirror_core.model.parity_verdict import SalvagedPartition, SalvageMatch

SALVAGE_PAGE: Final = "_report.html"
"""The underscore hides it from Parquet readers."""
MAX_FATE_ROWS: Final = 1000
_MATCH_MEANINGS: Final[Mapping[SalvageMatch, str]] = MappingProxyType(
    {
        SalvageMatch.MISSING: (
            "the new primary has no record of this key since the logs parted: without it something is lost"
        ),
        SalvageMatch.SAME_VALUE: "the new primary has a record of this key with this value: nothing to do",
        SalvageMatch.CONFLICTING: "the new primary has gone on with other values of this key: decide which one holds",
        SalvageMatch.UNKEYED: "there is no key to look for: only what it says can tell",
    }
)


def write_salvage_report(folder: Path, saved: Sequence[SalvagedPartition], *, run: str, old: str, new: str) -> Path:
    totals = {match: sum(s.matches.get(match, 0) for s in saved) for match in SalvageMatch}
    rows = [(s, match) for s in saved for match in SalvageMatch if s.matches.get(match)]
    page = folder / SALVAGE_PAGE
    with report_write_errors("report of a salvage", page, "make room and rights there, then resume the run"):
        page.write_text(
            load_template("salvage.html.j2").render(
                run=run,
                old=old,
                new=new,
                records=sum(s.records for s in saved),
                partitions=len(saved),
                totals=totals,
                means=_MATCH_MEANINGS,
                rows=rows[:MAX_FATE_ROWS],
                rows_in_all=len(rows),
            ),
            encoding="utf-8",
        )
    return page
