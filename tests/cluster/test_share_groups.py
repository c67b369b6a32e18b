"""Share groups with Kafka's own share consumer: none of their records is left out, repeats are as the plan said."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_core.kafka.acl_requests import create_acls, delete_acls, wait_until_acls_absent, wait_until_acls_present
from mirror_core.kafka.client import ClusterClient
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.describe import describe_with_groups
from mirror_core.model.acl import Operation
from mirror_core.model.figures import FigureKey
from mirror_core.model.names import Partition
from mirror_core.model.run import Plan, RunMode, RunState
from mirror_core.model.sync_state import DriftRow, GroupCoverage, SyncAction, SyncCategory
from mirror_core.model.timing import now_ms
from mirror_core.rights.acl_rules import build_denial
from mirror_core.sync.failover_offsets import reset_group_offsets
from mirror_core.sync.offset_commits import OwnCommittedOffsets
from mirror_core.wire.group_records import SHARE_STATE_TOPIC
from mirrorbook_tools.sandbox.jars import ensure_jars
from tests.support import unplanned_runs
from tests.support.broker_faults import killed
from tests.support.cluster_admin import as_admin
from tests.support.failback_runs import failback_of, go_home
from tests.support.failover_runs import begin
from tests.support.kafka3_source import LOCK, older_source
from tests.support.kafka_clients import Pair, new_topic, produce
from tests.support.memory_state import MemoryLog
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.separate_cluster import in_place_of
from tests.support.share_groups import consume_share, fetch_start_offset, set_start_offset
from tests.support.synced_groups import commit

pytestmark = pytest.mark.cluster

COPIED = 20


def mirrored_queue(pair: Pair, folder: Path) -> tuple[Mirrored, str, str]:
    """A copied topic, and a share group that starts at its beginning."""
    topic = new_topic(pair.east)
    group = f"{topic}-queue"
    produce(pair.east, topic, COPIED)
    mirrored = new_mirror(pair, folder, topic, groups=(group,))
    mirrored.copy()
    with ClusterClient(mirrored.link.source) as east:
        set_start_offset(east, group, topic, 0)
    return mirrored, topic, group


def sync(mirrored: Mirrored) -> DriftRow:
    (row,) = mirror_commands.run_sync(mirrored.link, only=frozenset({SyncCategory.GROUPS})).rows
    return row


def start_on(cluster: str, mirrored: Mirrored, group: str, topic: str) -> int | None:
    link = mirrored.link
    with ClusterClient(link.source if cluster == "east" else link.destination) as client:
        start = fetch_start_offset(client, group, topic)
    return None if start is None else start.offset


def warning_of(plan: Plan) -> str:
    (warning,) = [finding for finding in plan.warnings if finding.code == "share_groups_redelivered"]
    return str(warning)


def test_what_a_share_group_acknowledged_up_to_the_end_is_delivered_once(pair: Pair, tmp_path: Path) -> None:
    """Brokers still show the start offset from before the last acknowledgement, and a lag of nothing."""
    mirrored, topic, group = mirrored_queue(pair, tmp_path)
    assert consume_share(pair.east, group, topic, tmp_path, count=COPIED) == [*range(COPIED)]
    row = sync(mirrored)
    assert (row.action, row.done, row.offset) == (SyncAction.COMMIT, True, COPIED)
    assert sync(mirrored).action is SyncAction.EQUAL
    assert start_on("west", mirrored, group, topic) == COPIED
    produce(pair.east, topic, 5)
    mirrored.copy()
    failover = mirrored.failover
    assert failover.drive(begin(failover)).state is RunState.DONE
    assert consume_share(pair.west, group, topic, tmp_path, count=5) == [*range(COPIED, COPIED + 5)]


def test_where_the_state_topic_cannot_be_read_repeats_are_as_the_plan_said(pair: Pair, tmp_path: Path) -> None:
    mirrored, topic, group = mirrored_queue(pair, tmp_path)
    consume_share(pair.east, group, topic, tmp_path, count=COPIED)
    produce(pair.east, topic, 5)
    mirrored.copy()
    hidden = {build_denial(SHARE_STATE_TOPIC, "User:mirror-control", operation=Operation.READ)}
    with as_admin(pair.east) as admin:
        create_acls(admin, hidden)
        try:
            wait_until_acls_present(admin, hidden)
            failover = mirrored.failover
            plan = failover.plan(RunMode.PLANNED)
            assert plan.groups[group][FigureKey.READ_AGAIN_AFTER_SYNC] == COPIED
            assert plan.predict_read_again(group) is None, "it may acknowledge more before the fence"
            assert f"known now: {group}: {COPIED}" in warning_of(plan)
            run = failover.drive(begin(failover))
        finally:
            delete_acls(admin, hidden)
            wait_until_acls_absent(admin, hidden)
    assert run.state is RunState.DONE
    assert run.forecast_outcome is not None
    assert run.forecast_outcome.reread_offsets == {group: COPIED}
    assert consume_share(pair.west, group, topic, tmp_path, count=COPIED + 5) == [*range(COPIED + 5)]


def test_without_the_source_a_share_group_goes_on_where_the_copy_ends(pair: Pair, tmp_path: Path) -> None:
    mirrored, topic, group = mirrored_queue(pair, tmp_path)
    produce(pair.east, topic, 4)
    assert len(consume_share(pair.east, group, topic, tmp_path, count=COPIED + 4)) == COPIED + 4
    row = sync(mirrored)
    assert (row.done, row.offset, row.source) == (True, COPIED, str(COPIED + 4))
    with killed(pair.east):
        _, (coverage,) = describe_with_groups(mirrored.link, mirrored.state, now_ms())
        assert (coverage.coverage, coverage.offset, coverage.clamped_by) == (GroupCoverage.CLAMPED, COPIED, 4)
        assert coverage.age_s is not None
        failover = mirrored.failover
        plan = failover.plan(RunMode.UNPLANNED)
        assert plan.groups[group][FigureKey.READ_AGAIN_MOST] == 0
        assert "since the last sync" in warning_of(plan)
        assert failover.drive(unplanned_runs.begin(failover).id).state is RunState.DONE
        produce(pair.west, topic, 3)
        assert consume_share(pair.west, group, topic, tmp_path, count=3) == [*range(COPIED, COPIED + 3)]


def test_progress_of_a_share_group_on_the_destination_is_kept(pair: Pair, tmp_path: Path) -> None:
    mirrored, topic, group = mirrored_queue(pair, tmp_path)
    assert sync(mirrored).offset == 0
    consume_share(pair.west, group, topic, tmp_path, "--max-messages", "7", count=7)
    row = sync(mirrored)
    assert (row.action, row.done, row.offset) == (SyncAction.SKIP, False, 7)
    with ClusterClient(mirrored.link.source) as east:
        set_start_offset(east, group, topic, 9)
    row = sync(mirrored)
    assert (row.done, row.offset) == (True, 9)
    assert consume_share(pair.west, group, topic, tmp_path, count=COPIED - 9) == [*range(9, COPIED)]


def test_a_share_group_is_not_synced_into_a_group_of_another_kind(pair: Pair, tmp_path: Path) -> None:
    mirrored, topic, group = mirrored_queue(pair, tmp_path)
    commit(mirrored.link, "destination", group, topic, 3)
    row = sync(mirrored)
    assert (row.action, row.subject) == (SyncAction.SKIP, group)
    assert "is a classic group on the destination" in row.reason


def test_a_share_group_comes_home_and_nothing_is_left_out(pair: Pair, tmp_path: Path) -> None:
    mirrored, topic, group = mirrored_queue(pair, tmp_path)
    consume_share(pair.east, group, topic, tmp_path, "--max-messages", "7", count=7)
    failover = mirrored.failover
    assert failover.drive(begin(failover)).state is RunState.DONE
    produce(pair.west, topic, 10)
    assert consume_share(pair.west, group, topic, tmp_path, "--max-messages", "6", count=6) == [*range(7, 13)]
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    failback.drive(run.id)
    go_home(failback, run.id)
    assert consume_share(pair.east, group, topic, tmp_path, count=COPIED - 3) == [*range(13, COPIED + 10)]


def test_what_a_former_primarys_group_acknowledged_is_forgotten(pair: Pair, tmp_path: Path) -> None:
    """Other records will be at these offsets: they must be delivered."""
    mirrored, topic, group = mirrored_queue(pair, tmp_path)
    consume_share(pair.east, group, topic, tmp_path, count=COPIED)
    with ClusterClient(mirrored.link.source) as east:
        before, log = fetch_start_offset(east, group, topic), MemoryLog()
        assert before is not None
        assert (before.offset, before.acknowledged_ahead, before.resume_offset) == (0, COPIED, COPIED)
        for _ in range(2):
            assert reset_group_offsets(mirrored.link.mirror, east, [topic], log) == 1
        after = fetch_start_offset(east, group, topic)
        assert after is not None
        assert (after.offset, after.acknowledged_ahead, after.resume_offset) == (0, 0, 0)
    own_offsets = OwnCommittedOffsets(mirrored.name, log.state)
    assert list(own_offsets.find_known(group, Partition(topic, 0))) == [0]


def test_a_destination_without_share_groups_is_named_once_for_each_group(pair: Pair, tmp_path: Path) -> None:
    with in_place_of(pair, "west", tmp_path, ensure_jars(LOCK)) as older:
        mirrored, _, group = mirrored_queue(older, tmp_path)
        row = sync(mirrored)
        assert (row.action, row.subject) == (SyncAction.SKIP, group)
        assert "brokers have no share groups" in row.reason


def test_a_source_without_share_groups_is_synced_as_before(pair: Pair, tmp_path: Path) -> None:
    with older_source(pair, tmp_path) as older:
        topic = new_topic(older.east)
        group = f"{topic}-group"
        produce(older.east, topic, COPIED)
        mirrored = new_mirror(older, tmp_path, topic, groups=(group,))
        mirrored.copy()
        commit(mirrored.link, "source", group, topic, 4)
        assert sync(mirrored).offset == 4
        assert not [f for f in mirrored.failover.plan(RunMode.PLANNED).warnings if "share" in f.code]
