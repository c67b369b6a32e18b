"""A run's heartbeat in the journal.

The transactional writer writes start and release, so a process that lost the run cannot. Heartbeats between use no
transaction: an unacknowledged one neither loses the mirror nor hides records.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from mirror_core.decide.conducting import STEP, Conducted, Sign, judged, newest, place
from mirror_core.kafka.config import ClusterConfig
from mirror_core.model.checkpoint import Beat, Checkpoint
from mirror_core.model.clock import CONDUCTED_S, now_ms
from mirror_core.model.defects import named
from mirror_core.model.errors import LostOwnership
from mirror_core.model.logs import logger
from mirror_core.model.run import Run
from mirror_core.state.aside import Aside
from mirror_core.state.journal import checkpoint, find_run
from mirror_core.state.records import Forget, Record, State
from mirror_core.state.writer import StateWriter
from mirror_core.supervisor.identity import Machine, Process, this_process

_log = logger(__name__)

BEAT_S: Final = 10.0
_PATIENCE_S: Final = 2.0
_LOOK_S: Final = 0.5


class Pulse:
    """Failures never affect the run."""

    def __init__(self, cluster: ClusterConfig, beat: Beat, run_id: str) -> None:
        self._cluster = cluster
        self._beat = beat
        self._run = run_id
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name=f"pulse {run_id}", daemon=True)
        self._aside: Aside | None = None
        self.taken = True
        """Also true if none was sent."""

    def start(self) -> None:
        """Without a client the run continues, and others soon consider this process dead."""
        try:
            self._aside = Aside(self._cluster)
        except Exception as error:  # noqa: BLE001 - said, and the run goes on
            gone = f"after {CONDUCTED_S:.0f} s others take this process for dead"
            _log.warning("no heartbeat, %s: %s", gone, named(error), run=self._run)
        else:
            self._thread.start()

    def stop(self) -> None:
        """No heartbeat follows."""
        if self._over.is_set():
            return
        self._over.set()
        if self._aside is not None:
            self._thread.join()
            self._empty(self._aside)

    def forget(self) -> None:
        """The next conductor may not know of them."""
        if self._aside is not None and self._aside.began and self.taken:
            self._put(self._aside, Forget(self._later()))
            self._empty(self._aside)

    def _go_on(self) -> None:
        while self._aside is not None and not self._over.wait(BEAT_S):
            self._put(self._aside, self._later())

    def _put(self, aside: Aside, record: Checkpoint | Forget) -> None:
        try:
            aside.put(record)  # the next one will do
        except Exception as error:  # noqa: BLE001 - said, and the next one is tried
            _log.warning("a beat was not written: %s", named(error), run=self._run)

    def _empty(self, aside: Aside) -> None:
        try:
            self.taken = aside.empty(_PATIENCE_S)
        except Exception as error:  # noqa: BLE001 - said, and nothing depends on it
            _log.warning("the last beats were not written: %s", named(error), run=self._run)

    def _later(self) -> Checkpoint:
        return checkpoint(self._run, place(self._beat.token), replace(self._beat, at_ms=now_ms()))


@contextmanager
def beating(writer: StateWriter, run_id: str, by: str, also: Sequence[Record] = ()) -> Iterator[Callable[[], None]]:
    """Sends heartbeats during the block, then releases the run.

    `extra_records` go with the first. The yielded function stops them before the run is closed: a later one would stay
    for ever.
    """
    if not _goes_on(writer.state, run_id):
        yield lambda: None
        return
    beat = _beat_of(by)
    first = checkpoint(run_id, place(beat.token), beat)
    over = {run.id for run in writer.state.runs.values() if run.ended_ms is not None}  # late heartbeats
    beats = (c for c in writer.state.checkpoints.values() if c.step.startswith(place("")))
    before = [c for c in beats if c.run == run_id or c.run in over]
    writer.put(checkpoint(run_id, STEP, beat), first, *map(Forget, before), *also)
    pulse = Pulse(writer.cluster, beat, run_id)
    try:
        pulse.start()
        yield pulse.stop
    finally:
        pulse.stop()
        try:
            if not pulse.taken:
                _log.info("not let go of: brokers do not take beats either", run=run_id)
            elif _goes_on(writer.state, run_id):
                released = checkpoint(run_id, STEP, replace(beat, at_ms=now_ms(), released=True))
                writer.say_last(released, Forget(first), timeout_s=_PATIENCE_S)
        except LostOwnership as error:
            _log.info("not let go of: %s", error, run=run_id)
            pulse.forget()
        except Exception as error:  # noqa: BLE001 - said; others see that it is silent
            _log.info("not let go of: %s", named(error), run=run_id)


def _goes_on(state: State, run_id: str) -> bool:
    return find_run(state, run_id).ended_ms is None


def begun_by(run_id: str, by: str) -> Checkpoint:
    return checkpoint(run_id, STEP, replace(_beat_of(by), released=True))


def _beat_of(by: str) -> Beat:
    me = this_process()
    return Beat(
        token=secrets.token_hex(4),
        by=by,
        host=me.machine.host,
        boot=me.machine.boot,
        pid=me.pid,
        started=me.started,
        at_ms=now_ms(),
    )


def conducted(state: State, run: Run, at_ms: int | None = None) -> Conducted:
    """From one read and the clocks."""
    beat = newest(run.id, state.checkpoints)
    now = now_ms() if at_ms is None else at_ms
    return judged(run, beat, (now - beat.at_ms) / 1000 if beat else 0.0, _has_ended)


class Watch:
    """Waits for new heartbeats; does not compare clocks of two machines.

    Later calls do not wait again.
    """

    def __init__(self, run_id: str) -> None:
        self._run = run_id
        self._first: Beat | None = None
        self._since = 0.0
        self._unknown: Conducted | None = None

    def found(self, look: Callable[[], State], say: Callable[[str], None], *, take_over: bool = False) -> Conducted:
        """`read_state` must wait for open transactions, which hide heartbeats."""
        while True:
            asked = time.monotonic()
            state = look()
            run, beat = find_run(state, self._run), newest(self._run, state.checkpoints)
            found = judged(run, beat, asked - self._since if beat == self._first else 0.0, _has_ended)
            silent = found.sign is not Sign.HEARD
            if found.sign is Sign.UNKNOWN and found != self._unknown:
                self._unknown = found
                say(f"run {self._run}: {found}")
            if self._first is None:
                self._first, self._since = beat, time.monotonic()
                if not silent:
                    limit = f"watching up to {CONDUCTED_S:.0f} s for another sign of life"
                    way_out = "; `--take-over` does not wait" if take_over else ""
                    say(f"run {self._run}: {found.by} on {found.host} conducted it last; {limit}{way_out}")
            if silent or self._first != beat:
                return found
            time.sleep(_LOOK_S)


def _has_ended(beat: Beat) -> bool:
    return Process(beat.pid, Machine(beat.host, beat.boot), beat.started).has_ended()
