"""What the applications write down, one line an event, and what the verdict reads: the clusters' logs and these."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

TOPIC: Final = "orders"
PARTITIONS: Final = 3
GROUP: Final = "orders-shop"
APPLICATION: Final = "app"
QUIET: Final[Mapping[str, Any]] = {"log_level": 0, "error_cb": lambda error: None}
"""librdkafka's own lines on stderr would be noise: every failure reaches us through the calls."""
READ_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Event:
    """One acknowledged or handled record, as an application saw it."""

    number: int
    partition: int
    offset: int
    cluster: str
    ms: int
    """Wall clock, milliseconds since the epoch."""
    answered: bool = True
    """False for a write that no answer told of: it was found by reading the log."""

    def line(self) -> str:
        fields = (self.number, self.partition, self.offset, self.cluster, self.ms, int(self.answered))
        return "\t".join(map(str, fields)) + "\n"


def read_events(path: Path) -> list[Event]:
    """All complete lines; the application may be writing the last one."""
    return Written(path).read_new()


class Written:
    """What an application writes down, followed: each line is read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.events: list[Event] = []
        self._numbers: set[int] = set()
        self._on = Counter[str]()
        self.last_ms: int | None = None
        """For the newest one that was answered, as of the last look."""

    def read_new(self) -> list[Event]:
        """All events so far."""
        if self._path.exists():
            with open(self._path, "rb") as file:
                file.seek(self._read)
                whole, newline, _ = file.read().rpartition(b"\n")  # the last line may be half written
            self._read += len(whole) + len(newline)
            for event in map(_event, whole.decode("ascii").splitlines()):
                self._add(event)
        return self.events

    def numbers(self) -> Set[int]:
        """For all orders in it, each once."""
        self.read_new()
        return self._numbers

    def on(self, cluster: str) -> int:
        """How many there are of this cluster."""
        self.read_new()
        return self._on[cluster]

    def _add(self, event: Event) -> None:
        self.events.append(event)
        self._numbers.add(event.number)
        self._on[event.cluster] += 1
        if event.answered:
            self.last_ms = max(event.ms, self.last_ms or 0)


def _event(line: str) -> Event:
    number, partition, offset, cluster, ms, answered = line.split("\t")
    return Event(int(number), int(partition), int(offset), cluster, int(ms), answered == "1")


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One record of a cluster's log."""

    partition: int
    offset: int
    number: int
    content: tuple[object, ...]
    """Timestamp, key, value, headers: all that must be equal on both sides."""


def value_of(number: int) -> bytes:
    """An order, of a size that orders have."""
    order = {"number": number, "customer": f"c{number % 997}", "items": [number % 13, number % 7], "note": "x" * 120}
    return json.dumps(order, separators=(",", ":")).encode()


def number_of(message: Message) -> int:
    value = message.value()
    return int(json.loads(value or b"{}")["number"])


def read_log(properties: Mapping[str, str], starts: Mapping[int, int] | None = None) -> Iterator[Entry]:
    """Records of the topic from these offsets (all partitions from the beginning, when None) to their ends of now."""
    settings = {
        **properties,
        **QUIET,
        "group.id": f"{GROUP}-auditor",  # demanded by librdkafka; commits nothing
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 10,
    }
    wanted = starts if starts is not None else dict.fromkeys(range(PARTITIONS), OFFSET_BEGINNING)
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(TOPIC, partition, offset) for partition, offset in wanted.items()])
        unfinished = set(wanted)
        heard = time.monotonic()
        while unfinished:
            # Short waits: consume() waits for the whole number of messages, however many there are.
            messages = consumer.consume(1000, 0.1)
            if messages:
                heard = time.monotonic()
            elif time.monotonic() - heard > READ_TIMEOUT_S:
                raise TimeoutError(f"topic {TOPIC}: no answer for partitions {sorted(unfinished)}")
            for message in messages:
                error = message.error()
                if error is None:
                    yield _entry(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(message.partition() or 0)
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()


class LogEnds:
    """Next offsets of the topic's partitions on one cluster, asked again and again."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._consumer = Consumer({**properties, **QUIET, "group.id": f"{GROUP}-ends"})

    def read_new(self, timeout_s: float = 10.0) -> list[int]:
        """In the order of partitions; nothing while the topic is not there."""
        if TOPIC not in self._consumer.list_topics(timeout=timeout_s).topics:
            return []
        partitions = (TopicPartition(TOPIC, partition) for partition in range(PARTITIONS))
        return [self._consumer.get_watermark_offsets(partition, timeout=timeout_s)[1] for partition in partitions]

    def close(self) -> None:
        self._consumer.close()


def _entry(message: Message) -> Entry:
    content = (message.timestamp(), message.key(), message.value(), tuple(message.headers() or ()))
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return Entry(partition, offset, number_of(message), content)
