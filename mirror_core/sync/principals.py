"""Mirrorbook's own principals."""

from __future__ import annotations

from collections.abc import Set
from functools import partial

from mirror_core.kafka.acls import Acls
from mirror_core.kafka.config import ANONYMOUS, ClusterConfig, Principal
from mirror_core.model.acl import Acl, Operation, Pattern
from mirror_core.rights.acls import OUR_TOPICS, denial
from mirror_core.rights.first_acl import NAMELESS
from mirror_core.state.link import Link
from mirror_core.state.records import State


def principal_name(config: ClusterConfig, principal: Principal) -> str:
    user = config.user(principal)
    return f"User:{user}" if user else NAMELESS


def own_principals(link: Link) -> frozenset[str]:
    users = {cluster.user(principal) for cluster in (link.source, link.destination) for principal in Principal}
    return frozenset(f"User:{user}" for user in users if user)


def doubtful_principals(config: ClusterConfig, held: Acls) -> tuple[str, ...]:
    """A denial meant for an application could hit one of these."""
    alike = config.properties(Principal.CONTROL) == config.properties(Principal.DATA)
    asked = (Principal.CONTROL,) if alike else Principal
    return tuple(words for principal in asked if (words := doubt(config, principal, held.entries)))


def doubt(config: ClusterConfig, principal: Principal, held: Set[Acl]) -> str:
    """Empty when certain. ACLs that name the user confirm it if others have made them."""
    name = config.user(principal)
    if name is None:
        why = f"the subject of the {principal} principal's certificate cannot be read from ssl.certificate.location"
    elif not config.certain(principal) and f"User:{name}" not in {acl.principal for acl in held}:
        why = (
            f"no access right there names User:{name}, the subject of the {principal} principal's certificate, so "
            "brokers may call it otherwise (ssl.principal.mapping.rules)"
        )
    else:
        return ""
    return (
        f"{why}; in mirrorbook.yaml write what they call it, in the entry of {config.name}"
        f'{" under data:" if principal is Principal.DATA else ""}: `principal: "User:..."`'
    )


def data_in_doubt(config: ClusterConfig, held: Set[Acl], state: State) -> str:
    """Our own entries confirm nothing."""
    ours = {entry.acl for entry in state.ledger.values() if entry.cluster == config.name}
    return doubt(config, Principal.DATA, held - ours)


def guards(config: ClusterConfig) -> frozenset[Acl]:
    """A writer of the state topic would decide what promotion grants."""
    data = config.user(Principal.DATA)
    if data in (None, ANONYMOUS, config.user(Principal.CONTROL)):
        return frozenset()
    guard = partial(denial, OUR_TOPICS, f"User:{data}", pattern=Pattern.PREFIXED)
    return frozenset(guard(operation=operation) for operation in (Operation.WRITE, Operation.DELETE))
