"""A destination as managed services have it: the data principal has rights on topics, and none on the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import yaml
from confluent_kafka.admin import AclOperation, ResourceType

from tests.support.kafka_clients import Pair, forget_user, grant, new_user


@contextmanager
def managed(pair: Pair, folder: Path, *cluster_rights: AclOperation, side: str = "west") -> Iterator[Pair]:
    """The same two clusters, and a mirrorbook.yaml whose data principal on one has these rights on the cluster."""
    cluster = pair.sandbox.cluster(side)
    user, password = new_user(cluster)
    try:
        grant(cluster, user, ResourceType.TOPIC, "*", [AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE])
        if cluster_rights:
            grant(cluster, user, ResourceType.BROKER, "kafka-cluster", cluster_rights)
        document = yaml.safe_load(pair.config_path.read_text(encoding="utf-8"))
        document["clusters"][side].setdefault("data", {}).update({"sasl.username": user, "sasl.password": password})
        path = folder / f"{user}.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        yield replace(pair, config_path=path)
    finally:
        forget_user(cluster, user)
