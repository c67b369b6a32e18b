"""Heartbeats of a run's conductor, and of a long command on a mirror.

Start and release are transactional, so a process that lost the run cannot write them. Heartbeats between are not: an
unacknowledged one does no harm.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from mirror_core.decide.clock_skew import to_local_clock_ms
from mirror_core.decide.process_liveness import (
    CONDUCTOR_STEP,
    ConductorState,
    ConductorStatus,
    ProcessState,
    decide_conductor_status,
    decide_member_status,
    find_conductor_heartbeat,
    format_heartbeat_step,
)
from mirror_core.kafka.cluster_info import measure_clock_ahead_ms
from mirror_core.kafka.config import ClusterConfig
from mirror_core.model.errors import LostOwnership, format_safe_error
from mirror_core.model.logs import get_logger
from mirror_core.model.names import MirrorName
from mirror_core.model.run import Run
from mirror_core.model.run_checkpoints import Checkpoint, RunHeartbeat
from mirror_core.model.timing import CLOCK_TIMEOUT_S, CONDUCTOR_TIMEOUT_S, now_ms
from mirror_core.state.journal import find_run, make_checkpoint
from mirror_core.state.non_transactional_writer import NonFencingWriter
from mirror_core.state.state_records import State, StateRecord, Tombstone
from mirror_core.state.writer import StateWriter
from mirror_core.supervisor.process_identity import MachineIdentity, ProcessIdentity, get_current_process

_log = get_logger(__name__)

RUN_HEARTBEAT_S: Final = 10.0
_FLUSH_TIMEOUT_S: Final = 2.0
_POLL_S: Final = 0.5


class HeartbeatSender:
    """Failures never affect the run."""

    def __init__(self, cluster: ClusterConfig, heartbeat: RunHeartbeat, subject: str) -> None:
        """`subject`: id of the run, or name of the mirror."""
        self._cluster = cluster
        self._heartbeat = heartbeat
        self._run = subject
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._send_until_stopped, name=f"pulse {subject}", daemon=True)
        self._writer: NonFencingWriter | None = None
        self.is_acknowledged = True
        """Also true if none was sent."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if self._stopped.is_set():
            return
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._writer is not None:
            self._flush(self._writer)

    def forget(self) -> None:
        """The next conductor may not know of them."""
        if self._writer is not None and self._writer.has_written and self.is_acknowledged:
            self._put(self._writer, Tombstone(self._make_checkpoint()))
            self._flush(self._writer)

    def _send_until_stopped(self) -> None:
        while not self._stopped.wait(RUN_HEARTBEAT_S):
            try:
                self._writer = self._writer or NonFencingWriter(self._cluster)
            except Exception as error:  # noqa: BLE001 - said, and the run goes on
                consequence = f"after {CONDUCTOR_TIMEOUT_S:.0f} s others consider this process dead"
                _log.warning("no heartbeat, %s: %s", consequence, format_safe_error(error), run=self._run)
                return
            self._put(self._writer, self._make_checkpoint())

    def _put(self, heartbeat_writer: NonFencingWriter, record: Checkpoint | Tombstone) -> None:
        try:
            heartbeat_writer.put(record)  # the next one will do
        except Exception as error:  # noqa: BLE001 - said, and the next one is tried
            _log.warning("a beat was not written: %s", format_safe_error(error), run=self._run)

    def _flush(self, heartbeat_writer: NonFencingWriter) -> None:
        try:
            self.is_acknowledged = heartbeat_writer.flush(_FLUSH_TIMEOUT_S)
        except Exception as error:  # noqa: BLE001 - said, and nothing depends on it
            _log.warning("the last beats were not written: %s", format_safe_error(error), run=self._run)

    def _make_checkpoint(self) -> Checkpoint:
        return make_checkpoint(
            self._run, format_heartbeat_step(self._heartbeat.token), replace(self._heartbeat, at_ms=now_ms())
        )


