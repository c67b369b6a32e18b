"""Drift rows for ACL entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from msgspec import UNSET, UnsetType

from mirror_core.decide.acl_plan import AclPlan
from mirror_core.kafka.acl_requests import AuthorizerOff, BrokerAcls
from mirror_core.model.acl import Acl, AclPurpose, Pattern, Permission, Resource
from mirror_core.model.config_sections import AuthorizerKind
from mirror_core.model.findings import Finding
from mirror_core.model.sync_state import DriftRow, SyncAction, SyncCategory
from mirror_core.rights.acl_rules import EVERYBODY
from mirror_core.rights.ledger_rules import AclFlaw


def _is_for_everybody(acl: Acl) -> bool:
    return acl.permission is Permission.ALLOW and acl.principal == EVERYBODY


def _list_staged(plan: AclPlan) -> frozenset[Acl]:
    return frozenset(plan.stage) | frozenset(plan.waiting)


_RowRule = tuple[Callable[[AclPlan], Iterable[Acl]], SyncAction, str]
_ROW_RULES: Final[tuple[_RowRule, ...]] = (
    (lambda plan: [acl for acl in plan.create if not _is_for_everybody(acl)], SyncAction.CREATE, ""),
    (
        lambda plan: [acl for acl in plan.create if _is_for_everybody(acl)],
        SyncAction.CREATE,
        "as on the source: every user of the destination may do it",
    ),
    (lambda plan: _list_staged(plan).difference(plan.narrowed), SyncAction.STAGE, "created at promotion"),
    (
        lambda plan: _list_staged(plan).intersection(plan.narrowed),
        SyncAction.STAGE,
        "wider than the mirror: until promotion its topics and groups are granted one by one, and nothing else",
    ),
    (lambda plan: plan.share, SyncAction.EQUAL, "copied by another mirror, too"),
    (lambda plan: plan.equal, SyncAction.EQUAL, ""),
    (lambda plan: plan.foreign, SyncAction.KEEP, "was there before the mirror: kept, and never deleted by it"),
    (
        lambda plan: [e.acl for e in plan.remove],
        SyncAction.REMOVE,
        "gone from the source, or its principal was left out of the mirror",
    ),
    (
        lambda plan: [e.acl for e in plan.forget],
        SyncAction.REMOVE,
        "gone from the source, or its principal was left out of the mirror; only forgotten here",
    ),
    (lambda plan: [e.acl for e in plan.out_of_scope], SyncAction.KEEP, "no longer matched by a filter: kept"),
    (
        lambda plan: [e.acl for e in plan.repurposed if e.purpose is AclPurpose.WITHDRAWN],
        SyncAction.KEEP,
        "the source grants it no more: promotion leaves this denial",
    ),
    (
        lambda plan: [e.acl for e in plan.repurposed if e.purpose is AclPurpose.DEMOTED],
        SyncAction.KEEP,
        "the source grants it again: until promotion",
    ),
    (
        lambda plan: plan.unprotected_grants,
        SyncAction.REFUSE,
        "lets an application change a mirror topic, and is not ours to remove: remove it, or its writes make "
        "partitions FAILED",
    ),
)


def to_plan_rows(plan: AclPlan, *, done: bool) -> list[DriftRow]:
    staged = frozenset(plan.waiting)  # staged by an earlier sync, so done in a dry run, too
    rows = [
        to_acl_row(
            acl,
            action,
            reason,
            done=(done and action in (SyncAction.CREATE, SyncAction.STAGE, SyncAction.REMOVE)) or acl in staged,
            code="mirror_topic_unprotected" if action is SyncAction.REFUSE else UNSET,
        )
        for acls_of, action, reason in _ROW_RULES
        for acl in sorted(acls_of(plan))
    ]
    return rows + [to_acl_row(acl, SyncAction.SKIP, reason) for acl, reason in plan.left_out]


_ACTIONS_ON_DESTINATION: Final = frozenset({SyncAction.KEEP, SyncAction.EQUAL, SyncAction.REMOVE, SyncAction.REFUSE})
_ACTIONS_NOT_ON_SOURCE: Final = frozenset({SyncAction.REMOVE, SyncAction.REFUSE})


def to_acl_row(
    acl: Acl, action: SyncAction, reason: str = "", *, done: bool = True, code: str | UnsetType = UNSET
) -> DriftRow:
    return DriftRow(
        part=SyncCategory.ACLS,
        subject=str(acl),
        source="" if action in _ACTIONS_NOT_ON_SOURCE else "present",
        destination="present" if action in _ACTIONS_ON_DESTINATION else "",
        action=action,
        reason=reason,
        done=done,
        acl_topic=acl.name if _names_one_topic(acl) else UNSET,
        code=code,
    )


def _names_one_topic(acl: Acl) -> bool:
    return acl.resource is Resource.TOPIC and acl.pattern is Pattern.LITERAL and acl.name != "*"


def to_unknown_rows(cluster: str, acls: BrokerAcls) -> list[DriftRow]:
    return [
        DriftRow(
            part=SyncCategory.ACLS,
            subject=text,
            action=SyncAction.SKIP,
            reason=f"cluster {cluster}: an entry of a kind that this Mirrorbook does not know: left alone",
        )
        for text in acls.unknown
    ]


def to_forgery_row(cluster: str, acl: Acl, flaw: AclFlaw) -> DriftRow:
    """No mirror can have made this ledger entry: its denial counts as the source's own."""
    return DriftRow(
        part=SyncCategory.ACLS,
        subject=f"ledger on {cluster}: {acl}",
        action=SyncAction.SKIP,
        reason=str(Finding("denial_forged", acl, flaw=flaw)),
    )


def to_no_authorizer_row(no_authorizer: AuthorizerOff, command_result: str = "") -> DriftRow:
    why = (
        "everybody may do everything there, so nothing is copied, staged or fenced"
        if no_authorizer.configured is AuthorizerKind.KAFKA
        else "so nothing is copied, staged, given or denied there"
    )
    return to_skipped_cluster_row(
        SyncCategory.ACLS,
        no_authorizer.cluster,
        f"{no_authorizer.text}: {why}{f'; {command_result}' if command_result else ''}",
    )


def to_skipped_cluster_row(part: SyncCategory, cluster: str, reason: str) -> DriftRow:
    return DriftRow(
        part=part,
        subject=f"cluster {cluster}",
        action=SyncAction.SKIP,
        reason=reason,
    )
