"""A source cluster that moves old segments to remote storage (KIP-405): a folder, by Kafka's own LocalTieredStorage.

That class is in a jar of Kafka's tests, locked and fetched as the sandbox's jars are, when a test asks for such a
cluster and not before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.fetch_link import fetch_local_start
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.model.names import Offset, Partition
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from mirrorbook_tools.sandbox.credentials import ADMIN, load_passwords
from mirrorbook_tools.sandbox.jars import ensure_jars, locked
from mirrorbook_tools.sandbox.properties import SCRAM_LOGIN
from tests.support.cluster_admin import as_admin, broker_setting
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic
from tests.support.separate_cluster import in_place_of
from tests.support.waiting import wait_until

Answer = Callable[[], None]
"""Makes remote storage answer again."""
LOCK: Final = Path(__file__).parents[1].joinpath("kafka-tiered.lock")
BATCHES: Final = 8
"""Of a segment, about."""
_SOON_MS: Final = "200"
_CLIENT: Final = "rlmm.config.remote.log.metadata.common.client."


@contextmanager
def tiered_source(pair: Pair, folder: Path) -> Iterator[Pair]:
    """`pair` with a broker of its own in place of the source, which has remote storage."""
    revisions = {jar.revision for jar in locked() if jar.name == "kafka-storage"}
    assert {jar.revision for jar in locked(LOCK)} == revisions, f"{LOCK.name} is of another Kafka than the sandbox"
    jars = folder / "jars"
    jars.mkdir()
    for place in (ensure_jars(), ensure_jars(LOCK)):
        for jar in place.glob("*.jar"):
            (jars / jar.name).symlink_to(jar)
    password = load_passwords(pair.sandbox.dir)[ADMIN]
    extra = {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
        "rsm.config.dir": str(folder),
        "remote.log.metadata.manager.listener.name": "CLIENT",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "rlmm.config.remote.log.metadata.initialization.retry.interval.ms": _SOON_MS,
        f"{_CLIENT}sasl.mechanism": "SCRAM-SHA-512",
        f"{_CLIENT}sasl.jaas.config": f'{SCRAM_LOGIN} required username="{ADMIN}" password="{password}";',
        "remote.log.manager.task.interval.ms": _SOON_MS,
        "log.initial.task.delay.ms": _SOON_MS,
        "log.retention.check.interval.ms": _SOON_MS,
        "log.segment.delete.delay.ms": "0",
        "remote.log.manager.fetch.quota.window.num": "3600",
        "remote.log.reader.threads": "64",  # each read from a storage that does not answer holds one
    }
    with in_place_of(pair, "east", folder, jars, extra) as found:
        yield found


def tiered_topic(cluster: SandboxCluster, partitions: int = 1, **config: str) -> str:
    """A topic of small segments, which go to remote storage, and leave the broker, as soon as they are complete."""
    small = {"index_interval_bytes": "1", "segment_index_bytes": str(12 * BATCHES)}
    tiered = {"remote_storage_enable": "true", "local_retention_bytes": "1", "retention_ms": "-1"}
    return new_topic(cluster, partitions, "tiered-", **{**small, **tiered, **config})


def await_tiered(cluster: SandboxCluster, partitions: Iterable[Partition]) -> dict[Partition, Offset]:
    """Wait until the broker has nothing left of these partitions but their newest segments; where those begin."""
    found: dict[Partition, Offset] = {}

    def gone(client: ClusterClient, partition: Partition) -> bool:
        local = fetch_local_start(client, partition, -1)
        files = [path.name for path in (cluster.log_dir() / str(partition)).glob("*.log")]
        if local is None or files != [f"{local:020d}.log"]:
            return False
        found[partition] = local
        return True

    with as_admin(cluster) as client:
        for partition in partitions:
            why = f"{cluster.name}: all complete segments of {partition} are only in remote storage"
            wait_until(partial(gone, client, partition), timeout_s=TIMEOUT_S, why=why)
        starts = list_offsets(client, found, OffsetPoint.START)
    assert all(starts[partition] < local for partition, local in found.items()), "something was tiered"
    return found


@contextmanager
def unanswering(cluster: SandboxCluster, partition: Partition) -> Iterator[Answer]:
    """Remote storage that does not answer to who reads this partition's segments."""
    remote = cluster.log_dir().parents[2] / "kafka-tiered-storage"
    files = list(remote.glob(f"{partition}-*/*.log"))
    assert files, f"nothing of {partition} is in {remote}"
    pipes = [(path, path.with_suffix(".kept"), path.with_suffix(".pipe")) for path in files]
    for path, kept, pipe in pipes:
        os.mkfifo(pipe)
        path.rename(kept)
        path.hardlink_to(pipe)  # who opens it waits for somebody who writes to it

    def answer() -> None:
        for path, kept, _ in pipes:
            if kept.exists():
                kept.replace(path)

    with broker_setting(cluster, "remote.fetch.max.wait.ms", "100"):
        try:
            yield answer
        finally:
            answer()
            for _, _, pipe in pipes:
                with suppress(OSError):  # nobody waits
                    os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))


@contextmanager
def limited(cluster: SandboxCluster, _partition: Partition) -> Iterator[Answer]:
    """Remote storage of which one answer uses up what the broker may read from it within a long time."""
    with ExitStack() as stack:
        stack.enter_context(broker_setting(cluster, "remote.log.manager.fetch.max.bytes.per.second", "1"))
        yield stack.close
