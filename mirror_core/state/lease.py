"""Who runs the data plane of a mirror. Taking the lease fences the last owner; a fresh one is respected."""

from __future__ import annotations

import os
import secrets
import socket
import time
from dataclasses import replace
from typing import Final

from mirror_core.kafka.config import ClusterConfig
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import LostOwnership
from mirror_core.model.mirror import Lease
from mirror_core.model.names import MirrorName
from mirror_core.state.records import State
from mirror_core.state.topic import read_state
from mirror_core.state.writer import StateWriter, data_id

BEAT_S: Final = 2.0
FRESH_S: Final = 10.0
"""A lease whose newest beat is older belongs to nobody."""


def new_owner() -> str:
    """A name for this process that says where to look for it and is never used twice."""
    return f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"


def died_here(owner: str) -> bool:
    """Whether the owner was a process of this host that is no more: nobody has to wait for its lease to grow old.

    Two containers may share a host's name; then a living owner is fenced, ends with exit code 5, and no harm is done.
    """
    host, _, rest = owner.partition("/")
    pid = rest.partition("/")[0]
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def is_fresh(lease: Lease | None, now_ms: int) -> bool:
    """Somebody beats it."""
    return lease is not None and not lease.released and now_ms - lease.beat_ms < FRESH_S * 1000


class HeldLease:
    """The lease while this process has it. Every beat may raise LostOwnership."""

    def __init__(self, writer: StateWriter, lease: Lease) -> None:
        self.writer = writer
        self.lease = lease
        self._due = time.monotonic() + BEAT_S

    @property
    def generation(self) -> int:
        return self.lease.generation

    def beat(self, *, writers_until_ms: int | None = None) -> None:
        """Tell others that we live, when it is time; at once when tasks may now write longer than was said before."""
        longer = writers_until_ms is not None and writers_until_ms > self.lease.writers_until_ms
        if not longer and time.monotonic() < self._due:
            return
        until = max(self.lease.writers_until_ms, writers_until_ms or 0)
        self.lease = replace(self.lease, beat_ms=now_ms(), writers_until_ms=until)
        self.writer.put(self.lease)
        self._due = time.monotonic() + BEAT_S

    def release(self) -> None:
        """Give it back: all tasks have ended."""
        now = now_ms()
        self.lease = replace(self.lease, beat_ms=now, writers_until_ms=now, released=True)
        self.writer.put(self.lease)


def acquire(cluster: ClusterConfig, mirror: MirrorName, owner: str) -> HeldLease:
    """Take the lease, unless somebody else is beating it now."""
    refuse_if_held(read_state(cluster), mirror)
    writer = StateWriter(cluster, data_id(mirror))
    with writer:
        old = writer.state.leases.get(mirror)
        now = now_ms()
        lease = Lease(
            mirror=mirror,
            owner=owner,
            generation=old.generation + 1 if old else 1,
            beat_ms=now,
            writers_until_ms=max(now, old.writers_until_ms if old else 0),
        )
        writer.put(lease)
    return HeldLease(writer, lease)


def refuse_if_held(state: State, mirror: MirrorName) -> None:
    """LostOwnership when another process keeps this mirror's data plane running."""
    lease = state.leases.get(mirror)
    if lease is not None and is_fresh(lease, now_ms()) and not died_here(lease.owner):
        age = (now_ms() - lease.beat_ms) / 1000
        raise LostOwnership(
            f"mirror {mirror}: another process copies it already ({lease.owner}, generation {lease.generation}, "
            f"last heard of {age:.1f} s ago): stop that one first, or wait {FRESH_S:.0f} s after it has died"
        )
