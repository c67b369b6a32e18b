"""Who runs the data plane of a mirror. Taking the lease fences the last owner; a fresh one is respected."""

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
"""Until it is tried again to write: at first, and at most."""
_TICK_S: Final = 0.2
CLOCK_S: Final = 2.0
"""So long brokers are waited for that are asked what time it is."""


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


def copier(state: State, mirror: MirrorName, ahead_ms: int | None = None) -> Lease | None:
    """The lease of the process that keeps this mirror's data plane running; None when none does. `ahead_ms`: how far
    the clock here is ahead of the destination's; None: unknown."""
    lease = state.leases.get(mirror)
    now = now_of_owner(now_ms(), ahead_ms, lease, state.appended_ms.get(mirror))
    return lease if is_fresh(lease, now) and lease is not None and not died_here(lease.owner) else None


def next_lease(state: State, mirror: MirrorName, owner: str, ahead_ms: int | None = None) -> Lease:
    """The lease of the next owner. Tasks of the one before may outlive it until the time that it has set, by its own
    clock: here it stands by the clock of this machine. `ahead_ms`: as above."""
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
    """Writes by a mirror's control id: LostOwnership when another process has taken it."""

    def put(self, *records: Record | Forget) -> None: ...


@contextmanager
def taken_for_run(
    cluster: ClusterConfig, mirror: MirrorName, owner: str, control: Control, begun: Record
) -> Iterator[tuple[StateWriter, Lease]]:
    """The lease for a run that ends the data plane, and the data id's writer until the end of the block.

    `control` writes for the run, and `begun` it has written before. Only who conducts the run can write that again: who
    slept until now neither ends the data writer of the one at work nor takes the lease from it.
    """
    control.put(begun)
    with StateWriter(cluster, data_id(mirror)) as data:
        lease = next_lease(data.state, mirror, owner, clock_ahead_ms(cluster, timeout_s=CLOCK_S))
        control.put(lease)  # it may have slept since
        data.put(lease)
        yield data, lease


class HeldLease:
    """The lease while this process has it, and the right to write what the data plane has to say.

    Every beat and every write may raise LostOwnership, or Unwritten: then nothing is known to be written, and the next
    ones try again, until the lease is another's. Nobody may begin anything by a lease that could not be written.
    """

    def __init__(self, writer: StateWriter, lease: Lease) -> None:
        self._writer = writer
        self.lease = lease
        """As it was last acknowledged."""
        self.may_go_on: Callable[[State], None] = lambda state: None
        """Raises when this process is not to write any more, though nobody has taken the lease yet."""
        self._regaining: Regaining | None = None
        self._trouble = ""
        self._again_s = _AGAIN_S[0]
        self._others_until_ms = lease.writers_until_ms
        """Until then tasks of the owners before may write."""
        self._due = time.monotonic() + BEAT_S
        self.waits: tuple[str, ...] | None = None
        """What copying waits for: others learn it by the next beat."""

    @property
    def generation(self) -> int:
        return self.lease.generation

    @property
    def state(self) -> State:
        """As it was last read, with what this process has written since."""
        return self._writer.state

    def read(self) -> State:
        """What the state topic says now. May be called on any thread; it changes nothing here."""
        return self._writer.read()

    def know(self, state: State) -> State:
        """Go on from what was read, if nothing but the lease was written meanwhile."""
        self._writer.state = state
        return state

    def refresh(self) -> State:
        """Read again what others have written since."""
        return self.know(self.read())

    def put(self, *records: Record | Forget) -> None:
        """Write records of the data plane, all or none."""
        writer, began = self._usable(), time.monotonic()
        try:
            writer.put(*records)
        except LostOwnership as error:
            if time.monotonic() - began < TRANSACTION_MS / 1000:
                raise
            raise self._failed(error) from None  # brokers had ended the transaction, or another process has the lease
        except RemoteFault as error:
            raise self._failed(error) from None
        self._again_s = _AGAIN_S[0]

    def _usable(self) -> StateWriter:
        if self._regaining is not None:
            if not self._regaining.done:
                raise Unwritten(self._trouble)
            try:
                self._writer = self._regaining.writer()
            except (RemoteFault, BadRequest) as error:  # also a login that is refused: others may mend that meanwhile
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
        """Tell others that we live, when it is time; at once when tasks may now write longer than was said before."""
        longer = writers_until_ms is not None and writers_until_ms > self.lease.writers_until_ms
        if not longer and time.monotonic() < self._due:
            return
        until = max(self.lease.writers_until_ms, writers_until_ms or 0)
        told = replace(self.lease, beat_ms=now_ms(), writers_until_ms=until, waits=self.waits)
        self.put(told)
        self.lease = told
        self._due = time.monotonic() + BEAT_S

    def outwait_writers(self, say: Callable[[str], None]) -> None:
        """Return when no task of an owner before can write any more: its own clock has stopped it by then."""
        left_ms = self._others_until_ms - now_ms()
        if left_ms > 0:
            say(f"waiting {left_ms / 1000:.0f} s for tasks that may still write")
        while now_ms() < self._others_until_ms:
            self.beat()
            time.sleep(_TICK_S)

    def release(self) -> None:
        """Give it back: all tasks of ours have ended."""
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
    """The lease until the end of the block; given back then, unless another process has taken it."""
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
    """Take the lease, unless somebody else is beating it now. `may_run` raises when the owner may not copy."""
    state = read_state(cluster)
    refuse_if_held(state, mirror, clock_ahead_ms(cluster, timeout_s=CLOCK_S))
    may_run(state)  # before anything is taken, perhaps from a run that copies the rest itself
    return take_over(cluster, mirror, owner)


def take_over(cluster: ClusterConfig, mirror: MirrorName, owner: str) -> HeldLease:
    """Take the lease from whoever has it: a running data plane ends at its next beat, with LostOwnership."""
    with StateWriter(cluster, data_id(mirror)) as writer:
        lease = next_lease(writer.state, mirror, owner, clock_ahead_ms(cluster, timeout_s=CLOCK_S))
        writer.put(lease)
    _log.info("lease taken: generation %d, owner %s", lease.generation, owner, mirror=mirror)
    return HeldLease(writer, lease)


def refuse_if_held(state: State, mirror: MirrorName, ahead_ms: int | None = None) -> None:
    """LostOwnership when another process keeps this mirror's data plane running. `ahead_ms`: as for `copier`."""
    lease = copier(state, mirror, ahead_ms)
    if lease is not None:
        now = now_of_owner(now_ms(), ahead_ms, lease, state.appended_ms.get(mirror))
        age = max(0, now - lease.beat_ms) / 1000
        raise LostOwnership(
            f"mirror {mirror}: another process copies it already ({lease.owner}, generation {lease.generation}, "
            f"last heard of {age:.1f} s ago): stop that one first, or wait {FRESH_S:.0f} s after it has died"
        )
