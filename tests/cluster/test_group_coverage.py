"""What became of each group's offset: one table, the same in `describe --all`, in a plan, and without the source."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AclOperation, AclPermissionType, ResourceType

from mirror_core.decide.failure_remedies import RecoveryAction
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.consumer_groups import GroupOffsetsClient
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.describe import describe_with_groups
from mirror_core.mirrors.partition_recovery import recover_partitions
from mirror_core.mirrors.recovery_plan import plan_recovery
from mirror_core.model.figures import FigureKey
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import RunMode, RunState
from mirror_core.model.sync_state import SyncAction, SyncCategory
from mirror_core.model.timing import now_ms
from mirror_core.runbook.run_outcome import read_run_result
from tests.support.broker_faults import killed
from tests.support.cluster_admin import as_admin, restore_rights, rights_of
from tests.support.group_commits import commit_offsets, delete_offset, fetch_offsets
from tests.support.kafka_clients import Pair, grant, new_topic, produce
from tests.support.mirrored_topics import Mirrored, new_mirror, replicate
from tests.support.share_groups import set_start_offset
from tests.support.synced_groups import commit, consumer, made_anew
from tests.support.unplanned_runs import begin
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

COPIED, NOT_COPIED = 6, 4
_Coverage = Mapping[str, tuple[str, int | None, int]]


def coverage(mirrored: Mirrored) -> _Coverage:
    _, rows = describe_with_groups(mirrored.link, mirrored.state, now_ms())
    assert all(row.age_s is not None and 0 <= row.age_s < 600 for row in rows)
    return {row.group.rpartition("-")[2]: (row.coverage.value, row.offset, row.clamped_by) for row in rows}


def sync_groups(mirrored: Mirrored) -> None:
    mirror_commands.run_sync(mirrored.link, only=frozenset({SyncCategory.GROUPS}))


def test_every_group_is_synced_clamped_refused_skipped_or_deleted_also_without_the_source(
    pair: Pair, tmp_path: Path
) -> None:
    topic, prefix = new_topic(pair.east), "g-" + secrets.token_hex(4)
    produce(pair.east, topic, COPIED)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(prefix + "-.*",))
    mirrored.copy()
    link = mirrored.link
    produce(pair.east, topic, NOT_COPIED)
    for name, offset in {"synced": 4, "clamped": 10, "refused": 2, "skipped": 3, "deleted": 5}.items():
        commit(link, "source", f"{prefix}-{name}", topic, offset)
    commit(link, "destination", f"{prefix}-refused", topic, 5)
    expected: _Coverage = {
        "synced": ("synced", 4, 0),
        "clamped": ("clamped", COPIED, NOT_COPIED),
        "refused": ("refused", 5, 0),
        "skipped": ("skipped", None, 0),
        "deleted": ("deleted", 5, 0),
    }
    with consumer(pair.west, f"{prefix}-skipped", topic) as member:
        member.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        sync_groups(mirrored)
        with as_admin(pair.east) as client:
            delete_offset(client, f"{prefix}-deleted", Partition(topic, 0))
        sync_groups(mirrored)
        assert coverage(mirrored) == expected
        with killed(pair.east):
            assert coverage(mirrored) == expected
            plan = mirrored.failover.plan(RunMode.UNPLANNED)
            assert {
                group.rpartition("-")[2]: figures[FigureKey.GROUP_COVERAGE] for group, figures in plan.groups.items()
            } == {name: {outcome: 1} for name, (outcome, _, _) in expected.items()}
            (deleted,) = [f for f in plan.warnings if f.code == "group_offsets_deleted"]
            assert deleted.values["listed"] == f"{prefix}-deleted {topic}-0 at 5"
            assert plan.groups[f"{prefix}-clamped"][FigureKey.READ_AGAIN_MOST] == 0


def test_a_group_that_may_not_be_read_keeps_the_age_and_the_offset_of_the_last_sync_that_read_it(
    pair: Pair, tmp_path: Path
) -> None:
    topic, prefix = new_topic(pair.east), "g-" + secrets.token_hex(4)
    produce(pair.east, topic, COPIED)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(prefix + "-.*",))
    mirrored.copy()
    link, before = mirrored.link, rights_of(pair.east)
    known, new = f"{prefix}-known", f"{prefix}-new"
    commit(link, "source", known, topic, 4)
    sync_groups(mirrored)
    read_at_ms = mirrored.state.groups[mirrored.name].synced_ms
    user, describe, deny = link.source.user(), [AclOperation.DESCRIBE], AclPermissionType.DENY
    assert user is not None
    grant(pair.east, user, ResourceType.GROUP, prefix, describe, prefixed=True, permission=deny)
    try:
        with as_admin(pair.east) as admin, ClusterClient(link.source) as control:
            for group, offset in {known: 5, new: 3}.items():
                assert commit_offsets(admin, group, {Partition(topic, 0): (Offset(offset), "")}) == {}
            offsets, groups = GroupOffsetsClient(control), dict.fromkeys((known, new))
            wait_until(
                lambda: offsets.fetch_attempt(groups).faults.keys() == groups.keys(), timeout_s=60, why="it is denied"
            )
        sync_groups(mirrored)
    finally:
        restore_rights(pair.east, before)
    assert mirrored.state.groups[mirrored.name].synced_ms == read_at_ms
    assert coverage(mirrored) == {"known": ("refused", 4, 0), "new": ("refused", None, 0)}
    with killed(pair.east):
        plan = mirrored.failover.plan(RunMode.UNPLANNED)
    age_s = plan.groups[known][FigureKey.GROUPS_SYNCED_S]
    assert isinstance(age_s, float)
    assert now_ms() - age_s * 1000 - read_at_ms < 60_000
    assert [plan.groups[group].get(FigureKey.WITHOUT_OFFSET_PARTITIONS) for group in (known, new)] == [None, 1]
    (named,) = [warning for warning in plan.warnings if warning.code == "group_offsets_uncommitted"]
    listed = str(named.values["listed"])
    unread = "the group could not be read on the source"
    assert f"says: {new}: {unread}: cluster east" in listed
    assert f"{known} {topic}-0 (stays at 4): {unread}, and the destination has" in listed
    assert "the offset of an earlier sync" in listed
    sync_groups(mirrored)
    assert mirrored.state.groups[mirrored.name].synced_ms > read_at_ms
    assert coverage(mirrored) == {"known": ("synced", 5, 0), "new": ("synced", 3, 0)}


def test_an_offset_that_the_destination_has_lost_since_the_last_sync_is_named_in_a_disaster(
    pair: Pair, tmp_path: Path
) -> None:
    """Brokers delete offsets after offsets.retention.minutes. Without the source no sync commits them again."""
    topic, group = new_topic(pair.east), "g-" + secrets.token_hex(4)
    produce(pair.east, topic, COPIED)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(group,))
    mirrored.copy()
    commit(mirrored.link, "source", group, topic, 4)
    sync_groups(mirrored)
    with killed(pair.east):
        with as_admin(pair.west) as client:
            delete_offset(client, group, Partition(topic, 0))
        plan = mirrored.failover.plan(RunMode.UNPLANNED)
        run = begin(mirrored.failover)
        assert mirrored.failover.drive(run.id).state is RunState.DONE
    assert plan.groups[group][FigureKey.WITHOUT_OFFSET_PARTITIONS] == 1
    assert plan.groups[group][FigureKey.GROUP_COVERAGE] == {"refused": 1}
    (named,) = [warning for warning in plan.warnings if warning.code == "group_offsets_uncommitted"]
    evidence = mirrored.state.steps[run.id, "final_offsets"].evidence["not_done"]
    for text in (named.values["listed"], evidence):
        assert f"{group} {topic}-0: the destination has lost the offset" in str(text)


def test_a_clamped_offset_is_synced_once_the_copy_has_it(pair: Pair, tmp_path: Path) -> None:
    topic, group = new_topic(pair.east), "g-" + secrets.token_hex(4)
    produce(pair.east, topic, COPIED)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(group,))
    mirrored.copy()
    produce(pair.east, topic, NOT_COPIED)
    commit(mirrored.link, "source", group, topic, COPIED + 1)
    name = group.rpartition("-")[2]
    sync_groups(mirrored)
    assert coverage(mirrored) == {name: ("clamped", COPIED, 1)}
    commit(mirrored.link, "source", group, topic, COPIED + NOT_COPIED)
    sync_groups(mirrored)
    assert coverage(mirrored) == {name: ("clamped", COPIED, NOT_COPIED)}, "it goes on on the source"
    mirrored.copy()
    sync_groups(mirrored)
    assert coverage(mirrored) == {name: ("synced", COPIED + NOT_COPIED, 0)}


def test_an_offset_that_neither_side_has_any_more_is_not_called_synced(pair: Pair, tmp_path: Path) -> None:
    """Somebody resets a group by deleting its offsets on both clusters."""
    topic, group = new_topic(pair.east, 2), "g-" + secrets.token_hex(4)
    produce(pair.east, topic, COPIED)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(group,))
    mirrored.copy()
    with as_admin(pair.east) as east, as_admin(pair.west) as west:
        assert commit_offsets(east, group, {Partition(topic, n): (Offset(0), "") for n in range(2)}) == {}
        sync_groups(mirrored)
        for client in (east, west):
            delete_offset(client, group, Partition(topic, 0))
    sync_groups(mirrored)
    _, rows = describe_with_groups(mirrored.link, mirrored.state, now_ms())
    assert [(row.partition, row.coverage.value, row.offset) for row in rows] == [(f"{topic}-1", "synced", 0)]


def test_offsets_of_a_copy_that_is_deleted_to_copy_its_topic_anew_are_not_called_synced(
    pair: Pair, tmp_path: Path
) -> None:
    """Brokers delete a topic's offsets with it, and the group has read nothing of the new topic yet."""
    topic, group = new_topic(pair.east), "g-" + secrets.token_hex(4)
    produce(pair.east, topic, COPIED)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(group,))
    mirrored.copy()
    commit(mirrored.link, "source", group, topic, 4)
    sync_groups(mirrored)
    made_anew(pair, topic, 1, 3)
    replicate(mirrored.link)
    found = plan_recovery(mirrored.link, mirrored.state, None, RecoveryAction.RECOPY)
    recover_partitions(mirrored.link, found, lambda line: None)
    mirrored.copy()
    sync_groups(mirrored)
    assert coverage(mirrored) == {}
    with killed(pair.east):
        assert group not in mirrored.failover.plan(RunMode.UNPLANNED).groups


