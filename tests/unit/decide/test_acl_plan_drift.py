"""The table of a check that says what a sync would find."""

from __future__ import annotations

from typing import Any

from mirror_core.decide.acl_plan import AclPlan
from mirror_core.model.acl import Acl, Operation, Resource
from mirror_core.model.sync_state import DriftRow, SyncAction, SyncCategory
from mirror_core.runbook.expectation_check import _to_sync_rows
from mirror_core.sync.acl_rows import to_plan_rows
from mirror_core.sync.mirror_sync import ALL_PARTS, SyncReport


def row(part: SyncCategory, subject: str, action: SyncAction, **more: Any) -> DriftRow:
    return DriftRow(part=part, subject=subject, source="", destination="", action=action, **more)


def told(*rows: DriftRow, topics: str = "orders pay") -> list[tuple[object, ...]]:
    """Part, subject, topic, action and whether it is pending."""
    report = SyncReport(mirror="m", dry_run=True, parts=tuple(ALL_PARTS), rows=rows, topics=frozenset(topics.split()))
    return [(r["part"], r["subject"], r["topic"], r["action"], r["pending"]) for r in _to_sync_rows(report)]


def test_topics_of_which_nothing_differs_were_looked_at_all_the_same() -> None:
    assert told() == [("topics", name, name, "equal", False) for name in ("orders", "pay")]
    setting = row(SyncCategory.CONFIGS, "pay: retention.ms", SyncAction.SET)
    assert told(setting) == [
        ("configs", "pay: retention.ms", "pay", "set", True),
        ("topics", "orders", "orders", "equal", False),
    ]
    assert told(topics="") == []


def test_a_topic_that_is_missing_or_refused_is_a_row_of_its_own_topic() -> None:
    new = told(
        row(SyncCategory.TOPICS, "new", SyncAction.CREATE),
        row(SyncCategory.TOPICS, "bad", SyncAction.REFUSE),
        topics="",
    )
    assert new == [("topics", "new", "new", "create", True), ("topics", "bad", "bad", "refuse", False)]


def test_the_end_of_a_groups_name_is_not_taken_for_a_topic() -> None:
    rows = (
        row(SyncCategory.GROUPS, "my pay-1", SyncAction.SKIP),
        row(SyncCategory.GROUPS, "my other-1", SyncAction.SKIP),
    )
    assert [topic for part, _, topic, _, _ in told(*rows) if part == "groups"] == ["pay", ""]


def test_what_is_staged_already_is_not_pending_what_is_not_yet_is() -> None:
    def read(topic: str) -> Acl:
        return Acl(resource=Resource.TOPIC, name=topic, principal="User:a", operation=Operation.WRITE)

    nothing: dict[str, Any] = {name: () for name in AclPlan.__dataclass_fields__}
    plan = AclPlan(**{**nothing, "stage": (read("orders"),), "waiting": (read("pay"),)})
    found = {topic: pending for part, _, topic, _, pending in told(*to_plan_rows(plan, done=False)) if part == "acls"}
    assert found == {"orders": True, "pay": False}
