"""Exactly the rights that are listed for Mirrorbook's principals, shared by tests."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from mirror_core.kafka.acl_requests import delete_acls, wait_until_acls_absent
from mirror_core.model.acl import Acl, Permission
from mirror_core.rights.required_acls import REQUIRED_ACLS, ClusterRole, RequiredAcl
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from mirrorbook_tools.sandbox.credentials import CONTROL, DATA
from tests.support.cluster_admin import as_admin, rights_of

USERS: Final = {"control": f"User:{CONTROL}", "data": f"User:{DATA}"}
ALLOWED: Final = tuple(need for need in REQUIRED_ACLS if need.permission is Permission.ALLOW)


def listed(roles: Collection[ClusterRole], without: RequiredAcl | None = None) -> frozenset[Acl]:
    """What a cluster that plays these roles grants."""
    return frozenset(need.to_acl(USERS[need.principal]) for need in ALLOWED if need.role in roles and need != without)


def granted(cluster: SandboxCluster) -> frozenset[Acl]:
    """To Mirrorbook's principals."""
    own = USERS.values()
    return frozenset(a for a in rights_of(cluster) if a.principal in own and a.permission is Permission.ALLOW)


def keep_only(cluster: SandboxCluster, wanted: frozenset[Acl]) -> None:
    """All else that Mirrorbook's principals may do there is taken away; the fixture `rights` gives it back."""
    superfluous = granted(cluster) - wanted
    if superfluous:
        with as_admin(cluster) as client:
            delete_acls(client, superfluous)
            wait_until_acls_absent(client, superfluous)
    assert granted(cluster) == wanted
