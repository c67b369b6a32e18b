"""Mirrorbook's own principals."""

from __future__ import annotations

from collections.abc import Set
from functools import partial

from mirror_core.kafka.acl_requests import BrokerAcls
from mirror_core.kafka.config import ANONYMOUS, ClusterConfig, Principal
from mirror_core.model.acl import Acl, Operation, Pattern
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


def list_uncertain_principals(config: ClusterConfig, acls: BrokerAcls) -> tuple[str, ...]:
    """A denial meant for an application could hit one of these."""
    is_shared = config.properties(Principal.CONTROL) == config.properties(Principal.DATA)
    principals = (Principal.CONTROL,) if is_shared else Principal
    return tuple(text for principal in principals if (text := explain_uncertainty(config, principal, acls.entries)))


def explain_uncertainty(config: ClusterConfig, principal: Principal, acls: Set[Acl]) -> str:
    """Empty when certain. ACLs that name the user confirm it if others have made them."""
    name = config.user(principal)
    if name is None:
        reason = f"the subject of the {principal} principal's certificate cannot be read from ssl.certificate.location"
    elif not config.is_user_certain(principal) and f"User:{name}" not in {acl.principal for acl in acls}:
        reason = (
            f"no access right there names User:{name}, the subject of the {principal} principal's certificate, so "
            "brokers may call it otherwise (ssl.principal.mapping.rules)"
        )
    else:
        return ""
    return (
        f"{reason}; in mirrorbook.yaml write what they call it, in the entry of {config.name}"
        f'{" under data:" if principal is Principal.DATA else ""}: `principal: "User:..."`'
    )


def explain_data_uncertainty(config: ClusterConfig, acls: Set[Acl], state: State) -> str:
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
