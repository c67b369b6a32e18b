"""A mirror's runbook with its own names, commands and times, to print before it is needed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import jinja2

from mirror_core.decide.steps import as_markdown
from mirror_core.model.mirror import Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import Partition, reverse_name
from mirror_core.model.run import Mode, RunKind
from mirror_core.model.text import visible_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    id: str
    mode: str
    state: str
    stood_still: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Runbook:
    mirror: Mirror
    statuses: Mapping[Partition, PartitionStatus]
    servers: Mapping[str, str]
    hooks: Sequence[str]
    owner: str = ""
    forecasts: Mapping[Mode, str]
    runs: Sequence[PastRun]
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
        return {"source": mirror.source, "destination": mirror.destination, "back": reverse_name(mirror.name)}


def render(book: Runbook) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mirror_core.evidence", "templates"),
        autoescape=False,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_shown,
    )
    environment.filters["when"] = _when
    environment.filters["cell"] = _cell
    return environment.get_template("runbook.md.j2").render(
        book=book,
        mirror=book.mirror,
        planned=list(as_markdown(RunKind.FAILOVER, Mode.PLANNED, **book.names)),
        unplanned=list(as_markdown(RunKind.FAILOVER, Mode.UNPLANNED, **book.names)),
        home=list(as_markdown(RunKind.FAILBACK, Mode.PLANNED, **book.names)),
    )


def _when(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"


def _cell(names: Collection[str]) -> str:
    """A `|` in an expression would end the table cell."""
    return ", ".join(names).replace("|", "\\|")


def _shown(value: object) -> object:
    """Escapes control characters in foreign names."""
    return visible_lines(value) if isinstance(value, str) else value
