"""Who may do what on a fresh sandbox cluster: the least that Mirrorbook's two principals need, and one application.

Each sandbox cluster plays both roles in turn, so each gets the rights of a source and of a destination. The list was
found by trying every API with nothing, with each single ACL, and with pairs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from mirror_core.sandbox.credentials import ADMIN, APP, CONTROL, DATA, read_passwords, scram_config

APP_HOME = "east"
APP_PREFIXES = ("app-", "orders")
JOURNAL_PREFIX = "mirrorbook."
OUR_TOPICS = "__mirrorbook"
CLUSTER_NAME = "kafka-cluster"  # the one name that Kafka knows for the resource "cluster"
TIMEOUT_S = 15.0


def baseline(cluster: str) -> Iterator[AclBinding]:
    op = AclOperation
    any_topic, any_group = (ResourceType.TOPIC, "*"), (ResourceType.GROUP, "*")
    this_cluster = (ResourceType.BROKER, CLUSTER_NAME)

    yield from _allow(DATA, any_topic, op.READ, op.WRITE, op.DELETE)
    for operation in (op.WRITE, op.DELETE):
        yield _entry(DATA, (ResourceType.TOPIC, OUR_TOPICS), operation, AclPermissionType.DENY, prefixed=True)
    yield from _allow(DATA, any_group, op.READ)
    # Enough for WriteTxnMarkers; ALTER would do as well, but whoever holds it can rewrite all ACLs.
    yield from _allow(DATA, this_cluster, op.CLUSTER_ACTION)

    yield from _allow(CONTROL, any_topic, op.READ, op.WRITE, op.CREATE, op.ALTER, op.DELETE)
    yield from _allow(CONTROL, any_topic, op.DESCRIBE_CONFIGS, op.ALTER_CONFIGS)
    yield from _allow(CONTROL, any_group, op.DESCRIBE, op.READ, op.DELETE, op.DESCRIBE_CONFIGS, op.ALTER_CONFIGS)
    yield from _allow(CONTROL, this_cluster, op.DESCRIBE, op.DESCRIBE_CONFIGS, op.ALTER, op.ALTER_CONFIGS)
    yield from _allow(CONTROL, (ResourceType.TRANSACTIONAL_ID, "*"), op.DESCRIBE)
    yield from _allow(CONTROL, (ResourceType.TRANSACTIONAL_ID, JOURNAL_PREFIX), op.WRITE, prefixed=True)

    if cluster == APP_HOME:  # on the other side it gets its grants when Mirrorbook promotes what it mirrored
        for prefix in APP_PREFIXES:
            yield from _allow(APP, (ResourceType.TOPIC, prefix), op.READ, op.WRITE, op.DESCRIBE, prefixed=True)
            yield from _allow(APP, (ResourceType.GROUP, prefix), op.READ, prefixed=True)


def put(admin: AdminClient, bindings: Iterator[AclBinding]) -> None:
    """Create these ACLs; those that exist already stay as they are."""
    # The futures must be held until all are done: librdkafka drops requests whose futures were collected.
    futures = admin.create_acls(list(bindings), request_timeout=TIMEOUT_S)
    for future in futures.values():
        future.result(TIMEOUT_S)


def main(passwords: Path, clusters: Mapping[str, str]) -> None:
    """For clusters that somebody else starts (docker-compose): name -> bootstrap servers."""
    for name, bootstrap in clusters.items():
        admin = AdminClient({**scram_config(bootstrap, ADMIN, read_passwords(passwords, (ADMIN,))[ADMIN])})
        put(admin, baseline(name))


def _allow(
    user: str, resource: tuple[ResourceType, str], *operations: AclOperation, prefixed: bool = False
) -> Iterator[AclBinding]:
    for operation in operations:
        yield _entry(user, resource, operation, AclPermissionType.ALLOW, prefixed=prefixed)


def _entry(
    user: str,
    resource: tuple[ResourceType, str],
    operation: AclOperation,
    permission: AclPermissionType,
    *,
    prefixed: bool,
) -> AclBinding:
    kind, name = resource
    pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, permission)


if __name__ == "__main__":
    main(Path(sys.argv[1]), dict(argument.split("=", 1) for argument in sys.argv[2:]))
