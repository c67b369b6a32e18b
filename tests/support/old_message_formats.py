"""Logs of the message formats 0 and 1, which no broker since 3.0 in KRaft mode writes, and all still serve.

A 3.9 broker takes messages of these formats by the old Produce requests and stores them as format 2, whatever a topic's
message.format.version says. A log that was begun on Kafka 0.8 to 0.10 has them; so here they are put in place.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.kafka_clients import Record

Magic = Literal[0, 1]
GZIP, SNAPPY, LZ4 = 1, 2, 3
T2015: Final = 1_420_070_400_123
APPENDED_MS: Final = T2015 + 77_777
LOG_APPEND_TIME: Final = 8


class OldLog:
    """Bytes of a segment, and the records that a consumer must see in it."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.records: list[Record] = []
        self._next = 0

    def plain(self, magic: Magic, count: int) -> None:
        """Messages one by one."""
        for offset in range(self._next, self._next + count):
            self.data += self._built(magic, 0, [(offset, offset)])

    def compressed(self, magic: Magic, codec: int, count: int, *, append_time: bool = False) -> None:
        """A message that holds messages; every fifth, but not the last, was compacted away."""
        offsets = [o for o in range(self._next, self._next + count) if o % 5 or o == self._next + count - 1]
        # Format 0 has true offsets inside; format 1 counts from the first that there was.
        base = self._next if magic else 0
        batch = self._built(magic, codec, [(offset - base, offset) for offset in offsets], append_time=append_time)
        struct.pack_into(">q", batch, 0, offsets[-1])  # the outer offset is the last inner one
        if append_time:
            batch[17] |= LOG_APPEND_TIME
            struct.pack_into(">q", batch, 18, APPENDED_MS)
            struct.pack_into(">I", batch, 12, zlib.crc32(batch[16:]))
        self.data += batch

    def _built(
        self, magic: Magic, codec: int, offsets: Sequence[tuple[int, int]], *, append_time: bool = False
    ) -> bytearray:
        """`offsets`: as written, and as meant."""
        builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
        for written, offset in offsets:
            key = None if offset % 7 == 6 else b"\xffk%d" % offset
            value = None if offset % 11 == 10 else b"v%d " % offset * 3
            # Later ones earlier, now and then: nobody promised an order.
            timestamp = T2015 + offset * (1 if offset % 3 else -1)
            builder.append(written, timestamp, key, value)
            seen = -1 if magic == 0 else APPENDED_MS if append_time else timestamp
            self.records.append(Record(partition=0, offset=offset, timestamp_ms=seen, key=key, value=value, headers=()))
        self._next = offsets[-1][1] + 1
        return bytearray(builder.build())


def old_logs() -> Mapping[str, OldLog]:
    """By what is in them; `mixed` as a cluster has it that was upgraded twice."""
    logs = {name: OldLog() for name in ("format 0", "format 1", "mixed")}
    zero, one, mixed = logs.values()
    for log in (zero, mixed):
        log.plain(0, 30)
        log.compressed(0, GZIP, 40)
        log.compressed(0, SNAPPY, 40)
    for log in (one, mixed):
        log.plain(1, 30)
        for codec in (GZIP, SNAPPY, LZ4):
            log.compressed(1, codec, 40)
        log.compressed(1, GZIP, 20, append_time=True)
        log.plain(1, 3)
    return logs


def put_in_place(cluster: SandboxCluster, logs: Mapping[str, OldLog]) -> None:
    """Make these (by topic) the first segment of empty topics; the cluster's only broker is stopped for it."""
    cluster.terminate()
    for topic, log in logs.items():
        folder = cluster.log_dir() / f"{topic}-0"
        (folder / f"{0:020}.log").write_bytes(log.data)
        for index in ("index", "timeindex"):
            (folder / f"{0:020}.{index}").unlink()
    cluster.start()
