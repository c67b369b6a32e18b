"""Where groups go on, read off the rows of a sync: only what is committed, or stays, is where one goes on."""

from __future__ import annotations

import msgspec

from mirror_core.model.names import Offset, Partition
from mirror_core.model.sync_state import DriftRow, SyncAction, SyncCategory
from mirror_core.runbook.step_records import GroupResumeOffsets
from mirror_core.sync.failover_offsets import to_resume_offsets


def row(
    subject: str,
    action: SyncAction,
    offset: int | None,
    *,
    part: SyncCategory = SyncCategory.GROUPS,
    done: bool = False,
) -> DriftRow:
    found = msgspec.UNSET if offset is None else offset
    return DriftRow(part=part, subject=subject, source="", destination="", action=action, done=done, offset=found)


def test_what_was_committed_or_was_equal_is_where_a_group_goes_on() -> None:
    found = to_resume_offsets(
        [
            row("my group a-1-0", SyncAction.COMMIT, 7, done=True),
            row("my group a-1-1", SyncAction.EQUAL, 0),
            row("g b-0", SyncAction.EQUAL, 3),
        ]
    )
    assert found == {"my group": {Partition("a-1", 0): 7, Partition("a-1", 1): 0}, "g": {Partition("b", 0): 3}}
    assert GroupResumeOffsets.from_groups(found).by_group() == found


def test_what_was_not_done_or_is_a_members_own_progress_is_unknown() -> None:
    rows = [
        row("g a-0", SyncAction.COMMIT, 7),
        row("g a-1", SyncAction.SKIP, 9),
        row("h", SyncAction.SKIP, None),
        row("a", SyncAction.CREATE, 5, part=SyncCategory.TOPICS, done=True),
    ]
    assert to_resume_offsets(rows) == {}


def test_rows_that_tell_of_no_group_have_the_shape_that_they_had() -> None:
    plain = msgspec.to_builtins(row("a", SyncAction.CREATE, None, part=SyncCategory.TOPICS))
    assert set(plain) == {"part", "subject", "source", "destination", "action", "reason", "done"}
    assert msgspec.to_builtins(row("g a-0", SyncAction.EQUAL, Offset(3)))["offset"] == 3
