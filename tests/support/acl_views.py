"""Acl views, shared by tests."""

from __future__ import annotations

from hypothesis import strategies as st

from mirror_core.decide.acl_plan import (
    AclPlan,
    AclScope,
    plan_acls,
)
from mirror_core.decide.filters import build_acl_filter, build_group_filter
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Operation, Pattern, Permission, Resource
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.rights.acl_rules import (
    EVERYBODY,
)

MIRROR = MirrorName("m")

WEST = ClusterName("west")

TOPICS = ("orders-1", "orders-2", "bills")

GROUPS = ("orders-app", "bills-app")


def make_mirror(
    principals: tuple[str, ...] = (".*",),
    exclude_principals: tuple[str, ...] = (),
    exclude_rights: tuple[str, ...] = (),
) -> Mirror:
    return Mirror(
        name=MIRROR,
        source=ClusterName("east"),
        destination=WEST,
        source_id="e",
        destination_id="w",
        topics=(".*",),
        groups=("orders.*",),
        principals=principals,
        exclude_principals=exclude_principals,
        exclude_rights=exclude_rights,
        producer_id=1 << 62,
        desired=DesiredState.STARTED,
        created_ms=0,
    )


def scope(
    topics: tuple[str, ...] = TOPICS,
    own_acls: frozenset[Acl] = frozenset(),
    *,
    principals: tuple[str, ...] = (".*",),
    exclude_principals: tuple[str, ...] = (),
    exclude_rights: tuple[str, ...] = (),
) -> AclScope:
    mirror = make_mirror(principals, exclude_principals, exclude_rights)
    return AclScope(
        topics=topics,
        groups=GROUPS,
        group_filter=build_group_filter(mirror),
        acl_filter=build_acl_filter(mirror, topics, GROUPS),
        own_principals=frozenset({"User:mirror-control", "User:mirror-data"}),
        own_acls=own_acls,
    )


def acl(
    operation: Operation,
    name: str = "orders-1",
    principal: str = "User:app",
    *,
    resource: Resource = Resource.TOPIC,
    pattern: Pattern = Pattern.LITERAL,
    permission: Permission = Permission.ALLOW,
) -> Acl:
    return Acl(
        resource=resource,
        name=name,
        pattern=pattern,
        principal=principal,
        operation=operation,
        permission=permission,
    )


def entry(of: Acl, purpose: AclPurpose = AclPurpose.COPIED, mirror: MirrorName = MIRROR) -> LedgerEntry:
    return LedgerEntry(mirror=mirror, cluster=WEST, acl=of, purpose=purpose)


def plan(
    source: set[Acl],
    destination: set[Acl],
    ledger: tuple[LedgerEntry, ...] = (),
    others: tuple[LedgerEntry, ...] = (),
    of: AclScope | None = None,
) -> AclPlan:
    return plan_acls(source, destination, of or scope(), ledger, others)


READ, WRITE, ALL = acl(Operation.READ), acl(Operation.WRITE), acl(Operation.ALL)

principals = st.sampled_from(["User:a", "User:b", EVERYBODY, "User:mirror-data"])

acls = st.builds(
    Acl,
    resource=st.sampled_from(Resource),
    name=st.sampled_from(["orders-1", "orders", "*", "bills", "zzz", "m", "mirrorbook.", "__m", "User:a"]),
    pattern=st.sampled_from(Pattern),
    principal=principals,
    host=st.sampled_from(["*", "10.0.0.1"]),
    operation=st.sampled_from(Operation),
    permission=st.sampled_from(Permission),
)
