"""A run's heartbeat: for as long as a process conducts a run, its journal says so, and when that was last true.

It is written by the conductor's own writer, so nobody who has lost the run says that he conducts it. It rides along
with what the conductor writes anyway; alone, from a thread, it is written only when nothing else was for a while. So it
costs no step a round trip. A run that has ended gets none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from mirror_core.decide.conducting import STEP, Conducted, judged
from mirror_core.model.checkpoint import Beat, Checkpoint
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import LostOwnership, MirrorError
from mirror_core.model.logs import logger
from mirror_core.model.run import Run
from mirror_core.state.journal import checkpoint
from mirror_core.state.records import Forget, Record, State
from mirror_core.state.writer import StateWriter
from mirror_core.supervisor.identity import Machine, Process, this_process

_log = logger(__name__)

BEAT_S: Final = 10.0
"""Of silence, until a beat is written alone."""
RIDE_S: Final = 5.0
"""So old a beat is renewed by whatever else is written."""
FIRST_S: Final = 1.0
"""The first one waits so long for something to ride with."""


class Pulse:
    """The beats of one conductor, about one run."""

    def __init__(self, writer: StateWriter, run_id: str, by: str) -> None:
        self._writer = writer
        self._run = run_id
        self._by = by
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"pulse {run_id}", daemon=True)
        self._ride_at = time.monotonic()
        self._alone_at = self._ride_at + FIRST_S
        """From when on a beat rides along with whatever is written, and from when on it is written alone."""
        self._leaving = False

    def start(self) -> None:
        """From here on whatever is written carries a beat, if one is due."""
        self._writer.riders = self._due
        if _kept(self._writer.state, self._run) is None:
            # By the conductor's own thread: none but he gives the state a new key, while he may be looking through it.
            self._writer.put()
        self._thread.start()

    def close(self) -> None:
        """Let go of the run, and say so. Of a run that is another's by now the writer says nothing."""
        self._stop.set()
        self._thread.join()
        self._leaving = True
        self._try()

    # -- inside --------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        while not self._stop.wait(max(0.0, self._alone_at - time.monotonic())):
            if self._alone_at > time.monotonic():
                continue  # it has ridden along meanwhile
            self._alone_at = time.monotonic() + BEAT_S  # also when nothing comes of it
            if not self._try():
                return

    def _try(self) -> bool:
        """Write a beat; whether the run is still ours, as far as is known. A conductor who has lost it is told by the
        writer, at his next word. That brokers do not take a beat is no reason to end anything."""
        try:
            self._writer.beat()
        except LostOwnership as error:
            _log.info("no beat, the mirror is lost: %s", error, run=self._run)
            return False
        except MirrorError as error:
            _log.info("no beat: %s", error, run=self._run)
        return True

    def _due(self, records: Sequence[Record | Forget]) -> Sequence[Record]:
        """The beat that is to be written together with these records, if any is."""
        run = self._writer.state.runs.get(self._run)
        for record in records:
            if isinstance(record, Run) and record.id == self._run:
                run = record
        if run is None or run.ended_ms is not None:
            return ()
        now = time.monotonic()
        if records and now < self._ride_at:
            return ()
        self._ride_at, self._alone_at = now + RIDE_S, now + BEAT_S
        return (beat_of(self._run, self._by, released=self._leaving),)


@contextmanager
def beating(writer: StateWriter, run_id: str, by: str) -> Iterator[None]:
    """While the block is at work, others can see that this run is conducted; when it is left, that nobody does."""
    pulse = Pulse(writer, run_id, by)
    pulse.start()
    try:
        yield
    finally:
        pulse.close()


def beat_of(run_id: str, by: str, *, released: bool) -> Checkpoint:
    """What this process says of a run now."""
    me = this_process()
    return checkpoint(
        run_id,
        STEP,
        Beat(
            by=by,
            host=me.machine.host,
            boot=me.machine.boot,
            pid=me.pid,
            started=me.started,
            at_ms=now_ms(),
            released=released,
        ),
    )


def conducted(state: State, run: Run, at_ms: int | None = None) -> Conducted:
    """Whether anybody conducts a run that has not ended, as this state and this machine tell. `at_ms`: now."""
    return judged(run, _kept(state, run.id), now_ms() if at_ms is None else at_ms, _has_ended)


def _kept(state: State, run_id: str) -> Checkpoint | None:
    return state.checkpoints.get((run_id, STEP, Beat.__name__))


def _has_ended(beat: Beat) -> bool:
    return Process(beat.pid, Machine(beat.host, beat.boot), beat.started).has_ended()
