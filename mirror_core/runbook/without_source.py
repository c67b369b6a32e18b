"""Derives the unplanned snapshot from a planned one, without another request."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mirror_core.decide.drills import forecast
from mirror_core.decide.view import Unseen, View
from mirror_core.model.run import Mode
from mirror_core.runbook.observe import rights_of
from mirror_core.state.link import Link
from mirror_core.state.records import State

DEAD: Final = Unseen("for this figure it is taken for dead")


def as_if_dead(seen: View, link: Link, state: State, *, conductor: str | None = None) -> View:
    link = replace(link, mirror=seen.mirror)
    rights = rights_of(link, state, Mode.UNPLANNED, DEAD, seen.destination)
    return replace(
        seen,
        mode=Mode.UNPLANNED,
        source=DEAD,
        grants=rights.bound,
        given=rights.given,
        unbacked=rights.unbacked,
        forecast=forecast(state.runs.values(), state.steps_of, link.mirror.name, Mode.UNPLANNED, conductor),
    )
