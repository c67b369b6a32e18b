"""Consumer groups that move between two clusters: what they have handled, and where they went on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import ConsumerGroupState

from mirror_core.model.names import Partition
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.drill.loads import PATIENCE_S, SOME
from tests.support.cluster_admin import as_admin
from tests.support.data_errors import about_data
from tests.support.group_commits import fetch_offsets
from tests.support.group_consumers import Handled
from tests.support.kafka_clients import TIMEOUT_S, admin_client
from tests.support.waiting import wait_until

PARTITIONS: Final = 2
Place = tuple[str, int, int]
"""Topic, partition, offset."""


@dataclass
class Group:
    """A consumer group of one member, and all that it has handled on the cluster where it is now."""

    name: str
    topic: str
    family: Callable[..., AbstractContextManager[None]]
    handled: Handled = field(default_factory=list)

    @property
    def partitions(self) -> list[Partition]:
        return [Partition(self.topic, index) for index in range(PARTITIONS)]

    def offsets_on(self, cluster: SandboxCluster) -> dict[Partition, int]:
        with as_admin(cluster) as client:
            return {p: int(row.offset) for p, row in fetch_offsets(client, self.name).committed.items()}

    def leaves(self, cluster: SandboxCluster) -> None:
        """Until it has no member there, not even a dead one."""
        admin = admin_client(cluster)

        def left() -> bool:
            found = admin.describe_consumer_groups([self.name])[self.name].result(TIMEOUT_S)
            return found.state in (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)

        wait_until(left, timeout_s=PATIENCE_S, why=f"{self.name} has no members on {cluster.name}")

    def works(self, before: int) -> None:
        """Until it has handled some more than so many."""

        def done() -> bool:
            return len(self.handled) > before + SOME and {i for _, i, _ in self.handled} == set(range(PARTITIONS))

        wait_until(done, timeout_s=PATIENCE_S, why=f"{self.name} handles {SOME} records more")

    def is_followed(self, cluster: SandboxCluster) -> None:
        followed = lambda: len(self.offsets_on(cluster)) == PARTITIONS  # noqa: E731
        wait_until(followed, timeout_s=PATIENCE_S, why=f"{self.name} is followed to {cluster.name}")

    @about_data()
    def assert_resumed_at(self, offsets: dict[Partition, int], there: Iterable[Place]) -> None:
        """It has handled all from there on, in order, and nothing else: `there` is what the log holds."""
        for partition in self.partitions:
            mine = [offset for _, index, offset in self.handled if index == partition.index]
            behind = sorted(
                o for t, i, o in there if (t, i) == (self.topic, partition.index) and o >= offsets[partition]
            )
            assert mine, f"{self.name}: {partition} was not resumed"
            assert mine == behind[: len(mine)], f"{self.name}: {partition} was not resumed at {offsets[partition]}"
