"""As whom we are known: what must never be denied to us, and what must be."""

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
    """As Kafka names it, as far as is known."""
    user = config.user(principal)
    return f"User:{user}" if user else NAMELESS


def own_principals(link: Link) -> frozenset[str]:
    """The mirror's users on both clusters, as Kafka names them."""
    users = {cluster.user(principal) for cluster in (link.source, link.destination) for principal in Principal}
    return frozenset(f"User:{user}" for user in users if user)


def doubtful_principals(config: ClusterConfig, held: Acls) -> tuple[str, ...]:
    """Users of ours whose names are not known for sure: a denial meant for an application could hit one of them."""
    alike = config.properties(Principal.CONTROL) == config.properties(Principal.DATA)
    asked = (Principal.CONTROL,) if alike else Principal
    return tuple(words for principal in asked if (words := doubt(config, principal, held.entries)))


def doubt(config: ClusterConfig, principal: Principal, held: Set[Acl]) -> str:
    """Why it is not known for sure what brokers call this user of ours, and what to do about it; empty: it is.

    `held`: access rights there. One that names the user proves the name if others than us have made it.
    """
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
    """The same of who copies: a denial that names it may deny nobody. What is in a ledger of ours proves nothing."""
    ours = {entry.acl for entry in state.ledger.values() if entry.cluster == config.name}
    return doubt(config, Principal.DATA, held - ours)


def guards(config: ClusterConfig) -> frozenset[Acl]:
    """Copying tasks are kept from our own topics: whoever writes the state topic says what promotion gives to whom."""
    data = config.user(Principal.DATA)
    if data in (None, ANONYMOUS, config.user(Principal.CONTROL)):
        return frozenset()
    guard = partial(denial, OUR_TOPICS, f"User:{data}", pattern=Pattern.PREFIXED)
    return frozenset(guard(operation=operation) for operation in (Operation.WRITE, Operation.DELETE))
