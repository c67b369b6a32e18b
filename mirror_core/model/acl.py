"""Kafka ACL entries, and the ledger of those that Mirrorbook made."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mirror_core.model.names import ClusterName, MirrorName


class Resource(StrEnum):
    TOPIC = "TOPIC"
    GROUP = "GROUP"
    CLUSTER = "CLUSTER"
    TRANSACTIONAL_ID = "TRANSACTIONAL_ID"
    DELEGATION_TOKEN = "DELEGATION_TOKEN"
    USER = "USER"


class Pattern(StrEnum):
    LITERAL = "LITERAL"
    PREFIXED = "PREFIXED"


class Operation(StrEnum):
    ALL = "ALL"
    READ = "READ"
    WRITE = "WRITE"
    CREATE = "CREATE"
    DELETE = "DELETE"
    ALTER = "ALTER"
    DESCRIBE = "DESCRIBE"
    CLUSTER_ACTION = "CLUSTER_ACTION"
    DESCRIBE_CONFIGS = "DESCRIBE_CONFIGS"
    ALTER_CONFIGS = "ALTER_CONFIGS"
    IDEMPOTENT_WRITE = "IDEMPOTENT_WRITE"
    CREATE_TOKENS = "CREATE_TOKENS"
    DESCRIBE_TOKENS = "DESCRIBE_TOKENS"
    TWO_PHASE_COMMIT = "TWO_PHASE_COMMIT"


class Permission(StrEnum):
    ALLOW = "ALLOW"
    DENY = "DENY"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Acl:
    resource: Resource
    name: str
    pattern: Pattern = Pattern.LITERAL
    principal: str
    host: str = "*"
    operation: Operation
    permission: Permission = Permission.ALLOW

    def __str__(self) -> str:
        return (
            f"{self.permission} {self.operation} on {self.resource} {self.pattern.lower()} {self.name!r} "
            f"for {self.principal} from {self.host}"
        )


class AclPurpose(StrEnum):
    COPIED = "COPIED"
    STAGED = "STAGED"
    """Created at promotion."""
    PROMOTED = "PROMOTED"
    FENCE = "FENCE"
    """DENY on the source; stops writers during and after a failover."""
    DEMOTED = "DEMOTED"
    """DENY for one principal on a former primary."""
    WITHDRAWN = "WITHDRAWN"
    """Was DEMOTED; the source withdrew the right since, so the DENY stays at promotion."""


LIFTABLE_PURPOSES: Final = frozenset({AclPurpose.FENCE, AclPurpose.DEMOTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """Mirrorbook changes or deletes only ACLs of this ledger."""

    mirror: MirrorName
    cluster: ClusterName
    acl: Acl
    purpose: AclPurpose


@dataclass(frozen=True, slots=True, kw_only=True)
class LiftedDenial:
    """If it appears again, a paused process or another tool made it."""

    entry: LedgerEntry
    run: str = ""
    """It held the mirror or the fence. Empty: unknown."""

    def __post_init__(self) -> None:
        if self.entry.purpose not in LIFTABLE_PURPOSES:
            raise ValueError(f"{self.entry}: Mirrorbook lifts fences and demotions only")
