"""Commits group offsets on the destination, safely against processes that act too late.

A sync or follower may sleep before its commit while a promotion happens. Both commit as the data principal, which a
failover denies before its final sync, so that late commits are refused. Where the data principal may not commit,
ownership is checked again before the control principal commits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import Final

from mirror_core.kafka.acls import AuthorizerOff, describe_acls, present_on_every_broker
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ANONYMOUS, ClusterConfig, Principal
from mirror_core.kafka.epochs import Place, epochs_before
from mirror_core.kafka.group_batches import NOT_ALLOWED, Commits, GroupBatches
from mirror_core.model.acl import Acl, AclPurpose, Operation, Resource
from mirror_core.model.errors import Unreachable
from mirror_core.model.groups import GroupOffsets
from mirror_core.model.logs import logger
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.offsets import Offsets
from mirror_core.rights.acls import denial
from mirror_core.state.journal import Log
from mirror_core.state.records import State
from mirror_core.sync.ledger import enter_and_put_up
from mirror_core.sync.principals import data_in_doubt

_log = logger(__name__)

_PAUSE_S: Final = 0.05
_ASK_AGAIN_S: Final = 60.0


class GroupCommits:
    """For groups without members. Not thread-safe."""

    def __init__(self, destination: ClusterClient, still_ours: Callable[[], None] | None) -> None:
        """`check_ownership`: raises when the mirror is lost; None in a run's own steps."""
        self._still_ours = still_ours
        self._destination = destination
        self._control = GroupBatches(destination)
        self._client = ClusterClient(destination.config, Principal.DATA, timeout_s=destination.timeout_s)
        self._data = GroupBatches(self._client)
        self._not_before = 0.0 if _own_user(destination.config) else float("inf")

    def put(self, wanted: Mapping[str, Commits]) -> dict[str, dict[Partition, str]]:
        """Returns codes. Leader epochs go along: a consumer notices if the log has lost its end."""
        places = {Place(p, offset) for mine in wanted.values() for p, (offset, _) in mine.items()}
        epochs = epochs_before(self._destination, places)
        if self._still_ours is None:
            return self._control.commit(wanted, epochs)
        said = dict[str, dict[Partition, str]]()
        if time.monotonic() >= self._not_before:
            said = self._data.commit(wanted, epochs)
            wanted = {g: wanted[g] for g, words in said.items() if not NOT_ALLOWED.isdisjoint(words.values())}
            if not wanted:
                return said
            _log.info("the data principal may not commit for %d group(s)", len(wanted), cluster=self._client.name)
            self._not_before = time.monotonic() + _ASK_AGAIN_S
        self._still_ours()
        return {**said, **self._control.commit(wanted, epochs)}

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> GroupCommits:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def refused(word: str) -> str:
    return f"refused by the destination ({word})"


