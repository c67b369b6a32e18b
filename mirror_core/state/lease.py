"""The lease of a mirror's data plane, and recovery of its writer.

Brokers fence a producer whose transaction timed out, and a new writer fences the holder of the id. So a writer is
recovered only while the state topic says that the lease is ours, and kept only if it says so afterwards: a process that
took the id in between is refused its next write, or has written its lease and has the mirror.

`writers_end_s`: until when tasks may write, by the steady clock.
"""

from __future__ import annotations

import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Final, Protocol

from mirror_core.decide.clock_skew import compute_writer_ahead_ms, compute_writers_left_ms, to_owner_clock_ms
from mirror_core.kafka.cluster_info import measure_clock_ahead_ms
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.transactional_producer import UNWRITTEN_LOG, LogReplaced, WrittenLog
from mirror_core.model.errors import BadRequest, LostOwnership, MirrorError, RemoteFault, StateNotWritten
from mirror_core.model.logs import get_logger
from mirror_core.model.mirror import Lease, is_lease_fresh
from mirror_core.model.names import MirrorName
from mirror_core.model.timing import CLOCK_TIMEOUT_S, MAX_FRESH_AGE_S, now_ms, read_steady_s
from mirror_core.state.state_records import State, StateRecord, Tombstone
from mirror_core.state.state_topic import STATE_TRANSACTION_MS, read_complete_state, read_state
from mirror_core.state.writer import StateWriter, make_data_id


class LeaseRecovery:
    """Has its own thread: hanging brokers block nothing."""

    def __init__(
        self,
        cluster: ClusterConfig,
        lease: Lease,
        check_may_write: Callable[[State], None],
        *,
        written_log: WrittenLog = UNWRITTEN_LOG,
        pause_s: float,
    ) -> None:
        """After a pause. `check_may_write` raises if the owner must stop. `written_log`: by this owner so far."""
        self._cluster = cluster
        self._written_log = written_log
        self._lease = lease
        self._check_may_write = check_may_write
        self._pause_s = pause_s
        self._cancelled = threading.Event()
        self._result: Future[StateWriter] = Future()
        thread = threading.Thread(target=copy_context().run, args=(self._run,), name="regaining", daemon=True)
        thread.start()

    @property
    def is_done(self) -> bool:
        return self._result.done()

    def get_writer(self, timeout_s: float = 0.0) -> StateWriter:
        """Raises LostOwnership, a RemoteFault, or what `check_may_write` raises."""
        return self._result.result(timeout_s)

    def cancel(self) -> None:
        self._cancelled.set()

    def _run(self) -> None:
        try:
            self._result.set_result(self._recover_writer())
        except BaseException as error:  # noqa: BLE001 - raised by `writer`
            error.__context__ = None  # frames hold connections
            self._result.set_exception(error.with_traceback(None))

    def _recover_writer(self) -> StateWriter:
        if not self._cancelled.wait(self._pause_s):
            self._check_lease(read_complete_state(self._cluster))
        if self._cancelled.is_set():
            raise StateNotWritten("it was given up")
        writer_id = make_data_id(self._lease.mirror)
        with StateWriter(self._cluster, writer_id, written_log=self._written_log) as writer:
            self._check_lease(writer.state)
        return writer

    def _check_lease(self, state: State) -> None:
        own_lease = self._lease
        state.require_readable(own_lease.mirror)
        current_lease = state.leases.get(own_lease.mirror)
        if (
            current_lease is None
            or (current_lease.owner, current_lease.generation) != (own_lease.owner, own_lease.generation)
            or current_lease.released
        ):
            new_owner = f"{current_lease.owner} (generation {current_lease.generation})" if current_lease else "nobody"
            raise LostOwnership(
                f"mirror {own_lease.mirror}: its lease is {new_owner}'s by now; this process, which could not write the"
                " state topic for a while, stops here"
            )
        self._check_may_write(state)


