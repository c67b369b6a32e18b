"""What we write anew, as brokers append it and other clients read it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import pytest

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Principal, load_config
from mirror_core.kafka.connection import CLIENT_ID, Connection
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.model.names import Offset, Partition
from mirror_core.wire import message_v0_v1, produce, records, txn_markers
from mirror_core.wire.batch import LOG_APPEND_TIME, BatchHeader, readdress, split_batches
from mirror_core.wire.records import Codec
from mirror_core.wire.reencode import RecordRun, merge_batches, split_into_runs
from tests.support.kafka_clients import Pair, Record, new_topic, read_all, read_all_aiokafka
from tests.support.record_bytes import BASE_TIME, message, source, wrapper

pytestmark = pytest.mark.cluster

PRODUCER = (1 << 62) + 77
LARGE = Random(1).randbytes(100_000) + bytes(100_000)
"""Several blocks of snappy and lz4, some of which cannot be compressed."""
COPIED = [
    records.Record(
        2 + n + n // 5 * 3,  # a hole after each fifth
        BASE_TIME + 7 * n,
        None if n % 3 == 0 else b"\xffkey %d" % n,
        None if n % 4 == 0 else LARGE if n == 7 else b"value %d " % n * 20,
        ((b"null", None), (b"empty", b"")),
    )
    for n in range(23)
]
OLD = [(n, BASE_TIME + n, b"k" if n % 2 else None, b"v%d" % n) for n in range(3, 9)]


@dataclass(slots=True)
class Log:
    """The end of a partition that this test alone writes: data batches, and markers for offsets that hold nothing."""

    connection: Connection
    partition: Partition
    position: int = 0
    sequence: int = 0
    gaps: int = 0

    def append(self, run: RecordRun) -> None:
        if run.base_offset > self.position:
            self._fill(run.base_offset - self.position)
        batch = memoryview(run.batch)
        readdress(batch, PRODUCER, 0, self.sequence)
        rows = [(self.partition.topic, self.partition.index, batch)]
        self.connection.send(produce.encode_request(rows, self.connection.next_id(), CLIENT_ID, timeout_ms=10_000))
        (answer,) = produce.decode_response(memoryview(self.connection.receive())[4:])
        assert (answer.error, answer.base_offset, answer.message) == (0, run.base_offset, "")
        self.sequence += run.records
        self.position = run.next_offset

    def _fill(self, count: int) -> None:
        self.gaps += count
        entry = txn_markers.MarkerEntry(PRODUCER, 0, self.gaps, (self.partition,))
        self.connection.send([txn_markers.encode_request([entry] * count, self.connection.next_id(), CLIENT_ID)])
        answer = list(txn_markers.decode_response(memoryview(self.connection.receive())[4:]))
        assert answer == [txn_markers.MarkerResult(PRODUCER, self.partition.topic, self.partition.index, 0)]


@pytest.fixture
def connection(pair: Pair) -> Iterator[Connection]:
    west = load_config(pair.config_path).cluster("west")
    host, _, port = pair.west.bootstrap.partition(":")
    with Connection(west, Principal.DATA, host, int(port)) as opened:
        yield opened


def log_ends(pair: Pair, logs: list[Log]) -> dict[Partition, Offset]:
    with ClusterClient(load_config(pair.config_path).cluster("west")) as client:
        return list_offsets(client, [log.partition for log in logs], OffsetPoint.LOG_END)


def whole(batch: bytearray, base: int) -> tuple[BatchHeader, memoryview]:
    [(header, view)] = split_batches(memoryview(batch))
    return header._replace(base_offset=base), view


def as_read(partition: int, found: records.Record) -> Record:
    headers = tuple((name.decode(), value) for name, value in found.headers)
    return Record(
        partition=partition, offset=found.offset, timestamp_ms=found.timestamp_ms, key=found.key, value=found.value,
        headers=headers,
    )  # fmt: skip


def test_batches_written_anew_are_appended_and_read_as_what_they_were(pair: Pair, connection: Connection) -> None:
    topic = new_topic(pair.west, 13, retention_ms="-1")
    expected: list[Record] = []
    logs = [Log(connection, Partition(topic, number)) for number in range(13)]
    # A broker names the leader of a new partition before it has opened its log, and answers markers with error 3 then.
    assert set(log_ends(pair, logs).values()) == {0}
    for codec in Codec:  # 0 to 4: holes; 5 to 9: stamped by the broker
        for log, bits in ((logs[codec], 0), (logs[5 + codec], LOG_APPEND_TIME)):
            header, batch = source(COPIED, codec, base=0, last=99, attributes=bits, max_time=BASE_TIME + 1)
            for run in split_into_runs(header, batch, 0):
                log.append(run)
            seen = [found._replace(timestamp_ms=BASE_TIME + 1) for found in COPIED] if bits else COPIED
            expected += [as_read(log.partition.index, found) for found in seen]
    tiny = [run for found in COPIED[:5] for run in split_into_runs(*source([found], attributes=LOG_APPEND_TIME), 0)]
    logs[10].append(RecordRun(COPIED[0].offset, 5, merge_batches([whole(run.batch, run.base_offset) for run in tiny])))
    expected += [as_read(10, found._replace(timestamp_ms=0)) for found in COPIED[:5]]
    for log, magic in ((logs[11], 0), (logs[12], 1)):
        old = b"".join(message(row, magic) for row in OLD[:2]) + wrapper(OLD[2:], magic, Codec.LZ4)
        for header, view in split_batches(memoryview(old)):
            for run in message_v0_v1.split_message_into_runs(header, view, 0):
                log.append(run)
        expected += [
            as_read(log.partition.index, records.Record(offset, time if magic else -1, key, value, ()))
            for offset, time, key, value in OLD
        ]
    assert log_ends(pair, logs) == {log.partition: log.position for log in logs}
    assert read_all(pair.west, topic) == sorted(expected)
    assert read_all_aiokafka(pair.west, topic) == sorted(expected)
