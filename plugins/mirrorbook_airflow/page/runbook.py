"""The runbook of a mirror as a page: the same words as the printed one, from the same value. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from mirror_core.decide.steps import find_no_return_step, list_step_rows
from mirror_core.evidence.runbook_page import RunbookContent
from mirror_core.model.run import RunKind, RunMode
from mirrorbook_airflow.page.rendering import render

_STEP_TABLES: Final = MappingProxyType(
    {
        "planned": (RunKind.FAILOVER, RunMode.PLANNED),
        "unplanned": (RunKind.FAILOVER, RunMode.UNPLANNED),
        "home": (RunKind.FAILBACK, RunMode.PLANNED),
    }
)


@dataclass(frozen=True, slots=True)
class StepTable:
    """What is known of each step."""

    rows: Sequence[tuple[str, str, str, str, str]]
    no_return_step: str
    """The step behind which there is no way back."""


def runbook_body(book: RunbookContent, silent: str, root: str) -> str:
    """`silent`: why what the destination had recorded could not be read since; empty: it was."""
    tables = {
        name: StepTable(list(list_step_rows(kind, mode, **book.names)), find_no_return_step(kind, mode))
        for name, (kind, mode) in _STEP_TABLES.items()
    }
    return render("runbook", book=book, mirror=book.mirror, silent=silent, root=root, **tables)
