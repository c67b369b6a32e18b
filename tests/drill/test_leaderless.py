"""A broker of the source is dead, and with it the only replica of a partition: the rest is moved without, by a word."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirror_core.kafka.consumer_groups import find_coordinator
from mirror_core.kafka.reassignment import reassign, wait_for_replicas
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.fence_watcher import check_fence
from mirror_core.mirrors.incremental_verification import compare_and_record
from mirror_core.model.errors import Refused
from mirror_core.model.figures import FigureKey
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.model.parity_verdict import ParityRange, ParityResult, ParityVerdict
from mirror_core.model.run import RunMode, RunState
from mirror_core.parity.check import LocalParity
from mirror_core.parity.comparable_ranges import read_parity_scope
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.sync.offset_sync import format_unlisted
from mirror_core.wire.group_records import CONSUMER_OFFSETS_TOPIC
from tests.support.cluster_admin import as_admin
from tests.support.dedicated_clusters import two_clusters
from tests.support.failback_runs import content, failback_of, go_home
from tests.support.failover_runs import commit, committed, denied
from tests.support.kafka_clients import TIMEOUT_S, Pair, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.three_nodes import replicas
from tests.support.three_source_nodes import leaderless, topic_on
from tests.support.topic_equality import assert_same
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill, pytest.mark.heavy]

COPIED, TAIL, DEAD = 20, 7, 3


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_clusters(tmp_path_factory.mktemp("three"), nodes=3, lone_west=True) as pair:
        yield pair


@contextmanager
def without_a_leader(pair: Pair, evidence: Path) -> Iterator[tuple[Mirrored, Partition, Partition]]:
    """Of a mirrored topic: a partition that is well, and one whose only broker has died. Both have a tail."""
    well, lone = topic_on(pair.east, (1,), (DEAD,))
    mirrored = new_mirror(pair, evidence, well.topic)
    for partition in (well, lone):
        produce(pair.east, well.topic, COPIED, partition=partition.index)
    mirrored.copy()
    for partition in (well, lone):
        produce(pair.east, well.topic, TAIL, partition=partition.index)
    pair.east.kill(DEAD)
    try:
        leaderless(pair.east, lone)
        yield mirrored, well, lone
    finally:
        back(pair, lone)


def back(pair: Pair, lone: Partition) -> None:
    pair.east.start(DEAD)
    wait_until(lambda: replicas(pair.east, lone)[0] == DEAD, timeout_s=TIMEOUT_S, why=f"{lone} has a leader again")


def leaving(mirrored: Mirrored) -> Failover:
    return Failover(mirrored.link, mirrored.services, started_by="test", leave_behind=True)


def test_it_is_left_behind_by_a_word_fenced_and_saved_on_the_way_home(three: Pair, tmp_path: Path) -> None:
    with without_a_leader(three, tmp_path) as (mirrored, well, lone):
        topic = well.topic
        refused = mirrored.failover.decide(RunMode.PLANNED)
        [reason] = refused.reasons
        assert (reason.code, reason.values["partitions"]) == ("source_offline", (str(lone),))
        assert f"`mirrorbook failover run {mirrored.name} --leave-behind`" in str(reason)
        failover = leaving(mirrored)
        plan = failover.plan(RunMode.PLANNED)
        assert plan.hash != refused.plan.hash
        assert any(f"{lone} (position {COPIED}, " in line for line in map(str, plan.warnings)), plan.warnings
        with pytest.raises(Refused):
            mirrored.failover.begin(plan.hash, RunMode.PLANNED)
        run = failover.begin(plan.hash, RunMode.PLANNED)
        assert mirrored.failover.drive(run.id).state is RunState.DONE  # whoever takes its steps needs no word
        assert {p: s.lmo for p, s in mirrored.statuses.items()} == {well: COPIED + TAIL, lone: COPIED}
        run, steps = mirrored.failover.read_status(run.id)
        evidence = {step.step: step.evidence for step in steps}
        assert evidence["drain"]["left_behind_ends"] == {str(lone): COPIED}
        assert str(lone) in str(evidence["parity"]["not_compared"])
        assert run.forecast_outcome is not None
        assert run.forecast_outcome.lost_offsets is None
        assert str(lone) in run.forecast_outcome.lost_basis
        written = produce(three.west, topic, 5, partition=lone.index)
        assert [record.offset for record in written] == [COPIED + n for n in range(5)]
        assert not denied(three.west, topic)
    assert denied(three.east, topic), "its broker is back, and the fence stands there"
    with pytest.raises(Exception, match="TOPIC_AUTHORIZATION_FAILED"):
        produce(three.east, topic, 1, partition=lone.index, user="app")
    found = check_fence(mirrored.link)
    assert any(f"{lone} [{COPIED}, {COPIED + TAIL})" in alarm for alarm in found.alarms), found
    failback = failback_of(mirrored)
    plan = failback.plan()
    assert plan.figures[FigureKey.DISCARDED_OFFSETS] == TAIL
    home = failback.begin(plan.hash)
    assert failback.drive(home.id).state is RunState.RUNNING
    [salvaged] = [step for step in failback.read_status(home.id)[1] if step.step == "salvage"]
    assert salvaged.evidence["records"] == TAIL
    go_home(failback, home.id)
    assert len([r for r in content(read_all(three.east, topic)) if r.partition == lone.index]) == COPIED + 5
    assert_same(three, [topic])


def test_the_others_are_compared_and_proved_without_it(three: Pair, tmp_path: Path) -> None:
    with without_a_leader(three, tmp_path) as (mirrored, well, lone):
        check, link = LocalParity(mirrored.config.path), mirrored.link

        def compare(ranges: Sequence[ParityRange], so_far: Callable[[ParityResult], None]) -> ParityResult:
            return check(link.mirror.source_identity, link.mirror.destination_identity, ranges, None, so_far)

        state, said = mirrored.state, list[str]()
        ranges = read_parity_scope(link, state).ranges
        found = compare_and_record(link, state, ranges, compare, compare_all=False, report=said.append)
        assert found.verdict is ParityVerdict.INDETERMINATE
        assert found.undecided_partitions == {lone}
        [reason] = found.reasons
        assert reason.startswith(f"{lone} ")
        assert "cluster east: nobody leads it" in reason
        assert found.verified_ends == {well: COPIED, lone: 0}
        assert {p: one.end for p, _, one in mirrored.state.verifications[mirrored.name].iterate_partitions()} == {
            well: COPIED
        }


def test_one_that_has_a_leader_again_at_the_fence_is_copied_and_compared(three: Pair, tmp_path: Path) -> None:
    with without_a_leader(three, tmp_path) as (mirrored, well, lone):
        failover = leaving(mirrored)
        run = failover.begin(failover.plan(RunMode.PLANNED).hash, RunMode.PLANNED)
        failover.run_step(run.id, "prove")
    produce(three.east, lone.topic, 1, partition=lone.index)
    assert failover.drive(run.id).state is RunState.DONE
    ends = {well: Offset(COPIED + TAIL), lone: Offset(COPIED + TAIL + 1)}
    assert {p: s.lmo for p, s in mirrored.statuses.items()} == ends
    evidence = {step.step: step.evidence for step in failover.read_status(run.id)[1]}
    assert evidence["parity"]["not_compared"] == ()
    assert "left_behind_ends" not in evidence["drain"]
    assert_same(three, [lone.topic])


def test_a_group_whose_coordinator_is_away_is_not_called_deleted_and_no_age_covers_it(
    three: Pair, tmp_path: Path
) -> None:
    """Following its advice, to delete the group's offset, would skip records."""
    well, _ = topic_on(three.east, (1,), (1,))
    produce(three.east, well.topic, COPIED)
    with as_admin(three.east) as client:
        find_coordinator(client, well.topic)  # has the topic of offsets created
        count = len(client.metadata([CONSUMER_OFFSETS_TOPIC]).topics[CONSUMER_OFFSETS_TOPIC].partitions)
        here, *others = (f"{number}-{well.topic}" for number in range(50))
        coordinated = offsets_partition(here, count)
        away = next(group for group in others if offsets_partition(group, count) != coordinated)
        placed = {coordinated: (1,), offsets_partition(away, count): (DEAD,)}
        reassign(client, placed)
        wait_for_replicas(client, placed)
    for group in (here, away):
        commit(three.east, group, well.topic, 5)
    mirrored = new_mirror(three, tmp_path, well.topic, groups=(here, away))
    mirrored.copy()
    mirror_commands.run_sync(mirrored.link)
    synced = mirrored.state.groups[mirrored.name]
    three.east.kill(DEAD)
    try:
        leaderless(three.east, offsets_partition(away, count))
        commit(three.east, here, well.topic, 9)
        rows = {row.subject: row for row in mirror_commands.run_sync(mirrored.link).rows}
        plans = [mirrored.failover.plan(mode) for mode in (RunMode.PLANNED, RunMode.UNPLANNED)]
        after = mirrored.state.groups[mirrored.name]
    finally:
        three.east.start(DEAD)
    assert committed(three.west, here, well.topic) == 9
    assert committed(three.west, away, well.topic) == 5
    assert rows[f"{away} {well.topic}-0"].reason == format_unlisted(ClusterName("east"))
    assert after == synced, "not all groups were looked at again"
    for plan in plans:
        codes = {warning.code: str(warning) for warning in plan.warnings}
        assert "group_offsets_deleted" not in codes
        assert f"{away} {well.topic}-0 (stays at 5)" in codes["group_offsets_uncommitted"]
        assert ("groups_unreported", "east") in {(warning.code, warning.subject) for warning in plan.warnings}


def offsets_partition(group: str, count: int) -> Partition:
    """Brokers hash names as Java does."""
    code = 0
    for character in group:
        code = (31 * code + ord(character)) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >= 1 << 31 else code
    return Partition(CONSUMER_OFFSETS_TOPIC, abs(signed) % count)
