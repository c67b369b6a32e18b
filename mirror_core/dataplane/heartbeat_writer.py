"""Writes a heartbeat to the source every second, in a thread that copying never waits for.

Where nobody can be denied (no authorizer, super user) heartbeats would keep a fenced log moving. So before each one it
reads whether a run has begun to fence. A driver without its lease, or asleep, allows nothing.
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
from mirror_core.kafka.heartbeat_topic import HeartbeatProducer, ensure_heartbeat_topic
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.kafka.log_reader import LogReader
from mirror_core.kafka.topics import correct_configs
from mirror_core.model.errors import Indeterminate, MirrorError
from mirror_core.model.logs import get_logger
from mirror_core.model.mirror import Lease
from mirror_core.model.names import MirrorName, Offset, Partition, get_heartbeat_topic
from mirror_core.model.source_observation import Heartbeat
from mirror_core.model.timing import MAX_FRESH_AGE_S, TIMEOUTS, now_ms
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.record_encoding import parse_mirror_name
from mirror_core.state.state_records import STATE_TOPIC, State
from mirror_core.state.state_topic import STATE_TOPIC_CONFIGS

_log = get_logger(__name__)

HEARTBEAT_INTERVAL_S: Final = 1.0
_POLL_S: Final = 0.02
_STATE_PARTITION: Final = Partition(STATE_TOPIC, 0)
UNFENCED_STEPS: Final = frozenset({"prove"})
"""Applications still write on the source."""


class HeartbeatOutcome(StrEnum):
    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"
    """Not all acknowledged, or it is unknown whether writing is allowed."""
    HELD = "held"


class _StateTopicTail(NamedTuple):
    client: ClusterClient
    reader: LogReader

    def find_decided_end(self) -> Offset:
        """Waits for open transactions."""
        end = list_offsets(self.client, [_STATE_PARTITION], OffsetPoint.HIGH_WATERMARK)[_STATE_PARTITION]
        deadline = time.monotonic() + HEARTBEAT_INTERVAL_S
        while list_offsets(self.client, [_STATE_PARTITION], OffsetPoint.STABLE_END)[_STATE_PARTITION] < end:
            if time.monotonic() > deadline:
                raise Indeterminate(f"cluster {self.client.name}, topic {STATE_TOPIC}: a transaction is open there")
            time.sleep(_POLL_S)
        return end

    def read_keys(self, start: Offset, end: Offset) -> Iterator[str]:
        for _, record in self.reader.records(_STATE_PARTITION, start, end):
            yield (record.key or b"").decode("utf-8", "replace")


class HeartbeatWriter:
    def __init__(self, link: MirrorLink, driver: str, report_line: Callable[[str], None]) -> None:
        self.topic = get_heartbeat_topic(link.mirror.name)
        self._link = link
        self._driver = driver
        self._report_line = report_line
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat-writer", daemon=True)
        self._allowed_until_ms = 0
        self.fencing_run: str | None = None
        self._is_denied = False
        self._read_offset: Offset | None = None
        self._partitions = 0
        self.outcomes: Counter[HeartbeatOutcome] = Counter()
        self.newest_ms: int | None = None
        self._last_message = ""

    def prepare(self) -> None:
        """Creates the topic; reports why where that fails, and does without."""
        try:
            with ClusterClient(self._link.destination, timeout_s=TIMEOUTS.monitor_response_s) as destination:
                self._read_offset = list_offsets(destination, [_STATE_PARTITION], OffsetPoint.LOG_END)[_STATE_PARTITION]
                correct_configs(destination, STATE_TOPIC, STATE_TOPIC_CONFIGS)
            with ClusterClient(self._link.source, timeout_s=TIMEOUTS.monitor_response_s) as source:
                self._partitions = ensure_heartbeat_topic(source, self.topic)
        except MirrorError as error:
            self._report_once(f"no heartbeats, so a loss bound without their clock: {error}")

    def start(self) -> None:
        if self._partitions:
            self._thread.start()

    def update_runs(self, state: State) -> None:
        """At each plan. Ends a hold whose run has ended."""
        run = state.active_run(self._link.mirror.name)
        fencing_steps = {step for run_id, step in state.steps if run and run_id == run.id} - UNFENCED_STEPS
        with self._lock:
            held_run = state.runs.get(self.fencing_run) if self.fencing_run else None
            if held_run is not None and held_run.ended_ms is not None:
                self.fencing_run = None
            if run and fencing_steps:
                self.fencing_run = run.id
            self._is_denied = False

    def allow(self, lease: Lease) -> None:
        self._allowed_until_ms = lease.heartbeat_ms + int(MAX_FRESH_AGE_S * 1000)

    def close(self) -> None:
        """Returns when nothing is written any more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    # -- inside --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        sequence = 0
        producer = HeartbeatProducer(self._link.source, self.topic)
        with (
            ClusterClient(self._link.destination, timeout_s=TIMEOUTS.monitor_response_s) as destination,
            LogReader(self._link.destination, Principal.CONTROL, timeout_s=TIMEOUTS.monitor_response_s) as reader,
        ):
            next_at = time.monotonic()
            while not self._stop.wait(max(0.0, next_at - time.monotonic())):
                next_at = max(next_at + HEARTBEAT_INTERVAL_S, time.monotonic())
                sequence += 1
                outcome = self._write_heartbeats(producer, _StateTopicTail(destination, reader), sequence)
                self.outcomes[outcome] += 1
        producer.purge()

    def _write_heartbeats(
        self, producer: HeartbeatProducer, state_topic: _StateTopicTail, number: int
    ) -> HeartbeatOutcome:
        try:
            if self._is_held(state_topic):
                return HeartbeatOutcome.HELD
        except MirrorError as error:
            self._report_once(f"no heartbeat: whether a run fences {self._link.source.name} could not be read: {error}")
            return HeartbeatOutcome.FAILED
        written_ms = now_ms()
        if written_ms >= self._allowed_until_ms:
            return HeartbeatOutcome.HELD
        name = str(self._link.mirror.name)
        heartbeats = [
            Heartbeat(partition=partition, number=number, at_ms=written_ms, mirror=name, driver=self._driver)
            for partition in range(self._partitions)
        ]
        acknowledged, error_text, is_denied = producer.write(heartbeats)
        if is_denied:
            with self._lock:
                self._is_denied = True
        if acknowledged < len(heartbeats):
            self._report_once(f"heartbeats on {self._link.source.name}, topic {self.topic}: {error_text}")
            return HeartbeatOutcome.FAILED
        self.newest_ms, self._last_message = written_ms, ""
        return HeartbeatOutcome.ACKNOWLEDGED

    def _is_held(self, state_topic: _StateTopicTail) -> bool:
        end = state_topic.find_decided_end()
        for key in state_topic.read_keys(end if self._read_offset is None else self._read_offset, end):
            run_id = find_fencing_run(key, self._link.mirror.name)
            if run_id is not None:
                with self._lock:
                    self.fencing_run = run_id
        self._read_offset = end
        with self._lock:
            return self.fencing_run is not None or self._is_denied

    def _report_once(self, message: str) -> None:
        if message != self._last_message:
            self._last_message = message
            _log.info("%s", message)
            self._report_line(message)


def find_fencing_run(key: str, mirror: MirrorName) -> str | None:
    """This mirror's run that starts a step after which nobody may write on the source; None: another key."""
    kind, _, rest = key.partition("/")
    run_id, _, step = rest.partition("/")
    return run_id if kind == "step" and step not in UNFENCED_STEPS and parse_mirror_name(key) == mirror else None
