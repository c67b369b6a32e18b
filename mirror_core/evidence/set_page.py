"""The page of a set's failover: a line per mirror, with a link to its run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from mirror_core.decide.sets import Place, stood_still_in_all_s
from mirror_core.decide.steps import stood_still_s
from mirror_core.evidence.shown import html
from mirror_core.evidence.summary import lost
from mirror_core.model.files import writing
from mirror_core.model.mirror_set import MirrorSet
from mirror_core.model.run import Run, StepRecord, StepState

SET_PAGE: Final = "index.html"
_HOW: Final = {"side_by_side": "side by side", "in_order": "in order"}


@dataclass(frozen=True, slots=True)
class Moved:
    run: Run
    steps: tuple[StepRecord, ...]
    place: Place

    @property
    def stood_still(self) -> str:
        return _seconds(stood_still_s(self.run, self.steps))

    @property
    def lost(self) -> str:
        return lost(self.run, self.steps) if self.place is Place.DONE else ""

    @property
    def trouble(self) -> str:
        return next((s.error for s in reversed(self.steps) if s.state is StepState.FAILED), self.run.note)


def write_set_page(page: Path, chosen: MirrorSet, attempt: str, moved: Sequence[Moved]) -> None:
    text = html("set.html.j2", when=_when).render(
        chosen=chosen,
        how=_HOW[chosen.order],
        attempt=attempt,
        moved=moved,
        done=sum(one.place is Place.DONE for one in moved),
        stood_still=_seconds(stood_still_in_all_s((one.run, one.steps) for one in moved)),
    )
    with writing("report on a set of mirrors", page, "make room and rights there"):
        page.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        page.write_text(text, encoding="utf-8")


def _seconds(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f} s"


def _when(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