@contextmanager
def send_heartbeats(
    writer: StateWriter, run_id: str, conductor: str, extra_records: Sequence[StateRecord] = ()
) -> Iterator[Callable[[], None]]:
    """Then releases the run.

    `extra_records` go with the first. The yielded function stops them before the run is closed: a later one would stay
    for ever.
    """
    if not _is_running(writer.state, run_id):
        yield lambda: None
        return
    with _send_until_released(
        writer, run_id, conductor, extra_records, lambda: _is_running(writer.state, run_id)
    ) as stop_sending:
        yield stop_sending


@contextmanager
def hold_turn(writer: StateWriter, command: str) -> Iterator[None]:
    """Other commands that take turns on the writer's mirror wait meanwhile; see `find_turn_holder`."""
    with _send_until_released(writer, writer.id.mirror, command, (), lambda: True):
        yield


def end_turn(writer: StateWriter) -> None:
    """Lets others take the turn of the command that the writer has fenced."""
    held = writer.state.checkpoints.get((writer.id.mirror, CONDUCTOR_STEP, RunHeartbeat.__name__))
    if held is not None:
        writer.put(Tombstone(held))


@contextmanager
def _send_until_released(
    writer: StateWriter,
    subject: str,
    sender_name: str,
    extra_records: Sequence[StateRecord],
    must_release: Callable[[], bool],
) -> Iterator[Callable[[], None]]:
    heartbeat = _make_heartbeat(sender_name)
    first = make_checkpoint(subject, format_heartbeat_step(heartbeat.token), heartbeat)
    ended_runs = {run.id for run in writer.state.runs.values() if run.ended_ms is not None}  # late heartbeats
    heartbeat_checkpoints = (
        record for record in writer.state.checkpoints.values() if record.step.startswith(format_heartbeat_step(""))
    )
    obsolete = [record for record in heartbeat_checkpoints if record.run == subject or record.run in ended_runs]
    writer.put(make_checkpoint(subject, CONDUCTOR_STEP, heartbeat), first, *map(Tombstone, obsolete), *extra_records)
    sender = HeartbeatSender(writer.cluster, heartbeat, subject)
    try:
        sender.start()
        yield sender.stop
    finally:
        sender.stop()
        try:
            if not sender.is_acknowledged:
                _log.info("heartbeat not released: brokers acknowledge no heartbeat", run=subject)
            elif must_release():
                released = make_checkpoint(subject, CONDUCTOR_STEP, replace(heartbeat, at_ms=now_ms(), released=True))
                writer.put_last(released, Tombstone(first), timeout_s=_FLUSH_TIMEOUT_S)
        except LostOwnership as error:
            _log.info("heartbeat not released: %s", error, run=subject)
            sender.forget()
        except Exception as error:  # noqa: BLE001 - said; others see that it is silent
            _log.info("heartbeat not released: %s", format_safe_error(error), run=subject)


def _is_running(state: State, run_id: str) -> bool:
    return find_run(state, run_id).ended_ms is None


def make_released_heartbeat(run_id: str, conductor: str) -> Checkpoint:
    return make_checkpoint(run_id, CONDUCTOR_STEP, replace(_make_heartbeat(conductor), released=True))


def _make_heartbeat(conductor: str) -> RunHeartbeat:
    process = get_current_process()
    return RunHeartbeat(
        token=secrets.token_hex(4),
        by=conductor,
        host=process.machine.host,
        boot_id=process.machine.boot,
        pid=process.pid,
        start_ticks=process.started,
        at_ms=now_ms(),
    )


def observe_conductor(cluster: ClusterConfig, state: State, run: Run) -> ConductorStatus:
    """Asks `cluster`, whose state it is, for its clock where there is a heartbeat to date."""
    has_heartbeat = find_conductor_heartbeat(run.id, state.checkpoints) is not None
    ahead_ms = measure_clock_ahead_ms(cluster, timeout_s=CLOCK_TIMEOUT_S) if has_heartbeat else None
    return find_conductor_status(state, run, ahead_ms)


def find_conductor_status(
    state: State, run: Run, clock_ahead_ms: int | None, at_ms: int | None = None
) -> ConductorStatus:
    """`clock_ahead_ms`: this machine's, relative to the state's cluster."""
    now = now_ms() if at_ms is None else at_ms
    status = _find_own_status(state, run, clock_ahead_ms, now)
    if not status.is_let_go:
        return status
    others = {
        other.plan.mirror: _find_own_status(state, other, clock_ahead_ms, now) if other.ended_ms is None else None
        for other in state.runs.values()
        if other.set_run == run.set_run and other.plan.mirror != run.plan.mirror
    }
    return decide_member_status(run, status, others)


