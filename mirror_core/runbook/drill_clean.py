"""Removes what a drill left, by its names and records, even if its base mirror is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mirror_core.decide.drills import (
    check_drill_mirror,
    list_drill_acls,
    list_forgettable_runs,
    to_drill_group,
    to_drill_name,
    to_drill_topic,
)
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, Config
from mirror_core.kafka.existing import find_existing_topics
from mirror_core.kafka.topics import delete_topics
from mirror_core.mirrors import verbs
from mirror_core.model.errors import BadRequest, Indeterminate, MissingPermission, RemoteFault
from mirror_core.model.mirror import DesiredState
from mirror_core.runbook.drill_group import delete_drill_group
from mirror_core.runbook.failover import Failover
from mirror_core.runbook.services import Services
from mirror_core.state.link import MirrorLink, find_mirror_link, make_mirror_link, read_cluster_state
from mirror_core.state.records import StateRecord, Tombstone
from mirror_core.state.topic import read_state
from mirror_core.state.turning import is_past_no_return
from mirror_core.state.writer import StateWriter, make_control_id
from mirror_core.sync.fence import lift_fence
from mirror_core.sync.ledger import delete_unshared_entries, forget_pending_fence

PrintLine = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _DrillLocation:
    clusters: tuple[ClusterConfig, ...]
    """First the one whose state topic has it."""
    link: MirrorLink | None


def clean_drill(config: Config, mirror: str, services: Services, *, started_by: str, print_line: PrintLine) -> None:
    """Idempotent. Raises Indeterminate if a cluster was unreachable; the other one is clean then."""
    location, unreachable = _locate_drill(config, mirror), dict[str, str]()

    @contextmanager
    def tolerate_unreachable(cluster: ClusterConfig) -> Iterator[None]:
        try:
            yield
        except MissingPermission:
            raise
        except RemoteFault as error:
            unreachable.setdefault(cluster.name, str(error))

    link = location.link
    if link is not None:
        check_drill_mirror(link.mirror, mirror)
        with tolerate_unreachable(link.source):
            _end_run(link, services, started_by)
        for cluster in location.clusters:
            with tolerate_unreachable(cluster):
                _lift_drill_fence(link, cluster)
        recorded = read_cluster_state(config, link.destination.name).mirrors.get(link.mirror.name)
        if recorded is None:
            link = None  # another clean was quicker
        elif not unreachable and recorded.desired is not DesiredState.STOPPED:
            verbs.stop_mirror(link)
    for cluster in location.clusters:
        if cluster.name not in unreachable:
            with tolerate_unreachable(cluster):
                _delete_drill_topic(cluster, to_drill_topic(mirror), print_line)
                delete_drill_group(cluster, to_drill_group(mirror), print_line)
    if unreachable:
        silent = "; ".join(f"cluster {name}: {reason}" for name, reason in unreachable.items())
        raise Indeterminate(
            f"what a drill has left is not all taken away: {silent}. When it answers: `mirrorbook drill clean {mirror}`"
        )
    if link is not None:
        verbs.delete_mirror(link)
    _forget_old_runs(location.clusters[0], mirror)


def _locate_drill(config: Config, mirror: str) -> _DrillLocation:
    name = to_drill_name(mirror)
    try:
        base_link, state = find_mirror_link(config, mirror)
        drill_mirror = state.mirrors.get(name)
        return _DrillLocation(
            (base_link.destination, base_link.source), make_mirror_link(config, drill_mirror) if drill_mirror else None
        )
    except (BadRequest, Indeterminate) as lookup_error:
        try:
            link, _ = find_mirror_link(config, name)
            return _DrillLocation((link.destination, link.source), link)
        except (BadRequest, Indeterminate):
            holding_clusters = tuple(
                cluster for cluster in config.clusters.values() if _has_topic(cluster, to_drill_topic(mirror))
            )
            if not holding_clusters:
                raise lookup_error from None
            return _DrillLocation(holding_clusters, None)


def _has_topic(cluster: ClusterConfig, topic: str) -> bool:
    try:
        with ClusterClient(cluster) as client:
            return topic in client.metadata([topic]).topics
    except RemoteFault:
        return False


def _end_run(link: MirrorLink, services: Services, started_by: str) -> None:
    failover = Failover(link, services, started_by=started_by)
    run = failover.find_active_run()
    if run is not None:
        promoted = is_past_no_return(read_cluster_state(link.config, link.destination.name), run)
        failover.drive(run.id) if promoted else failover.abort(run.id)


def _lift_drill_fence(link: MirrorLink, cluster: ClusterConfig) -> None:
    with StateWriter(link.destination, make_control_id(link.mirror.name)) as writer, ClusterClient(cluster) as client:
        if cluster.name == link.source.name:
            forget_pending_fence(writer, link.mirror.name)
            lift_fence(link.mirror, writer, client)
        delete_unshared_entries(
            writer, client, list_drill_acls(writer.state.ledger_entries(link.mirror.name), client.name)
        )


def _delete_drill_topic(cluster: ClusterConfig, topic: str, print_line: PrintLine) -> None:
    with ClusterClient(cluster) as client:
        try:
            if topic in find_existing_topics(client, [topic]):
                delete_topics(client, [topic])
        except MissingPermission as error:
            print_line(f"topic {topic} stays on cluster {cluster.name}: {error}")


def _forget_old_runs(cluster: ClusterConfig, mirror: str) -> None:
    state = read_state(cluster)
    if not list_forgettable_runs(state.runs.values(), mirror):
        return
    with StateWriter(cluster, make_control_id(to_drill_name(mirror))) as writer:
        records: list[StateRecord] = []
        for run in list_forgettable_runs(writer.state.runs.values(), mirror):
            records += [run, *writer.state.steps_of(run), *writer.state.audit_entries.get(run.id, {}).values()]
            records += [c for c in writer.state.checkpoints.values() if c.run == run.id]
        writer.put(*(Tombstone(record) for record in records))
