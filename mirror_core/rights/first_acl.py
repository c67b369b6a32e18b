"""Would the first ACL on a resource lock out everybody who uses it without one?

With `allow.everyone.if.no.acl.found=true` it does. Brokers hide that setting, so what they allow our principals has to
tell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mirror_core.model.acl import Acl, Operation, Pattern, Resource
from mirror_core.rights.acl_rules import EVERYBODY, SortedNames, covers, format_acl_command
from mirror_core.rights.required_acls import CLUSTER_NAME

ALLOW_EVERYONE_SETTING: Final = "allow.everyone.if.no.acl.found"
SUPER_USERS_SETTING: Final = "super.users"
AUTHORIZER_SETTING: Final = "authorizer.class.name"
UNUSED_NAME: Final = "unused-mirrorbook-check"
SUPER_USER_CHECK_GROUP: Final = "mirrorbook-super-user-check"
"""No group has this name. An ACL for others tells whether we are super users."""
_HARMLESS_ACL: Final = Acl(
    resource=Resource.GROUP, name=SUPER_USER_CHECK_GROUP, principal="User:nobody", operation=Operation.DESCRIBE
)
UNKNOWN_USER: Final = "User:SUBJECT-OF-THE-CERTIFICATE"
"""Seemingly foreign ACLs may be its own."""
KAFKA_AUTHORIZER_CLASSES: Final = frozenset(
    {
        "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "kafka.security.authorizer.AclAuthorizer",
    }
)
"""The setting's default is false there."""
_RESOURCE_TEXTS: Final = {
    Resource.TOPIC: "topics",
    Resource.GROUP: "groups",
    Resource.TRANSACTIONAL_ID: "transactional ids",
    Resource.CLUSTER: "the cluster",
}


class FirstAclEffect(StrEnum):
    YES = "yes"
    LIKELY = "likely"
    """Unless our principals are super users."""
    NO = "no"
    UNKNOWN = "unknown"


REFUSED_EFFECTS: Final = (FirstAclEffect.YES, FirstAclEffect.LIKELY)
"""No mirror is created there."""


class AllowEveryoneValue(StrEnum):
    TRUE = "true"
    FALSE = "false"
    HIDDEN = "is set, with its value hidden"
    NOT_SET = "is not set"
    DENIED = "cannot be read (grant the control principal DESCRIBE_CONFIGS on the cluster)"


@dataclass(frozen=True, slots=True)
class DescribeTrial:
    user: str
    resource: Resource
    name: str
    has_foreign_acl: bool
    """ACLs cover it, none for the user. False: no ACL covers it."""


@dataclass(frozen=True, slots=True)
class AuthorizerReply:
    broker: int
    setting: AllowEveryoneValue
    is_kafka_authorizer: bool
    may_have_super_users: bool
    allowed: frozenset[DescribeTrial]
    refused: frozenset[DescribeTrial]


@dataclass(frozen=True, slots=True)
class UnansweredBroker:
    broker: int
    reason: str


@dataclass(frozen=True, slots=True)
class FirstAclAssessment:
    shuts_out: FirstAclEffect
    reason: str
    advice: str = ""

    @property
    def text(self) -> str:
        effect_text = {
            FirstAclEffect.YES: "a first ACL shuts out everybody else who uses the resource",
            FirstAclEffect.LIKELY: "a first ACL probably shuts out everybody else who uses the resource",
            FirstAclEffect.NO: "a first ACL shuts nobody out",
            FirstAclEffect.UNKNOWN: "whether a first ACL shuts out everybody else who uses the resource is not known",
        }
        return f"{effect_text[self.shuts_out]}: {self.reason}" + (f". To do: {self.advice}" if self.advice else "")


def find_types_without_acl(entries: Collection[Acl]) -> tuple[Resource, ...]:
    """Types without an ACL on `*`."""
    return tuple(
        resource_type
        for resource_type in _RESOURCE_TEXTS
        if not any(a.resource is resource_type and _covers_all(a) for a in entries)
    )


