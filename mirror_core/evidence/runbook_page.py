"""A mirror's runbook page, to print beforehand."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Final

import jinja2

from mirror_core.decide.steps import format_steps_markdown
from mirror_core.model.figures import FIRST_STEP_TEXT
from mirror_core.model.mirror import Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import Partition, format_reverse_name
from mirror_core.model.run import RunKind, RunMode
from mirror_core.model.text import escape_invisible, escape_invisible_lines

EMERGENCY_PAGE: Final = "emergency.md"
"""A copy of the docs' page, which the wheel does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRunLine:
    id: str
    mode: str
    state: str
    stood_still: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunbookContent:
    mirror: Mirror
    statuses: Mapping[Partition, PartitionStatus]
    servers: Mapping[str, str]
    hooks: Sequence[str]
    owner: str = ""
    writes: str
    """Where applications write, by what is recorded."""
    forecasts: Mapping[RunMode, str]
    runs: Sequence[PastRunLine]
    now_ms: int

    @property
    def topics(self) -> int:
        return len({partition.topic for partition in self.statuses})

    @property
    def failed(self) -> int:
        return sum(status.state is PartitionState.FAILED for status in self.statuses.values())

    @property
    def names(self) -> dict[str, str]:
        mirror = self.mirror
        return {"source": mirror.source, "destination": mirror.destination, "back": format_reverse_name(mirror.name)}


def render_runbook(book: RunbookContent) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mirror_core.evidence", "templates"),
        autoescape=False,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_make_visible,
    )
    environment.globals["first_step"] = FIRST_STEP_TEXT
    environment.filters["when"] = _format_minute
    environment.filters["cell"] = _format_cell
    return environment.get_template("runbook.md.j2").render(
        book=book,
        mirror=book.mirror,
        emergency=render_emergency(book.mirror),
        planned=list(format_steps_markdown(RunKind.FAILOVER, RunMode.PLANNED, **book.names)),
        unplanned=list(format_steps_markdown(RunKind.FAILOVER, RunMode.UNPLANNED, **book.names)),
        home=list(format_steps_markdown(RunKind.FAILBACK, RunMode.PLANNED, **book.names)),
    )


_LINK: Final = re.compile(r"\[([^]]+)\]\(([^)#]*)[^)]*\)")
_PLACEHOLDER: Final = re.compile(r"\b(?:[Ee]ast|[Ww]est|NAME)\b")


def render_emergency(mirror: Mirror) -> str:
    """Without its title; with this mirror's names, and names of pages in place of links."""
    names = {"east": mirror.source, "west": mirror.destination, "name": mirror.name}
    page = _LINK.sub(lambda link: f"{link[1]} ({link[2]})" if link[2] else link[1], read_emergency_page())
    return _PLACEHOLDER.sub(lambda word: escape_invisible(names[word[0].lower()]), page.partition("\n")[2].strip())


def read_emergency_page() -> str:
    return files("mirror_core.evidence").joinpath("templates", EMERGENCY_PAGE).read_text(encoding="utf-8")


def _format_minute(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"


def _format_cell(names: Collection[str]) -> str:
    """`|` would end the table cell, and a line break the table."""
    return escape_invisible(", ".join(names)).replace("|", "\\|").replace("<", "\\<")


def _make_visible(value: object) -> object:
    return escape_invisible_lines(value) if isinstance(value, str) else value
