"""Sizes of logs, by DescribeLogDirs."""

from __future__ import annotations

from collections.abc import Iterable

from kio.schema.describe_log_dirs.v1.request import DescribableLogDirTopic, DescribeLogDirsRequest
from kio.schema.describe_log_dirs.v1.response import DescribeLogDirsResponse
from kio.schema.types import TopicName
from kio.static.primitive import i32

from mirror_core.kafka.client import ClusterClient
from mirror_core.model.names import Partition


def fetch_log_sizes(client: ClusterClient, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Of the largest replica. Needs DESCRIBE on the cluster; unknown ones are left out."""
    topics: dict[str, list[i32]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(i32(partition.index))
    request = DescribeLogDirsRequest(
        topics=tuple(DescribableLogDirTopic(topic=TopicName(t), partitions=tuple(rows)) for t, rows in topics.items())
    )
    sizes: dict[Partition, int] = {}
    for broker in client.brokers() if topics else ():
        for log_dir in client.call(request, DescribeLogDirsResponse, broker).results:
            for topic in log_dir.topics:
                for row in topic.partitions:
                    partition = Partition(str(topic.name), int(row.partition_index))
                    if not row.is_future_key:
                        sizes[partition] = max(sizes.get(partition, 0), int(row.partition_size))
    return sizes
