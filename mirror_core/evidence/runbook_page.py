"""The runbook of one mirror, with its own names, commands and times: to be printed before it is needed."""

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
    """One row of those that were before."""

    id: str
    mode: str
    state: str
    stood_still: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Runbook:
    """What is written into it."""

    mirror: Mirror
    statuses: Mapping[Partition, PartitionStatus]
    servers: Mapping[str, str]
    """Bootstrap servers by cluster."""
    hooks: Sequence[str]
    owner: str = ""
    """Whom to call; empty: nobody is named."""
    forecasts: Mapping[Mode, str]
    """Seconds without writes."""
    runs: Sequence[PastRun]
    now_ms: int
    """Wall clock when the destination's records were read."""

    @property
    def topics(self) -> int:
        return len({partition.topic for partition in self.statuses})

    @property
    def failed(self) -> int:
        return sum(status.state is PartitionState.FAILED for status in self.statuses.values())

    @property
    def names(self) -> dict[str, str]:
        """As the tables of steps call them."""
        mirror = self.mirror
        return {"source": mirror.source, "destination": mirror.destination, "back": reverse_name(mirror.name)}


def render(book: Runbook) -> str:
    """Markdown, for a terminal and a printer."""
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
    """In a cell of a table, which would end at the bar of an expression such as `orders|payments`."""
    return ", ".join(names).replace("|", "\\|")


def _shown(value: object) -> object:
    """Whatever others have named is seen as it is, and moves no cursor."""
    return visible_lines(value) if isinstance(value, str) else value