def test_a_group_whose_name_ends_as_a_partition_does_hides_no_other_ones_refusal(pair: Pair, tmp_path: Path) -> None:
    topic, group = new_topic(pair.east), "g-" + secrets.token_hex(4)
    produce(pair.east, topic, COPIED)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(f"{group}.*",))
    mirrored.copy()
    other = f"{group} {topic}-0"
    for name in (group, other):
        commit(mirrored.link, "source", name, topic, 2)
    commit(mirrored.link, "destination", group, topic, 5)
    with as_admin(pair.west) as west:
        set_start_offset(west, other, topic, 1)  # a share group there
    sync_groups(mirrored)
    left = mirrored.state.uncommitted_groups[mirrored.name].uncommitted
    assert [(item.group, item.partition) for item in left] == [(group, f"{topic}-0"), (other, "")]


@pytest.mark.parametrize("width", [1, 3])
def test_offsets_of_a_topic_that_was_made_anew_stay_out_of_the_old_copy_whatever_plans_have_recorded(
    pair: Pair, tmp_path: Path, width: int
) -> None:
    """A plan records the new topic's further partitions, with its id."""
    topic, group = new_topic(pair.east), "g-" + secrets.token_hex(4)
    produce(pair.east, topic, COPIED)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(group,))
    mirrored.copy()
    commit(mirrored.link, "source", group, topic, 4)
    sync_groups(mirrored)
    made_anew(pair, topic, width, 3)
    commit(mirrored.link, "source", group, topic, 2)
    for _ in range(2):
        replicate(mirrored.link)
    assert len(mirrored.statuses) == width
    rows = list(mirror_commands.run_sync(mirrored.link).rows)
    (about,) = [row for row in rows if row.part is SyncCategory.TOPICS]
    assert about.action is SyncAction.REFUSE
    assert "was deleted and created anew" in about.reason
    (row,) = [row for row in rows if row.part is SyncCategory.GROUPS]
    assert (row.action, row.offset) == (SyncAction.SKIP, 4)
    with as_admin(pair.west) as west:
        assert fetch_offsets(west, group).committed[Partition(topic, 0)].offset == 4
        assert len(west.metadata([topic]).topics[topic].partitions) == 1


def test_a_planned_failover_names_a_group_with_members_on_the_destination(pair: Pair, tmp_path: Path) -> None:
    """It has committed nothing there: as after a split brain, when topics were deleted with their offsets."""
    topic, group = new_topic(pair.east), "g-" + secrets.token_hex(4)
    produce(pair.east, topic, COPIED)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(group,))
    mirrored.copy()
    commit(mirrored.link, "source", group, topic, 4)
    with consumer(pair.west, group, topic):
        plan = mirrored.failover.plan(RunMode.PLANNED)
        run = mirrored.failover.drive(begin(mirrored.failover, RunMode.PLANNED).id)
    (warning,) = [finding for finding in plan.warnings if finding.code == "groups_active"]
    assert warning.values["groups"] == (group,)
    assert plan.groups[group][FigureKey.READ_AGAIN_AFTER_SYNC] is None
    result = read_run_result(mirrored.link, mirrored.state, run)
    assert result is not None
    (left,) = result.groups_left
    assert left.startswith(f"{group} (has members on the destination")
    assert run.forecast_outcome is not None
    assert run.forecast_outcome.reread_offsets == {group: None}
    assert run.forecast_outcome.reread_basis == "no group was brought over"
