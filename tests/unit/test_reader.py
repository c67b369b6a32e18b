"""A cluster that is gone must not cost its time limit once for each of thousands of partitions."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.reader import PATIENCE, LogReader
from mirror_core.model.errors import Unreachable
from mirror_core.model.names import ClusterName, Offset, Partition


@pytest.fixture
def dead() -> Iterator[ClusterConfig]:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, and nobody listens: refused at once
        properties = {"bootstrap.servers": f"127.0.0.1:{closed.getsockname()[1]}"}
        yield ClusterConfig(ClusterName("east"), properties, properties)


def test_after_some_partitions_a_dead_cluster_is_not_tried_again(dead: ClusterConfig) -> None:
    with LogReader(dead, timeout_s=0.1) as reader:
        for number in range(PATIENCE):
            with pytest.raises(Unreachable, match="cannot connect"):
                next(reader.batches(Partition("t", number), Offset(0), Offset(1)))
        with pytest.raises(Unreachable, match=r"cluster east, t-9, offset 0: not tried"):
            next(reader.batches(Partition("t", 9), Offset(0), Offset(1)))
