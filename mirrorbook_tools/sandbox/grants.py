"""Rights on a fresh sandbox cluster: exactly what `rights.required_acls` lists for our principals, one application.

Each sandbox cluster plays both roles in turn, so each gets the rights of a source and of a destination.
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

from mirror_core.model.acl import Acl, Operation, Pattern, Resource
from mirror_core.rights.required_acls import REQUIRED_ACLS
from mirrorbook_tools.sandbox.credentials import ADMIN, APP, CONTROL, DATA, read_passwords, scram_config

APP_HOME = "east"
APP_PREFIXES = ("app-", "orders")
TIMEOUT_S = 15.0


def baseline(cluster: str) -> Iterator[AclBinding]:
    users = {"control": CONTROL, "data": DATA}
    needed = dict.fromkeys(need.to_acl(f"User:{users[need.principal]}") for need in REQUIRED_ACLS)
    yield from (_binding(acl) for acl in needed)

    if cluster == APP_HOME:  # on the other side it gets its grants when Mirrorbook promotes what it mirrored
        for prefix in APP_PREFIXES:
            for operation in (Operation.READ, Operation.WRITE, Operation.DESCRIBE):
                yield _binding(_of_app(Resource.TOPIC, prefix, operation))
            yield _binding(_of_app(Resource.GROUP, prefix, Operation.READ))


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


def _binding(acl: Acl) -> AclBinding:
    kind = ResourceType.BROKER if acl.resource is Resource.CLUSTER else ResourceType[acl.resource]
    pattern, permission = ResourcePatternType[acl.pattern], AclPermissionType[acl.permission]
    operation = AclOperation[acl.operation]
    return AclBinding(kind, acl.name, pattern, acl.principal, acl.host, operation, permission)


def _of_app(resource: Resource, prefix: str, operation: Operation) -> Acl:
    return Acl(resource=resource, name=prefix, pattern=Pattern.PREFIXED, principal=f"User:{APP}", operation=operation)


if __name__ == "__main__":
    main(Path(sys.argv[1]), dict(argument.split("=", 1) for argument in sys.argv[2:]))