def _find_own_status(state: State, run: Run, clock_ahead_ms: int | None, at_ms: int) -> ConductorStatus:
    heartbeat = _find_dated_heartbeat(state, run.id, clock_ahead_ms)
    age_s = (at_ms - heartbeat.at_ms) / 1000 if heartbeat else 0.0
    return decide_conductor_status(run, heartbeat, age_s, _find_process)


def find_turn_holder(state: State, mirror: MirrorName, clock_ahead_ms: int | None) -> RunHeartbeat | None:
    """None if no command that takes turns is at work, or it has fallen silent."""
    heartbeat = _find_dated_heartbeat(state, mirror, clock_ahead_ms)
    if heartbeat is None or heartbeat.released or _find_process(heartbeat) is ProcessState.ENDED:
        return None
    return heartbeat if abs(now_ms() - heartbeat.at_ms) <= CONDUCTOR_TIMEOUT_S * 1000 else None


def _find_dated_heartbeat(state: State, subject: str, clock_ahead_ms: int | None) -> RunHeartbeat | None:
    """The conductor's or turn holder's, with `at_ms` by this machine's clock."""
    heartbeat = find_conductor_heartbeat(subject, state.checkpoints)
    if heartbeat is None:
        return None
    steps = (CONDUCTOR_STEP, format_heartbeat_step(heartbeat.token))
    records = (state.checkpoints.get((subject, step, RunHeartbeat.__name__)) for step in steps)
    times = [time_ms for record in records if (time_ms := state.find_append_time_ms(record)) is not None]
    return replace(heartbeat, at_ms=to_local_clock_ms(heartbeat.at_ms, clock_ahead_ms, max(times, default=None)))


class HeartbeatMonitor:
    """Does not compare clocks of two machines. Later calls do not wait again."""

    def __init__(self, run_id: str) -> None:
        self._run = run_id
        self._first: RunHeartbeat | None = None
        self._first_seen_at = 0.0
        self._reported_unknown: ConductorStatus | None = None

    def wait_for_status(
        self, read_state: Callable[[], State], report: Callable[[str], None], *, take_over: bool = False
    ) -> ConductorStatus:
        """`read_state` must wait for open transactions, which hide heartbeats."""
        while True:
            asked_at = time.monotonic()
            state = read_state()
            run, heartbeat = find_run(state, self._run), find_conductor_heartbeat(self._run, state.checkpoints)
            status = decide_conductor_status(
                run, heartbeat, asked_at - self._first_seen_at if heartbeat == self._first else 0.0, _find_process
            )
            is_silent = status.state is not ConductorState.ALIVE
            is_ours = heartbeat is not None and status.is_let_go and _to_process(heartbeat) == get_current_process()
            if status.state is ConductorState.UNKNOWN and not is_ours and status != self._reported_unknown:
                self._reported_unknown = status
                report(f"run {self._run}: {status}")
            if self._first is None:
                self._first, self._first_seen_at = heartbeat, time.monotonic()
                if not is_silent:
                    limit = f"watching up to {CONDUCTOR_TIMEOUT_S:.0f} s for another sign of life"
                    way_out = "; `--take-over` does not wait" if take_over else ""
                    report(f"run {self._run}: {status.by} on {status.host} conducted it last; {limit}{way_out}")
            if is_silent or self._first != heartbeat:
                return status
            time.sleep(_POLL_S)


def _find_process(heartbeat: RunHeartbeat) -> ProcessState:
    process = _to_process(heartbeat)
    if process.is_running():
        return ProcessState.RUNNING
    return ProcessState.ENDED if process.has_ended() else ProcessState.UNKNOWN


def _to_process(heartbeat: RunHeartbeat) -> ProcessIdentity:
    return ProcessIdentity(heartbeat.pid, MachineIdentity(heartbeat.host, heartbeat.boot_id), heartbeat.start_ticks)
