from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from mirror_core.model.acl import Acl, Operation, Pattern, Permission, Resource
from mirror_core.model.shell_command import format_option, format_shell_command

_RESOURCE_OPTIONS: Final[Mapping[Resource, str]] = MappingProxyType(
    {
        Resource.TOPIC: "--topic",
        Resource.GROUP: "--group",
        Resource.TRANSACTIONAL_ID: "--transactional-id",
        Resource.DELEGATION_TOKEN: "--delegation-token",
        Resource.USER: "--user-principal",
    }
)


def format_acl_command(acl: Acl, *, bootstrap: str = "BOOTSTRAP", remove: bool = False) -> str:
    side = "allow" if acl.permission is Permission.ALLOW else "deny"
    arguments = [*format_option("--bootstrap-server", bootstrap), "--remove" if remove else "--add"]
    arguments += [*format_option(f"--{side}-principal", acl.principal), "--operation", _format_operation(acl.operation)]
    if acl.resource is Resource.CLUSTER:
        arguments.append("--cluster")
    else:
        arguments += format_option(_RESOURCE_OPTIONS[acl.resource], acl.name)
    if acl.pattern is Pattern.PREFIXED:
        arguments += ["--resource-pattern-type", "prefixed"]
    if acl.host != "*":
        arguments += format_option(f"--{side}-host", acl.host)
    return format_shell_command("kafka-acls.sh", *arguments)


def _format_operation(operation: Operation) -> str:
    return "".join(part.capitalize() for part in operation.split("_"))
