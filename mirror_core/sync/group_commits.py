"""Committing groups' offsets on the destination, by hands that may be late.

A sync or a follower can sleep between its decision and its commit, and a promotion can pass meanwhile. So both commit
as the data principal, which a failover denies that before its final sync (`stop_commits`); whoever wakes up later is
refused by the broker. The final sync itself is the control principal's.

What a mirror has committed itself it remembers in the state topic (`OwnOffsets`): every other offset on the destination
is somebody's own progress, and is not taken back.

Where the data principal may not commit (it has no right to it, or another mirror's failover has denied it), the mirror
is looked at again, and right after that the control principal commits. Where both are the same user, always so.
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
"""After a refusal the data principal is not tried for so long."""


class GroupCommits:
    """Commits for groups without members. Not for use by several threads at once."""

    def __init__(self, destination: ClusterClient, still_ours: Callable[[], None] | None) -> None:
        """`destination` is the control principal's. `still_ours` returns while the mirror's groups are ours to commit
        for, and raises when they are not. None: they are ours until we say so, as in a run's own steps."""
        self._still_ours = still_ours
        self._destination = destination
        self._control = GroupBatches(destination)
        self._client = ClusterClient(destination.config, Principal.DATA, timeout_s=destination.timeout_s)
        self._data = GroupBatches(self._client)
        self._not_before = 0.0 if _own_user(destination.config) else float("inf")

    def put(self, wanted: Mapping[str, Commits]) -> dict[str, dict[Partition, str]]:
        """Commit these; the broker's words (`GroupBatches.commit`). With the leader epochs of the destination's log,
        so that a consumer notices when that log has lost its end since."""
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
    """A broker's word against a commit, for people."""
    return f"refused by the destination ({word})"


class OwnOffsets:
    """What a mirror has committed itself on the destination, by group and partition. May be used by several threads.

    A sync writes what is new when it ends, a data plane every few seconds. What was committed after the last write of a
    process that was killed is the mirror's own again as soon as the source is seen to have committed the same.
    """

    def __init__(self, mirror: MirrorName, state: State) -> None:
        self._mirror = mirror
        self._lock = threading.Lock()
        self._known: dict[str, dict[Partition, Offset]] = {}
        self._others: dict[str, dict[Partition, Offset]] = {}
        """What another process of the mirror says, where it is not the same."""
        self._read: dict[str, GroupOffsets] = {}
        """What the state topic says: read there, or written by us."""
        self._from: State | None = None
        self._changed: dict[str, None] = {}
        self.read(state)

    def read(self, state: State) -> None:
        """What another process of the mirror has remembered meanwhile."""
        if state is self._from:  # as we have read it, and written since
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
        """Next offsets to be read, any of which may be what we have committed last; empty: nothing."""
        with self._lock:
            found = (known.get(group, {}).get(partition) for known in (self._known, self._others))
            return frozenset(offset for offset in found if offset is not None)

    def note(self, group: str, partition: Partition, offset: Offset) -> None:
        """We have committed it, or the source has come to what is committed there."""
        with self._lock:
            self._others.get(group, {}).pop(partition, None)
            mine = self._known.setdefault(group, {})
            if mine.get(partition) != offset:
                mine[partition] = offset
                self._changed[group] = None

    def forget_except(self, groups: Collection[str]) -> list[GroupOffsets]:
        """Know nothing of groups that are not among these; what is to be forgotten in the state topic, too."""
        with self._lock:
            gone = [record for record in self._read.values() if record.group not in groups]
            for record in gone:
                del self._read[record.group]
                self._known.pop(record.group, None)
                self._others.pop(record.group, None)
            return gone

    def news(self, most: int | None = None) -> list[GroupOffsets]:
        """What is to be remembered anew, whole groups, those that wait the longest first; `most`: partitions of all
        together, but one group at least. Whoever could not write it says so (`again`)."""
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
    """The same until each has an answer: what no coordinator takes now is tried again until the client's time limit."""
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
    """Deny the data principal to commit for any group on the destination, and see it denied on every broker.

    Then no sync or follower of the past commits any more. Entered in the ledger as a fence: `lift_denials` takes it
    away. Returns what was done, or why nothing is denied. Safe to repeat.
    """
    user = _own_user(client.config)
    if user is None:
        return "nothing: the data principal is not a user of its own, so the lease alone keeps late commits away"
    held = describe_acls(client)
    if isinstance(held, AuthorizerOff):
        return f"nothing: cluster {client.name} {held.words}, so the lease alone keeps late commits away"
    late = late_commits(user)
    of_mirrors = {e.acl for e in log.state.ledger.values() if e.cluster == client.name}
    if late not in held.entries or late in of_mirrors:  # an equal entry of somebody else's stays theirs
        enter_and_put_up(log, mirror.name, client, {late}, AclPurpose.FENCE)
    present_on_every_broker(client, {late})
    if why := data_in_doubt(client.config, held.entries, log.state):
        return f"not certain: {user} is denied, but {why}. Until then the lease alone keeps late commits away"
    return f"{user} commits for no group on cluster {client.name} any more"


def late_commits(user: str) -> Acl:
    """What stops them. Denying READ denies no DESCRIBE: offsets can still be looked at."""
    return denial("*", user, resource=Resource.GROUP, operation=Operation.READ)


def _own_user(config: ClusterConfig) -> str | None:
    """The data principal as Kafka names it; None when it is the control principal, too, or not known."""
    user = config.user(Principal.DATA)
    return None if user in (None, ANONYMOUS, config.user(Principal.CONTROL)) else f"User:{user}"