def find_topics_without_acl(topics: Iterable[str], entries: Collection[Acl]) -> tuple[str, ...]:
    topic_acls = [acl for acl in entries if acl.resource is Resource.TOPIC]
    named = {acl.name for acl in topic_acls if acl.pattern is not Pattern.PREFIXED}
    prefixes = tuple(acl.name for acl in topic_acls if acl.pattern is Pattern.PREFIXED)
    return tuple(t for t in sorted(topics) if not ({t, "*"} & named or t.startswith(prefixes)))


def build_describe_trials(entries: Collection[Acl], user: str) -> frozenset[DescribeTrial]:
    """One without ACLs and one with others' ACLs, for each type."""
    describe_trials = set()
    for resource_type in _RESOURCE_TEXTS:
        name = CLUSTER_NAME if resource_type is Resource.CLUSTER else UNUSED_NAME
        type_acls = [acl for acl in entries if acl.resource is resource_type]
        if not any(covers(acl, name) for acl in type_acls):
            describe_trials.add(DescribeTrial(user, resource_type, name, has_foreign_acl=False))
        if (foreign := _find_foreign_name(type_acls, user, name)) is not None:
            describe_trials.add(DescribeTrial(user, resource_type, foreign, has_foreign_acl=True))
    return frozenset(describe_trials)


def assess_first_acl(
    entries: Collection[Acl], replies: Sequence[AuthorizerReply | UnansweredBroker]
) -> FirstAclAssessment:
    """One broker that says yes decides; silent ones do not."""
    if not (lacking := find_types_without_acl(entries)):
        return FirstAclAssessment(
            FirstAclEffect.NO, "all topics, groups and transactional ids, and the cluster, have an ACL already"
        )
    assessments = [_assess_broker(item) for item in replies if isinstance(item, AuthorizerReply)]
    silent = "; ".join(
        f"broker {item.broker} was not heard: {item.reason}" for item in replies if isinstance(item, UnansweredBroker)
    )
    for effect in (FirstAclEffect.YES, FirstAclEffect.LIKELY, FirstAclEffect.UNKNOWN, FirstAclEffect.NO):
        reason = next((item.reason for item in assessments if item.shuts_out is effect), None)
        if reason is not None:
            return FirstAclAssessment(
                effect, f"{reason}; {silent}" if silent else reason, _format_advice(effect, lacking)
            )
    return FirstAclAssessment(
        FirstAclEffect.UNKNOWN, silent or "no broker was heard", _format_advice(FirstAclEffect.UNKNOWN, lacking)
    )


def _assess_broker(reply: AuthorizerReply) -> FirstAclAssessment:
    """Behaviour counts more than configuration: a refusal without any ACL proves `false`."""
    location = f"broker {reply.broker}"
    if reply.setting in (AllowEveryoneValue.TRUE, AllowEveryoneValue.FALSE):
        effect = FirstAclEffect.YES if reply.setting is AllowEveryoneValue.TRUE else FirstAclEffect.NO
        return FirstAclAssessment(effect, f"{location}: {ALLOW_EVERYONE_SETTING} is {reply.setting}")
    if refused := next((t for t in _sort_trials(reply.refused) if not t.has_foreign_acl), None):
        return FirstAclAssessment(FirstAclEffect.NO, f"{location} refuses {_format_trial(refused)}, which has no ACL")
    if reply.setting is AllowEveryoneValue.NOT_SET and reply.is_kafka_authorizer:
        return FirstAclAssessment(FirstAclEffect.NO, f"{location}: {ALLOW_EVERYONE_SETTING} is not set")
    if proof := next((t for t in _list_default_allowed(reply) if _is_no_super_user(t.user, reply)), None):
        reason = f"{location} admits {_format_trial(proof)}, which has no ACL, and {proof.user} is no super user"
        return FirstAclAssessment(FirstAclEffect.YES, reason)
    hint = next((t for t in _list_default_allowed(reply) if not _is_super_user(t.user, reply)), None)
    if hint and reply.setting is AllowEveryoneValue.HIDDEN:
        reason = (
            f"{location} has set {ALLOW_EVERYONE_SETTING} and hides the value; it admits {_format_trial(hint)}, which"
            f" has no ACL: the value is true, unless {hint.user} is a super user"
        )
        return FirstAclAssessment(FirstAclEffect.LIKELY, reason)
    return FirstAclAssessment(
        FirstAclEffect.UNKNOWN, f"{location}: {ALLOW_EVERYONE_SETTING} {reply.setting}, and {_format_unknown(reply)}"
    )


