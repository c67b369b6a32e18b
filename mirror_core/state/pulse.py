"""A run's heartbeat: for as long as a process conducts a run, its journal says so, and when that was last true.

That it conducts, and that it does so no more, is written by the conductor's own writer, so nobody who has lost the run
says it. What he writes in between, in a place of his own, only tells that he lives. That is no transaction: a beat that
brokers do not take costs nobody the mirror, and hides nothing from readers.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from confluent_kafka import Producer

from mirror_core.decide.conducting import STEP, Conducted, Sign, judged, newest, place
from mirror_core.kafka.config import ClusterConfig
from mirror_core.model.checkpoint import Beat, Checkpoint
from mirror_core.model.clock import CONDUCTED_S, now_ms
from mirror_core.model.errors import MirrorError
from mirror_core.model.logs import logger
from mirror_core.model.run import Run
from mirror_core.state.journal import checkpoint, find_run
from mirror_core.state.records import TOPIC, Forget, Record, State
from mirror_core.state.topic import QUIET, client
from mirror_core.state.writer import StateWriter
from mirror_core.supervisor.identity import Machine, Process, this_process

_log = logger(__name__)

BEAT_S: Final = 10.0
_PATIENCE_S: Final = 3.0
"""So long brokers are waited for when the run is let go of."""
_LOOK_S: Final = 0.5
"""Until somebody who watches looks again."""


class Pulse:
    """The beats of one conductor, about one run."""

    def __init__(self, cluster: ClusterConfig, beat: Beat, run_id: str) -> None:
        self._cluster = cluster
        self._beat = beat
        self._run = run_id
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name=f"pulse {run_id}", daemon=True)
        self._producer: Producer | None = None

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._producer is not None:
            self._put(Forget(self._later()))
            self._producer.flush(_PATIENCE_S)
            self._producer.purge()

    def _go_on(self) -> None:
        while not self._stop.wait(BEAT_S):
            self._put(self._later())

    def _put(self, record: Checkpoint | Forget) -> None:
        """Into the client's line, which drops it when brokers don't take it for a while: the next one is as good."""
        if self._producer is None:
            limits = {"acks": "all", "message.timeout.ms": 10_000, "linger.ms": 0}
            order = {"max.in.flight.requests.per.connection": 1}
            self._producer = client(Producer, self._cluster, {**self._cluster.properties(), **QUIET, **limits, **order})
        for key, value in State().rows(record):
            self._producer.produce(TOPIC, key=key, value=value, partition=0)
        self._producer.poll(0)

    def _later(self) -> Checkpoint:
        return checkpoint(self._run, place(self._beat.token), replace(self._beat, at_ms=now_ms()))


@contextmanager
def beating(writer: StateWriter, run_id: str, by: str, also: Sequence[Record] = ()) -> Iterator[None]:
    """While the block is at work, others can see that this run is conducted; when it is left, that nobody does.

    `also`: written together with the first sign of life. A run that has ended gets none.
    """
    if not _goes_on(writer.state, run_id):
        yield
        return
    beat = _beat_of(by)
    before = [c for c in writer.state.checkpoints.values() if c.run == run_id and c.step.startswith(place(""))]
    writer.put(checkpoint(run_id, STEP, beat), *map(Forget, before), *also)
    try:
        with Pulse(writer.cluster, beat, run_id):
            yield
    finally:
        if _goes_on(writer.state, run_id):
            try:
                released = replace(beat, at_ms=now_ms(), released=True)
                writer.timeout_s = min(writer.timeout_s, _PATIENCE_S)  # it is his last word
                writer.put(checkpoint(run_id, STEP, released))
            except MirrorError as error:  # it is another's, or brokers hang: others see that it is silent
                _log.info("not let go of: %s", error, run=run_id)


def _goes_on(state: State, run_id: str) -> bool:
    return find_run(state, run_id).ended_ms is None


def begun_by(run_id: str, by: str) -> Checkpoint:
    """What is written with a run that is begun: nobody conducts it yet."""
    return checkpoint(run_id, STEP, replace(_beat_of(by), released=True))


def _beat_of(by: str) -> Beat:
    """What this process says now of a run that it conducts from here on."""
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
    """Whether anybody conducts a run that has not ended, as far as one look and the clocks tell. `at_ms`: now."""
    beat = newest(run.id, state.checkpoints)
    now = now_ms() if at_ms is None else at_ms
    return judged(run, beat, (now - beat.at_ms) / 1000 if beat else 0.0, _has_ended)


def watched(look: Callable[[], State], run_id: str, say: Callable[[str], None]) -> Conducted:
    """The same as it is seen: whether anything comes from its conductor. Clocks of two machines are not compared.

    `look` waits for transactions that are open: they would hide what comes.
    """
    first: Beat | None = None
    since = 0.0
    while True:
        asked = time.monotonic()
        state = look()
        run, beat = find_run(state, run_id), newest(run_id, state.checkpoints)
        found = judged(run, beat, asked - since if beat == first else 0.0, _has_ended)
        if found.sign is not Sign.HEARD or first not in (None, beat):
            return found
        if first is None:
            first, since = beat, time.monotonic()
            say(f"run {run_id}: {conducted(state, run)}; watching up to {CONDUCTED_S:.0f} s for another sign of life")
        time.sleep(_LOOK_S)


def _has_ended(beat: Beat) -> bool:
    return Process(beat.pid, Machine(beat.host, beat.boot), beat.started).has_ended()
