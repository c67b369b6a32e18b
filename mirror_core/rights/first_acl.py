"""Would the first ACL on a resource lock out everybody who uses it without one?

With `allow.everyone.if.no.acl.found=true` it leaves only the principals that ACLs name. Brokers hide the setting's
value, so what they allow our principals has to tell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mirror_core.model.acl import Acl, Operation, Pattern, Resource
from mirror_core.rights.acl_command import acl_command
from mirror_core.rights.acls import EVERYBODY, Names, covers
from mirror_core.rights.needed import CLUSTER_NAME

SETTING: Final = "allow.everyone.if.no.acl.found"
SUPER_USERS: Final = "super.users"
AUTHORIZER: Final = "authorizer.class.name"
UNUSED: Final = "unused-mirrorbook-check"
SETTLING_GROUP: Final = "mirrorbook-super-user-check"
"""No group has this name. An ACL for others tells whether we are super users."""
_HARMLESS: Final = Acl(
    resource=Resource.GROUP, name=SETTLING_GROUP, principal="User:nobody", operation=Operation.DESCRIBE
)
NAMELESS: Final = "User:SUBJECT-OF-THE-CERTIFICATE"
"""Unknown user name: seemingly foreign ACLs may be its own."""
KAFKAS_OWN: Final = frozenset(
    {
        "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "kafka.security.authorizer.AclAuthorizer",
    }
)
"""In these classes the setting's default is false."""
_KINDS: Final = {
    Resource.TOPIC: "topics",
    Resource.GROUP: "groups",
    Resource.TRANSACTIONAL_ID: "transactional ids",
    Resource.CLUSTER: "the cluster",
}


class ShutsOut(StrEnum):
    YES = "yes"
    LIKELY = "likely"
    """Unless our principals are super users."""
    NO = "no"
    UNKNOWN = "unknown"


REFUSED: Final = (ShutsOut.YES, ShutsOut.LIKELY)
"""No mirror is created there."""


class Setting(StrEnum):
    """One broker's value of `allow.everyone.if.no.acl.found`."""

    TRUE = "true"
    FALSE = "false"
    HIDDEN = "is set, with its value hidden"
    NOT_SET = "is not set"
    DENIED = "cannot be read (grant the control principal DESCRIBE_CONFIGS on the cluster)"


@dataclass(frozen=True, slots=True)
class Trial:
    """A DESCRIBE attempt."""

    user: str
    resource: Resource
    name: str
    others: bool
    """ACLs cover it, none for the user. False: no ACL covers it."""


@dataclass(frozen=True, slots=True)
class Heard:
    broker: int
    setting: Setting
    kafkas_own: bool
    super_users: bool
    allowed: frozenset[Trial]
    refused: frozenset[Trial]


@dataclass(frozen=True, slots=True)
class Unheard:
    broker: int
    why: str


@dataclass(frozen=True, slots=True)
class FirstAcl:
    answer: ShutsOut
    why: str
    advice: str = ""

    @property
    def words(self) -> str:
        whether = {
            ShutsOut.YES: "a first ACL shuts out everybody else who uses the resource",
            ShutsOut.LIKELY: "a first ACL probably shuts out everybody else who uses the resource",
            ShutsOut.NO: "a first ACL shuts nobody out",
            ShutsOut.UNKNOWN: "whether a first ACL shuts out everybody else who uses the resource is not known",
        }
        return f"{whether[self.answer]}: {self.why}" + (f". To do: {self.advice}" if self.advice else "")


def without_acl(entries: Collection[Acl]) -> tuple[Resource, ...]:
    """Types without an ACL on `*`."""
    return tuple(kind for kind in _KINDS if not any(a.resource is kind and _speaks_of_all(a) for a in entries))


def bare_topics(topics: Iterable[str], entries: Collection[Acl]) -> tuple[str, ...]:
    there = [acl for acl in entries if acl.resource is Resource.TOPIC]
    named = {acl.name for acl in there if acl.pattern is not Pattern.PREFIXED}
    prefixes = tuple(acl.name for acl in there if acl.pattern is Pattern.PREFIXED)
    return tuple(t for t in sorted(topics) if not ({t, "*"} & named or t.startswith(prefixes)))


def trials(entries: Collection[Acl], user: str) -> frozenset[Trial]:
    """One without ACLs and one with others' ACLs, for each type."""
    found = set()
    for kind in _KINDS:
        name = CLUSTER_NAME if kind is Resource.CLUSTER else UNUSED
        there = [acl for acl in entries if acl.resource is kind]
        if not any(covers(acl, name) for acl in there):
            found.add(Trial(user, kind, name, others=False))
        if (foreign := _foreign(there, user, name)) is not None:
            found.add(Trial(user, kind, foreign, others=True))
    return frozenset(found)


