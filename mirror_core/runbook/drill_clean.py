"""Removes what a drill left, by its names and records, even if its base mirror is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mirror_core.decide.drills import check_ours, drill_name, drill_topic, group_of, old_runs, put_up
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, Config
from mirror_core.kafka.existing import existing
from mirror_core.kafka.topics import delete_topics
from mirror_core.mirrors import verbs
from mirror_core.model.errors import BadRequest, Indeterminate, MissingPermission, RemoteFault
from mirror_core.model.mirror import Desired
from mirror_core.runbook.drill_group import forget_group
from mirror_core.runbook.failover import Failover
from mirror_core.runbook.services import Services
from mirror_core.state.link import Link, find, link_of, state_on
from mirror_core.state.records import Forget, Record
from mirror_core.state.topic import read_state
from mirror_core.state.turning import turned
from mirror_core.state.writer import StateWriter, control_id
from mirror_core.sync.fence import lift_fence
from mirror_core.sync.ledger import forget_debt, take_away_unshared

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Place:
    sides: tuple[ClusterConfig, ...]
    """First the one whose state topic has it."""
    link: Link | None


def clean(config: Config, mirror: str, services: Services, *, started_by: str, say: Say) -> None:
    """Idempotent. Raises Indeterminate if a cluster was unreachable; the other one is clean then."""
    place, away = _place(config, mirror), dict[str, str]()

    @contextmanager
    def reaching(side: ClusterConfig) -> Iterator[None]:
        try:
            yield
        except MissingPermission:
            raise
        except RemoteFault as error:
            away.setdefault(side.name, str(error))

    link = place.link
    if link is not None:
        check_ours(link.mirror, mirror)
        with reaching(link.source):
            _end_run(link, services, started_by)
        for side in place.sides:
            with reaching(side):
                _lift(link, side)
        now = state_on(config, link.destination.name).mirrors.get(link.mirror.name)
        if now is None:
            link = None  # another clean was quicker
        elif not away and now.desired is not Desired.STOPPED:
            verbs.stop(link)
    for side in place.sides:
        if side.name not in away:
            with reaching(side):
                _forget_topic(side, drill_topic(mirror), say)
                forget_group(side, group_of(mirror), say)
    if away:
        silent = "; ".join(f"cluster {name}: {why}" for name, why in away.items())
        raise Indeterminate(
            f"what a drill has left is not all taken away: {silent}. When it answers: `mirrorbook drill clean {mirror}`"
        )
    if link is not None:
        verbs.delete(link)
    _forget_runs(place.sides[0], mirror)


def _place(config: Config, mirror: str) -> _Place:
    name = drill_name(mirror)
    try:
        real, state = find(config, mirror)
        known = state.mirrors.get(name)
        return _Place((real.destination, real.source), link_of(config, known) if known else None)
    except (BadRequest, Indeterminate) as unknown:
        try:
            link, _ = find(config, name)
            return _Place((link.destination, link.source), link)
        except (BadRequest, Indeterminate):
            held = tuple(side for side in config.clusters.values() if _holds(side, drill_topic(mirror)))
            if not held:
                raise unknown from None
            return _Place(held, None)


def _holds(side: ClusterConfig, topic: str) -> bool:
    try:
        with ClusterClient(side) as client:
            return topic in client.metadata([topic]).topics
    except RemoteFault:
        return False


def _end_run(link: Link, services: Services, started_by: str) -> None:
    failover = Failover(link, services, started_by=started_by)
    run = failover.active()
    if run is not None:
        promoted = turned(state_on(link.config, link.destination.name), run)
        failover.drive(run.id) if promoted else failover.abort(run.id)


def _lift(link: Link, side: ClusterConfig) -> None:
    with StateWriter(link.destination, control_id(link.mirror.name)) as writer, ClusterClient(side) as client:
        if side.name == link.source.name:
            forget_debt(writer, link.mirror.name)
            lift_fence(link.mirror, writer, client)
        take_away_unshared(writer, client, put_up(writer.state.ledger_of(link.mirror.name), client.name))


def _forget_topic(side: ClusterConfig, topic: str, say: Say) -> None:
    with ClusterClient(side) as client:
        try:
            if topic in existing(client, [topic]):
                delete_topics(client, [topic])
        except MissingPermission as error:
            say(f"topic {topic} stays on cluster {side.name}: {error}")


def _forget_runs(home: ClusterConfig, mirror: str) -> None:
    state = read_state(home)
    if not old_runs(state.runs.values(), mirror):
        return
    with StateWriter(home, control_id(drill_name(mirror))) as writer:
        gone: list[Record] = []
        for run in old_runs(writer.state.runs.values(), mirror):
            gone += [run, *writer.state.steps_of(run), *writer.state.told.get(run.id, {}).values()]
            gone += [c for c in writer.state.checkpoints.values() if c.run == run.id]
        writer.put(*(Forget(record) for record in gone))
