"""`python -m benchmarks.traffic`: an application that writes at a steady rate, and one that notes when it reads what.

Each is a process of its own, so that neither delays the other. A record's value begins with the wall clock at which it
was handed to the producer (nanoseconds); the reader writes pairs of that clock and its own, 16 bytes a record.
"""

from __future__ import annotations

import argparse
import signal
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Final

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

PAIR: Final = struct.Struct("<qq")
STAMP: Final = struct.Struct(">q")
VALUE_BYTES: Final = 1024
PAUSE_S: Final = 0.0005
FLUSH_S: Final = 0.25
TIMEOUT_S: Final = 60.0


def write(config: dict[str, str], topic: str, partitions: int, rate: int, stop: threading.Event) -> None:
    """Records at `rate` a second, partition after partition, until told to stop.

    What is late because this process was not scheduled is sent at once and stamped when it is sent: the reader measures
    Kafka and the copier, not this loop.
    """
    producer = Producer({**config, "enable.idempotence": True, "linger.ms": 0})
    rest = bytes(VALUE_BYTES - STAMP.size)
    failed: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(str(error))

    begun, sent = time.monotonic(), 0
    while not stop.is_set():
        due = int((time.monotonic() - begun) * rate)
        while sent < due:
            value = STAMP.pack(time.time_ns()) + rest
            producer.produce(topic, value, partition=sent % partitions, on_delivery=delivered)
            producer.poll(0)
            sent += 1
        time.sleep(PAUSE_S)
    if producer.flush(TIMEOUT_S) or failed:
        raise SystemExit(f"not everything was acknowledged: {failed[:1] or 'in time'}")


def read(config: dict[str, str], topic: str, partitions: int, out: Path, stop: threading.Event) -> None:
    """Every record of the topic from its beginning on, until told to stop."""
    consumer = Consumer({**config, "group.id": "bench-latency", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
    flushed = time.monotonic()
    with out.open("wb") as pairs:
        while not stop.is_set():
            message = consumer.poll(FLUSH_S)
            now = time.time_ns()
            if message is not None and message.error() is None:
                pairs.write(PAIR.pack(STAMP.unpack_from(message.value() or b"")[0], now))
            if time.monotonic() - flushed > FLUSH_S:
                pairs.flush()
                flushed = time.monotonic()
    consumer.close()


def main() -> None:
    """The client's properties come on stdin: they hold a password."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.traffic", description=__doc__)
    parser.add_argument("what", choices=("write", "read"))
    parser.add_argument("topic")
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--rate", type=int, help="records a second, of write")
    parser.add_argument("--out", type=Path, help="file of pairs, of read")
    chosen = parser.parse_args()
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=dict[str, str])
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if chosen.what == "write":
        write(config, chosen.topic, chosen.partitions, chosen.rate, stop)
    else:
        read(config, chosen.topic, chosen.partitions, chosen.out, stop)


if __name__ == "__main__":
    main()
