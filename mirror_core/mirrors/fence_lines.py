"""Fences without access to the cluster: start check, commands to paste, lifting by file."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from mirror_core.model.acl import AclPurpose, LedgerEntry, Resource
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import Partition
from mirror_core.model.shell_command import format_option, format_shell_command
from mirror_core.rights.acls import EVERYBODY

MAX_NAMES_PER_LINE: Final = 100
"""A shell limits the length."""


def format_fence_commands(
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
    bootstrap_option = format_option("--bootstrap-server", "BOOTSTRAP")
    if bootstrap_controller is not None:
        bootstrap_option = format_option("--bootstrap-controller", bootstrap_controller)
    action = ["--remove", "--force"] if remove else ["--add"]
    denial = [*bootstrap_option, "--command-config", "ADMIN.properties", *action, "--deny-principal", EVERYBODY]
    lines = []
    for resource, kind in ((Resource.TOPIC, "--topic"), (Resource.TRANSACTIONAL_ID, "--transactional-id")):
        names_of_resource = sorted(names.get(resource, ()))
        for start in range(0, len(names_of_resource), MAX_NAMES_PER_LINE):
            name_options = [
                word
                for name in names_of_resource[start : start + MAX_NAMES_PER_LINE]
                for word in format_option(kind, name)
            ]
            lines.append(format_shell_command("kafka-acls.sh", *denial, "--operation", "Write", *name_options))
    return tuple(lines)


def format_manual_lift(
    mirror: Mirror,
    entries: Collection[LedgerEntry],
    partitions: Iterable[Partition],
    bootstrap_controller: str | None = None,
) -> tuple[str, ...]:
    """Empty when a run has recorded the fence."""
    fenced = {e.acl.name for e in entries if e.purpose is AclPurpose.FENCE and e.cluster == mirror.source}
    unfenced = [p for p in partitions if p.topic not in fenced]
    if not unfenced:
        return ()
    return (
        f"no run has fenced {mirror.source} for mirror {mirror.name}: what these lines put up is not Mirrorbook's. A "
        "planned failover finds it there and leaves it, as its abort does: applications stay denied. These lift it:",
        *format_fence_commands(mirror, (), unfenced, bootstrap_controller, remove=True),
    )
