"""The verbs of a mirror: create, start, stop, pause, resume, delete. Each checks first and records once."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from mirror_core.decide.filters import group_filter
from mirror_core.kafka.acls import AuthorizerOff, command_line, describe_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Config
from mirror_core.kafka.offsets import Point, list_offsets
from mirror_core.kafka.topics import NewTopic, await_leaders, create_topics
from mirror_core.mirrors.preflight import gaps_on
from mirror_core.model.acl import Acl, AclPurpose
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import BadRequest, MirrorError, Refused
from mirror_core.model.mirror import Desired, Lease, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import MirrorName, Partition
from mirror_core.state.lease import new_owner
from mirror_core.state.link import Link, link_of, states
from mirror_core.state.records import TOPIC, Forget, PartitionRecord, State
from mirror_core.state.table import Event, after
from mirror_core.state.writer import StateWriter, control_id, data_id
from mirror_core.sync.topics import create_missing, mirror_topics

_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}")
_LITERAL: Final = re.compile(r"[a-zA-Z0-9_-]+")


def create(
    config: Config,
    name: str,
    *,
    source: str,
    destination: str,
    topics: Sequence[str],
    exclude_topics: Sequence[str] = (),
    groups: Sequence[str] = (".*",),
    dry_run: bool = False,
) -> Mirror:
    """Check that a mirror is possible, and record it, not started. Nothing is left behind when it is refused."""
    if not _NAME.fullmatch(name):
        raise BadRequest(f"mirror name {name!r}: use letters, digits, dot, underscore and hyphen, 63 at most")
    if not topics:
        raise BadRequest(f"mirror {name}: say which topics: --topics 'orders.*'")
    there, here = config.cluster(source), config.cluster(destination)
    with ClusterClient(there) as source_client, ClusterClient(here) as destination_client:
        source_id = source_client.metadata(()).cluster_id
        destination_id = destination_client.metadata(()).cluster_id
        if source_id == destination_id:
            reason = f"{source} and {destination} are the same cluster ({source_id}): a mirror needs two"
            raise Refused(f"mirror {name}", [reason])
        mirror = Mirror(
            name=MirrorName(name),
            source=there.name,
            destination=here.name,
            source_id=source_id,
            destination_id=destination_id,
            topics=tuple(topics),
            exclude_topics=tuple(exclude_topics),
            groups=tuple(groups),
            producer_id=new_producer_id(),
            gaps=gaps_on(here),
            desired=Desired.STOPPED,
            created_ms=now_ms(),
        )
        group_filter(mirror)  # a bad expression is the operator's to know now
        link = link_of(config, mirror)
        _check_topics(link, source_client, destination_client)
        _check_elsewhere(config, mirror)
        if dry_run:
            return mirror
        ensure_state_topic(destination_client)
    with StateWriter(here, control_id(mirror.name)) as writer:
        if mirror.name in writer.state.mirrors:
            raise Refused(f"mirror {name}", [f"it exists already on cluster {destination}"])
        writer.put(mirror)
    return mirror


def new_producer_id() -> int:
    """2**62 or more: brokers hand out ids from 0 in blocks, and never get there."""
    return (1 << 62) + secrets.randbits(61)


def ensure_state_topic(client: ClusterClient) -> None:
    """Create the state topic on a destination, compacted and as well replicated as the cluster allows."""
    if TOPIC in client.metadata([TOPIC]).topics:
        return
    factor = min(3, len(client.brokers()))
    configs = {"cleanup.policy": "compact", "min.insync.replicas": "2" if factor == 3 else "1"}
    create_topics(client, [NewTopic(name=TOPIC, partitions=1, replication_factor=factor, configs=configs)])
    await_leaders(client, [TOPIC])


def _check_topics(link: Link, source: ClusterClient, destination: ClusterClient) -> None:
    """The filters must find something, and nothing foreign may be in the way."""
    matching = mirror_topics(link, source)
    literal = [t for t in link.mirror.topics if _LITERAL.fullmatch(t)]
    missing = [t for t in literal if t not in matching]
    if missing:
        raise BadRequest(
            f"unknown topic {missing[0]!r}: cluster {source.name} has none of this name that "
            f"{source.config.user() or 'this principal'} may DESCRIBE (or --exclude-topics takes it out)"
        )
    placement = create_missing(link, State(), source, destination, matching, dry_run=True)
    if placement.refused:
        raise Refused(f"mirror {link.mirror.name}", placement.refused.values())


def _check_elsewhere(config: Config, mirror: Mirror) -> None:
    """The name must be free wherever we can look."""
    for _, answer in states(config):
        if isinstance(answer, MirrorError):
            continue  # a cluster that is not part of this mirror may be down; both ends answered just now
        if mirror.name in answer.mirrors:
            where = answer.mirrors[mirror.name].destination
            raise Refused(f"mirror {mirror.name}", [f"it exists already on cluster {where}"])


def start(link: Link, writer: StateWriter) -> Mirror:
    """Let it run. A mirror that was stopped has given its topics away: only a failback takes them back."""
    mirror, state = _current(link, writer)
    refuse_during_run(link, state, "start")
    given_away = [s for s in _statuses(state, mirror) if s.state is PartitionState.STOPPED]
    if given_away:
        raise Refused(
            f"mirror {mirror.name}: start",
            [
                f"{len(given_away)} partitions are STOPPED (first {min(s.partition for s in given_away)}): "
                f"applications may have written to cluster {mirror.destination} since; use `mirrorbook failback`"
            ],
        )
    loops = cycles(link.config, mirror)
    if loops:
        raise Refused(f"mirror {mirror.name}: start", loops)
    return _desire(writer, mirror, Desired.STARTED)


def cycles(config: Config, mirror: Mirror) -> list[str]:
    """Chains of started mirrors that lead from this mirror's destination back to its source."""
    known: dict[str, list[Mirror]] = {}
    for _, answer in states(config):
        if isinstance(answer, MirrorError):
            continue
        for other in answer.mirrors.values():
            if other.desired is Desired.STARTED and other.name != mirror.name:
                known.setdefault(other.source_id, []).append(other)
    reasons: list[str] = []
    paths: list[list[Mirror]] = [[m] for m in known.get(mirror.destination_id, [])]
    while paths:
        path = paths.pop()
        if path[-1].destination_id == mirror.source_id:
            names = " -> ".join(m.name for m in path)
            reasons.append(f"it would close a circle with {names}, back to cluster {mirror.source}")
        else:
            paths += [[*path, m] for m in known.get(path[-1].destination_id, []) if m not in path]
    return reasons


