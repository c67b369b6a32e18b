"""The fence as lines to paste: for a site that only others reach, or whose brokers must not start without it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from shlex import quote
from typing import Final

from mirror_core.decide.acls import EVERYBODY
from mirror_core.model.acl import AclPurpose, LedgerEntry, Resource
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import Partition

IN_ONE_LINE: Final = 100
"""Names: each line starts a Java, and none may grow longer than a shell takes."""


def fence_lines(
    mirror: Mirror,
    entries: Collection[LedgerEntry],
    partitions: Iterable[Partition],
    bootstrap_controller: str | None = None,
) -> tuple[str, ...]:
    """The fence of a mirror's source as lines of Kafka's own tool; entries that exist stay as they are."""
    names: dict[Resource, set[str]] = {Resource.TOPIC: {p.topic for p in partitions}}
    for entry in entries:
        if entry.purpose is AclPurpose.FENCE and entry.cluster == mirror.source:
            names.setdefault(entry.acl.resource, set()).add(entry.acl.name)
    where = "--bootstrap-server BOOTSTRAP"
    if bootstrap_controller is not None:
        where = f"--bootstrap-controller {quote(bootstrap_controller)}"
    words = f"kafka-acls.sh {where} --command-config ADMIN.properties --add --deny-principal '{EVERYBODY}'"
    lines = []
    for resource, option in ((Resource.TOPIC, "--topic"), (Resource.TRANSACTIONAL_ID, "--transactional-id")):
        wanted = sorted(names.get(resource, ()))
        for start in range(0, len(wanted), IN_ONE_LINE):
            named = " ".join(f"{option} {quote(name)}" for name in wanted[start : start + IN_ONE_LINE])
            lines.append(f"{words} --operation Write {named}")
    return tuple(lines)
