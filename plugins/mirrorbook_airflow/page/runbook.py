"""The runbook of a mirror as a page: the same words as the printed one, from the same value. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from mirror_core.decide.steps import as_rows, point_of_no_return
from mirror_core.evidence.runbook_page import Runbook
from mirror_core.model.run import Mode, RunKind
from mirrorbook_airflow.page.rendering import render

_TABLES: Final = MappingProxyType(
    {
        "planned": (RunKind.FAILOVER, Mode.PLANNED),
        "unplanned": (RunKind.FAILOVER, Mode.UNPLANNED),
        "home": (RunKind.FAILBACK, Mode.PLANNED),
    }
)


@dataclass(frozen=True, slots=True)
class StepTable:
    """What is known of each step."""

    rows: Sequence[tuple[str, str, str, str, str]]
    turning: str
    """The step behind which there is no way back."""


def runbook_body(book: Runbook, silent: str, root: str) -> str:
    """`silent`: why what the destination had recorded could not be read since; empty: it was."""
    tables = {
        name: StepTable(list(as_rows(kind, mode, **book.names)), point_of_no_return(kind, mode))
        for name, (kind, mode) in _TABLES.items()
    }
    return render("runbook", book=book, mirror=book.mirror, silent=silent, root=root, **tables)
