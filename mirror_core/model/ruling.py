"""Who rules the access rights of a cluster, and what closes it to applications where Mirrorbook cannot."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mirror_core.model.errors import BadRequest
from mirror_core.model.hooks import Hook, hook_of
from mirror_core.model.text import suggestion


class Authorizer(StrEnum):
    """The entry `authorizer` of a cluster."""

    KAFKA = "kafka"
    """Kafka's ACLs, if the cluster has an authorizer: Mirrorbook reads, copies and writes them."""
    NONE = "none"
    """Nobody is kept from anything: no ACL is read or written."""
    FOREIGN = "foreign"
    """Something that Kafka's ACL requests do not reach: no ACL is read or written."""

    @property
    def without_acls(self) -> str:
        """What a cluster on which no ACL of ours can be is, after its name."""
        return _WITHOUT_ACLS[self]


_WITHOUT_ACLS: Final = {
    Authorizer.KAFKA: "has no authorizer",
    Authorizer.NONE: "gets no ACLs from Mirrorbook (`authorizer: none`)",
    Authorizer.FOREIGN: "has an authorizer that is not Kafka's",
}


class Barred(StrEnum):
    """What keeps writers out of a cluster."""

    BY_DENIALS = "denials"
    BY_COMMAND = "fence_command"
    BY_NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What mirrorbook.yaml says of one cluster's access rights."""

    authorizer: Authorizer = Authorizer.KAFKA
    fence: Hook | None = None
    """`fence_command`: closes the cluster to applications. Only with FOREIGN, and with `unfence`."""
    unfence: Hook | None = None
    """`unfence_command`: opens it again."""

    @property
    def foreign(self) -> bool:
        return self.authorizer is Authorizer.FOREIGN

    def without_commands(self) -> Ruling:
        return Ruling(authorizer=self.authorizer)

    def barred(self, *, denials: bool) -> Barred:
        """What keeps writers out there. `denials`: whether the brokers were not seen to be without an authorizer."""
        if self.fence is not None:
            return Barred.BY_COMMAND
        return Barred.BY_DENIALS if denials and self.authorizer is Authorizer.KAFKA else Barred.BY_NOTHING


KAFKAS: Final = Ruling()
_FENCE: Final = "fence_command"
_UNFENCE: Final = "unfence_command"
ENTRIES: Final = ("authorizer", _FENCE, _UNFENCE)
"""Of a cluster in mirrorbook.yaml; no client properties."""


def ruling_of(where: str, raw: dict[object, object]) -> Ruling:
    """Takes these entries out of a cluster's. BadRequest names what is wrong."""
    said = str(raw.pop("authorizer", Authorizer.KAFKA))
    known = [str(one) for one in Authorizer]
    if said not in known:
        raise BadRequest(f"{where}.authorizer: {said!r} is none of {', '.join(known)}{suggestion(said, known)}")
    authorizer = Authorizer(said)
    given = {key: hook_of(f"{where}.{key}", key, raw.pop(key)) for key in (_FENCE, _UNFENCE) if key in raw}
    if given and authorizer is not Authorizer.FOREIGN:
        raise BadRequest(
            f"{where}.{min(given)}: only for a cluster with `authorizer: foreign`; with `authorizer: {authorizer}` it "
            "would never be called"
        )
    if len(given) == 1:
        missing = _UNFENCE if _FENCE in given else _FENCE
        raise BadRequest(
            f"{where}.{missing}: is missing; a run that closes the cluster to applications must be able to open it "
            "again, so both commands are needed"
        )
    return Ruling(authorizer=authorizer, fence=given.get(_FENCE), unfence=given.get(_UNFENCE))
