"""The lease of a mirror's data plane. Taking it fences its owner; a fresh one is respected."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final, Protocol

from mirror_core.decide.clocks import now_of_owner
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.quorum import clock_ahead_ms
from mirror_core.model.clock import FRESH_S, now_ms
from mirror_core.model.errors import BadRequest, LostOwnership, MirrorError, RemoteFault, Unwritten
from mirror_core.model.logs import logger
from mirror_core.model.mirror import Lease, is_fresh
from mirror_core.model.names import MirrorName
from mirror_core.state.records import Forget, Record, State
from mirror_core.state.regaining import Regaining
from mirror_core.state.topic import TRANSACTION_MS, read_state
from mirror_core.state.writer import StateWriter, data_id

_log = logger(__name__)

BEAT_S: Final = 2.0
_LAST_WORDS_S: Final = 10.0
_AGAIN_S: Final = (2.0, 10.0)
"""First and longest."""
_TICK_S: Final = 0.2
CLOCK_S: Final = 2.0
"""Timeout for reading the destination's clock."""


def new_owner() -> str:
    """Unique; names host and process id."""
    return f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"


def died_here(owner: str) -> bool:
    """Its process ended: the lease need not expire.

    Containers may share a host name; then a live owner is fenced, which is harmless.
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


def copier(state: State, mirror: MirrorName, ahead_ms: int | None = None) -> Lease | None:
    """None: no data plane runs. `clock_ahead_ms`: relative to the destination; None: unknown."""
    lease = state.leases.get(mirror)
    now = now_of_owner(now_ms(), ahead_ms, lease, state.appended_ms.get(mirror))
    return lease if is_fresh(lease, now) and lease is not None and not died_here(lease.owner) else None


def next_lease(state: State, mirror: MirrorName, owner: str, ahead_ms: int | None = None) -> Lease:
    """The previous owner's tasks may write until a time by its clock, converted here."""
    old, now = state.leases.get(mirror), now_ms()
    later_ms = now - now_of_owner(now, ahead_ms, old, state.appended_ms.get(mirror))
    return Lease(
        mirror=mirror,
        owner=owner,
        generation=old.generation + 1 if old else 1,
        beat_ms=now,
        writers_until_ms=max(now, old.writers_until_ms + later_ms if old else 0),
    )


class Control(Protocol):
    """LostOwnership when another process took the control id."""

    def put(self, *records: Record | Forget) -> None: ...


@contextmanager
def taken_for_run(
    cluster: ClusterConfig, mirror: MirrorName, owner: str, control: Control, begun: Record
) -> Iterator[tuple[StateWriter, Lease]]:
    """For a run that ends the data plane; yields the data id's writer.

    First rewrites `begin_record` under the control id: a conductor that slept and lost the run fails there, before it
    fences the data writer or takes the lease.
    """
    control.put(begun)
    with StateWriter(cluster, data_id(mirror)) as data:
        lease = next_lease(data.state, mirror, owner, clock_ahead_ms(cluster, timeout_s=CLOCK_S))
        control.put(lease)  # this process may have slept
        data.put(lease)
        yield data, lease