_log = get_logger(__name__)
LEASE_HEARTBEAT_S: Final = 2.0
_RELEASE_TIMEOUT_S: Final = 10.0
_RETRY_BOUNDS_S: Final = (2.0, 10.0)
"""First and longest."""
_POLL_S: Final = 0.2


def make_owner_name() -> str:
    return f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"


def is_dead_local_owner(owner: str) -> bool:
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


def observe_live_lease(cluster: ClusterConfig, state: State, mirror: MirrorName) -> Lease | None:
    """None if no data plane runs. Asks `cluster`, the destination, for its clock where a lease is held."""
    lease = state.leases.get(mirror)
    if lease is None or lease.released:
        return None
    return find_live_lease(state, mirror, measure_clock_ahead_ms(cluster, timeout_s=CLOCK_TIMEOUT_S))


def find_live_lease(state: State, mirror: MirrorName, clock_ahead_ms: int | None) -> Lease | None:
    """`clock_ahead_ms`: relative to the destination."""
    lease = state.leases.get(mirror)
    now = to_owner_clock_ms(now_ms(), clock_ahead_ms, lease, state.find_append_time_ms(lease))
    return lease if is_lease_fresh(lease, now) and lease is not None and not is_dead_local_owner(lease.owner) else None


def read_hold_clock_ms(cluster: ClusterConfig, state: State, mirror: MirrorName) -> int | None:
    """For holding what the source deleted: the earlier of two brokers' clocks, so that a wrong one ends no hold.

    That of the state topic's leader, at the lease's newest heartbeat, and the controller's, where known. None: the
    state topic does not store the brokers' time.
    """
    appended_ms = state.find_append_time_ms(state.leases.get(mirror))
    if appended_ms is None:
        return None
    ahead_ms = measure_clock_ahead_ms(cluster, timeout_s=CLOCK_TIMEOUT_S)
    return appended_ms if ahead_ms is None else min(appended_ms, now_ms() - ahead_ms)


def make_next_lease(state: State, mirror: MirrorName, owner: str, clock_ahead_ms: int | None) -> Lease:
    previous, now = state.leases.get(mirror), now_ms()
    return Lease(
        mirror=mirror,
        owner=owner,
        generation=previous.generation + 1 if previous else 1,
        heartbeat_ms=now,
        writers_until_ms=now + max(0, find_writers_left_ms(state, mirror, clock_ahead_ms) or 0),
    )


def find_writers_left_ms(state: State, mirror: MirrorName, clock_ahead_ms: int | None) -> int | None:
    """How long tasks of the lease's owner, and of earlier ones, may still write; negative: since when they may not.

    None: nobody had the lease.
    """
    lease = state.leases.get(mirror)
    return compute_writers_left_ms(now_ms(), clock_ahead_ms, lease, state.find_append_time_ms(lease)) if lease else None


def compute_writers_end_s(lease: Lease) -> float:
    """The lease is dated now."""
    return read_steady_s() + (lease.writers_until_ms - lease.heartbeat_ms) / 1000


def date_lease(lease: Lease, writers_end_s: float) -> Lease:
    """With a heartbeat of now."""
    now, left_ms = now_ms(), math.ceil((writers_end_s - read_steady_s()) * 1000)
    return replace(lease, heartbeat_ms=now, writers_until_ms=now + max(0, left_ms))


class ControlWriter(Protocol):
    """Raises LostOwnership when another process took the control id."""

    def put(self, *records: StateRecord | Tombstone) -> None: ...


@dataclass(frozen=True, slots=True)
class RunLease:
    """Without a thread that renews it."""

    lease: Lease
    writer: StateWriter
    """The data id's."""
    old_writers_end_s: float
    """For tasks of earlier owners."""

    def renew(self, writers_end_s: float = 0.0) -> None:
        """`writers_end_s`: of the run's own copy. LostOwnership if the lease was taken."""
        self.writer.put(date_lease(self.lease, max(self.old_writers_end_s, writers_end_s)))


