"""Copying tasks of the past are kept from writing on the destination, as far as it is known who they are."""

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
    """What was done against copying tasks of the past."""

    denials: frozenset[Acl] = frozenset()
    """Ours, shown by every broker."""
    doubt: str = ""
    """Why they may deny nobody: how brokers call the data principal is not known for sure."""

    @property
    def certain(self) -> bool:
        """Whether no such task can write any more."""
        return bool(self.denials) and not self.doubt


def silence_copiers(link: Link, log: Log, client: ClusterClient, topics: Collection[str]) -> Silenced:
    """Deny the data principal to write these topics of the destination, and return when every broker shows it.

    It ends what no driver can reach any more: a task that sleeps, or sits on a machine that is cut off. Nothing where
    the principal is not known, is the control principal too, or anybody who says no name.
    """
    data, held = link.destination.user(Principal.DATA), describe_acls(client)
    shared = data in (None, ANONYMOUS, link.destination.user(Principal.CONTROL))
    if shared or isinstance(held, AuthorizerOff):
        return Silenced()
    wanted = frozenset(denial(topic, f"User:{data}") for topic in topics)
    # An equal entry of somebody else's stays theirs, and stays when ours are taken away.
    ours = wanted - (held.entries - {e.acl for e in entered(log, link.mirror.name, client.name, AclPurpose.FENCE)})
    enter_and_put_up(log, link.mirror.name, client, ours, AclPurpose.FENCE)
    present_on_every_broker(client, wanted)
    return Silenced(ours, data_in_doubt(link.destination, held.entries, log.state))