class HeldLease:
    """The lease, and the right to write the data plane's records.

    Renewals and writes may raise LostOwnership, or Unwritten: nothing is known to be written, and later calls retry.
    Begin nothing under a lease that could not be written.
    """

    def __init__(self, writer: StateWriter, lease: Lease) -> None:
        self._writer = writer
        self.lease = lease
        """As last acknowledged."""
        self.may_go_on: Callable[[State], None] = lambda state: None
        """Raises when this process must stop writing though the lease is not taken."""
        self._regaining: Regaining | None = None
        self._trouble = ""
        self._again_s = _AGAIN_S[0]
        self._others_until_ms = lease.writers_until_ms
        """Previous owners' tasks may write until then."""
        self._due = time.monotonic() + BEAT_S
        self.waits: tuple[str, ...] | None = None
        """For others to see, with the next renewal."""

    @property
    def generation(self) -> int:
        return self.lease.generation

    @property
    def state(self) -> State:
        """With this process's own writes."""
        return self._writer.state

    def read(self) -> State:
        """Thread-safe."""
        return self._writer.read()

    def know(self, state: State) -> State:
        """If only the lease was written meanwhile."""
        self._writer.state = state
        return state

    def refresh(self) -> State:
        return self.know(self.read())

    def put(self, *records: Record | Forget) -> None:
        writer, began = self._usable(), time.monotonic()
        try:
            writer.put(*records)
        except LostOwnership as error:
            if time.monotonic() - began < TRANSACTION_MS / 1000:
                raise
            raise self._failed(error) from None  # transaction timed out, or lease taken
        except RemoteFault as error:
            raise self._failed(error) from None
        self._again_s = _AGAIN_S[0]

    def _usable(self) -> StateWriter:
        if self._regaining is not None:
            if not self._regaining.done:
                raise Unwritten(self._trouble)
            try:
                self._writer = self._regaining.writer()
            except (RemoteFault, BadRequest) as error:  # refused logins may be mended meanwhile
                raise self._failed(error) from None
            self._regaining, self._trouble = None, ""
            _log.info("the state topic is written again", mirror=self.lease.mirror)
        return self._writer

    def _failed(self, error: MirrorError) -> Unwritten:
        self._trouble = str(error)
        _log.info("the state topic is not written now: %s", error, mirror=self.lease.mirror)
        cluster = self._writer.cluster
        self._regaining = Regaining(cluster, self.lease, lambda state: self.may_go_on(state), pause_s=self._again_s)
        self._again_s = min(2 * self._again_s, _AGAIN_S[1])
        return Unwritten(self._trouble)

    def beat(self, *, writers_until_ms: int | None = None) -> None:
        """When due; at once when tasks may write longer than announced."""
        longer = writers_until_ms is not None and writers_until_ms > self.lease.writers_until_ms
        if not longer and time.monotonic() < self._due:
            return
        until = max(self.lease.writers_until_ms, writers_until_ms or 0)
        told = replace(self.lease, beat_ms=now_ms(), writers_until_ms=until, waits=self.waits)
        self.put(told)
        self.lease = told
        self._due = time.monotonic() + BEAT_S

    def outwait_writers(self, say: Callable[[str], None]) -> None:
        """Their own clock has stopped them by then."""
        left_ms = self._others_until_ms - now_ms()
        if left_ms > 0:
            say(f"waiting {left_ms / 1000:.0f} s for tasks that may still write")
        while now_ms() < self._others_until_ms:
            self.beat()
            time.sleep(_TICK_S)

    def release(self) -> None:
        """After all own tasks ended."""
        now = now_ms()
        until = max(now, self._others_until_ms)
        told = replace(self.lease, beat_ms=now, writers_until_ms=until, released=True, waits=None)
        try:
            if self._regaining is not None:
                with suppress(MirrorError, TimeoutError):  # raised again by `put`
                    self._regaining.writer(_LAST_WORDS_S)
            self.put(told)
        finally:
            if self._regaining is not None:
                self._regaining.give_up()
        self.lease = told
        _log.info("lease given back: generation %d", self.lease.generation, mirror=self.lease.mirror)


@contextmanager
def kept(lease: HeldLease) -> Iterator[HeldLease]:
    """Releases at the end, unless another process took the lease."""
    lost = False
    try:
        yield lease
    except LostOwnership as error:
        lost = True
        _log.info("lease lost: %s", error, mirror=lease.lease.mirror)
        raise
    finally:
        if not lost:
            lease.release()


def acquire(
    cluster: ClusterConfig, mirror: MirrorName, owner: str, may_run: Callable[[State], None] = lambda state: None
) -> HeldLease:
    """`check_may_run` raises if the owner may not copy."""
    state = read_state(cluster)
    refuse_if_held(state, mirror, clock_ahead_ms(cluster, timeout_s=CLOCK_S))
    may_run(state)  # before taking it, perhaps from a run that copies the rest itself
    return take_over(cluster, mirror, owner)


def take_over(cluster: ClusterConfig, mirror: MirrorName, owner: str) -> HeldLease:
    """A running data plane ends at its next renewal."""
    with StateWriter(cluster, data_id(mirror)) as writer:
        lease = next_lease(writer.state, mirror, owner, clock_ahead_ms(cluster, timeout_s=CLOCK_S))
        writer.put(lease)
    _log.info("lease taken: generation %d, owner %s", lease.generation, owner, mirror=mirror)
    return HeldLease(writer, lease)


def refuse_if_held(state: State, mirror: MirrorName, ahead_ms: int | None = None) -> None:
    lease = copier(state, mirror, ahead_ms)
    if lease is not None:
        now = now_of_owner(now_ms(), ahead_ms, lease, state.appended_ms.get(mirror))
        age = max(0, now - lease.beat_ms) / 1000
        raise LostOwnership(
            f"mirror {mirror}: another process copies it already ({lease.owner}, generation {lease.generation}, "
            f"last heard of {age:.1f} s ago): stop that one first, or wait {FRESH_S:.0f} s after it has died"
        )
