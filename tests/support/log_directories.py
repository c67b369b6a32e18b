"""Log directories of a broker that never was, laid out as brokers do it."""

from __future__ import annotations

import base64
import struct
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fastcrc import crc32

from mirror_core.model.names import Partition
from mirror_core.wire.batch import CONTROL, TRANSACTIONAL, BatchHeader, readdress, split_batches
from mirror_core.wire.batch_encoder import EMPTY_CONTENT, build_batch, encode_record, encode_varint
from mirrorbook_tools.logdir.producer_snapshot import SNAPSHOT_ENTRY, SNAPSHOT_HEAD, SNAPSHOT_VERSION

CLUSTER: Final = "UV5GnyrfQAWautyTub69KQ"
TOPIC_ID: Final = "98f2d6f9-1b47-4fbf-8aac-86a4b3d0e05a"
KAFKA_ID: Final = base64.urlsafe_b64encode(uuid.UUID(TOPIC_ID).bytes).decode().rstrip("=")
_MARKER: Final = encode_varint(4) + b"\0\0\0\1" + encode_varint(6) + bytes(6) + encode_varint(0)


def as_bytes(header: BatchHeader) -> bytes:
    """A batch with these offsets, bits, producer and number of records, as it lies in a segment."""
    content = _MARKER if header.attributes & CONTROL else EMPTY_CONTENT
    rows = b"".join(encode_record(0, number, content) for number in range(header.record_count))
    made = build_batch(rows, header.record_count, 0, 1, 2)
    struct.pack_into(">hi", made, 21, header.attributes, header.last_offset_delta)
    readdress(memoryview(made), header.producer_id, 0, 0)
    struct.pack_into(">q", made, 0, header.base_offset)
    return bytes(made)


def snapshot(open_since: Mapping[int, int]) -> bytes:
    """Of these transactions, and of a producer that has none."""
    rows = [(producer, 0, 0, 0, 0, 0, 0, since) for producer, since in (*open_since.items(), (99, -1))]
    entries = b"".join(SNAPSHOT_ENTRY.pack(*row) for row in rows)
    return (
        SNAPSHOT_HEAD.pack(SNAPSHOT_VERSION, crc32.iscsi(struct.pack(">i", len(rows)) + entries), len(rows)) + entries
    )


def open_behind(log: Sequence[BatchHeader]) -> dict[int, int]:
    """What is open at the end of these batches."""
    found: dict[int, int] = {}
    for header in log:
        if header.attributes & CONTROL and header.record_count:
            found.pop(header.producer_id, None)
        elif header.attributes & TRANSACTIONAL and not header.attributes & CONTROL:
            found.setdefault(header.producer_id, header.base_offset)
    return found


@dataclass(frozen=True, slots=True)
class Broker:
    """One that has ended in order, and its only log directory."""

    log_dir: Path

    @classmethod
    def make(cls, log_dir: Path, node: int = 1) -> Broker:
        log_dir.mkdir(parents=True)
        text = f"#\n#Sun Nov 22 10:28:22 UTC 2026\ncluster.id={CLUSTER}\ndirectory.id=x\nnode.id={node}\nversion=1\n"
        (log_dir / "meta.properties").write_text(text, encoding="utf-8")
        (log_dir / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":5}', encoding="utf-8")
        for name in ("log-start-offset-checkpoint", "cleaner-offset-checkpoint", "recovery-point-offset-checkpoint"):
            (log_dir / name).write_text("0\n0\n", encoding="utf-8")
        return cls(log_dir)

    def note(self, name: str, offsets: Mapping[Partition, int]) -> None:
        """Write a checkpoint."""
        rows = "".join(f"{partition.topic} {partition.index} {offset}\n" for partition, offset in offsets.items())
        (self.log_dir / name).write_text(f"0\n{len(offsets)}\n{rows}", encoding="utf-8")

    def add(self, name: str, segments: Mapping[int, Sequence[BatchHeader]], *, snapshots: bool = True) -> Path:
        """A partition's folder, with segments of these base offsets."""
        folder = self.log_dir / name
        folder.mkdir()
        (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {KAFKA_ID}", encoding="utf-8")
        (folder / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n", encoding="utf-8")
        log: list[BatchHeader] = []
        for base, held in segments.items():
            if snapshots and log:
                (folder / f"{base:020d}.snapshot").write_bytes(snapshot(open_behind(log)))
            (folder / f"{base:020d}.log").write_bytes(b"".join(map(as_bytes, held)))
            for suffix in ("index", "timeindex", "txnindex"):
                (folder / f"{base:020d}.{suffix}").write_bytes(b"of a segment of %d batches" % len(held))
            log += held
        if snapshots:
            end = log[-1].next_offset if log else next(iter(segments))
            (folder / f"{end:020d}.snapshot").write_bytes(snapshot(open_behind(log)))
        return folder


def stored(folder: Path) -> list[tuple[int, int, int]]:
    """What lies there: base offset, next offset and attributes of each batch."""
    found = [
        header
        for path in sorted(folder.glob("*.log"))
        for header, _ in split_batches(memoryview(bytearray(path.read_bytes())))
    ]
    return [(header.base_offset, header.next_offset, header.attributes) for header in found]
