"""What would happen if a mirror were failed over now. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from mirror_core.decide.abandoned import conducts
from mirror_core.decide.ages import Known, known_since, never_compared, newest_of
from mirror_core.decide.crowded import in_words
from mirror_core.decide.proof import differing
from mirror_core.decide.readiness import Point, Readiness, Weight, of_ages, of_drift, of_plan, of_uncompared
from mirror_core.decide.run_standing import standing_of
from mirror_core.decide.view import some
from mirror_core.decide.without_source import WithoutSource
from mirror_core.mirrors.preflight import Verdict, check
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import MirrorError
from mirror_core.model.names import MirrorName
from mirror_core.model.reckoning import Foretold
from mirror_core.runbook.failover import Failover
from mirror_core.runbook.services import Services
from mirror_core.state.link import Link
from mirror_core.state.pulse import conducted
from mirror_core.state.records import State
from mirror_core.state.watchers import watched
from mirror_core.sync.cycle import survey


def look(
    link: Link, state: State, services: Services, *, whole: bool, read_ms: int | None = None, current: bool = True
) -> Readiness:
    begun, name = now_ms(), link.mirror.name
    run = state.active_run(name)
    try:
        decision, unplanned = Failover(link, services, started_by="readiness").foresee()
        points, figures, foretold = [*of_plan(decision)], decision.plan.figures, decision.plan.foretold
    except MirrorError as error:
        why = f"no plan can be made: {error}"
        points, figures, foretold = [Point(Weight.REFUSAL, why)], {}, UNSET
        unplanned = WithoutSource(refused=(why,))
    statuses = state.partitions.get(name, {})
    points += remembered(name, state, begun)
    if whole:
        points += [*_drift(link, state), *rights(link)]
    return Readiness(
        mirror=link.mirror,
        run=standing_of(run, state.steps_of(run)) if run else None,
        conducted=conducts(conducted(state, run)) if run and current else None,
        watched=watched(state, name, begun if read_ms is None else read_ms) if current else None,
        points=tuple(points),
        figures=figures,
        predicted_s=foretold.seconds if isinstance(foretold, Foretold) else None,
        known_ms=newest_of(_known(name, state), statuses),
        differs=len(differing(state.proofs.get(name), statuses)),
        unplanned=unplanned,
        at_ms=begun,
    )


def remembered(name: MirrorName, state: State, now_ms: int) -> Iterator[Point]:
    yield from of_ages(name, _known(name, state), now_ms)
    statuses = state.partitions.get(name, {})
    yield from of_uncompared(name, never_compared(state.proofs.get(name), statuses))
    if crowded := in_words(statuses.values()):
        yield Point(Weight.WARNING, f"partitions come {crowded}")


def _known(name: MirrorName, state: State) -> dict[Known, int]:
    groups, proof = state.groups.get(name), state.proofs.get(name)
    return dict(known_since(name, groups, proof, iter(state.runs.values()), state.partitions.get(name, {})))


def _drift(link: Link, state: State) -> Iterator[Point]:
    try:
        yield from of_drift(link.mirror.name, survey(link, state).rows)
    except MirrorError as error:
        yield Point(Weight.WARNING, f"drift is not known: {error}")


def rights(link: Link) -> Iterator[Point]:
    for side, role in ((link.source, "source"), (link.destination, "destination")):
        try:
            found = check(side)
        except MirrorError as error:
            yield Point(Weight.WARNING, f"rights on {side.name} are not known: {error}")
            continue
        remedy = f"`mirrorbook cluster check {side.name}`"
        lacking = [r for r in found.rights if r.role == role and r.verdict is Verdict.MISSING]
        if lacking:
            what = some([f"{right.user} lacks {right.operation} on {right.resource}" for right in lacking])
            yield Point(Weight.WARNING, f"cluster {side.name}: {what}", remedy)
        if found.forgetful and role == "destination":
            more = f" (and {len(found.forgetful) - 1} more such broker(s))" if len(found.forgetful) > 1 else ""
            yield Point(Weight.WARNING, f"cluster {side.name}: {found.forgetful[0]}{more}", remedy)
