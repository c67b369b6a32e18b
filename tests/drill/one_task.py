"""One copying task in a thread of the test, without a driver: what it says is all there is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from mirror_core.copy.partition_progress import SEQUENCE_VALID_S
from mirror_core.copy.partition_states import CopyState
from mirror_core.copy.task import CopyTask, is_awaiting_remote_storage
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Principal
from mirror_core.model.names import Offset, Partition
from mirror_core.model.task_messages import Assignment, PartitionAssignment, TaskReport
from tests.support.checked_threads import Work
from tests.support.kafka_clients import TIMEOUT_S
from tests.support.mirrored_topics import Mirrored

ENOUGH = 5


class OneTask:
    """At work until its report is asked for, or until it has nothing left to do."""

    def __init__(self, mirrored: Mirrored, partitions: Sequence[Partition], until: Mapping[Partition, int]) -> None:
        self._stop = threading.Event()
        mirror, statuses, now_ms = mirrored.link.mirror, mirrored.statuses, int(time.time() * 1000)
        assignment = Assignment(
            mirror=mirror.name,
            source=mirror.source,
            destination=mirror.destination,
            config_path=str(mirrored.config.path),
            producer_id=mirror.producer_id,
            partitions=tuple(
                PartitionAssignment(
                    partition=partition,
                    source_topic_id=statuses[partition].source_topic_id,
                    destination_topic_id=statuses[partition].destination_topic_id,
                    stop_offset=Offset(until[partition]) if partition in until else None,
                    source_epoch=statuses[partition].source_epoch,
                )
                for partition in partitions
            ),
            epoch=1,
            task=0,
            start_ms=now_ms,
            stop_ms=now_ms + 600_000,
        )
        self._source = ClusterClient(mirrored.link.source, Principal.DATA)
        self._destination = ClusterClient(mirrored.link.destination, Principal.DATA)
        self._task = CopyTask(assignment, self._source, self._destination, self._stop.is_set)
        self.most_under_way = 0
        """Fetch requests without an answer, at most at a time."""
        ask = self._task.fetcher.send_fetches

        def asking(now: float) -> None:
            ask(now)
            self.most_under_way = max(self.most_under_way, len(self._task.fetcher.pending_links))

        self._task.fetcher.send_fetches = asking  # type: ignore[method-assign]
        self._report = Work(self._task.run, "copying task").start()

    def waits(self, partition: Partition) -> bool:
        """Whether it has looked for the partition's place again and again, and cannot go on."""
        replicator = self._task.replicators_by_partition[partition]
        return replicator.state is CopyState.LOST and replicator.loss_count >= ENOUGH

    def awaits_remote(self, partition: Partition) -> bool:
        """Whether remote storage of the source has given it nothing again and again."""
        return is_awaiting_remote_storage(self._task.replicators_by_partition[partition])

    def copies(self, partition: Partition) -> bool:
        """Whether it has copied something of it."""
        return self._task.replicators_by_partition[partition].records > 0

    def rests(self, partition: Partition) -> bool:
        """Whether it has had nothing to write for so long that the destination may have forgotten it."""
        place = self._task.replicators_by_partition[partition].progress
        return not place.in_flight and time.monotonic() - place.producer_known_at > SEQUENCE_VALID_S

    @property
    def asked(self) -> int:
        """Fetch requests so far, while its connections last."""
        return sum(link.request_count for lanes in list(self._task.fetcher.links.values()) for link in lanes.links)

    def ends(self) -> TaskReport:
        """Of itself: when every partition is FAILED or where it should be."""
        return self._report.result(TIMEOUT_S)

    def ended(self) -> TaskReport:
        """At once, as at an epoch's end."""
        self._stop.set()
        return self.ends()

    def close(self) -> None:
        """Raises what the task has raised, if nobody has asked for its report."""
        self._stop.set()
        try:
            self._report.join(TIMEOUT_S)
        finally:
            self._task.close()
            self._source.close()
            self._destination.close()


@contextmanager
def one_task(
    mirrored: Mirrored, partitions: Sequence[Partition], until: Mapping[Partition, int] | None = None
) -> Iterator[OneTask]:
    task = OneTask(mirrored, partitions, until or {})
    try:
        yield task
    finally:
        task.close()
