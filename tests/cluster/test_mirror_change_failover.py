"""A disaster while filters change: what stays is promoted, what leaves stays closed, and is finished afterwards."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.decide.mirror_change import FilterChange
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.describe import describe_with_groups
from mirror_core.mirrors.mirror_change import change_mirror, finish_change, prepare_change
from mirror_core.mirrors.mirror_facts import FactKey
from mirror_core.model.errors import Refused
from mirror_core.model.figures import FigureKey
from mirror_core.model.mirror import DesiredState, PartitionState, TopicAccess
from mirror_core.model.names import Partition
from mirror_core.model.run import RunMode, RunState
from mirror_core.model.timing import now_ms
from tests.support.broker_faults import killed
from tests.support.data_plane_thread import beating, driving
from tests.support.failback_runs import failback_of, go_home
from tests.support.failover_runs import app_topic, commit, denied
from tests.support.kafka_clients import TIMEOUT_S, Pair, grant, new_topic, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.unplanned_runs import begin
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def change(mirrored: Mirrored, wanted: FilterChange, *, finish: bool = True) -> None:
    change_mirror(mirrored.link, wanted, prepare_change(mirrored.link, mirrored.state, wanted).plan.hash)
    if finish:
        assert finish_change(mirrored.link, timeout_s=TIMEOUT_S)


@pytest.fixture
def leaving(pair: Pair, tmp_path: Path) -> tuple[Mirrored, str, str]:
    """A copied mirror of two topics, which applications write by one grant on their prefix."""
    stays = new_topic(pair.east, prefix="left-")
    leaves = new_topic(pair.east, prefix=f"{stays}-", retention_ms="86400000")
    operations = [AclOperation.READ, AclOperation.WRITE]
    grant(pair.east, "app", ResourceType.TOPIC, stays, operations, prefixed=True)
    for topic in (stays, leaves):
        produce(pair.east, topic, 50)
    mirrored = new_mirror(pair, tmp_path, stays, leaves)
    mirrored.copy()
    mirror_commands.run_sync(mirrored.link)
    return mirrored, stays, leaves


@pytest.mark.parametrize("access", list(TopicAccess))
def test_an_unplanned_failover_moves_what_stays_and_keeps_closed_what_leaves(
    leaving: tuple[Mirrored, str, str], access: TopicAccess
) -> None:
    mirrored, stays, leaves = leaving
    pair, is_closed = mirrored.pair, access is TopicAccess.CLOSED
    change(mirrored, FilterChange(exclude_topics=(leaves,), access=access), finish=False)
    planned = mirrored.failover.decide(RunMode.PLANNED).reasons
    assert [reason.values["topics"] for reason in planned if reason.code == "topics_leaving"] == [(leaves,)]
    with killed(pair.east):
        warnings = mirrored.failover.decide(RunMode.UNPLANNED).plan.warnings
        assert [w.values["topics"] for w in warnings if w.code == "leaving_topics_not_promoted"] == [(leaves,)]
        run = begin(mirrored.failover)
        assert mirrored.failover.drive(run.id).state is RunState.DONE
        settled = mirrored.state.steps[run.id, "settle"].evidence
        assert leaves in str(settled["left_the_mirror"])
        assert not denied(pair.west, stays)
        assert denied(pair.west, leaves), "the grant on the prefix covers it, too"
        assert {p.topic for p in mirrored.statuses} == {stays}
        departure = mirrored.state.departures[mirrored.name][leaves]
        assert [(s.state, s.lmo) for s in departure.statuses] == [(PartitionState.STOPPED, 50)]
        assert departure.is_done is is_closed
        with pytest.raises(Refused, match="a failover has moved applications"):
            change(mirrored, FilterChange(exclude_topics=()))
        change(mirrored, FilterChange(access=TopicAccess.RELEASED if is_closed else None))
        assert not denied(pair.west, leaves)
        assert len(read_all(pair.west, leaves)) == 51, "nothing was deleted, one was just written"


def test_an_aborted_failover_leaves_the_mirror_without_what_was_leaving(leaving: tuple[Mirrored, str, str]) -> None:
    mirrored, stays, leaves = leaving
    pair = mirrored.pair
    change(mirrored, FilterChange(exclude_topics=(leaves,), access=TopicAccess.CLOSED), finish=False)
    with killed(pair.east):
        run = begin(mirrored.failover)
        mirrored.failover.run_step(run.id, "settle")
        mirrored.failover.abort(run.id)
    assert {p.topic for p in mirrored.statuses} == {stays}
    produce(pair.east, stays, 5)
    mirrored.copy()
    assert read_all(pair.east, stays) == read_all(pair.west, stays)
    assert len(read_all(pair.west, leaves)) == 50
    change(mirrored, FilterChange(exclude_topics=()))
    produce(pair.east, leaves, 5)
    mirrored.copy()
    assert read_all(pair.east, leaves) == read_all(pair.west, leaves), "it returns at its LMO"


def test_the_way_home_after_it_takes_what_was_moved_and_the_topic_returns_afterwards(
    leaving: tuple[Mirrored, str, str],
) -> None:
    mirrored, stays, leaves = leaving
    pair = mirrored.pair
    change(mirrored, FilterChange(exclude_topics=(leaves,), access=TopicAccess.CLOSED), finish=False)
    with killed(pair.east):
        run = begin(mirrored.failover)
        assert mirrored.failover.drive(run.id).state is RunState.DONE
    assert not denied(pair.east, leaves), "it is on east only, and was never fenced"
    produce(pair.west, stays, 5, user="app")
    failback = failback_of(mirrored)
    home = failback.begin(failback.plan().hash)
    failback.drive(home.id)
    go_home(failback, home.id)
    assert denied(pair.west, leaves)
    assert mirrored.state.mirrors[mirrored.name].desired is DesiredState.STARTED
    change(mirrored, FilterChange(exclude_topics=()))
    mirrored.copy()
    wait_until(
        lambda: read_all(pair.east, leaves) == read_all(pair.west, leaves), timeout_s=TIMEOUT_S, why="it goes on"
    )
    assert mirrored.statuses[Partition(leaves, 0)].state is PartitionState.MIRRORING
    assert mirrored.statuses[Partition(stays, 0)].state is PartitionState.MIRRORING


def test_a_topic_that_a_change_has_just_added_is_not_counted_as_listed(pair: Pair, tmp_path: Path) -> None:
    """The data plane takes filters up at its next plan, and goes on looking by the old ones until then."""
    first, added = app_topic(pair), app_topic(pair)
    produce(pair.east, first, 20)
    produce(pair.east, added, 500)
    mirrored = new_mirror(pair, tmp_path, first)
    with driving(mirrored, epoch_s=600):
        beating(mirrored, 1)
        change(mirrored, FilterChange(topics=(first, added)), finish=False)
        changed_ms = mirrored.state.source_observations[mirrored.name].at_ms

        def is_observed() -> bool:
            return mirrored.state.source_observations[mirrored.name].at_ms > changed_ms + 1_000

        wait_until(is_observed, timeout_s=TIMEOUT_S, why="the source is looked at again")
        with killed(pair.east):
            plan = mirrored.failover.plan(RunMode.UNPLANNED)
            run = begin(mirrored.failover)
            assert mirrored.failover.drive(run.id).state is RunState.DONE
    lmo_evidence = mirrored.state.steps[run.id, "record_lmo"].evidence
    for figures in (plan.figures, lmo_evidence):
        assert figures[FigureKey.UNCOPIED_PARTITIONS] is None
        assert figures[FigureKey.COMPLETE_UP_TO_MS] == {"all topics together": None}
    assert plan.figures[FigureKey.TOPICS_LISTED_S] is None


def test_a_group_that_a_change_has_just_added_is_not_counted_as_synced(pair: Pair, tmp_path: Path) -> None:
    topic, first = app_topic(pair), f"g-{secrets.token_hex(4)}"
    added = f"{first}-added"
    produce(pair.east, topic, 20)
    for group in (first, added):
        commit(pair.east, group, topic, 5)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(first,))
    mirrored.copy()
    mirror_commands.run_sync(mirrored.link)
    change(mirrored, FilterChange(groups=(first, added)))
    with killed(pair.east):
        unsynced = mirrored.failover.plan(RunMode.UNPLANNED)
    description, group_rows = describe_with_groups(mirrored.link, mirrored.state, now_ms())
    mirror_commands.run_sync(mirrored.link)
    with killed(pair.east):
        synced = mirrored.failover.plan(RunMode.UNPLANNED)
    assert [w.subject for w in unsynced.warnings if w.code == "groups_unlisted"] == [mirrored.name]
    assert {group: figures[FigureKey.GROUPS_SYNCED_S] for group, figures in unsynced.groups.items()} == {first: None}
    assert {(row.group, row.age_s) for row in group_rows} == {(first, None)}
    assert description.facts[FactKey.UNCOMMITTED_GROUPS].value is None
    assert not [w for w in synced.warnings if w.code == "groups_unlisted"]
    assert synced.groups.keys() == {first, added}
    assert None not in {figures[FigureKey.GROUPS_SYNCED_S] for figures in synced.groups.values()}
