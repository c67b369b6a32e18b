"""Reading the state topic where brokers throttle, hang, are behind, and connections break. Brokers are played here: the
wire is real, and what they say of a log is made up."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Config, load_config
from mirror_core.kafka.log_reader import LogReader
from mirror_core.model.errors import Unreachable
from mirror_core.model.mirror import Lease
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.state import topic_reader
from mirror_core.state.mirror_link import read_states
from mirror_core.state.state_records import STATE_TOPIC, State
from mirror_core.state.state_topic import read_state
from mirror_core.state.topic_reader import CachedState
from tests.support.checked_threads import Work, beside
from tests.support.request_frames import METADATA, ZERO, encoded, frame

FETCH = 1
LONG_S = 30.0
"""Longer than any of these reads may take, whatever else the machine does."""
THROTTLED = struct.pack(">ihi", 300, 0, 0) + struct.pack(">i", 0)
"""What a broker answers to a Fetch that is above a quota: 300 ms, and no partition at all."""

Log = Callable[[int, int], bytes | None]
"""The answer to the how-manieth Fetch of all, from this offset on; None: the connection breaks."""


def batch(offset: int, size: int = 0) -> bytes:
    """One committed record: the lease of a mirror that is named by its offset; `size`: with so many bytes besides."""
    lease = Lease(mirror=MirrorName(f"m{offset}"), owner="o" * size, generation=1, heartbeat_ms=1, writers_until_ms=1)
    ((key, value),) = State().to_rows(lease)
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=2 * size + 4096,
    )
    assert builder.append(0, timestamp=0, key=key.encode(), value=value, headers=[])
    return struct.pack(">q", offset) + bytes(builder.build())[8:]


def fetched(records: bytes, end: int) -> bytes:
    """`end`: the log's, and the last stable offset."""
    name = STATE_TOPIC.encode()
    told = struct.pack(">ihi", 0, 0, 0) + struct.pack(">ih", 1, len(name)) + name
    return told + struct.pack(">iihqqqii", 1, 0, 0, end, end, 0, 0, len(records)) + records


@dataclass
class Brokers:
    """Some that answer, some that accept and say nothing, some that are dead."""

    stack: ExitStack
    log: Log
    leader: Callable[[int], int] = lambda told_by: 1
    """By the word of this broker."""
    numbers: Collection[int] = (1,)
    hanging: Collection[int] = ()
    dead: Collection[int] = ()
    bytes_per_s: int | None = None
    fetches: int = 0
    ports: Mapping[int, int] = field(init=False)

    def __post_init__(self) -> None:
        made = {one: self.stack.enter_context(socket.create_server(("127.0.0.1", 0))) for one in self.numbers}
        self.ports = {one: listener.getsockname()[1] for one, listener in made.items()}
        for one, listener in made.items():
            if one in self.dead:
                listener.close()
            else:
                stop = partial(listener.shutdown, socket.SHUT_RDWR)
                self.stack.enter_context(beside(partial(self._serve, one, listener), stop))

    def config(self, folder: Path) -> Config:
        path = folder / "mirrorbook.yaml"
        servers = ",".join(f"127.0.0.1:{port}" for port in self.ports.values())
        path.write_text(f'clusters: {{west: {{bootstrap.servers: "{servers}"}}}}', encoding="utf-8")
        return load_config(path)

    def _serve(self, broker: int, listener: socket.socket) -> None:
        with suppress(OSError), ExitStack() as taken:
            while True:
                connection = taken.enter_context(listener.accept()[0])
                Work(partial(self._answer, broker, connection), f"broker-{broker}").start()

    def _answer(self, broker: int, connection: socket.socket) -> None:
        with suppress(OSError):
            while request := frame(connection):
                if broker in self.hanging:
                    continue
                said = self._said(broker, request)
                if said is None:
                    connection.shutdown(socket.SHUT_RDWR)
                    return
                self._send(connection, request[4:8] + said)

    def _said(self, broker: int, request: bytes) -> bytes | None:
        key, name = int.from_bytes(request[:2], "big"), STATE_TOPIC.encode()
        if key == METADATA:
            return b"\0" + encoded(MetadataResponse, self._view(self.leader(broker)))
        if key == FETCH:
            self.fetches += 1
            (offset,) = struct.unpack_from(">q", request, request.index(name) + len(name) + 12)
            return self.log(self.fetches, offset)
        return struct.pack(">iih", 0, 1, len(name)) + name + struct.pack(">iihqqi", 1, 0, 0, -1, 0, 0)  # ListOffsets

    def _send(self, connection: socket.socket, said: bytes) -> None:
        whole, step = len(said).to_bytes(4, "big") + said, 64 << 10
        for at in range(0, len(whole), step):
            connection.sendall(whole[at : at + step])
            if self.bytes_per_s and len(whole) > step:
                time.sleep(step / self.bytes_per_s)  # the way is so slow

    def _view(self, leader: int) -> MetadataResponse:
        brokers = tuple(
            MetadataResponseBroker(node_id=BrokerId(one), host="127.0.0.1", port=i32(port), rack=None)
            for one, port in self.ports.items()
        )
        partition = MetadataResponsePartition(
            error_code=ErrorCode.none,
            partition_index=i32(0),
            leader_id=BrokerId(leader),
            leader_epoch=i32(1),
            replica_nodes=(BrokerId(1),),
            isr_nodes=(BrokerId(leader),),
            offline_replicas=(),
        )
        topic = MetadataResponseTopic(
            error_code=ErrorCode.none,
            name=TopicName(STATE_TOPIC),
            topic_id=None,
            is_internal=False,
            partitions=(partition,),
        )
        return MetadataResponse(
            throttle_time=ZERO, brokers=brokers, cluster_id="c", controller_id=BrokerId(1), topics=(topic,)
        )


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def read(brokers: Brokers, folder: Path, timeout_s: float, *, whole: bool = False) -> list[str]:
    """Whose leases are read; an error as it is."""
    west = brokers.config(folder).cluster("west")
    reader = Work(partial(read_state, west, timeout_s=timeout_s, wait_for_open=whole), "reader").start()
    return sorted(reader.result(LONG_S).leases)