def pause(link: Link, writer: StateWriter) -> Mirror:
    """Stop copying for now; the topics stay the mirror's."""
    mirror, state = _current(link, writer)
    refuse_during_run(link, state, "pause")
    if mirror.desired is not Desired.STARTED:
        raise Refused(f"mirror {mirror.name}: pause", [f"it is {mirror.desired}"])
    return _desire(writer, mirror, Desired.PAUSED)


def resume(link: Link, writer: StateWriter) -> Mirror:
    """Go on after a pause."""
    mirror, state = _current(link, writer)
    refuse_during_run(link, state, "resume")
    if mirror.desired is not Desired.PAUSED:
        raise Refused(f"mirror {mirror.name}: resume", [f"it is {mirror.desired}"])
    return _desire(writer, mirror, Desired.STARTED)


def throttle(link: Link, writer: StateWriter, bytes_per_s: int | None) -> Mirror:
    """Limit what is read from the source, or lift the limit; a running data plane takes it up at its next epoch."""
    mirror, _ = _current(link, writer)
    if bytes_per_s is not None and bytes_per_s < 1:
        raise BadRequest(
            f"mirror {mirror.name}: a throttle of {bytes_per_s} bytes/s would copy nothing: pause it instead"
        )
    new = replace(mirror, throttle=bytes_per_s)
    if new != mirror:
        writer.put(new)
    return new


