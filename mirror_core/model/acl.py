"""Access control entries, as Kafka's StandardAuthorizer keeps them."""

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
    """One binding: who may (not) do what, on which resource."""

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
    """Why Mirrorbook knows of an access control entry."""

    COPIED = "COPIED"
    """Created by the sync on the destination."""
    STAGED = "STAGED"
    """Not created yet: a right to change mirror topics, to be created at promotion."""
    PROMOTED = "PROMOTED"
    """Was staged, created at promotion."""
    FENCE = "FENCE"
    """DENY on the source that keeps everybody from writing during and after a failover."""
    DEMOTED = "DEMOTED"
    """DENY for one application principal on a cluster that was primary and is now a mirror's destination."""
    WITHDRAWN = "WITHDRAWN"
    """Was DEMOTED. The source has withdrawn the right since, so the DENY stays at promotion."""


LIFTABLE: Final = frozenset({AclPurpose.FENCE, AclPurpose.DEMOTED})
"""What mirrors deny on a cluster, and take away again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """Provenance of one entry: only what is in the ledger is ever changed or deleted by us."""

    mirror: MirrorName
    cluster: ClusterName
    acl: Acl
    purpose: AclPurpose


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifted:
    """A denial of ours that was taken away. If it stands again, a process that slept meanwhile has put it up, or
    somebody else has."""

    entry: LedgerEntry
    run: str = ""
    """That held the mirror then, or whose fence was owed; empty: it is not known."""

    def __post_init__(self) -> None:
        if self.entry.purpose not in LIFTABLE:
            raise ValueError(f"{self.entry}: Mirrorbook lifts fences and demotions only")
