"""A salvage's page: counts and offsets, no contents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from mirror_core.evidence.shown import html
from mirror_core.model.files import writing
from mirror_core.model.parity import Fate, Saved

PAGE: Final = "_report.html"
"""The underscore hides it from Parquet readers."""
SHOWN: Final = 1000
_MEANS: Final[Mapping[Fate, str]] = MappingProxyType(
    {
        Fate.MISSING: "the new primary has no record of this key since the logs parted: without it something is lost",
        Fate.THERE: "the new primary has a record of this key with this value: nothing to do",
        Fate.CONFLICTING: "the new primary has gone on with other values of this key: decide which one holds",
        Fate.UNKEYED: "there is no key to look for: only what it says can tell",
    }
)


def write_salvage_report(folder: Path, saved: Sequence[Saved], *, run: str, old: str, new: str) -> Path:
    totals = {fate: sum(s.fates.get(fate, 0) for s in saved) for fate in Fate}
    rows = [(s, fate) for s in saved for fate in Fate if s.fates.get(fate)]
    page = folder / PAGE
    with writing("report of a salvage", page, "make room and rights there, then resume the run"):
        page.write_text(
            html("salvage.html.j2").render(
                run=run,
                old=old,
                new=new,
                records=sum(s.records for s in saved),
                partitions=len(saved),
                totals=totals,
                means=_MEANS,
                rows=rows[:SHOWN],
                rows_in_all=len(rows),
            ),
            encoding="utf-8",
        )
    return page