def first_acl(entries: Collection[Acl], said: Sequence[Heard | Unheard]) -> FirstAcl:
    """One broker that says yes decides; silent ones do not."""
    if not (lacking := without_acl(entries)):
        return FirstAcl(ShutsOut.NO, "all topics, groups and transactional ids, and the cluster, have an ACL already")
    found = [_of_broker(one) for one in said if isinstance(one, Heard)]
    silent = "; ".join(f"broker {one.broker} was not heard: {one.why}" for one in said if isinstance(one, Unheard))
    for answer in (ShutsOut.YES, ShutsOut.LIKELY, ShutsOut.UNKNOWN, ShutsOut.NO):
        why = next((one.why for one in found if one.answer is answer), None)
        if why is not None:
            return FirstAcl(answer, f"{why}; {silent}" if silent else why, _advice(answer, lacking))
    return FirstAcl(ShutsOut.UNKNOWN, silent or "no broker was heard", _advice(ShutsOut.UNKNOWN, lacking))


def _of_broker(heard: Heard) -> FirstAcl:
    """Behaviour counts more than configuration: a refusal without any ACL proves `false`."""
    where = f"broker {heard.broker}"
    if heard.setting in (Setting.TRUE, Setting.FALSE):
        answer = ShutsOut.YES if heard.setting is Setting.TRUE else ShutsOut.NO
        return FirstAcl(answer, f"{where}: {SETTING} is {heard.setting}")
    if refused := next((t for t in _sorted(heard.refused) if not t.others), None):
        return FirstAcl(ShutsOut.NO, f"{where} refuses {_what(refused)}, which has no ACL")
    if heard.setting is Setting.NOT_SET and heard.kafkas_own:
        return FirstAcl(ShutsOut.NO, f"{where}: {SETTING} is not set")
    if proof := next((t for t in _by_default(heard) if _no_super_user(t.user, heard)), None):
        why = f"{where} admits {_what(proof)}, which has no ACL, and {proof.user} is no super user"
        return FirstAcl(ShutsOut.YES, why)
    hint = next((t for t in _by_default(heard) if not _super_user(t.user, heard)), None)
    if hint and heard.setting is Setting.HIDDEN:
        why = (
            f"{where} has set {SETTING} and hides the value; it admits {_what(hint)}, which has no ACL: the value is "
            f"true, unless {hint.user} is a super user"
        )
        return FirstAcl(ShutsOut.LIKELY, why)
    return FirstAcl(ShutsOut.UNKNOWN, f"{where}: {SETTING} {heard.setting}, and {_blind(heard)}")


def _blind(heard: Heard) -> str:
    by_default = _by_default(heard)
    if not by_default:
        return "nothing without an ACL could be tried"
    if all(_super_user(trial.user, heard) for trial in by_default):
        return f"{by_default[0].user} is a super user there, so that what it may do tells nothing"
    return f"{by_default[0].user} may be a super user there, or has rights that are no ACLs"


def _by_default(heard: Heard) -> list[Trial]:
    return [trial for trial in _sorted(heard.allowed) if not trial.others]


def _no_super_user(user: str, heard: Heard) -> bool:
    return not heard.super_users or any(trial.user == user for trial in heard.refused)


def _super_user(user: str, heard: Heard) -> bool:
    return any(
        trial.user == user and trial.others and (user != NAMELESS or trial.name == SETTLING_GROUP)
        for trial in heard.allowed
    )


def _advice(answer: ShutsOut, lacking: Sequence[Resource]) -> str:
    if answer is ShutsOut.NO:
        return ""
    where = [("" if kind is Resource.CLUSTER else "`*` of ") + _KINDS[kind] for kind in lacking]
    advice = (
        "give every application, both principals of Mirrorbook and the brokers ACLs of their own (super users need "
        "none), all those of one resource in one step, since the first one shuts out the rest; then set "
        f"{SETTING}=false, or add an ACL on {_and(where)}"
    )
    if answer is ShutsOut.UNKNOWN:
        return f"look whether it is true in the brokers' configuration; if so, {advice}"
    if answer is ShutsOut.LIKELY:
        advice += (
            ". If it is a super user, and the value is false, add an ACL that concerns nobody, and check again: "
            f"`{acl_command(_HARMLESS)}`"
        )
    return f"{advice}. {_LEFT_OPEN}"


_LEFT_OPEN: Final = (
    "Or leave the cluster open, by `authorizer: none` in its entry, before a mirror is created: then no ACL is written "
    "there, and nothing can be fenced"
)


def _and(words: Sequence[str]) -> str:
    return " and on ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _foreign(there: Sequence[Acl], user: str, unused: str) -> str | None:
    """First name that only ACLs of others cover."""
    mine = [acl for acl in there if acl.principal in (user, EVERYBODY)]
    names = {unused if _speaks_of_all(acl) else acl.name for acl in there} - {""}
    if user == NAMELESS and SETTLING_GROUP in names:
        return SETTLING_GROUP
    known = Names(names)
    return min(names.difference(*(known.covered(acl) for acl in mine)), default=None)


def _speaks_of_all(acl: Acl) -> bool:
    return acl.resource is Resource.CLUSTER or (acl.name == "*" and acl.pattern is Pattern.LITERAL)


def _what(trial: Trial) -> str:
    return f"{trial.user} to {trial.resource} {trial.name!r}"


def _sorted(some: Collection[Trial]) -> list[Trial]:
    return sorted(some, key=lambda trial: (trial.user, trial.resource, trial.name))
