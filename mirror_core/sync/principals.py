from __future__ import annotations

from collections.abc import Set
from functools import partial

from mirror_core.kafka.acl_requests import BrokerAcls
from mirror_core.kafka.config import ANONYMOUS, ClusterConfig, Principal
from mirror_core.model.acl import Acl, Operation, Pattern
from mirror_core.model.findings import Finding
from mirror_core.rights.acl_rules import OWN_TOPIC_PREFIX, build_denial
from mirror_core.rights.first_acl import UNKNOWN_USER
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import State


def format_principal(config: ClusterConfig, principal: Principal) -> str:
    user = config.user(principal)
    return f"User:{user}" if user else UNKNOWN_USER


def list_own_principals(link: MirrorLink) -> frozenset[str]:
    users = {cluster.user(principal) for cluster in (link.source, link.destination) for principal in Principal}
    return frozenset(f"User:{user}" for user in users if user)


def list_uncertain_principals(config: ClusterConfig, acls: BrokerAcls) -> tuple[Finding, ...]:
    """A denial meant for an application could hit one of these."""
    is_shared = config.properties(Principal.CONTROL) == config.properties(Principal.DATA)
    principals = (Principal.CONTROL,) if is_shared else Principal
    doubts = (explain_uncertainty(config, principal, acls.entries) for principal in principals)
    return tuple(doubt for doubt in doubts if doubt is not None)


def explain_uncertainty(config: ClusterConfig, principal: Principal, acls: Set[Acl]) -> Finding | None:
    """None when certain. ACLs that name the user confirm it if others have made them."""
    name, is_data = config.user(principal), principal is Principal.DATA
    if name is None:
        return Finding("principal_unreadable", config.name, principal=principal, is_data=is_data)
    if not config.is_user_certain(principal) and f"User:{name}" not in {acl.principal for acl in acls}:
        return Finding("principal_unconfirmed", config.name, principal=principal, is_data=is_data, user=f"User:{name}")
    return None


def explain_data_uncertainty(config: ClusterConfig, acls: Set[Acl], state: State) -> Finding | None:
    """Our own entries confirm nothing."""
    ledger_acls = {entry.acl for entry in state.ledger.values() if entry.cluster == config.name}
    return explain_uncertainty(config, Principal.DATA, acls - ledger_acls)


def build_guards(config: ClusterConfig) -> frozenset[Acl]:
    """A writer of the state topic would decide what promotion grants."""
    data_user = config.user(Principal.DATA)
    if data_user in (None, ANONYMOUS, config.user(Principal.CONTROL)):
        return frozenset()
    build_guard = partial(build_denial, OWN_TOPIC_PREFIX, f"User:{data_user}", pattern=Pattern.PREFIXED)
    return frozenset(build_guard(operation=operation) for operation in (Operation.WRITE, Operation.DELETE))
