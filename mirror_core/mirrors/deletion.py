from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mirror_core.decide.standing import failed_over
from mirror_core.decide.view import some
from mirror_core.kafka.acls import AuthorizerOff, describe_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Permission
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import ClusterName
from mirror_core.rights.acl_command import acl_command
from mirror_core.state.link import Link
from mirror_core.state.records import State
from mirror_core.state.writer import StateWriter
from mirror_core.sync.final_settings import FinalSettings
from mirror_core.sync.ledger import take_away_unshared


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionChoice:
    keep_rights: bool = False
    """Copied ACLs become the administrator's."""
    restore_settings: bool = False
    """The source's, as last synced."""


NO_CHOICE: Final = DeletionChoice()


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    copied: tuple[LedgerEntry, ...]
    promoted: bool
    """Applications are there: they need the rights."""
    synced: frozenset[str]
    unsynced: frozenset[str]
    choice: DeletionChoice

    @property
    def withdraws(self) -> bool:
        return bool(self.copied) and not self.promoted and not self.choice.keep_rights

    @property
    def restores(self) -> bool:
        return bool(self.synced) and not self.promoted and self.choice.restore_settings

    def effects(self, mirror: Mirror) -> Iterator[str]:
        where = mirror.destination
        if denials := sum(e.acl.permission is Permission.DENY for e in self.copied):
            rights = f"{len(self.copied)} access rights copied to {where}, {denials} of them denials,"
        else:
            rights = f"{len(self.copied)} access rights copied to {where}"
        if self.withdraws:
            yield f"{rights} are withdrawn, but for those of another mirror, too; `--keep-rights` leaves them"
        elif self.copied:
            why = " since applications have moved there" if self.promoted else ""
            yield f"{rights} stay{why}: Mirrorbook forgets them, and prints the line that removes each"
        if self.restores:
            yield (
                f"{len(self.synced)} topics on {where} get the settings of {mirror.source}, as last synced: old "
                "records are deleted there as soon as their retention says so"
            )
            if self.unsynced:
                yield f"not known, and left as they are: the settings of {some(sorted(self.unsynced))}"
        elif not self.promoted and (self.synced or self.unsynced):
            yield (
                f"its topics on {where} keep a mirror topic's settings, such as retention.ms=-1: nothing is deleted "
                "there; `--restore-settings` sets what the source has"
            )


def deletion_of(link: Link, state: State, gone: ClusterName | None, choice: DeletionChoice) -> Deletion:
    mirror = link.mirror
    there = [e for e in state.ledger_of(mirror.name) if e.cluster == mirror.destination]
    promoted = any(e.purpose is AclPurpose.PROMOTED for e in there) or failed_over(state.debts.get(mirror.name))
    topics = {p.topic for p, s in state.partitions.get(mirror.name, {}).items() if s.destination_topic_id}
    synced = frozenset(topic for topic in topics if (mirror.name, topic) in state.settings)
    return Deletion(
        copied=tuple(sorted((e for e in there if e.purpose is AclPurpose.COPIED), key=lambda e: e.acl)),
        promoted=promoted or gone == mirror.source,
        synced=synced,
        unsynced=frozenset(topics) - synced,
        choice=choice,
    )


def carry_out(link: Link, writer: StateWriter, deletion: Deletion) -> Iterator[str]:
    """Yields what is left for an administrator."""
    if not (deletion.copied or deletion.restores):
        return
    with ClusterClient(link.destination) as client:
        held = describe_acls(client)
        there = frozenset[Acl]() if isinstance(held, AuthorizerOff) else held.entries
        if deletion.withdraws and there:
            take_away_unshared(writer, client, deletion.copied)
        elif not deletion.withdraws:
            bootstrap = link.destination.control["bootstrap.servers"]
            stay = (e.acl for e in deletion.copied if e.acl in there)
            yield from (acl_command(acl, bootstrap=bootstrap, remove=True) for acl in stay)
        if deletion.restores:
            settings = FinalSettings(link, writer.state, client, deletion.synced)
            rows = [*settings.before_the_first_record(), *settings.the_others()]
            yield from (f"{row.subject} on {link.destination.name}: {row.reason}" for row in rows if not row.done)
