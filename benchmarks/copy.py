"""`python -m benchmarks.copy`: how long a copy takes, and what it costs the copier and both brokers.

Brings up two clusters of one broker each in a folder of its own, loads one topic, and lets each copier in turn copy it
to a fresh topic of the same name. Prints JSON. Needs a quiet machine and memory for three JVMs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.copiers import COPIERS, running
from benchmarks.measure import Meter, Reading
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import load_config
from mirror_core.kafka.offsets import Point, list_offsets
from mirror_core.model.names import Partition
from mirror_core.sandbox.sandbox import Sandbox

TIMEOUT_S: Final = 60.0
COPY_TIMEOUT_S: Final = 900.0
POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class DataSet:
    """How the source topic is filled. Values are half noise, so that codecs find about half to take away."""

    partitions: int
    value_bytes: int
    batch_bytes: int
    codec: str


SETS: Final = {
    "d1": DataSet(8, 1024, 16 << 10, "none"),
    "d2": DataSet(8, 1024, 64 << 10, "lz4"),
    "d3": DataSet(8, 100, 16 << 10, "none"),
}


class Bench:
    """Both clusters, and the topic that is copied."""

    def __init__(self, folder: Path, data: DataSet, records: int) -> None:
        self.data = data
        self.records = records
        self.topic = "bench"
        self.sandbox = Sandbox(folder / "sandbox")
        self.config = folder / "mirrorbook.yaml"

    def up(self) -> None:
        self.sandbox.up(nodes=1)
        self.config.write_text(self.sandbox.mirrorbook_yaml(), encoding="utf-8")
        self._load()

    def copy(self, kind: str) -> dict[str, object]:
        """Let one copier copy the topic once; what it took."""
        self._clear()
        config = load_config(self.config)
        pids = {f"{name}_broker": self._broker(name) for name in ("east", "west")}
        with (
            ClusterClient(config.cluster("west")) as west,
            running(kind, self.sandbox, self.config, self.topic, self.data.codec) as process,
            Meter(copier=process.pid, **pids) as meter,
        ):
            begun = time.monotonic()
            self._until(west, 1, kind)
            first, before = time.monotonic(), meter.read()
            self._until(west, self.records, kind)
            last, after = time.monotonic(), meter.read()
        return self._result(kind, first - begun, last - first, before, after)

    def _result(
        self, kind: str, start_s: float, copy_s: float, before: dict[str, Reading], after: dict[str, Reading]
    ) -> dict[str, object]:
        gigabytes = self.records * self.data.value_bytes / 1e9
        used = {name: after[name].cpu_s - before[name].cpu_s for name in after}
        return {
            "copier": kind,
            "start_s": round(start_s, 2),
            "start_cpu_s": round(before["copier"].cpu_s, 2),
            "copy_s": round(copy_s, 2),
            "mb_per_s": round(gigabytes * 1000 / copy_s, 1),
            **{f"{name}_cpu_s_per_gb": round(cpu_s / gigabytes, 2) for name, cpu_s in used.items()},
            "all_cpu_s_per_gb": round(sum(used.values()) / gigabytes, 2),
            "copier_peak_rss_mb": round(after["copier"].peak_rss_bytes / 1e6),
        }

    def _load(self) -> None:
        """Fill the source topic, the same bytes every time."""
        admin = self._admin("east")
        topic = NewTopic(self.topic, self.data.partitions, config={"retention.ms": "-1"})
        admin.create_topics([topic])[self.topic].result(TIMEOUT_S)
        producer = Producer(
            {
                **self.sandbox.cluster("east").client_config("admin"),
                "enable.idempotence": True,
                "linger.ms": 1000,
                "batch.size": self.data.batch_bytes,
                "compression.type": self.data.codec,
                "queue.buffering.max.messages": 200_000,
            }
        )
        failed: list[str] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failed.append(str(error))

        dice = random.Random(1)
        half = self.data.value_bytes // 2
        values = [dice.randbytes(half) + bytes(self.data.value_bytes - half) for _ in range(1000)]
        # In runs, so that a partition's batches fill up before the queue does.
        for number in range(self.records):
            partition = number // 1000 % self.data.partitions
            while True:
                try:
                    producer.produce(self.topic, values[number % 1000], partition=partition, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        if producer.flush(COPY_TIMEOUT_S) or failed:
            raise SystemExit(f"the data set was not loaded: {failed[:1] or 'not acknowledged in time'}")

    def _clear(self) -> None:
        """Remove every trace of the last copier: its copy, and what MirrorMaker remembers in topics of its own."""
        for name in ("east", "west"):
            admin = self._admin(name)
            mine = [self.topic] if name == "west" else []
            listed = admin.list_topics(timeout=TIMEOUT_S).topics
            doomed = [t for t in listed if t in mine or t == "heartbeats" or t.startswith("mm2-") or ".internal" in t]
            for future in (admin.delete_topics(doomed) if doomed else {}).values():
                future.result(TIMEOUT_S)
            deadline = time.monotonic() + TIMEOUT_S
            while set(doomed) & set(admin.list_topics(timeout=TIMEOUT_S).topics):
                if time.monotonic() > deadline:
                    raise SystemExit(f"{name}: {doomed} are still there {TIMEOUT_S:g} s after they were deleted")
                time.sleep(POLL_S)

    def _until(self, west: ClusterClient, wanted: int, kind: str) -> None:
        """Wait until the copy holds that many records."""
        partitions = [Partition(self.topic, index) for index in range(self.data.partitions)]
        deadline = time.monotonic() + COPY_TIMEOUT_S
        there = False
        while True:
            there = there or self.topic in west.metadata([self.topic]).topics
            count = 0
            if there:
                count = sum(list_offsets(west, partitions, Point.LOG_END).values())
            if count >= wanted:
                return
            if time.monotonic() > deadline:
                raise SystemExit(f"{kind}: {count} of {wanted} records after {COPY_TIMEOUT_S:g} s")
            time.sleep(POLL_S)

    def _admin(self, name: str) -> AdminClient:
        return AdminClient({**self.sandbox.cluster(name).client_config("admin")})

    def _broker(self, name: str) -> int:
        pid = self.sandbox.cluster(name).pid()
        if pid is None:
            raise SystemExit(f"the broker of {name} is not running")
        return pid


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.copy", description=__doc__)
    parser.add_argument("--set", choices=sorted(SETS), default="d1", help="data set")
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--copiers", default=",".join(COPIERS), help="in this order, comma-separated")
    parser.add_argument("--runs", type=int, default=2, help="rounds; each one lets every copier copy once")
    chosen = parser.parse_args(arguments)
    kinds = chosen.copiers.split(",")
    if unknown := set(kinds) - set(COPIERS):
        parser.error(f"unknown copiers {', '.join(sorted(unknown))}: there are {', '.join(COPIERS)}")
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="mirrorbook-bench-") as folder:
        bench = Bench(Path(folder), SETS[chosen.set], chosen.records)
        try:
            bench.up()
            results = [bench.copy(kind) for _ in range(chosen.runs) for kind in kinds]
        finally:
            bench.sandbox.down(delete=True)
    print(
        json.dumps(
            {
                "set": chosen.set,
                "records": chosen.records,
                "gigabytes_of_values": chosen.records * SETS[chosen.set].value_bytes / 1e9,
                "machine": {
                    "cores": os.cpu_count(),
                    "system": platform.platform(),
                    "python": platform.python_version(),
                },
                "load_average_before": round(load, 2),
                "results": results,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
