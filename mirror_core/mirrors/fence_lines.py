"""Fences without access to the cluster: start check, commands to paste, lifting by file."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from mirror_core.model.acl import AclPurpose, LedgerEntry, Resource
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import Partition
from mirror_core.model.shell_command import option, shell_command
from mirror_core.rights.acls import EVERYBODY

IN_ONE_LINE: Final = 100
"""A shell limits the length."""


def fence_lines(
    mirror: Mirror,
    entries: Collection[LedgerEntry],
    partitions: Iterable[Partition],
    bootstrap_controller: str | None = None,
    *,
    remove: bool = False,
) -> tuple[str, ...]:
    """`kafka-acls.sh` commands; existing entries stay."""
    names: dict[Resource, set[str]] = {Resource.TOPIC: {p.topic for p in partitions}}
    for entry in entries:
        if entry.purpose is AclPurpose.FENCE and entry.cluster == mirror.source:
            names.setdefault(entry.acl.resource, set()).add(entry.acl.name)
    where = option("--bootstrap-server", "BOOTSTRAP")
    if bootstrap_controller is not None:
        where = option("--bootstrap-controller", bootstrap_controller)
    action = ["--remove", "--force"] if remove else ["--add"]
    denial = [*where, "--command-config", "ADMIN.properties", *action, "--deny-principal", EVERYBODY]
    lines = []
    for resource, kind in ((Resource.TOPIC, "--topic"), (Resource.TRANSACTIONAL_ID, "--transactional-id")):
        wanted = sorted(names.get(resource, ()))
        for start in range(0, len(wanted), IN_ONE_LINE):
            named = [word for name in wanted[start : start + IN_ONE_LINE] for word in option(kind, name)]
            lines.append(shell_command("kafka-acls.sh", *denial, "--operation", "Write", *named))
    return tuple(lines)


def lifted_by_hand(
    mirror: Mirror,
    entries: Collection[LedgerEntry],
    partitions: Iterable[Partition],
    bootstrap_controller: str | None = None,
) -> tuple[str, ...]:
    """Empty when a run has recorded the fence."""
    entered = {e.acl.name for e in entries if e.purpose is AclPurpose.FENCE and e.cluster == mirror.source}
    theirs = [p for p in partitions if p.topic not in entered]
    if not theirs:
        return ()
    return (
        f"no run has fenced {mirror.source} for mirror {mirror.name}: what these lines put up is not Mirrorbook's. A "
        "planned failover finds it there and leaves it, as its abort does: applications stay denied. These lift it:",
        *fence_lines(mirror, (), theirs, bootstrap_controller, remove=True),
    )
