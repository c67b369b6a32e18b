from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Final

from mirror_core.model.acl import LIFTABLE_PURPOSES, Acl, Permission, Resource
from mirror_core.model.drift import DriftRow, SyncAction
from mirror_core.model.errors import MirrorError
from mirror_core.model.names import ClusterName
from mirror_core.state.link import MirrorLink, read_other_states
from mirror_core.sync.access_rows import to_acl_row

_FENCED: Final = frozenset({Resource.TOPIC, Resource.TRANSACTIONAL_ID})


@dataclass(frozen=True, slots=True)
class SiblingDenials:
    own: frozenset[Acl] = frozenset()
    uncertain: frozenset[Acl] = frozenset()
    """Not every cluster has answered."""
    unanswered: tuple[ClusterName, ...] = ()

    def rows(self) -> list[DriftRow]:
        reason = (
            f"{', '.join(self.unanswered)}: no answer, so a mirror towards it may have put this up to fence the source. "
            "Not copied now: a later sync finds out"
        )
        return [to_acl_row(acl, SyncAction.SKIP, reason) for acl in sorted(self.uncertain)]


def find_sibling_denials(link: MirrorLink, new: Set[Acl]) -> SiblingDenials:
    """Asks third clusters about denials to be copied for the first time."""
    new_denials = frozenset(a for a in new if a.permission is Permission.DENY and a.resource in _FENCED)
    if not new_denials:
        return SiblingDenials()
    sibling_acls, unanswered = set[Acl](), list[ClusterName]()
    for cluster, state_or_error in read_other_states(link):
        if isinstance(state_or_error, MirrorError):
            unanswered.append(cluster)
            continue
        sibling_acls |= {
            e.acl
            for e in state_or_error.ledger.values()
            if e.purpose in LIFTABLE_PURPOSES and e.cluster == link.source.name
        }
    sibling_owned = new_denials & sibling_acls
    return SiblingDenials(
        sibling_owned, new_denials - sibling_owned if unanswered else frozenset(), tuple(sorted(unanswered))
    )
