"""What the tests of one file leave on the shared clusters, and what of it tests of other files would meet.

Topics, groups and users have names that nobody else uses. Mirrors have, too, but whoever asks for all mirrors, or for
all that is denied, meets them: what the state topics remember is forgotten, and what is at work still is told of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from mirror_core.kafka.acl_requests import BrokerAcls, describe_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.kafka.log_reader import LogReader
from mirror_core.kafka.topics import delete_topics
from mirror_core.mirrors.mirror_creation import ensure_state_topic
from mirror_core.model.acl import Acl, Permission
from mirror_core.model.mirror import is_lease_fresh
from mirror_core.model.names import ACTIVE_TOPIC, MirrorName, Offset, Partition
from mirror_core.model.timing import MAX_FRESH_AGE_S, now_ms
from mirror_core.state.state_records import STATE_TOPIC, State
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.cluster_admin import admin_config, as_admin, undecided
from tests.support.waiting import wait_until

SHARED: Final = (STATE_TOPIC, ACTIVE_TOPIC, "__consumer_offsets")
"""A transaction that is open here hides what others write. Topics of applications are one test's own."""
BROKERS_OWN: Final = (*SHARED, "__transaction_state", "__share_group_state")
"""Topics that stay: others are of one file's tests, and cost whoever asks for all of them."""
DECIDED_S: Final = 45.0
"""By then a coordinator has aborted what killed processes left open: after 10 s, and it looks each 10 s."""
_STATE: Final = Partition(STATE_TOPIC, 0)
_BEGINNING: Final = Offset(0)


@dataclass
class Leftovers:
    """Of one cluster, file by file: what an earlier file left was told of then."""

    cluster: SandboxCluster
    _read: Offset = _BEGINNING
    """Where the state topic is to be read on."""
    _denied: frozenset[Acl] = field(init=False)

    def __post_init__(self) -> None:
        with as_admin(self.cluster) as client:
            self._denied = _denials(client)

    def found(self) -> list[str]:
        """What is at work still, or in the way of others."""
        with as_admin(self.cluster) as client:
            views = client.metadata(SHARED).topics
            partitions = [Partition(topic, index) for topic, view in views.items() for index in view.partitions]
            told = [*self._denials(client), *_open(client, partitions)]
            if STATE_TOPIC in views:
                told += self._running(client)
        return [f"cluster {self.cluster.name}: {one}" for one in told]

    def forget(self) -> None:
        """What was found in the state topic stands there no more, and nobody reads it again; so with topics."""
        with as_admin(self.cluster) as client:
            delete_topics(client, [topic for topic in client.metadata().topics if topic not in BROKERS_OWN])
            if not self._read:
                return
            # Anew, not emptied: a state topic whose first records are gone may have forgotten a fence, and is told of.
            delete_topics(client, [STATE_TOPIC])
            ensure_state_topic(client)
            self._read = _BEGINNING

    def _denials(self, client: ClusterClient) -> Iterator[str]:
        """The fixture `rights` puts back what a test changes: these are of what was done around the tests."""
        now = _denials(client)
        yield from (f"an ACL stands: {acl}" for acl in sorted(now - self._denied, key=str))
        self._denied = now

    def _running(self, client: ClusterClient) -> Iterator[str]:
        """Mirrors whose lease is beaten still. That of a data plane that was killed is fresh for a while, too."""
        state = State()
        with LogReader(admin_config(self.cluster)) as reader:

            def beats() -> dict[MirrorName, int]:
                end = list_offsets(client, [_STATE], OffsetPoint.STABLE_END)[_STATE]
                self._read = self._read if self._read <= end else _BEGINNING  # another one's tests have forgotten
                for _, record in reader.records(_STATE, self._read, end):
                    state.apply((record.key or b"").decode("utf-8", "replace"), record.value)
                self._read = end
                return {m: lease.heartbeat_ms for m, lease in state.leases.items() if is_lease_fresh(lease, now_ms())}

            first = beats()

            def known() -> bool:
                return all(beat_ms > first.get(mirror, 0) for mirror, beat_ms in beats().items())

            wait_until(known, timeout_s=2 * MAX_FRESH_AGE_S, why="leases are beaten on, or get old")
            yield from (f"mirror {mirror} runs: {state.leases[mirror].owner}" for mirror in sorted(beats()))


def _denials(client: ClusterClient) -> frozenset[Acl]:
    acls = describe_acls(client)
    assert isinstance(acls, BrokerAcls)
    return frozenset(acl for acl in acls.entries if acl.permission is Permission.DENY)


def _open(client: ClusterClient, partitions: list[Partition]) -> list[str]:
    """Transactions that nobody ends. What a killed process left open is waited for."""
    try:
        wait_until(lambda: not undecided(client, partitions), timeout_s=DECIDED_S, why="what was left open is decided")
    except AssertionError:
        return [f"a transaction is open in {partition}" for partition in undecided(client, partitions)]
    return []
