from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mirror_core.model.errors import BadRequest
from mirror_core.model.hooks import Hook, hook_of
from mirror_core.model.text import suggestion


class Authorizer(StrEnum):
    KAFKA = "kafka"
    """Kafka's ACLs. Mirrorbook reads, copies and writes them."""
    NONE = "none"
    """No authorization. No ACL is read or written."""
    FOREIGN = "foreign"
    """An authorizer without Kafka's ACL requests. No ACL is read or written."""

    @property
    def without_acls(self) -> str:
        """Follows the cluster's name in messages."""
        return _WITHOUT_ACLS[self]


_WITHOUT_ACLS: Final = {
    Authorizer.KAFKA: "has no authorizer",
    Authorizer.NONE: "gets no ACLs from Mirrorbook (`authorizer: none`)",
    Authorizer.FOREIGN: "has an authorizer that is not Kafka's",
}


class Barred(StrEnum):
    BY_DENIALS = "denials"
    BY_COMMAND = "fence_command"
    BY_NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    authorizer: Authorizer = Authorizer.KAFKA
    fence: Hook | None = None
    """Only with FOREIGN and `unfence_command`."""
    unfence: Hook | None = None

    @property
    def foreign(self) -> bool:
        return self.authorizer is Authorizer.FOREIGN

    def without_commands(self) -> Ruling:
        return Ruling(authorizer=self.authorizer)

    def barred(self, *, denials: bool) -> Barred:
        """`denials`: no broker was seen without an authorizer."""
        if self.fence is not None:
            return Barred.BY_COMMAND
        return Barred.BY_DENIALS if denials and self.authorizer is Authorizer.KAFKA else Barred.BY_NOTHING


KAFKAS: Final = Ruling()
_FENCE: Final = "fence_command"
_UNFENCE: Final = "unfence_command"
ENTRIES: Final = ("authorizer", _FENCE, _UNFENCE)
"""Not client properties."""


def ruling_of(where: str, raw: dict[object, object]) -> Ruling:
    """Removes these keys from `raw`. BadRequest names a mistake."""
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
