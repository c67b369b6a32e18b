"""A source of two brokers most of whose partitions give nothing; its brokers answer when they are told to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

from mirror_core.copy.batch_fetcher import BatchFetcher
from mirror_core.copy.fetch_links import FetchLinks
from mirror_core.copy.messages import ClusterSide
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.partition_states import CopyState
from mirror_core.copy.response_errors import handle_produce_response
from mirror_core.copy.task import _is_idle
from mirror_core.decide.gaps_and_resume import ResumePoint
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.fetch_link import FetchLink
from mirror_core.model.names import ClusterName, Partition
from mirror_core.model.task_messages import PartitionAssignment
from mirror_core.wire import fetch
from mirror_core.wire.produce import ProducedPartition
from tests.support.fetch_links import NEAR_S, Wire
from tests.support.source_batches import batch
from tests.support.task_assignments import assignment
from tests.support.waiting import wait_until

BROKERS = (1, 2)
PARTITIONS = 12
SIDE = ClusterSide(ClusterName("west"), "data")


class Link:
    """To a broker that answers when it is told to."""

    throttle_ms, overdue_s, has_more = 0, 0.0, False
    room_bytes = 1 << 20

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.named: dict[Partition, int] = {}
        self.pending, self.request_count, self.max_bytes = False, 0, 0
        self.max_wait_ms = 0
        self.rows: list[fetch.FetchedPartition] = []

    def send_fetch(
        self, wanted: list[fetch.FetchPosition], *, max_wait_ms: int, isolation: fetch.IsolationLevel
    ) -> None:
        assert not self.pending
        assert len({one.partition for one in wanted}) == len(wanted) > 0
        self.named, self.max_wait_ms = {one.partition: one.offset for one in wanted}, max_wait_ms
        self.pending, self.request_count = True, self.request_count + 1

    def set_limits(self, max_bytes: int, partition_max_bytes: int) -> None:
        self.max_bytes = max_bytes

    @property
    def is_single_partition(self) -> bool:
        return len(self.named) == 1

    @property
    def in_flight_partitions(self) -> list[Partition]:
        return list(self.named) if self.pending else []

    def receive_response(self) -> bool:
        return True

    def read_response(self) -> Iterator[fetch.FetchedPartition]:
        self.pending = False
        yield from self.rows


class World:
    """A source of two brokers, and a destination that takes everything."""

    def __init__(self) -> None:
        self.names = [Partition("t", index) for index in range(PARTITIONS)]
        self.ends = dict.fromkeys(self.names, 0)
        self.awake = set[PartitionReplicator]()
        self.of = {
            name: PartitionReplicator(
                PartitionAssignment(partition=name, source_topic_id="", destination_topic_id=""), active=self.awake
            )
            for name in self.names
        }
        east = cast("ClusterClient", SimpleNamespace(name="east", config=None, principal=None))
        self.receiver = BatchFetcher(
            assignment(), east, self.of, lambda broker: Wire(NEAR_S), lambda broker: True, self.awake, time.time
        )
        self.receiver._make_link = lambda connection, is_far: cast("FetchLink", Link(connection))  # type: ignore[method-assign]
        for number, name in enumerate(self.names):
            self.placed(name, BROKERS[number % 2])
        self.turn()

    def turn(self) -> None:
        self.receiver.send_fetches(time.time())
        self.awake -= {one for one in self.awake if _is_idle(one)}
        wait_until(lambda: not any(lanes._attempts for lanes in self._lanes()), timeout_s=10, why="it connects")

    def _lanes(self) -> list[FetchLinks]:
        """All, with the connections that are made by now."""
        for lanes in self.receiver.links.values():
            lanes.get_free_links()
        return list(self.receiver.links.values())

    def placed(self, name: Partition, broker: int) -> None:
        """Its place is found anew, led by this broker."""
        one = self.of[name]
        if one.is_ended:
            return
        at, sequence = one.progress.acknowledged, one.progress.acknowledged_sequence
        one.progress.clear_in_flight()
        one.mark_lost("looked for anew")
        one.set_leaders(broker, 1, 1)
        one.resume_at(ResumePoint(offset=at, sequence=sequence, gap_end=at, seed_end=at, must_check_tail=False))
        one.progress.producer_known_at -= 20  # its next batch goes alone, and its answer is waited for

    def link(self, broker: int, *, calm: bool) -> Link | None:
        lanes = self.receiver.links.get(broker)
        found = None if lanes is None else lanes.idle_link if calm else lanes.links[0]
        return cast("Link | None", found)

    def answer(self, link: Link | None) -> None:
        """What there is of whom it was asked for; each batch is acknowledged at once."""
        if link is None or not link.pending:
            return
        link.rows = []
        for name, offset in link.named.items():
            end = self.ends[name]
            records = batch(offset, end - offset) if end > offset else b""
            link.rows.append(fetch.FetchedPartition(name, 0, end, end, 0, (), memoryview(bytearray(records))))
        for one, ready in self.receiver.receive(cast("FetchLink", link)):
            for sent, _ in ready:
                one.progress.add_in_flight(time.monotonic())
                handle_produce_response(
                    one, sent, ProducedPartition("t", one.partition.index, 0, sent.base_offset, ""), SIDE
                )

    def round(self) -> None:
        for calm in (False, True):
            for broker in BROKERS:
                self.answer(self.link(broker, calm=calm))
                self.turn()

    def hangs_up(self, broker: int) -> None:
        self.receiver.disconnect(broker, "it hung up")
        for name, one in self.of.items():
            if one.source_broker == broker and one.state is CopyState.LOST:
                self.placed(name, broker)

    def behind(self) -> list[Partition]:
        return [
            name for name, one in self.of.items() if not one.is_ended and one.progress.acknowledged < self.ends[name]
        ]

    def close(self) -> None:
        self.receiver.close()
