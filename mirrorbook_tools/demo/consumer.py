"""The demo's shop: a consumer group that handles orders and commits what it has handled.

It follows the primary cluster with its group's name only; where it goes on there is what Mirrorbook has synced.

usage: python -m mirrorbook_tools.demo.consumer SANDBOX_DIR APPLICATION_DIR [CLUSTER]
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final, TextIO

from confluent_kafka import Consumer, KafkaError, KafkaException

from mirrorbook_tools.demo.discovery import Discovery
from mirrorbook_tools.demo.logs import APPLICATION, GROUP, QUIET, TOPIC, Event, number_of
from mirrorbook_tools.sandbox.sandbox import Sandbox

PAUSE_S: Final = 0.2
LEAVE_S: Final = 5.0
"""For leaving its group, on a cluster that answers."""
SETTINGS: Final = {
    **QUIET,
    "group.id": GROUP,
    "enable.auto.commit": False,
    # Without a synced offset it would start from the beginning: many orders handled twice, none lost.
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
}


class Shop:
    """Its work on one cluster."""

    def __init__(self, sandbox: Sandbox, cluster: str, log: TextIO) -> None:
        self.sandbox = sandbox
        self.cluster = cluster
        self.log = log
        self.stopping = False

    def run(self) -> None:
        while not self.stopping:
            consumer = Consumer({**self.sandbox.cluster(self.cluster).client_config(APPLICATION), **SETTINGS})
            try:
                consumer.subscribe([TOPIC])
                while not self.stopping:
                    self._handle(consumer)
            except KafkaException as error:
                print(f"{self.cluster}: {error}", flush=True)
                time.sleep(PAUSE_S)
            finally:
                consumer.close()

    def _handle(self, consumer: Consumer) -> None:
        handled = []
        for message in consumer.consume(500, 0.1):
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    continue
                raise KafkaException(error)
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            handled.append(Event(number_of(message), partition, offset, self.cluster, time.time_ns() // 1_000_000))
        if handled:
            self.log.writelines(event.line() for event in handled)
            self.log.flush()
            consumer.commit(asynchronous=False)


def follow(sandbox: Path, folder: Path) -> int:
    """A process for each cluster that is primary, until told to stop.

    A client that waits for a dead cluster's answer, to a commit for example, cannot be talked out of it: its process is
    killed. What it had handled is written down.
    """
    discovery, stopping = Discovery(folder / "primary"), threading.Event()
    signal.signal(signal.SIGTERM, lambda _signal, _frame: stopping.set())
    while not stopping.is_set():
        cluster = discovery.primary()
        command = [sys.executable, "-m", "mirrorbook_tools.demo.consumer", str(sandbox), str(folder), cluster]
        with subprocess.Popen(command) as process:
            while not stopping.wait(PAUSE_S) and discovery.primary() == cluster and process.poll() is None:
                pass
            process.terminate()
            try:
                process.wait(LEAVE_S)
            except subprocess.TimeoutExpired:
                process.kill()
    return 0


def main() -> int:
    sandbox, folder = Path(sys.argv[1]), Path(sys.argv[2])
    if len(sys.argv) == 3:
        return follow(sandbox, folder)
    with open(folder / "handled.tsv", "a", encoding="ascii") as log:
        application = Shop(Sandbox(sandbox), sys.argv[3], log)

        def stop(_signal: int, _frame: object) -> None:
            application.stopping = True

        signal.signal(signal.SIGTERM, stop)
        application.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
