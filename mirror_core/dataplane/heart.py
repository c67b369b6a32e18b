"""Writes a heartbeat to the source every second, in a thread that copying never waits for.

It must stop once a run has begun to fence: where nobody can be denied (no authorizer, super user) the logs would never
stand still. So before each heartbeat it reads the state topic, where a conductor records each step before taking it,
and stops until the driver has seen that run ended. A driver without its lease, or asleep, allows nothing.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Principal
from mirror_core.kafka.heartbeats import Beats, ensure_topic
from mirror_core.kafka.offsets import Point, list_offsets
from mirror_core.kafka.reader import LogReader
from mirror_core.kafka.topics import set_broker_time
from mirror_core.model.clock import FRESH_S, now_ms
from mirror_core.model.errors import Indeterminate, MirrorError
from mirror_core.model.limits import LIMITS
from mirror_core.model.logs import logger
from mirror_core.model.mirror import Lease
from mirror_core.model.names import MirrorName, Offset, Partition, heartbeat_topic
from mirror_core.model.sighting import Heartbeat
from mirror_core.state.keys import mirror_of
from mirror_core.state.link import Link
from mirror_core.state.records import TOPIC, State

_log = logger(__name__)

BEAT_S: Final = 1.0
_PAUSE_S: Final = 0.02
_STATE: Final = Partition(TOPIC, 0)
HARMLESS: Final = frozenset({"prove"})
"""Steps during which applications still write on the source."""


class Outcome(StrEnum):
    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"
    """Not all acknowledged, or it is unknown whether writing is allowed."""
    HELD = "held"


class _Journal(NamedTuple):
    client: ClusterClient
    reader: LogReader

    def end(self) -> Offset:
        """The end before which everything is decided: waits for open transactions."""
        end = list_offsets(self.client, [_STATE], Point.HIGH_WATERMARK)[_STATE]
        deadline = time.monotonic() + BEAT_S
        while list_offsets(self.client, [_STATE], Point.STABLE_END)[_STATE] < end:
            if time.monotonic() > deadline:
                raise Indeterminate(f"cluster {self.client.name}, topic {TOPIC}: a transaction is open there")
            time.sleep(_PAUSE_S)
        return end

    def keys(self, start: Offset, end: Offset) -> Iterator[str]:
        for _, record in self.reader.records(_STATE, start, end):
            yield (record.key or b"").decode("utf-8", "replace")


class Heart:
    def __init__(self, link: Link, driver: str, say: Callable[[str], None]) -> None:
        self.topic = heartbeat_topic(link.mirror.name)
        self._link = link
        self._driver = driver
        self._say = say
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heart", daemon=True)
        self._until_ms = 0
        self.held_by: str | None = None
        self._denied = False
        self._read: Offset | None = None
        self._partitions = 0
        self.outcomes: Counter[Outcome] = Counter()
        self.newest_ms: int | None = None
        self._words = ""

    def prepare(self) -> None:
        """Creates the topic; reports why where that fails, and does without."""
        try:
            with ClusterClient(self._link.destination, timeout_s=LIMITS.watched_side_s) as destination:
                self._read = list_offsets(destination, [_STATE], Point.LOG_END)[_STATE]
                set_broker_time(destination, TOPIC)
            with ClusterClient(self._link.source, timeout_s=LIMITS.watched_side_s) as source:
                self._partitions = ensure_topic(source, self.topic)
        except MirrorError as error:
            self._tell(f"no heartbeats, so a loss bound without their clock: {error}")

    def start(self) -> None:
        if self._partitions:
            self._thread.start()

    def judge(self, state: State) -> None:
        """At each plan. Ends a hold whose run has ended."""
        run = state.active_run(self._link.mirror.name)
        begun = {step for of, step in state.steps if run and of == run.id} - HARMLESS
        with self._lock:
            held = state.runs.get(self.held_by) if self.held_by else None
            if held is not None and held.ended_ms is not None:
                self.held_by = None
            if run and begun:
                self.held_by = run.id
            self._denied = False

    def permit(self, lease: Lease) -> None:
        self._until_ms = lease.beat_ms + int(FRESH_S * 1000)

    def close(self) -> None:
        """Returns when nothing is written any more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    # -- inside --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        number = 0
        beats = Beats(self._link.source, self.topic)
        with (
            ClusterClient(self._link.destination, timeout_s=LIMITS.watched_side_s) as destination,
            LogReader(self._link.destination, Principal.CONTROL, timeout_s=LIMITS.watched_side_s) as journal,
        ):
            due = time.monotonic()
            while not self._stop.wait(max(0.0, due - time.monotonic())):
                due = max(due + BEAT_S, time.monotonic())
                number += 1
                outcome = self._beat(beats, _Journal(destination, journal), number)
                self.outcomes[outcome] += 1
        beats.drop()

    def _beat(self, beats: Beats, journal: _Journal, number: int) -> Outcome:
        try:
            if self._holds(journal):
                return Outcome.HELD
        except MirrorError as error:
            self._tell(f"no heartbeat: whether a run fences {self._link.source.name} could not be read: {error}")
            return Outcome.FAILED
        now = now_ms()
        if now >= self._until_ms:
            return Outcome.HELD
        name = str(self._link.mirror.name)
        due = [
            Heartbeat(partition=partition, number=number, at_ms=now, mirror=name, driver=self._driver)
            for partition in range(self._partitions)
        ]
        acknowledged, trouble, denied = beats.write(due)
        if denied:
            with self._lock:
                self._denied = True
        if acknowledged < len(due):
            self._tell(f"heartbeats on {self._link.source.name}, topic {self.topic}: {trouble}")
            return Outcome.FAILED
        self.newest_ms, self._words = now, ""
        return Outcome.ACKNOWLEDGED

    def _holds(self, journal: _Journal) -> bool:
        """Whether a run has begun to fence, by the state topic now."""
        end = journal.end()
        for key in journal.keys(end if self._read is None else self._read, end):
            run = fencing(key, self._link.mirror.name)
            if run is not None:
                with self._lock:
                    self.held_by = run
        self._read = end
        with self._lock:
            return self.held_by is not None or self._denied

    def _tell(self, words: str) -> None:
        if words != self._words:
            self._words = words
            _log.info("%s", words)
            self._say(words)


def fencing(key: str, mirror: MirrorName) -> str | None:
    """This mirror's run that starts a step after which nobody may write on the source; None: another key."""
    kind, _, rest = key.partition("/")
    run, _, step = rest.partition("/")
    return run if kind == "step" and step not in HARMLESS and mirror_of(key) == mirror else None
