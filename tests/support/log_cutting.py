"""Cutting a stopped broker's logs, as an unclean leader election or a restored backup leaves them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Producer

from mirror_core.wire.batch import split_batches
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.kafka_clients import TIMEOUT_S


def batch_of_100(cluster: SandboxCluster, topic: str, first: int) -> None:
    """Records whose every byte follows from their number."""
    producer = Producer({**cluster.client_config("admin"), "linger.ms": 1000, "batch.num.messages": 100})
    for number in range(first, first + 100):
        producer.produce(topic, value=b"%d" % number, partition=0, timestamp=1_700_000_000_000 + number)
    assert producer.flush(TIMEOUT_S) == 0


def lose_tails(cluster: SandboxCluster, ends: Mapping[str, int], kept: Path | None = None) -> None:
    """Restart the cluster's only broker, partition 0 of these topics ending there (next offset, where a batch begins).

    Only for logs of one segment. Indexes of the last segment must go: a stale one gives a wrong log end, silently.
    `kept`: a folder that gets the logs as they were.
    """
    cluster.terminate()
    try:
        for topic, end in ends.items():
            folder = cluster.log_dir() / f"{topic}-0"
            if kept is not None:
                shutil.copytree(folder, kept / folder.name)
            _cut(folder, end)
    finally:
        cluster.start()


def give_back(cluster: SandboxCluster, topic: str, kept: Path) -> None:
    """Restart the cluster's only broker with the log that `lose_tails` kept: the old leader has returned."""
    folder = cluster.log_dir() / f"{topic}-0"
    cluster.terminate()
    try:
        shutil.rmtree(folder)
        shutil.copytree(kept / folder.name, folder)
    finally:
        cluster.start()


def _cut(folder: Path, end: int) -> None:
    [log] = folder.glob("*.log")
    found = list(split_batches(memoryview(bytearray(log.read_bytes()))))
    starts = [header.base_offset for header, _ in found]
    assert end in starts, f"{end} is not where a batch begins: {starts}"
    log.write_bytes(b"".join(batch for header, batch in found if header.base_offset < end))
    for index in (log.with_suffix(suffix) for suffix in (".index", ".timeindex", ".txnindex")):
        index.unlink(missing_ok=True)
    for snapshot in folder.glob("*.snapshot"):
        if int(snapshot.stem) > end:
            snapshot.unlink()