@contextmanager
def take_lease_for_run(
    cluster: ClusterConfig, mirror: MirrorName, owner: str, control: ControlWriter, begin_record: StateRecord
) -> Iterator[RunLease]:
    """For a run that ends the data plane.

    First rewrites `begin_record` under the control id: a conductor that lost the run while it slept fails there, before
    it fences the data writer or takes the lease.
    """
    control.put(begin_record)
    with StateWriter(cluster, make_data_id(mirror)) as data_writer:
        lease = make_next_lease(
            data_writer.state, mirror, owner, measure_clock_ahead_ms(cluster, timeout_s=CLOCK_TIMEOUT_S)
        )
        old_writers_end_s = compute_writers_end_s(lease)
        control.put(lease)  # this process may have slept
        data_writer.put(lease)
        yield RunLease(lease, data_writer, old_writers_end_s)


class HeldLease:
    """The lease, and the right to write the data plane's records.

    Renewals and writes may raise LostOwnership, or Unwritten: nothing is known to be written, and later calls retry.
    Begin nothing under a lease that could not be written.
    """

    def __init__(self, writer: StateWriter, lease: Lease) -> None:
        self._writer = writer
        self.lease = lease
        """As last acknowledged."""
        self.check_may_write: Callable[[State], None] = lambda state: None
        """Raises when this process must stop writing though the lease is not taken."""
        self._recovery: LeaseRecovery | None = None
        self._last_error = ""
        self._retry_s = _RETRY_BOUNDS_S[0]
        self.old_writers_end_s = self.writers_end_s = compute_writers_end_s(lease)
        """For tasks of previous owners; and for all tasks, as last acknowledged."""
        self._renew_at = time.monotonic() + LEASE_HEARTBEAT_S
        self.clock_ahead_ms = 0
        """By how much this machine's clock is ahead of the brokers', by the newest state that was read."""
        self.waits: tuple[str, ...] | None = None
        """Published with the next renewal."""

    @property
    def generation(self) -> int:
        return self.lease.generation

    @property
    def state(self) -> State:
        """With this process's own writes."""
        return self._writer.state

    def read(self) -> State:
        return self._writer.read()

    def adopt_state(self, state: State) -> State:
        """Only the lease may have been written meanwhile."""
        self._writer.state = state
        if (lease := state.leases.get(self.lease.mirror)) is not None:
            self.clock_ahead_ms = compute_writer_ahead_ms(lease.heartbeat_ms, state.find_append_time_ms(lease))
        return state

    def refresh(self) -> State:
        return self.adopt_state(self.read())

    def put(self, *records: StateRecord | Tombstone) -> None:
        writer, began_at = self._usable_writer(), time.monotonic()
        try:
            writer.put(*records)
        except LostOwnership as error:
            if time.monotonic() - began_at < STATE_TRANSACTION_MS / 1000:
                raise
            raise self._begin_recovery(error) from None  # transaction timed out, or lease taken
        except LogReplaced:
            raise  # whoever starts next knows nothing but what is there
        except RemoteFault as error:
            raise self._begin_recovery(error) from None
        self._retry_s = _RETRY_BOUNDS_S[0]

    def _usable_writer(self) -> StateWriter:
        if self._recovery is not None:
            if not self._recovery.is_done:
                raise StateNotWritten(self._last_error)
            try:
                self._writer = self._recovery.get_writer()
            except (RemoteFault, BadRequest) as error:  # refused logins may be mended meanwhile
                raise self._begin_recovery(error) from None
            self._recovery, self._last_error = None, ""
            _log.info("the state topic is written again", mirror=self.lease.mirror)
        return self._writer

    def _begin_recovery(self, error: MirrorError) -> StateNotWritten:
        self._last_error = str(error)
        _log.info("the state topic is not written now: %s", error, mirror=self.lease.mirror)
        self._recovery = LeaseRecovery(
            self._writer.cluster,
            self.lease,
            lambda state: self.check_may_write(state),
            written_log=self._writer.written_log,
            pause_s=self._retry_s,
        )
        self._retry_s = min(2 * self._retry_s, _RETRY_BOUNDS_S[1])
        return StateNotWritten(self._last_error)

    def renew(self, *, writers_end_s: float = 0.0) -> None:
        """When due; at once when tasks may write longer than announced."""
        if writers_end_s <= self.writers_end_s and time.monotonic() < self._renew_at:
            return
        end_s = max(self.writers_end_s, writers_end_s)
        renewed = replace(date_lease(self.lease, end_s), wait_reasons=self.waits)
        self.put(renewed)
        self.lease, self.writers_end_s = renewed, end_s
        self._renew_at = time.monotonic() + LEASE_HEARTBEAT_S

    def wait_for_old_writers(self, report: Callable[[str], None]) -> None:
        """Their own clock has stopped them by then."""
        left_s = self.old_writers_end_s - read_steady_s()
        if left_s > 0:
            report(f"waiting {left_s:.0f} s for tasks that may still write")
        while read_steady_s() < self.old_writers_end_s:
            self.renew()
            time.sleep(_POLL_S)

    def expect_own_writers(self) -> None:
        """Own tasks may outlive the lease: its next owner waits for them, as long as was promised."""
        self.old_writers_end_s = self.writers_end_s

    def release(self) -> None:
        """After all own tasks ended, or with `expect_own_writers`."""
        released_lease = replace(date_lease(self.lease, self.old_writers_end_s), released=True, wait_reasons=None)
        try:
            if self._recovery is not None:
                with suppress(MirrorError, TimeoutError):  # raised again by `put`
                    self._recovery.get_writer(_RELEASE_TIMEOUT_S)
            self.put(released_lease)
        finally:
            if self._recovery is not None:
                self._recovery.cancel()
        self.lease = released_lease
        _log.info("lease given back: generation %d", self.lease.generation, mirror=self.lease.mirror)


