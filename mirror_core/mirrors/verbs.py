"""Commands on an existing mirror; only runs take a mirror over otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

from mirror_core.decide.mirror_circles import circle_reasons
from mirror_core.decide.standing import Standing, failed_over, standing_of
from mirror_core.decide.verbs import Verb, is_led_home, leads_home, strayed
from mirror_core.kafka.acls import AuthorizerOff, describe_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.existing import existing
from mirror_core.kafka.offsets import Point, known_offsets, list_offsets
from mirror_core.mirrors.deletion import NO_CHOICE, DeletionChoice, carry_out, deletion_of
from mirror_core.mirrors.door import Intent, Look, door, insistent
from mirror_core.mirrors.door import intend as look_at
from mirror_core.model.acl import Acl, AclPurpose
from mirror_core.model.drift import Part
from mirror_core.model.errors import BadRequest, MirrorError, Unreachable
from mirror_core.model.limits import LIMITS
from mirror_core.model.mirror import Desired, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.ruling import Authorizer
from mirror_core.model.run import Run
from mirror_core.model.standing import Owed
from mirror_core.rights.acl_command import acl_command
from mirror_core.state.lease import kept, new_owner, take_over
from mirror_core.state.link import Link
from mirror_core.state.pulse import conducted
from mirror_core.state.records import Forget, PartitionRecord, State
from mirror_core.state.table import Event, after
from mirror_core.state.topic import read_state
from mirror_core.state.writer import StateWriter
from mirror_core.sync import cycle
from mirror_core.sync.mirror_circles import CircleFindings, search_circles


def intend(link: Link, verb: Verb, gone: ClusterName | None = None, choice: DeletionChoice = NO_CHOICE) -> Intent:
    look = _more(link, verb, gone)
    intent = look_at(link, verb, look)
    if isinstance(look, _CircleCheck):
        return replace(intent, lines=(*intent.lines, *look.doubts))
    if verb is Verb.DELETE:
        effects = deletion_of(link, read_state(link.destination), gone, choice).effects(link.mirror)
        return replace(intent, lines=(*intent.lines, *effects))
    return intent


@insistent
def start(link: Link) -> Mirror:
    """A stopped mirror continues if its topics still end at the LMO."""
    name = link.mirror.name
    with door(link, Verb.START, _more(link, Verb.START)) as writer:
        stopped = [s for s in writer.state.partitions.get(name, {}).values() if s.state is PartitionState.STOPPED]
        mirror = replace(writer.state.mirrors[name], desired=Desired.STARTED)
        writer.put(mirror, *(PartitionRecord(name, _started(status)) for status in stopped))
        return mirror


def pause(link: Link) -> Mirror:
    return _desire(link, Verb.PAUSE, Desired.PAUSED)


def resume(link: Link) -> Mirror:
    return _desire(link, Verb.RESUME, Desired.STARTED)


@insistent
def throttle(link: Link, bytes_per_s: int | None) -> Mirror:
    """From the next epoch on."""
    if bytes_per_s is not None and bytes_per_s < 1:
        raise BadRequest(
            f"mirror {link.mirror.name}: a throttle of {bytes_per_s} bytes/s would copy nothing: pause it instead"
        )
    with door(link, Verb.THROTTLE) as writer:
        return _put(writer, replace(writer.state.mirrors[link.mirror.name], throttle=bytes_per_s))


def sync(link: Link, *, only: frozenset[Part] = cycle.ALL_PARTS) -> cycle.SyncReport:
    with door(link, Verb.SYNC) as writer:
        return cycle.sync(link, writer, only=only)


@insistent
def stop(link: Link, say: Callable[[str], None] = lambda line: None) -> dict[Partition, Offset]:
    """Records LMOs, of FAILED partitions too; grants nothing. May be repeated."""
    name = link.mirror.name
    with door(link, Verb.STOP, _more(link, Verb.STOP)) as writer:
        _put(writer, replace(writer.state.mirrors[name], desired=Desired.STOPPED))
        # The data plane cannot record anything now; what its tasks still write must be below the LMO.
        with kept(take_over(link.destination, name, new_owner())) as lease:
            lease.outwait_writers(say)
            known = lease.state.partitions.get(name, {})
            ending = [s for s in known.values() if s.state is not PartitionState.STOPPED]
            with ClusterClient(link.destination) as client:
                there = existing(client, {s.partition.topic for s in ending})
                present = [s.partition for s in ending if s.partition.topic in there]
                ends = list_offsets(client, present, Point.LOG_END) if present else {}
            # By the control id: a run that began while we waited must not find its partitions STOPPED.
            writer.put(*(PartitionRecord(name, _stopped(status, ends.get(status.partition))) for status in ending))
    return ends


def delete(link: Link, gone: ClusterName | None = None, choice: DeletionChoice = NO_CHOICE) -> tuple[str, ...]:
    """Topics stay; copied rights go unless applications are there. May be repeated.

    Returns what is left to an administrator. What is on `lost_cluster` is forgotten; refused when that answers.
    """
    name = link.mirror.name
    with door(link, Verb.DELETE, _more(link, Verb.DELETE, gone)) as writer:
        deletion = deletion_of(link, writer.state, gone, choice)
        left = tuple(carry_out(link, writer, deletion))
        state = writer.state
        writer.put(
            Forget(state.mirrors[name]),
            *(Forget(PartitionRecord(name, s)) for s in state.partitions.get(name, {}).values()),
            *(Forget(entry) for entry in state.ledger_of(name)),
            *(Forget(lifted) for lifted in state.lifted.values() if lifted.entry.mirror == name),
            *(Forget(debt) for debt in [state.debts.get(name)] if debt),
            *(Forget(settings) for (mirror, _), settings in state.settings.items() if mirror == name),
            *(Forget(seen) for mirror, seen in state.groups.items() if mirror == name),
            *(Forget(left) for mirror, left in state.groups_left.items() if mirror == name),
            *(Forget(mine) for mine in state.group_offsets.get(name, {}).values()),
            *(Forget(sighting) for mirror, sighting in state.sightings.items() if mirror == name),
            *(Forget(proof) for mirror, proof in state.proofs.items() if mirror == name),
            *(Forget(sign) for sign in state.checkpoints.values() if sign.run == name),
        )
    return left


def _standing_denials(link: Link, state: State, gone: ClusterName | None) -> Iterator[str]:
    """Denials of this mirror that a cluster has or may have, and a pending fence."""
    name, debt = link.mirror.name, state.debts.get(link.mirror.name)
    standing = (AclPurpose.FENCE, AclPurpose.DEMOTED, AclPurpose.WITHDRAWN)
    ours = [e for e in state.ledger_of(name) if e.purpose in standing]
    owed = debt if debt and standing_of(debt) is Standing.OWED and state.partitions.get(name) else None
    for where in sorted({e.cluster for e in ours} | ({gone} if gone else set()) | ({owed.cluster} if owed else set())):
        cluster, forever = link.config.cluster(where), f"If that cluster will never come back: --gone {where}"
        try:
            with ClusterClient(cluster, timeout_s=LIMITS.other_cluster_s) as client:
                found = client.metadata(()).cluster_id
                itself = found in (link.mirror.source_id, link.mirror.destination_id)
                seen = describe_acls(client) if itself else None
        except Unreachable as silent:
            if where != gone:
                yield f"cluster {where}: whether denials of this mirror stand there is not known: {silent}. {forever}"
            continue
        if seen is None:
            if where != gone:
                yield f"cluster {where}: another cluster, {found}, answers at its address: correct that. {forever}"
            continue
        if where == gone:
            yield f"cluster {where} answers: it is not gone"
        left = [e.acl for e in ours if e.cluster == where]
        if left and isinstance(seen, AuthorizerOff) and seen.said is not Authorizer.KAFKA:
            yield (
                f"cluster {where}: {len(left)} denial(s) of this mirror, such as {min(left)}, may stand there: they "
                f"are not looked at, since mirrorbook.yaml says `authorizer: {seen.said}`. Write `kafka` there "
                "until they are gone"
            )
        there = frozenset[Acl]() if isinstance(seen, AuthorizerOff) else seen.entries
        for entry in ours:
            if entry.cluster == where and entry.acl in there:
                bootstrap = cluster.control["bootstrap.servers"]
                remove = acl_command(entry.acl, bootstrap=bootstrap, remove=True)
                yield f"cluster {where}: {entry.acl}: fail back, or remove it yourself: {remove}"
        if owed and owed.cluster == where and (cluster.ruling.fence or not isinstance(seen, AuthorizerOff)):
            yield (
                f"cluster {where} is not fenced yet: failover {owed.run} moved its applications away, and nobody would "
                f"keep it from taking writes. `mirrorbook mirror watch {name} --once` fences it"
            )


def left_shut(state: State, mirror: MirrorName, gone: ClusterName | None = None) -> Iterator[str]:
    """A cluster still closed by its command: after the deletion nobody would know."""
    debt = state.debts.get(mirror)
    if debt is not None and debt.owed is Owed.UNFENCE and debt.by_command and debt.cluster != gone:
        yield (
            f"cluster {debt.cluster} is still closed to applications: run {debt.run} was aborted, and its "
            f"unfence_command has not opened it yet. `mirrorbook mirror watch {mirror} --once` has it called. If that "
            f"cluster will never come back: --gone {debt.cluster}"
        )


def way_home(link: Link) -> Iterator[str]:
    """A source that does not answer is no obstacle."""
    with suppress(MirrorError):
        state = read_state(link.source, timeout_s=LIMITS.other_cluster_s)
        yield from leads_home(link.mirror.name, state.runs.values(), partial(conducted, state))


def failback_over(link: Link) -> Run | None:
    try:
        runs = read_state(link.source, timeout_s=LIMITS.other_cluster_s).runs.values()
    except MirrorError:
        return None
    return next((run for run in runs if is_led_home(link.mirror.name, run)), None)


def _stopped(status: PartitionStatus, lmo: Offset | None) -> PartitionStatus:
    return replace(status, state=after(status.state, Event.STOP, Event.LMO_RECORDED), lmo=lmo)


def _started(status: PartitionStatus) -> PartitionStatus:
    last = Event.FAIL if status.reason else Event.ALIGNED
    return replace(status, state=after(status.state, Event.START, last), lmo=None)


def _strayed(link: Link, state: State) -> list[str]:
    known = state.partitions.get(link.mirror.name, {})
    stopped = [s for s in known.values() if s.state is PartitionState.STOPPED]
    if not stopped or failed_over(state.debts.get(link.mirror.name)):
        return []
    with ClusterClient(link.destination) as client:
        ends = known_offsets(client, [s.partition for s in stopped], Point.LOG_END)
    return list(strayed(stopped, ends, link.destination.name))


class _CircleCheck:
    """Asks clusters upstream once: a silent one costs seconds."""

    def __init__(self, link: Link, verb: Verb) -> None:
        self._link, self._verb = link, verb
        self._found: CircleFindings | None = None

    @property
    def doubts(self) -> tuple[str, ...]:
        return self._found.doubts if self._found else ()

    def __call__(self, state: State) -> Iterator[str]:
        link = self._link
        if self._found is None:
            self._found = search_circles(link, {p.topic for p in state.partitions.get(link.mirror.name, {})})
        yield from circle_reasons(link.mirror, self._found.circles)
        if self._verb is Verb.START:
            yield from _strayed(link, state)


def _more(link: Link, verb: Verb, gone: ClusterName | None = None) -> Look:
    if verb in (Verb.START, Verb.RESUME):
        return _CircleCheck(link, verb)
    if verb is Verb.DELETE:
        return lambda state: (
            *left_shut(state, link.mirror.name, gone),
            *_standing_denials(link, state, gone),
            *way_home(link),
        )
    if verb is Verb.STOP:  # the mirror's record names its failback
        return lambda state: () if link.mirror.homecoming else way_home(link)
    return lambda state: ()


@insistent
def _desire(link: Link, verb: Verb, desired: Desired) -> Mirror:
    with door(link, verb, _more(link, verb)) as writer:
        return _put(writer, replace(writer.state.mirrors[link.mirror.name], desired=desired))


def _put(writer: StateWriter, mirror: Mirror) -> Mirror:
    if mirror != writer.state.mirrors[mirror.name]:
        writer.put(mirror)
    return mirror
