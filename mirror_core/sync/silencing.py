"""Denials at promotion: those that are removed, those that stay, and those against old copying tasks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mirror_core.kafka.acls import AuthorizerOff, describe_acls, wait_until_acls_present
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ANONYMOUS, Principal
from mirror_core.model.acl import Acl, AclPurpose
from mirror_core.rights.acls import build_denial
from mirror_core.state.journal import JournalLog
from mirror_core.state.link import MirrorLink
from mirror_core.sync.ledger import list_entries, record_and_create
from mirror_core.sync.principals import explain_data_uncertainty


@dataclass(frozen=True, slots=True)
class FencedTasks:
    denials: frozenset[Acl] = frozenset()
    """Shown by every broker."""
    uncertainty: str = ""
    """Why they may have no effect."""

    @property
    def is_certain(self) -> bool:
        return bool(self.denials) and not self.uncertainty


def fence_old_tasks(link: MirrorLink, log: JournalLog, client: ClusterClient, topics: Collection[str]) -> FencedTasks:
    """Stop tasks that no driver can reach; seen on every broker.

    Does nothing where the data principal is unknown, anonymous or also the control principal.
    """
    data_user, destination_acls = link.destination.user(Principal.DATA), describe_acls(client)
    is_shared = data_user in (None, ANONYMOUS, link.destination.user(Principal.CONTROL))
    if is_shared or isinstance(destination_acls, AuthorizerOff):
        return FencedTasks()
    wanted = frozenset(build_denial(topic, f"User:{data_user}") for topic in topics)
    # An equal entry made by others stays when ours are removed.
    own_denials = wanted - (
        destination_acls.entries - {e.acl for e in list_entries(log, link.mirror.name, client.name, AclPurpose.FENCE)}
    )
    record_and_create(log, link.mirror.name, client, own_denials, AclPurpose.FENCE)
    wait_until_acls_present(client, wanted)
    return FencedTasks(own_denials, explain_data_uncertainty(link.destination, destination_acls.entries, log.state))
