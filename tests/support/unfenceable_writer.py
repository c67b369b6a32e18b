"""A super user who does not stop: no fence can stop him, and a failover waits for the log to stand still."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

from tests.support.checked_threads import beside
from tests.support.kafka_clients import Pair


@contextmanager
def never_still(pair: Pair, topic: str) -> Iterator[threading.Event]:
    """A super user, whom no fence stops, writes until the event is set: so long the step `fence` waits."""
    stop = threading.Event()

    def write() -> None:
        producer = Producer({**pair.east.client_config("admin"), "linger.ms": 0})
        while not stop.wait(0.002):
            producer.produce(topic, b"x", partition=0)
            producer.poll(0)
        producer.flush(60)

    with beside(write, stop.set, name=f"writer of {topic}", timeout_s=90):
        yield stop
