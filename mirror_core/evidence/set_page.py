"""The page of a set's failover: a line per mirror, with a link to its run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from mirror_core.decide.sets import RunPhase, measure_set_standstill_s
from mirror_core.decide.steps import measure_standstill_s
from mirror_core.evidence.shown import load_template
from mirror_core.evidence.summary import find_loss_answer
from mirror_core.model.files import report_write_errors
from mirror_core.model.mirror_set import MirrorSet
from mirror_core.model.run import Run, StepRecord, StepState

SET_PAGE: Final = "index.html"
_ORDER_TEXTS: Final = {"side_by_side": "side by side", "in_order": "in order"}


@dataclass(frozen=True, slots=True)
class SetPageMirror:
    run: Run
    steps: tuple[StepRecord, ...]
    place: RunPhase

    @property
    def stood_still(self) -> str:
        return _format_seconds(measure_standstill_s(self.run, self.steps))

    @property
    def lost(self) -> str:
        return find_loss_answer(self.run, self.steps) if self.place is RunPhase.DONE else ""

    @property
    def trouble(self) -> str:
        return next((s.error for s in reversed(self.steps) if s.state is StepState.FAILED), self.run.note)


def write_set_page(page: Path, mirror_set: MirrorSet, attempt: str, mirrors: Sequence[SetPageMirror]) -> None:
    text = load_template("set.html.j2", when=_format_time).render(
        chosen=mirror_set,
        how=_ORDER_TEXTS[mirror_set.order],
        attempt=attempt,
        moved=mirrors,
        done=sum(mirror.place is RunPhase.DONE for mirror in mirrors),
        stood_still=_format_seconds(measure_set_standstill_s((mirror.run, mirror.steps) for mirror in mirrors)),
    )
    with report_write_errors("report on a set of mirrors", page, "make room and rights there"):
        page.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        page.write_text(text, encoding="utf-8")


def _format_seconds(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f} s"


def _format_time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
