"""Set pages, shared by tests."""

from __future__ import annotations

from dataclasses import replace

from mirror_core.model.names import MirrorName
from mirror_core.model.run import Run, RunMode
from tests.support.page_views import run

ATTEMPT = "shop-20260101T000000-abcd"


def run_of(mirror: MirrorName, part_of: str = ATTEMPT, mode: RunMode = RunMode.PLANNED, **more: object) -> Run:
    made = run(mode)
    return replace(made, id=f"{mirror}-{part_of}", plan=replace(made.plan, mirror=mirror), set_run=part_of, **more)  # type: ignore[arg-type]