def _format_unknown(reply: AuthorizerReply) -> str:
    by_default = _list_default_allowed(reply)
    if not by_default:
        return "nothing without an ACL could be tried"
    if all(_is_super_user(trial.user, reply) for trial in by_default):
        return f"{by_default[0].user} is a super user there, so that what it may do tells nothing"
    return f"{by_default[0].user} may be a super user there, or has rights that are no ACLs"


def _list_default_allowed(reply: AuthorizerReply) -> list[DescribeTrial]:
    return [trial for trial in _sort_trials(reply.allowed) if not trial.has_foreign_acl]


def _is_no_super_user(user: str, reply: AuthorizerReply) -> bool:
    return not reply.may_have_super_users or any(trial.user == user for trial in reply.refused)


def _is_super_user(user: str, reply: AuthorizerReply) -> bool:
    return any(
        trial.user == user and trial.has_foreign_acl and (user != UNKNOWN_USER or trial.name == SUPER_USER_CHECK_GROUP)
        for trial in reply.allowed
    )


def _format_advice(effect: FirstAclEffect, lacking: Sequence[Resource]) -> str:
    if effect is FirstAclEffect.NO:
        return ""
    resources = [("" if kind is Resource.CLUSTER else "`*` of ") + _RESOURCE_TEXTS[kind] for kind in lacking]
    advice = (
        "give every application, both principals of Mirrorbook and the brokers ACLs of their own (super users need "
        "none), all those of one resource in one step, since the first one shuts out the rest; then set "
        f"{ALLOW_EVERYONE_SETTING}=false, or add an ACL on {_join_words(resources)}"
    )
    if effect is FirstAclEffect.UNKNOWN:
        return f"look whether it is true in the brokers' configuration; if so, {advice}"
    if effect is FirstAclEffect.LIKELY:
        advice += (
            ". If it is a super user, and the value is false, add an ACL that concerns nobody, and check again: "
            f"`{format_acl_command(_HARMLESS_ACL)}`"
        )
    return f"{advice}. {_LEAVE_OPEN_ADVICE}"


_LEAVE_OPEN_ADVICE: Final = (
    "Or leave the cluster open, by `authorizer: none` in its entry, before a mirror is created: then no ACL is written "
    "there, and nothing can be fenced"
)


def _join_words(words: Sequence[str]) -> str:
    return " and on ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _find_foreign_name(type_acls: Sequence[Acl], user: str, unused: str) -> str | None:
    applying_acls = [acl for acl in type_acls if acl.principal in (user, EVERYBODY)]
    names = {unused if _covers_all(acl) else acl.name for acl in type_acls} - {""}
    if user == UNKNOWN_USER and SUPER_USER_CHECK_GROUP in names:
        return SUPER_USER_CHECK_GROUP
    candidates = SortedNames(names)
    return min(names.difference(*(candidates.find_covered(acl) for acl in applying_acls)), default=None)


def _covers_all(acl: Acl) -> bool:
    return acl.resource is Resource.CLUSTER or (acl.name == "*" and acl.pattern is Pattern.LITERAL)


def _format_trial(trial: DescribeTrial) -> str:
    return f"{trial.user} to {trial.resource} {trial.name!r}"


def _sort_trials(unsorted: Collection[DescribeTrial]) -> list[DescribeTrial]:
    return sorted(unsorted, key=lambda trial: (trial.user, trial.resource, trial.name))