class OwnOffsets:
    """Offsets that the mirror committed itself; any other is an application's. Thread-safe.

    Unwritten ones of a killed process count as own again once the source commits the same.
    """

    def __init__(self, mirror: MirrorName, state: State) -> None:
        self._mirror = mirror
        self._lock = threading.Lock()
        self._known: dict[str, dict[Partition, Offset]] = {}
        self._others: dict[str, dict[Partition, Offset]] = {}
        """Differing records of another process."""
        self._read: dict[str, GroupOffsets] = {}
        self._from: State | None = None
        self._changed: dict[str, None] = {}
        self.read(state)

    def read(self, state: State) -> None:
        if state is self._from:  # read before, and changed only by us
            return
        self._from = state
        with self._lock:
            for record in state.group_offsets.get(self._mirror, {}).values():
                if self._read.get(record.group) == record:
                    continue
                self._read[record.group] = record
                found, mine = record.offsets.by_partition(), self._known.setdefault(record.group, {})
                if differs := {p: offset for p, offset in found.items() if mine.get(p, offset) != offset}:
                    self._others[record.group] = differs
                self._known[record.group] = {**found, **mine}

    def of(self, group: str, partition: Partition) -> frozenset[Offset]:
        """Next offsets, each of which may be our last commit."""
        with self._lock:
            found = (known.get(group, {}).get(partition) for known in (self._known, self._others))
            return frozenset(offset for offset in found if offset is not None)

    def note(self, group: str, partition: Partition, offset: Offset) -> None:
        """We committed it, or the source has committed the same."""
        with self._lock:
            self._others.get(group, {}).pop(partition, None)
            mine = self._known.setdefault(group, {})
            if mine.get(partition) != offset:
                mine[partition] = offset
                self._changed[group] = None

    def forget_except(self, groups: Collection[str]) -> list[GroupOffsets]:
        """Returns records to delete from the state topic."""
        with self._lock:
            gone = [record for record in self._read.values() if record.group not in groups]
            for record in gone:
                del self._read[record.group]
                self._known.pop(record.group, None)
                self._others.pop(record.group, None)
            return gone

    def news(self, most: int | None = None) -> list[GroupOffsets]:
        """Records to write: whole groups, oldest first, one at least. `requeue` them if that fails."""
        found, count = list[GroupOffsets](), 0
        with self._lock:
            for group in list(self._changed):
                mine = self._known.get(group, {})
                if found and most is not None and count + len(mine) > most:
                    break
                count += len(mine)
                del self._changed[group]
                found.append(GroupOffsets(mirror=self._mirror, group=group, offsets=Offsets.of(mine)))
            self._read |= {record.group: record for record in found}
        return found

    def again(self, unwritten: Iterable[GroupOffsets]) -> None:
        with self._lock:
            self._changed.update(dict.fromkeys(record.group for record in unwritten))


def commit_all(
    commits: GroupCommits, wanted: Mapping[str, Commits], client: ClusterClient
) -> dict[str, dict[Partition, str]]:
    """Retried until the client's timeout."""
    words: dict[str, dict[Partition, str]] = {group: {} for group in wanted}
    rest = {group: dict(mine) for group, mine in wanted.items() if mine}
    deadline = time.monotonic() + client.timeout_s
    while rest:
        for group, said in commits.put(rest).items():
            words[group] |= said
            rest[group] = {p: row for p, row in rest[group].items() if p not in said}
        rest = {group: mine for group, mine in rest.items() if mine}
        if rest and time.monotonic() > deadline:
            raise Unreachable(f"cluster {client.name}, group {min(rest)}: no coordinator took the commit in time")
        if rest:
            time.sleep(_PAUSE_S)
    return words


def stop_commits(mirror: Mirror, log: Log, client: ClusterClient) -> str:
    """Stop commits of old syncs and followers; seen on every broker. May be repeated.

    Returns what was done, or why nothing is denied. `lift_all_denials` undoes it.
    """
    user = _own_user(client.config)
    if user is None:
        return "nothing: the data principal is not a user of its own, so the lease alone keeps late commits away"
    held = describe_acls(client)
    if isinstance(held, AuthorizerOff):
        return f"nothing: cluster {client.name} {held.words}, so the lease alone keeps late commits away"
    late = late_commits(user)
    of_mirrors = {e.acl for e in log.state.ledger.values() if e.cluster == client.name}
    if late not in held.entries or late in of_mirrors:  # an equal entry made by others stays theirs
        enter_and_put_up(log, mirror.name, client, {late}, AclPurpose.FENCE)
    present_on_every_broker(client, {late})
    if why := data_in_doubt(client.config, held.entries, log.state):
        return f"not certain: {user} is denied, but {why}. Until then the lease alone keeps late commits away"
    return f"{user} commits for no group on cluster {client.name} any more"


def late_commits(user: str) -> Acl:
    """Offsets can still be read."""
    return denial("*", user, resource=Resource.GROUP, operation=Operation.READ)


def _own_user(config: ClusterConfig) -> str | None:
    """The data principal, unless it is unknown or the control principal."""
    user = config.user(Principal.DATA)
    return None if user in (None, ANONYMOUS, config.user(Principal.CONTROL)) else f"User:{user}"