def test_a_quota_makes_it_wait_and_is_no_fault(stack: ExitStack, tmp_path: Path) -> None:
    brokers = Brokers(stack, lambda number, offset: THROTTLED if number < 3 else fetched(batch(0), 1))
    assert read(brokers, tmp_path, 20.0) == ["m0"]
    assert brokers.fetches == 3


def test_whoever_reads_another_log_waits_for_a_quota_too(stack: ExitStack, tmp_path: Path) -> None:
    brokers = Brokers(stack, lambda number, offset: THROTTLED if number < 3 else fetched(batch(0), 1))
    with LogReader(brokers.config(tmp_path).cluster("west"), timeout_s=20.0) as reader:
        found = list(reader.records(Partition(STATE_TOPIC, 0), Offset(0), Offset(1)))
    assert [record.key for _, record in found] == [b"lease/m0"]
    assert brokers.fetches == 3


def test_a_connection_that_always_breaks_at_the_same_place_ends_it_within_the_limit(
    stack: ExitStack, tmp_path: Path
) -> None:
    brokers = Brokers(stack, lambda number, offset: fetched(batch(0), 100) if offset == 0 else None)
    with pytest.raises(Unreachable, match=r"state topic .* not read within 1.0 s: "):
        read(brokers, tmp_path, 1.0)


def test_connections_that_break_again_and_again_get_it_to_the_end(stack: ExitStack, tmp_path: Path) -> None:
    def flapping(number: int, offset: int) -> bytes | None:
        return None if number % 3 == 0 else fetched(batch(offset), 7)

    assert read(Brokers(stack, flapping), tmp_path, 20.0) == [f"m{n}" for n in range(7)]


def test_a_leader_that_hangs_does_not_cost_the_whole_limit(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_reader, "_RESPONSE_TIMEOUT_S", 1.0)
    elected = iter([2])
    brokers = Brokers(
        stack, lambda number, offset: fetched(batch(0), 1), lambda by: next(elected, 1), numbers=(1, 2), hanging=(2,)
    )
    assert read(brokers, tmp_path, 20.0, whole=True) == ["m0"]


def test_who_says_that_a_dead_broker_leads_is_doubted(stack: ExitStack, tmp_path: Path) -> None:
    brokers = Brokers(
        stack, lambda number, offset: fetched(batch(0), 1), lambda by: {1: 3, 2: 2}[by], numbers=(1, 2, 3), dead=(3,)
    )
    assert read(brokers, tmp_path, 10.0, whole=True) == ["m0"]


def test_a_slow_way_is_no_silence(stack: ExitStack, tmp_path: Path) -> None:
    """640 KiB a second: five megabits. Whoever asks all clusters gives each four seconds of silence."""
    size, count = 250 << 10, 16

    def log(number: int, offset: int) -> bytes:
        most = max(1, topic_reader._MAX_FETCH_BYTES // size)
        return fetched(b"".join(batch(n, size) for n in range(offset, min(count, offset + most))), count)

    ((_, answer),) = read_states(Brokers(stack, log, bytes_per_s=640 << 10).config(tmp_path), 4.0)
    assert isinstance(answer, State), answer
    assert len(answer.leases) == count


def test_what_was_just_committed_is_waited_for_also_behind_a_long_read(stack: ExitStack, tmp_path: Path) -> None:
    """A commit is answered before its marker is in the log: the end is not decided at the first look at it."""
    began = time.monotonic()

    def log(number: int, offset: int) -> bytes:
        if number == 1:
            time.sleep(1.2 * topic_reader.OPEN_TRANSACTION_WAIT_S)  # the way here is long
            return fetched(batch(0), 2)
        return fetched(batch(1) if time.monotonic() - began > 1.5 * topic_reader.OPEN_TRANSACTION_WAIT_S else b"", 2)

    assert read(Brokers(stack, log), tmp_path, 10.0) == ["m0", "m1"]


def test_who_is_held_up_when_he_reads_on_looks_once_more(stack: ExitStack, tmp_path: Path) -> None:
    """To read all of a large state again takes seconds, and applications may stand still meanwhile."""

    def log(number: int, offset: int) -> bytes:
        if number == 1:
            time.sleep(1.2 * topic_reader.OPEN_TRANSACTION_WAIT_S)
            return fetched(b"", 1)
        return fetched(batch(0), 1)

    cluster = Brokers(stack, log).config(tmp_path).cluster("west")
    with ClusterClient(cluster, timeout_s=LONG_S) as client:
        found = topic_reader._find_leader(client, STATE_TOPIC)
    assert found is not None
    known = CachedState(found[0], 0, 0, State())
    read_to = topic_reader.read_newer(cluster, known, lambda: None, LONG_S)
    assert ([*read_to.state.leases], read_to.position) == (["m0"], 1)
