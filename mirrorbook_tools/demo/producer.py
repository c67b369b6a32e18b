"""The demo's ordering application: idempotent, acks=all, one number after the other, in order within a partition.

It loses nothing and doubles nothing by itself, also across a switch, and that takes care: a record whose outcome is
not known (timed out, connection gone, refused after an earlier attempt) is neither given up nor sent again blindly.
The application looks into the log of the cluster that is primary now; what it finds there is written, the rest is
sent again in the old order, before anything new.

usage: python -m mirrorbook_tools.demo.producer SANDBOX_DIR APPLICATION_DIR
"""

from __future__ import annotations

import signal
import sys
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Final, TextIO

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from mirrorbook_tools.demo.discovery import Discovery
from mirrorbook_tools.demo.logs import APPLICATION, PARTITIONS, QUIET, TOPIC, Event, read_log, value_of
from mirrorbook_tools.sandbox.sandbox import Sandbox

RATE_PER_S: Final = 200
SETTINGS: Final = {
    **QUIET,
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 5,
    "compression.type": "lz4",
    # Longer than any restart of a broker: within it the client itself repeats safely, by its sequence numbers.
    "message.timeout.ms": 120_000,
}
PAUSE_S: Final = 0.1
LATE_S: Final = 5.0
"""After a timeout a request may still be on its way to a broker: looking into the log sooner could miss its records."""
GIVE_UP_S: Final = 120.0
"""For how long a stopping producer tries to learn the fate of its last records."""


class Ordering:
    def __init__(self, sandbox: Sandbox, folder: Path, log: TextIO) -> None:
        self.sandbox = sandbox
        self.discovery = Discovery(folder / "primary")
        self.log = log
        self.stopping = False
        self.next = 0
        """The number of the next new order."""
        self.open: dict[int, deque[int]] = {partition: deque() for partition in range(PARTITIONS)}
        """Sent at least once and not known to be written, in order."""
        self.read_from = dict.fromkeys(range(PARTITIONS), 0)
        """Offset after the last record known to be written: unknown ones can't lie before it."""
        self.failure: KafkaError | None = None

    def run(self) -> int:
        """Until told to stop; 0 when the fate of every number is known then."""
        deadline: float | None = None
        known = ""
        while not self.stopping or any(self.open.values()):
            if self.stopping:
                deadline = deadline or time.monotonic() + GIVE_UP_S
                if time.monotonic() > deadline:
                    return 1
            cluster = self.discovery.primary()
            if cluster != known:
                # Another log, which may be shorter: a cluster that died may have taken its newest orders with it.
                known, self.read_from = cluster, dict.fromkeys(range(PARTITIONS), 0)
            try:
                self.settle(cluster)
                self.work(cluster)
            except (KafkaException, TimeoutError) as error:
                print(f"{cluster}: {error}", flush=True)
            time.sleep(PAUSE_S)  # not hammering a cluster that refuses us, until we are told where to go
        return 0

    def settle(self, cluster: str) -> None:
        """Find out what became of the open numbers: look where they would be."""
        unknown = {partition: self.read_from[partition] for partition, numbers in self.open.items() if numbers}
        if not unknown:
            return
        for entry in read_log(self.sandbox.cluster(cluster).client_config(APPLICATION), unknown):
            if entry.number in self.open[entry.partition]:
                self._written(Event(entry.number, entry.partition, entry.offset, cluster, _now_ms(), answered=False))

    def work(self, cluster: str) -> None:
        """Send on this cluster what is open, then new orders, until refused, moved or stopped."""
        producer = Producer({**self.sandbox.cluster(cluster).client_config(APPLICATION), **SETTINGS})
        self.failure = None
        for number in sorted(number for numbers in self.open.values() for number in numbers):
            self._send(producer, cluster, number)
        due = time.monotonic()
        while self._welcome(cluster):
            if time.monotonic() < due:
                producer.poll(max(0.0, due - time.monotonic()))
                continue
            number = self.next
            self.next += 1  # before anything can go wrong: a number is given out once
            self.open[number % PARTITIONS].append(number)
            self._send(producer, cluster, number)
            due += 1 / RATE_PER_S
        moved = self.discovery.primary() != cluster
        if self.failure is not None or moved:
            # What still waits must not be sent after what was refused: that would be out of order. A cluster that we
            # have left may be dead, and never answer: what it was sent last is looked for on the other one.
            producer.purge(in_queue=True, in_flight=moved, blocking=True)
        producer.flush()  # every record's outcome, as far as this client can know it
        if self.failure is not None:
            print(f"{cluster}: {self.failure.name()}: {sum(map(len, self.open.values()))} orders open", flush=True)
            if not moved and self.failure.code() in (KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT):
                time.sleep(LATE_S)

    def _welcome(self, cluster: str) -> bool:
        return self.failure is None and not self.stopping and self.discovery.primary() == cluster

    def _send(self, producer: Producer, cluster: str, number: int) -> None:
        """Hand one order to the client. It stays open until it is known to be written, whatever happens here."""
        if self.failure is not None:
            return  # nothing may overtake what was refused
        try:
            producer.produce(
                TOPIC,
                key=str(number).encode(),
                value=value_of(number),
                partition=number % PARTITIONS,
                on_delivery=partial(self._delivered, cluster, number),
            )
        except KafkaException as error:  # the client knows already that the cluster will refuse it
            self.failure = error.args[0]
        producer.poll(0)

    def _delivered(self, cluster: str, number: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failure = self.failure or error
            return
        offset = message.offset()
        assert offset is not None
        self._written(Event(number, number % PARTITIONS, offset, cluster, _now_ms()))

    def _written(self, event: Event) -> None:
        self.log.write(event.line())
        self.log.flush()
        self.open[event.partition].remove(event.number)
        self.read_from[event.partition] = max(self.read_from[event.partition], event.offset + 1)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def main() -> int:
    sandbox, folder = Sandbox(Path(sys.argv[1])), Path(sys.argv[2])
    with open(folder / "acknowledged.tsv", "a", encoding="ascii") as log:
        application = Ordering(sandbox, folder, log)

        def stop(_signal: int, _frame: object) -> None:
            application.stopping = True

        signal.signal(signal.SIGTERM, stop)
        return application.run()


if __name__ == "__main__":
    sys.exit(main())
