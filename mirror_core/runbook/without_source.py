"""Derives the unplanned snapshot from a planned one, without another request."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mirror_core.decide.drills import forecast_standstill
from mirror_core.decide.view import MirrorSnapshot, UnseenCluster
from mirror_core.model.run import RunMode
from mirror_core.runbook.observe import compute_promotion_rights
from mirror_core.state.link import MirrorLink
from mirror_core.state.records import State

PRESUMED_DEAD: Final = UnseenCluster("for this figure it is taken for dead")


def presume_source_dead(
    snapshot: MirrorSnapshot, link: MirrorLink, state: State, *, conductor: str | None = None
) -> MirrorSnapshot:
    link = replace(link, mirror=snapshot.mirror)
    rights = compute_promotion_rights(link, state, RunMode.UNPLANNED, PRESUMED_DEAD, snapshot.destination)
    return replace(
        snapshot,
        mode=RunMode.UNPLANNED,
        source=PRESUMED_DEAD,
        grants=rights.bound,
        promotion_grants=rights.given,
        unbacked_grants=rights.unbacked,
        forecast=forecast_standstill(
            state.runs.values(), state.steps_of, link.mirror.name, RunMode.UNPLANNED, conductor
        ),
    )