def stop(link: Link, writer: StateWriter) -> dict[Partition, int]:
    """End mirroring and record the LMO of each partition, FAILED ones too. Applications get no rights by this."""
    mirror, state = _current(link, writer)
    refuse_during_run(link, state, "stop")
    ending = [s for s in _statuses(state, mirror) if s.state is not PartitionState.STOPPED]
    with StateWriter(link.destination, data_id(mirror.name)) as data:
        data.put(_taken_over(data.state.leases.get(mirror.name), mirror))
        writer.put(replace(mirror, desired=Desired.STOPPED))
        with ClusterClient(link.destination) as client:
            present = [s for s in ending if s.partition.topic in client.metadata([s.partition.topic]).topics]
            ends = list_offsets(client, [s.partition for s in present], Point.LOG_END) if present else {}
        data.put(
            *(
                PartitionRecord(
                    mirror.name,
                    replace(
                        s,
                        state=after(s.state, Event.STOP, Event.LMO_RECORDED),
                        lmo=ends.get(s.partition),
                    ),
                )
                for s in ending
            )
        )
    return {p: int(end) for p, end in ends.items()}


def _taken_over(old: Lease | None, mirror: Mirror) -> Lease:
    now = now_ms()
    return Lease(
        mirror=mirror.name,
        owner=new_owner(),
        generation=old.generation + 1 if old else 1,
        beat_ms=now,
        writers_until_ms=max(now, old.writers_until_ms if old else 0),
        released=True,
    )


def delete(link: Link, writer: StateWriter) -> None:
    """Forget a stopped mirror. Its topics stay as they are."""
    mirror, state = _current(link, writer)
    refuse_during_run(link, state, "delete")
    if mirror.desired is not Desired.STOPPED:
        raise Refused(f"mirror {mirror.name}: delete", [f"it is {mirror.desired}: stop it first"])
    standing = list(_standing_denials(link, state))
    if standing:
        raise Refused(f"mirror {mirror.name}: delete, since nobody would lift its denials afterwards", standing)
    writer.put(
        Forget(mirror),
        *(Forget(PartitionRecord(mirror.name, s)) for s in _statuses(state, mirror)),
        *(Forget(entry) for entry in state.ledger_of(mirror.name)),
    )


def _standing_denials(link: Link, state: State) -> Iterator[str]:
    """Denials of this mirror that a cluster still has: fences, and applications demoted for its sake."""
    ours = [e for e in state.ledger_of(link.mirror.name) if e.purpose in (AclPurpose.FENCE, AclPurpose.DEMOTED)]
    for name in sorted({e.cluster for e in ours}):
        with ClusterClient(link.config.cluster(name)) as client:
            seen = describe_acls(client)
        there = frozenset[Acl]() if isinstance(seen, AuthorizerOff) else seen.entries
        for entry in ours:
            if entry.cluster == name and entry.acl in there:
                bootstrap = link.config.cluster(name).control["bootstrap.servers"]
                remove = command_line(entry.acl, bootstrap=bootstrap, remove=True)
                yield f"cluster {name}: {entry.acl}: fail back, or remove it yourself: {remove}"


def _current(link: Link, writer: StateWriter) -> tuple[Mirror, State]:
    mirror = writer.state.mirrors.get(link.mirror.name)
    if mirror is None:
        raise Refused(f"mirror {link.mirror.name}", ["it has just been deleted"])
    return mirror, writer.state


def _statuses(state: State, mirror: Mirror) -> list[PartitionStatus]:
    return list(state.partitions.get(mirror.name, {}).values())


def refuse_during_run(link: Link, state: State, verb: str) -> None:
    """Refused while a failover or failback holds the mirror."""
    run = state.active_run(link.mirror.name)
    if run is not None:
        raise Refused(f"mirror {link.mirror.name}: {verb}", [f"{run.plan.kind} {run.id} is under way"])


def _desire(writer: StateWriter, mirror: Mirror, desired: Desired) -> Mirror:
    new = replace(mirror, desired=desired)
    if new != mirror:
        writer.put(new)
    return new
