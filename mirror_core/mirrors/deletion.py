from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mirror_core.decide.standing import has_failed_over
from mirror_core.decide.view import join_limited
from mirror_core.kafka.acls import AuthorizerOff, describe_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Permission
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import ClusterName
from mirror_core.rights.acl_command import format_acl_command
from mirror_core.state.link import MirrorLink
from mirror_core.state.records import State
from mirror_core.state.writer import StateWriter
from mirror_core.sync.final_settings import PromotionConfigs
from mirror_core.sync.ledger import delete_unshared_entries


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionChoice:
    keep_rights: bool = False
    """Copied ACLs become the administrator's."""
    restore_settings: bool = False
    """The source's, as last synced."""


DEFAULT_DELETION: Final = DeletionChoice()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionPlan:
    copied: tuple[LedgerEntry, ...]
    promoted: bool
    """Applications are there: they need the rights."""
    synced: frozenset[str]
    unsynced: frozenset[str]
    choice: DeletionChoice

    @property
    def removes_rights(self) -> bool:
        return bool(self.copied) and not self.promoted and not self.choice.keep_rights

    @property
    def restores_settings(self) -> bool:
        return bool(self.synced) and not self.promoted and self.choice.restore_settings

    def format_effects(self, mirror: Mirror) -> Iterator[str]:
        destination = mirror.destination
        if denials := sum(e.acl.permission is Permission.DENY for e in self.copied):
            rights = f"{len(self.copied)} access rights copied to {destination}, {denials} of them denials,"
        else:
            rights = f"{len(self.copied)} access rights copied to {destination}"
        if self.removes_rights:
            yield f"{rights} are withdrawn, but for those of another mirror, too; `--keep-rights` leaves them"
        elif self.copied:
            why = " since applications have moved there" if self.promoted else ""
            yield f"{rights} stay{why}: Mirrorbook forgets them, and prints the line that removes each"
        if self.restores_settings:
            yield (
                f"{len(self.synced)} topics on {destination} get the settings of {mirror.source}, as last synced: old "
                "records are deleted there as soon as their retention says so"
            )
            if self.unsynced:
                yield f"not known, and left as they are: the settings of {join_limited(sorted(self.unsynced))}"
        elif not self.promoted and (self.synced or self.unsynced):
            yield (
                f"its topics on {destination} keep a mirror topic's settings, such as retention.ms=-1: nothing is deleted "
                "there; `--restore-settings` sets what the source has"
            )


def plan_deletion(link: MirrorLink, state: State, gone: ClusterName | None, choice: DeletionChoice) -> DeletionPlan:
    mirror = link.mirror
    entries = [e for e in state.ledger_entries(mirror.name) if e.cluster == mirror.destination]
    promoted = any(e.purpose is AclPurpose.PROMOTED for e in entries) or has_failed_over(
        state.pending_fences.get(mirror.name)
    )
    topics = {p.topic for p, s in state.partitions.get(mirror.name, {}).items() if s.destination_topic_id}
    synced = frozenset(topic for topic in topics if (mirror.name, topic) in state.topic_settings)
    return DeletionPlan(
        copied=tuple(sorted((e for e in entries if e.purpose is AclPurpose.COPIED), key=lambda e: e.acl)),
        promoted=promoted or gone == mirror.source,
        synced=synced,
        unsynced=frozenset(topics) - synced,
        choice=choice,
    )


def apply_deletion(link: MirrorLink, writer: StateWriter, deletion: DeletionPlan) -> Iterator[str]:
    """Yields what is left for an administrator."""
    if not (deletion.copied or deletion.restores_settings):
        return
    with ClusterClient(link.destination) as client:
        destination_acls = describe_acls(client)
        current = frozenset[Acl]() if isinstance(destination_acls, AuthorizerOff) else destination_acls.entries
        if deletion.removes_rights and current:
            delete_unshared_entries(writer, client, deletion.copied)
        elif not deletion.removes_rights:
            bootstrap = link.destination.control["bootstrap.servers"]
            remaining = (e.acl for e in deletion.copied if e.acl in current)
            yield from (format_acl_command(acl, bootstrap=bootstrap, remove=True) for acl in remaining)
        if deletion.restores_settings:
            settings = PromotionConfigs(link, writer.state, client, deletion.synced)
            rows = [*settings.apply_before_first_record(), *settings.apply_remaining()]
            yield from (f"{row.subject} on {link.destination.name}: {row.reason}" for row in rows if not row.done)
