"""Group consumers, shared by tests."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from mirrorbook_tools.sandbox.broker import java_command
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.checked_threads import beside
from tests.support.cluster_admin import tool_properties

SESSION_MS = 10_000
"""After this a dead member is given up: nobody commits for a group that has some."""

Handled = list[tuple[float, int, int]]
"""When, partition, offset: what a consumer handled, in order."""


def _get_protocol_settings(protocol: str) -> dict[str, str | int]:
    """The session's length of the newer protocol (KIP-848) is the broker's."""
    return {"group.protocol": protocol} | ({"session.timeout.ms": SESSION_MS} if protocol == "classic" else {})


@contextmanager
def librdkafka(
    cluster: SandboxCluster, group: str, topic: str, handled: Handled, folder: Path, *, protocol: str = "classic"
) -> Iterator[None]:
    """Commits what it has handled every 100 ms, and waits for the answer."""
    over = threading.Event()
    member = Consumer(
        {
            **cluster.client_config("admin"),
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **_get_protocol_settings(protocol),
            "log_level": 0,
        }
    )
    member.subscribe([topic])

    def work() -> None:
        due = time.monotonic()
        while not over.is_set():
            for message in member.consume(100, 0.02):
                if message.error() is None:
                    partition, offset = message.partition(), message.offset()
                    assert partition is not None
                    assert offset is not None
                    handled.append((time.monotonic(), partition, offset))
            if handled and time.monotonic() > due:
                newest = {partition: offset for _, partition, offset in handled[-1000:]}
                wanted = [TopicPartition(topic, partition, offset + 1) for partition, offset in newest.items()]
                member.commit(offsets=wanted, asynchronous=True)
                due = time.monotonic() + 0.1

    try:
        with beside(work, over.set):
            yield
    finally:
        threading.Thread(target=member.close, daemon=True).start()  # it waits for a coordinator that is dead


@contextmanager
def java(
    cluster: SandboxCluster,
    group: str,
    topic: str,
    handled: Handled,
    folder: Path,
    *,
    reset: str = "earliest",
    protocol: str = "classic",
) -> Iterator[None]:
    """Kafka's own consumer, which commits by itself every 100 ms."""
    command = java_command(
        cluster.brokers[0].jars,
        "128m",
        *("org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", cluster.bootstrap),
        *("--command-config", str(tool_properties(cluster, folder)), "--topic", topic, "--group", group),
        *("--command-property", "auto.commit.interval.ms=100", "--command-property", f"auto.offset.reset={reset}"),
        *(
            word
            for key, value in _get_protocol_settings(protocol).items()
            for word in ("--command-property", f"{key}={value}")
        ),
        *("--formatter-property", "print.offset=true", "--formatter-property", "print.partition=true"),
        *("--formatter-property", "print.value=false"),
    )
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.endswith("\n"):
                break  # it was killed while it wrote: half an offset is another one
            words = dict(word.split(":", 1) for word in line.split("\t") if ":" in word)
            handled.append((time.monotonic(), int(words["Partition"]), int(words["Offset"])))

    try:
        with beside(listen, process.kill):
            yield
    finally:
        process.communicate()
