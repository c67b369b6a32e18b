"""Broker settings and a first ACL that would harm a mirror or its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mirror_core.decide.view import join_limited
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.rights import fetch_broker_setting
from mirror_core.model.errors import RemoteFault

UNCLEAN_ELECTION_KEY: Final = "unclean.leader.election.enable"
AUTO_CREATE_KEY: Final = "auto.create.topics.enable"


def check_unclean_election(client: ClusterClient, brokers: Sequence[int]) -> tuple[str, ...]:
    """A topic may override it."""
    return _advise_if_true(
        client,
        brokers,
        UNCLEAN_ELECTION_KEY,
        "as a source, set it to false: a leader that lacks records which were copied makes its partition FAILED "
        "(diverged), and a person has to decide which side is right",
    )


def check_auto_creation(client: ClusterClient, brokers: Sequence[int]) -> tuple[str, ...]:
    return _advise_if_true(
        client,
        brokers,
        AUTO_CREATE_KEY,
        "as a destination, set it to false: an application that comes too early creates a topic under the name of one "
        "that is to be mirrored, which is not copied into once it holds a record",
    )


def _advise_if_true(client: ClusterClient, brokers: Sequence[int], setting: str, meaning: str) -> tuple[str, ...]:
    """Brokers that do not answer are left out: `cluster check` reports them."""
    enabled_on = list[int]()
    for broker in brokers:
        try:
            value = fetch_broker_setting(client, broker, setting)
        except RemoteFault:
            break
        if value is not None and value[0] == "true":
            enabled_on.append(broker)
    return (
        (f"{setting} is true on broker {join_limited(enabled_on)} of {client.name}: {meaning}",) if enabled_on else ()
    )
