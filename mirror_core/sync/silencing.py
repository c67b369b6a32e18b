"""Denials at promotion: those that are removed, those that stay, and those against old copying tasks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mirror_core.kafka.acls import AuthorizerOff, describe_acls, present_on_every_broker
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ANONYMOUS, Principal
from mirror_core.model.acl import Acl, AclPurpose
from mirror_core.rights.acls import denial
from mirror_core.state.journal import Log
from mirror_core.state.link import Link
from mirror_core.sync.ledger import enter_and_put_up, entered
from mirror_core.sync.principals import data_in_doubt


@dataclass(frozen=True, slots=True)
class Silenced:
    denials: frozenset[Acl] = frozenset()
    """Shown by every broker."""
    doubt: str = ""
    """Why they may have no effect."""

    @property
    def certain(self) -> bool:
        return bool(self.denials) and not self.doubt


def silence_copiers(link: Link, log: Log, client: ClusterClient, topics: Collection[str]) -> Silenced:
    """Stop tasks that no driver can reach; seen on every broker.

    Does nothing where the data principal is unknown, anonymous or also the control principal.
    """
    data, held = link.destination.user(Principal.DATA), describe_acls(client)
    shared = data in (None, ANONYMOUS, link.destination.user(Principal.CONTROL))
    if shared or isinstance(held, AuthorizerOff):
        return Silenced()
    wanted = frozenset(denial(topic, f"User:{data}") for topic in topics)
    # An equal entry made by others stays when ours are removed.
    ours = wanted - (held.entries - {e.acl for e in entered(log, link.mirror.name, client.name, AclPurpose.FENCE)})
    enter_and_put_up(log, link.mirror.name, client, ours, AclPurpose.FENCE)
    present_on_every_broker(client, wanted)
    return Silenced(ours, data_in_doubt(link.destination, held.entries, log.state))
