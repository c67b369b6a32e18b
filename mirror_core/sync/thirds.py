from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Final

from mirror_core.model.acl import LIFTABLE, Acl, Permission, Resource
from mirror_core.model.drift import Action, DriftRow
from mirror_core.model.errors import MirrorError
from mirror_core.model.names import ClusterName
from mirror_core.state.link import Link, states_beside
from mirror_core.sync.access_rows import row

_FENCED: Final = frozenset({Resource.TOPIC, Resource.TRANSACTIONAL_ID})


@dataclass(frozen=True, slots=True)
class Thirds:
    own: frozenset[Acl] = frozenset()
    doubtful: frozenset[Acl] = frozenset()
    """Not every cluster has answered."""
    silent: tuple[ClusterName, ...] = ()

    def rows(self) -> list[DriftRow]:
        reason = (
            f"{', '.join(self.silent)}: no answer, so a mirror towards it may have put this up to fence the source. "
            "Not copied now: a later sync finds out"
        )
        return [row(acl, Action.SKIP, reason) for acl in sorted(self.doubtful)]


def thirds(link: Link, new: Set[Acl]) -> Thirds:
    """Asks third clusters about denials to be copied for the first time."""
    unknown = frozenset(a for a in new if a.permission is Permission.DENY and a.resource in _FENCED)
    if not unknown:
        return Thirds()
    own, silent = set[Acl](), list[ClusterName]()
    for cluster, answer in states_beside(link):
        if isinstance(answer, MirrorError):
            silent.append(cluster)
            continue
        own |= {e.acl for e in answer.ledger.values() if e.purpose in LIFTABLE and e.cluster == link.source.name}
    found = unknown & own
    return Thirds(found, unknown - found if silent else frozenset(), tuple(sorted(silent)))
