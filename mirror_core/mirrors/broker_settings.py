"""Broker settings and a first ACL that would harm a mirror or its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mirror_core.decide.view import some
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.rights import broker_setting
from mirror_core.model.errors import RemoteFault

UNCLEAN: Final = "unclean.leader.election.enable"
AUTO_CREATE: Final = "auto.create.topics.enable"


def unclean_election(client: ClusterClient, brokers: Sequence[int]) -> tuple[str, ...]:
    """A topic may override it."""
    return _advice(
        client,
        brokers,
        UNCLEAN,
        "as a source, set it to false: a leader that lacks records which were copied makes its partition FAILED "
        "(diverged), and a person has to decide which side is right",
    )


def auto_creation(client: ClusterClient, brokers: Sequence[int]) -> tuple[str, ...]:
    return _advice(
        client,
        brokers,
        AUTO_CREATE,
        "as a destination, set it to false: an application that comes too early creates a topic under the name of one "
        "that is to be mirrored, which is not copied into once it holds a record",
    )


def _advice(client: ClusterClient, brokers: Sequence[int], setting: str, meaning: str) -> tuple[str, ...]:
    """Brokers that do not answer are left out: `cluster check` reports them."""
    on = list[int]()
    for broker in brokers:
        try:
            found = broker_setting(client, broker, setting)
        except RemoteFault:
            break
        if found is not None and found[0] == "true":
            on.append(broker)
    return (f"{setting} is true on broker {some(on)} of {client.name}: {meaning}",) if on else ()
