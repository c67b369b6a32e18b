"""Drift rows for ACL entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from mirror_core.decide.access import AclPlan
from mirror_core.kafka.acls import Acls, AuthorizerOff
from mirror_core.model.acl import Acl, AclPurpose, Permission
from mirror_core.model.drift import Action, DriftRow, Part
from mirror_core.model.ruling import Authorizer
from mirror_core.rights.acls import EVERYBODY


def _for_everybody(acl: Acl) -> bool:
    return acl.permission is Permission.ALLOW and acl.principal == EVERYBODY


def _staged(plan: AclPlan) -> frozenset[Acl]:
    return frozenset(plan.stage) | frozenset(plan.waiting)


_Group = tuple[Callable[[AclPlan], Iterable[Acl]], Action, str]
_TABLE: Final[tuple[_Group, ...]] = (
    (lambda plan: [acl for acl in plan.create if not _for_everybody(acl)], Action.CREATE, ""),
    (
        lambda plan: [acl for acl in plan.create if _for_everybody(acl)],
        Action.CREATE,
        "as on the source: every user of the destination may do it",
    ),
    (lambda plan: _staged(plan).difference(plan.narrowed), Action.STAGE, "created at promotion"),
    (
        lambda plan: _staged(plan).intersection(plan.narrowed),
        Action.STAGE,
        "wider than the mirror: until promotion its topics and groups are granted one by one, and nothing else",
    ),
    (lambda plan: plan.share, Action.EQUAL, "copied by another mirror, too"),
    (lambda plan: plan.equal, Action.EQUAL, ""),
    (lambda plan: plan.foreign, Action.KEEP, "was there before the mirror: kept, and never deleted by it"),
    (lambda plan: [e.acl for e in plan.remove], Action.REMOVE, "gone from the source"),
    (lambda plan: [e.acl for e in plan.forget], Action.REMOVE, "gone from the source; only forgotten here"),
    (lambda plan: [e.acl for e in plan.out_of_scope], Action.KEEP, "no longer matched by a filter: kept"),
    (
        lambda plan: [e.acl for e in plan.judged_again if e.purpose is AclPurpose.WITHDRAWN],
        Action.KEEP,
        "the source grants it no more: promotion leaves this denial",
    ),
    (
        lambda plan: [e.acl for e in plan.judged_again if e.purpose is AclPurpose.DEMOTED],
        Action.KEEP,
        "the source grants it again: until promotion",
    ),
    (
        lambda plan: plan.open_doors,
        Action.REFUSE,
        "lets an application change a mirror topic, and is not ours to remove: remove it, or its writes make "
        "partitions FAILED",
    ),
)


def rows_of(plan: AclPlan, *, done: bool) -> list[DriftRow]:
    staged = frozenset(plan.waiting)  # staged by an earlier sync, so done in a dry run, too
    rows = [
        row(
            acl, action, reason, done=(done and action in (Action.CREATE, Action.STAGE, Action.REMOVE)) or acl in staged
        )
        for acls_of, action, reason in _TABLE
        for acl in sorted(acls_of(plan))
    ]
    return rows + [row(acl, Action.SKIP, reason) for acl, reason in plan.left_out]


_THERE: Final = frozenset({Action.KEEP, Action.EQUAL, Action.REMOVE, Action.REFUSE})
_NOT_ON_SOURCE: Final = frozenset({Action.REMOVE, Action.REFUSE})


def row(acl: Acl, action: Action, reason: str = "", *, done: bool = True) -> DriftRow:
    return DriftRow(
        part=Part.ACLS,
        subject=str(acl),
        source="" if action in _NOT_ON_SOURCE else "present",
        destination="present" if action in _THERE else "",
        action=action,
        reason=reason,
        done=done,
    )


def unknown(cluster: str, acls: Acls) -> list[DriftRow]:
    return [
        DriftRow(
            part=Part.ACLS,
            subject=words,
            source="",
            destination="",
            action=Action.SKIP,
            reason=f"cluster {cluster}: an entry of a kind that this Mirrorbook does not know: left alone",
        )
        for words in acls.unknown
    ]


def forgery_there(cluster: str, acl: Acl, why: str) -> DriftRow:
    """No mirror can have made this ledger entry: its denial counts as the source's own."""
    return DriftRow(
        part=Part.ACLS,
        subject=f"ledger on {cluster}: {acl}",
        source="",
        destination="",
        action=Action.SKIP,
        reason=f"it is recorded as a denial of Mirrorbook's, and cannot be one: {why}. Not believed: find out who may "
        "write the state topic there",
    )


def off(side: AuthorizerOff, done: str = "") -> DriftRow:
    why = (
        "everybody may do everything there, so nothing is copied, staged or fenced"
        if side.said is Authorizer.KAFKA
        else "so nothing is copied, staged, given or denied there"
    )
    return silent(side.cluster, f"{side.words}: {why}{f'; {done}' if done else ''}")


def silent(cluster: str, reason: str) -> DriftRow:
    return DriftRow(
        part=Part.ACLS, subject=f"cluster {cluster}", source="", destination="", action=Action.SKIP, reason=reason
    )
