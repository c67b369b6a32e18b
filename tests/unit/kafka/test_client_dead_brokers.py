"""A cluster that is gone, or one of its brokers, must not cost its time limit once for each of thousands of partitions;
nor is what others lead to be left out for it."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from typing import Any, Self

import pytest

from mirror_core.kafka import broker_health
from mirror_core.kafka.broker_health import TIMEOUTS_BEFORE_BACKOFF
from mirror_core.kafka.client import ClusterMetadata, Leader, TopicMetadata
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.log_reader import LogReader
from mirror_core.model.errors import RemoteFault, Unreachable
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.wire.batch import readdress
from mirror_core.wire.batch_encoder import EMPTY_CONTENT, build_batch, encode_record
from mirror_core.wire.fetch import FetchedPartition
from mirror_core.wire.records import Codec
from tests.support.sentences import format_sentence


@pytest.fixture
def dead() -> Iterator[ClusterConfig]:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, and nobody listens: refused at once
        properties = {"bootstrap.servers": f"127.0.0.1:{closed.getsockname()[1]}"}
        yield ClusterConfig(ClusterName("east"), properties, properties)


def test_after_some_partitions_a_dead_cluster_is_not_tried_again(dead: ClusterConfig) -> None:
    with LogReader(dead, timeout_s=0.1) as reader:
        for number in range(TIMEOUTS_BEFORE_BACKOFF):
            with pytest.raises(Unreachable, match="cannot connect"):
                next(reader.batches(Partition("t", number), Offset(0), Offset(1)))
        with pytest.raises(Unreachable, match=r"cluster east, t-9, offset 0: not tried"):
            next(reader.batches(Partition("t", 9), Offset(0), Offset(1)))


def test_nor_is_one_that_dies_when_it_is_known_who_leads(dead: ClusterConfig) -> None:
    """As all are that are asked for ahead."""
    with LogReader(dead, timeout_s=0.1) as reader:
        reader._leaders = {Partition("t", number): (("localhost", 1), 0) for number in range(10)}
        for number in range(TIMEOUTS_BEFORE_BACKOFF):
            with pytest.raises(Unreachable, match="not read within"):
                next(reader.batches(Partition("t", number), Offset(0), Offset(1)))
        with pytest.raises(Unreachable, match="t-9, offset 0: not tried: the cluster has not answered"):
            next(reader.batches(Partition("t", 9), Offset(0), Offset(1)))


class Clustered(LogReader):
    """Partitions up to 4 are led by a broker that hangs, up to 9 by another one, and the next ones by nobody."""

    def __init__(self, cluster: ClusterConfig) -> None:
        super().__init__(cluster, timeout_s=0.1)
        self.moved = set[int]()
        """Partitions that the other one has come to lead."""
        self.asked = list[int]()
        self.back = False
        """Whether the one that hung answers again."""
        client: Any = self._client
        client.metadata = self._metadata

    def _metadata(self, topics: Iterable[str]) -> ClusterMetadata:
        led = {n: Leader(2 if n < 5 else 1 if n < 10 else -1, 0) for n in range(15)}
        led |= dict.fromkeys(self.moved, Leader(1, 1))
        view = TopicMetadata("t", "", internal=False, partitions=led, replication_factor=1, in_sync=1)
        return ClusterMetadata("", 1, {1: ("well", 9092), 2: ("hangs", 9092)}, {"t": view}, frozenset())

    def _fetch_partition(self, partition: Partition, position: int) -> tuple[int, FetchedPartition]:
        self.asked.append(partition.index)
        address, _ = self._leaders.get(partition, (("hangs", 0), 0))
        if address[0] == "hangs" and not self.back:
            raise Unreachable("no answer")
        batch = build_batch(encode_record(0, 0, EMPTY_CONTENT), 1, Codec.NONE, 0, 0)
        readdress(memoryview(batch), 1, 0, 0)
        return 0, FetchedPartition(partition, 0, 1, 1, 0, (), memoryview(batch))

    def __enter__(self) -> Self:
        return self

    def told(self, index: int) -> str:
        """Why a partition is not read; empty: it is."""
        try:
            return "" if len(list(self.batches(Partition("t", index), Offset(0), Offset(1)))) == 1 else "empty"
        except Unreachable as error:
            return str(error)


def test_a_broker_that_hangs_keeps_nobody_from_what_others_lead(dead: ClusterConfig) -> None:
    with Clustered(dead) as reader:
        assert all("not read within" in reader.told(index) for index in range(TIMEOUTS_BEFORE_BACKOFF))
        reader.asked.clear()
        assert [reader.told(index) for index in (7, 2, 8)] == [
            "",
            format_sentence("offset_not_tried_leader_silent", "east", "t-2", 0, 2),
            "",
        ]
        assert reader.asked == [7, 8]
        reader.moved = {3}
        assert ["not tried" in reader.told(index) for index in (3, 4)] == [False, True]


def test_who_hung_is_asked_again_after_a_while(dead: ClusterConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    with Clustered(dead) as reader:
        assert all("not read within" in reader.told(index) for index in range(TIMEOUTS_BEFORE_BACKOFF))
        reader.back = True
        assert "not tried" in reader.told(2)
        monkeypatch.setattr(broker_health, "BACKOFF_S", 0.0)
        assert [reader.told(index) for index in range(5)] == [""] * 5


def test_what_nobody_leads_keeps_nobody_from_the_rest(dead: ClusterConfig) -> None:
    with Clustered(dead) as reader:
        told = [reader.told(index) for index in (10, 11, 12, 7)]
        assert ["not tried: nobody leads it" in words for words in told] == [False, False, True, False]
        assert told[-1] == ""


VIEW = TopicMetadata(
    "t", "", internal=False, partitions=dict.fromkeys((0, 1), Leader(1, 0)), replication_factor=1, in_sync=1
)


class Garbled:
    """A connection on which an answer comes that is none, and whatever comes then is the rest of it."""

    where = "cluster east, broker"

    def __init__(self) -> None:
        self.closed = False

    def next_id(self) -> int:
        return 1

    def renew_session(self) -> None:
        assert not self.closed

    def send(self, parts: object) -> None:
        assert not self.closed

    def receive(self) -> bytearray:
        raise RemoteFault("frame of 2000000000 bytes announced")

    def close(self) -> None:
        self.closed = True


def test_what_is_left_of_an_answer_that_made_no_sense_is_no_answer_to_the_next_question(dead: ClusterConfig) -> None:
    opened = [Garbled(), Garbled()]
    left = iter(opened)
    with LogReader(dead, timeout_s=0.1) as reader:
        client: Any = reader._client
        client.open = lambda address: next(left)
        client.metadata = lambda topics: ClusterMetadata("", 1, {1: ("well", 9092)}, {"t": VIEW}, frozenset())
        for index in (0, 1):
            with pytest.raises(RemoteFault, match="2000000000"):
                next(reader.batches(Partition("t", index), Offset(0), Offset(1)))
    assert [one.closed for one in opened] == [True, True]