@contextmanager
def release_at_end(lease: HeldLease) -> Iterator[HeldLease]:
    """Unless another process took the lease."""
    is_lost = False
    try:
        yield lease
    except LostOwnership as error:
        is_lost = True
        _log.info("lease lost: %s", error, mirror=lease.lease.mirror)
        raise
    finally:
        if not is_lost:
            lease.release()


def acquire_lease(
    cluster: ClusterConfig, mirror: MirrorName, owner: str, check_may_run: Callable[[State], None] = lambda state: None
) -> HeldLease:
    """`check_may_run` raises if the owner may not copy."""
    state = read_state(cluster)
    refuse_if_held(state, mirror, measure_clock_ahead_ms(cluster, timeout_s=CLOCK_TIMEOUT_S))
    check_may_run(state)  # before taking it, perhaps from a run that copies the rest itself
    return take_over_lease(cluster, mirror, owner)


def take_over_lease(cluster: ClusterConfig, mirror: MirrorName, owner: str) -> HeldLease:
    """A running data plane ends at its next renewal."""
    with StateWriter(cluster, make_data_id(mirror)) as writer:
        ahead_ms = measure_clock_ahead_ms(cluster, timeout_s=CLOCK_TIMEOUT_S)
        lease = make_next_lease(writer.state, mirror, owner, ahead_ms)
        writer.put(lease)
    _log.info("lease taken: generation %d, owner %s", lease.generation, owner, mirror=mirror)
    held = HeldLease(writer, lease)
    held.clock_ahead_ms = ahead_ms or 0
    return held


def refuse_if_held(state: State, mirror: MirrorName, clock_ahead_ms: int | None) -> None:
    lease = find_live_lease(state, mirror, clock_ahead_ms)
    if lease is not None:
        now = to_owner_clock_ms(now_ms(), clock_ahead_ms, lease, state.find_append_time_ms(lease))
        age_s = max(0, now - lease.heartbeat_ms) / 1000
        raise LostOwnership(
            f"mirror {mirror}: another process copies it already ({lease.owner}, generation {lease.generation}, "
            f"last heard of {age_s:.1f} s ago): stop that one first, or wait {MAX_FRESH_AGE_S:.0f} s after it has died"
        )
