"""The demo's shop: a consumer group that handles orders and commits what it has handled.

It follows the primary cluster with its group's name only; where it goes on there is what Mirrorbook has synced.

usage: python -m demo.consumer SANDBOX_DIR APPLICATION_DIR
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Final, TextIO

from confluent_kafka import Consumer, KafkaError, KafkaException

from demo.discovery import Discovery
from demo.logs import APPLICATION, GROUP, QUIET, TOPIC, Event, number_of
from mirror_core.sandbox.sandbox import Sandbox

PAUSE_S: Final = 0.2
SETTINGS: Final = {
    **QUIET,
    "group.id": GROUP,
    "enable.auto.commit": False,
    # Without a synced offset it would start from the beginning: many orders handled twice, none lost.
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
}


class Shop:
    def __init__(self, sandbox: Sandbox, folder: Path, log: TextIO) -> None:
        self.sandbox = sandbox
        self.discovery = Discovery(folder / "primary")
        self.log = log
        self.stopping = False

    def run(self) -> int:
        while not self.stopping:
            cluster = self.discovery.primary()
            consumer = Consumer({**self.sandbox.cluster(cluster).client_config(APPLICATION), **SETTINGS})
            try:
                consumer.subscribe([TOPIC])
                while not self.stopping and self.discovery.primary() == cluster:
                    self._handle(consumer, cluster)
            except KafkaException as error:
                print(f"{cluster}: {error}", flush=True)
                time.sleep(PAUSE_S)
            finally:
                consumer.close()
        return 0

    def _handle(self, consumer: Consumer, cluster: str) -> None:
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
            handled.append(Event(number_of(message), partition, offset, cluster, time.time_ns() // 1_000_000))
        if handled:
            self.log.writelines(event.line() for event in handled)
            self.log.flush()
            consumer.commit(asynchronous=False)


def main() -> int:
    sandbox, folder = Sandbox(Path(sys.argv[1])), Path(sys.argv[2])
    with open(folder / "handled.tsv", "a", encoding="ascii") as log:
        application = Shop(sandbox, folder, log)

        def stop(_signal: int, _frame: object) -> None:
            application.stopping = True

        signal.signal(signal.SIGTERM, stop)
        return application.run()


if __name__ == "__main__":
    sys.exit(main())
