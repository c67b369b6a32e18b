"""Mirrors for tests of single parts: created by the product's verb, with partitions recorded as the data plane does."""

from __future__ import annotations

import secrets
from collections.abc import Collection

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import load_config
from mirror_core.mirrors.mirror_creation import create_mirror
from mirror_core.model.mirror import PartitionState, PartitionStatus
from mirror_core.model.names import Partition
from mirror_core.state.mirror_link import MirrorLink, make_mirror_link
from mirror_core.state.state_records import PartitionRecord
from mirror_core.state.writer import StateWriter, make_control_id
from tests.support.kafka_clients import Pair


def new_link(
    pair: Pair, *topics: str, source: str = "east", destination: str = "west", groups: tuple[str, ...] = ()
) -> MirrorLink:
    """A mirror of these topics (regular expressions), created but not started."""
    config, name = load_config(pair.config_path), "m-" + secrets.token_hex(4)
    mirror = create_mirror(
        config, name, source=source, destination=destination, topics=topics, groups=groups or ("none",)
    )
    return make_mirror_link(config, mirror)


def writer_of(link: MirrorLink) -> StateWriter:
    return StateWriter(link.destination, make_control_id(link.mirror.name))


def record(link: MirrorLink, topics: Collection[str], state: PartitionState = PartitionState.MIRRORING) -> None:
    """Note these topics' partitions as the mirror's, with the ids that both clusters now give them."""
    with (
        ClusterClient(link.source) as source,
        ClusterClient(link.destination) as destination,
        writer_of(link) as writer,
    ):
        theirs, ours = source.metadata(topics).topics, destination.metadata(topics).topics
        writer.put(
            *(
                PartitionRecord(
                    link.mirror.name,
                    PartitionStatus(
                        partition=Partition(topic, index),
                        state=state,
                        source_topic_id=theirs[topic].id,
                        destination_topic_id=ours[topic].id,
                    ),
                )
                for topic in topics
                for index in ours[topic].partitions
            )
        )
