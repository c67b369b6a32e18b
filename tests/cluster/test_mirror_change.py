"""A mirror's topics and groups are changed while it runs: nothing is lost, shifted, or open to two writers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from mirror_core.dataplane.driver import Replication, ReplicationOptions
from mirror_core.dataplane.task_runner import LocalRunner
from mirror_core.decide.mirror_change import FilterChange
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.topics import describe_configs
from mirror_core.mirrors import departures as departures_module
from mirror_core.mirrors import mirror_change as mirror_change_module
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.mirror_change import change_mirror, finish_change, prepare_change
from mirror_core.model.errors import Refused
from mirror_core.model.mirror import PartitionState, TopicAccess
from mirror_core.model.names import Partition
from mirror_core.model.run import RunMode
from mirror_core.state.lease import take_over_lease
from tests.cluster.desk import Desk
from tests.support.checked_threads import beside
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client, new_topic, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

CLOSED, RELEASED = TopicAccess.CLOSED, TopicAccess.RELEASED


def change(mirrored: Mirrored, access: TopicAccess | None = None, *, exclude: tuple[str, ...] | None = None) -> None:
    wanted = FilterChange(exclude_topics=exclude, access=access)
    plan = prepare_change(mirrored.link, mirrored.state, wanted).plan
    change_mirror(mirrored.link, wanted, plan.hash)
    assert finish_change(mirrored.link, timeout_s=TIMEOUT_S)


@contextmanager
def copying(mirrored: Mirrored) -> Iterator[None]:
    stop = threading.Event()
    replication = Replication(
        mirrored.link, LocalRunner, ReplicationOptions(epoch_s=2), stop=stop, report_line=lambda line: None
    )
    with beside(replication.run, stop.set, timeout_s=TIMEOUT_S):
        yield


def is_copied(pair: Pair, topic: str) -> Callable[[], bool]:
    return lambda: read_all(pair.east, topic) == read_all(pair.west, topic)


def retention(mirrored: Mirrored, topic: str) -> str | None:
    with ClusterClient(mirrored.config.cluster("west")) as west:
        return describe_configs(west, [topic])[topic].overrides.get("retention.ms")


@pytest.fixture
def two(pair: Pair, tmp_path: Path) -> tuple[Mirrored, str, str]:
    """A mirror of two topics, copied: one that stays, one that leaves."""
    stays, leaves = new_topic(pair.east), new_topic(pair.east, retention_ms="86400000")
    for topic in (stays, leaves):
        produce(pair.east, topic, 50)
    mirrored = new_mirror(pair, tmp_path, stays, leaves)
    mirrored.copy()
    mirror_commands.run_sync(mirrored.link)
    return mirrored, stays, leaves


def test_a_running_data_plane_drops_a_topic_and_takes_it_back_at_its_position(
    two: tuple[Mirrored, str, str],
) -> None:
    mirrored, stays, leaves = two
    pair = mirrored.pair
    with copying(mirrored):
        change(mirrored, CLOSED, exclude=(leaves,))
        departure = mirrored.state.departures[mirrored.name][leaves]
        assert departure.is_done
        assert [(s.state, s.lmo) for s in departure.statuses] == [(PartitionState.STOPPED, 50)]
        assert not [p for p in mirrored.statuses if p.topic == leaves]
        for topic in (stays, leaves):
            produce(pair.east, topic, 25)
        wait_until(is_copied(pair, stays), timeout_s=TIMEOUT_S, why="the other topic goes on")
        assert len(read_all(pair.west, leaves)) == 50, "it was dropped"
        assert retention(mirrored, leaves) == "-1", "a closed topic keeps a mirror topic's settings"
        change(mirrored, exclude=())
        wait_until(is_copied(pair, leaves), timeout_s=TIMEOUT_S, why="it goes on at its position")
    assert not mirrored.state.departures.get(mirrored.name)


def test_a_released_topic_has_its_settings_and_returns_only_while_nobody_wrote_there(
    two: tuple[Mirrored, str, str],
) -> None:
    mirrored, _, leaves = two
    change(mirrored, RELEASED, exclude=(leaves,))
    assert retention(mirrored, leaves) == "86400000"
    change(mirrored, exclude=())
    assert retention(mirrored, leaves) == "-1", "before anything is copied"
    assert mirrored.statuses[Partition(leaves, 0)].state is PartitionState.MIRRORING
    produce(mirrored.pair.east, leaves, 10)
    mirrored.copy()
    assert is_copied(mirrored.pair, leaves)()

    change(mirrored, RELEASED, exclude=(leaves,))
    produce(mirrored.pair.west, leaves, 1)
    with pytest.raises(Refused, match="mirroring ended at 60, it ends at 61 now"):
        change(mirrored, exclude=())
    assert len(read_all(mirrored.pair.west, leaves)) == 61


@pytest.mark.parametrize("dies_before", ["the data plane's drop", "its release", "what is remembered of it"])
def test_a_change_that_was_killed_is_finished_by_the_next_sync_or_change(
    two: tuple[Mirrored, str, str], monkeypatch: pytest.MonkeyPatch, dies_before: str
) -> None:
    mirrored, stays, leaves = two
    wanted = FilterChange(exclude_topics=(leaves,), access=RELEASED)
    change_mirror(mirrored.link, wanted, prepare_change(mirrored.link, mirrored.state, wanted).plan.hash)
    if dies_before != "the data plane's drop":
        failing = "apply_promotion" if dies_before == "its release" else "PartitionRecord"
        with monkeypatch.context() as patched:
            patched.setattr(departures_module, failing, die)
            with pytest.raises(InterruptedError):
                finish_change(mirrored.link)
        assert mirrored.statuses[Partition(leaves, 0)].state is PartitionState.STOPPED
    reasons = mirrored.failover.decide(RunMode.PLANNED).reasons
    found = [reason.values["topics"] for reason in reasons if reason.code == "topics_leaving"]
    assert found == [(leaves,)], "no planned failover in the middle"
    unplanned = mirrored.failover.decide(RunMode.UNPLANNED)
    assert not unplanned.reasons
    warned = [w.values["topics"] for w in unplanned.plan.warnings if w.code == "leaving_topics_not_promoted"]
    assert warned == [(leaves,)]
    with pytest.raises(Refused, match="an earlier change is not finished"):
        change(mirrored, exclude=())
    if dies_before == "its release":
        mirror_commands.run_sync(mirrored.link)
    else:
        change(mirrored)
    assert mirrored.state.departures[mirrored.name][leaves].is_done
    assert retention(mirrored, leaves) == "86400000"
    assert [p.topic for p in mirrored.statuses if p.topic == leaves] == []
    produce(mirrored.pair.east, stays, 5)
    mirrored.copy()
    assert is_copied(mirrored.pair, stays)()


@pytest.mark.parametrize("dies_before", ["close_released_topics", "list_copies"])
def test_a_return_that_was_killed_gives_the_topic_back_to_applications(
    two: tuple[Mirrored, str, str], monkeypatch: pytest.MonkeyPatch, dies_before: str
) -> None:
    """Else it would be taken for closed, while applications write it."""
    mirrored, _, leaves = two
    change(mirrored, RELEASED, exclude=(leaves,))
    with monkeypatch.context() as patched:
        patched.setattr(mirror_change_module, dies_before, die)
        with pytest.raises(InterruptedError):
            change(mirrored, exclude=())
    assert not mirrored.state.departures[mirrored.name][leaves].is_done, "the next sync sees to it"
    mirror_commands.run_sync(mirrored.link)
    departure = mirrored.state.departures[mirrored.name][leaves]
    assert (departure.access, departure.is_done, retention(mirrored, leaves)) == (RELEASED, True, "86400000")
    change(mirrored, exclude=())
    assert retention(mirrored, leaves) == "-1", "before anything is copied"


def die(*args: object, **kwargs: object) -> None:
    raise InterruptedError


def test_a_change_is_finished_when_the_source_is_lost_and_its_data_plane_can_plan_no_more(
    two: tuple[Mirrored, str, str],
) -> None:
    mirrored, _, leaves = two
    wanted = FilterChange(exclude_topics=(leaves,), access=RELEASED)
    change_mirror(mirrored.link, wanted, prepare_change(mirrored.link, mirrored.state, wanted).plan.hash)
    link = mirrored.link
    lost_source = replace(link.source, control={**link.source.control, "bootstrap.servers": "127.0.0.1:1"})
    take_over_lease(link.destination, link.mirror.name, "elsewhere, data plane 1")  # it lives, and never plans again
    assert finish_change(replace(link, source=lost_source), timeout_s=0.1), "an unplanned failover waits for it"
    departure = mirrored.state.departures[mirrored.name][leaves]
    assert (departure.is_done, [s.lmo for s in departure.statuses]) == (True, [50])
    assert retention(mirrored, leaves) == "86400000"
    assert not mirrored.failover.decide(RunMode.UNPLANNED).reasons


@pytest.mark.parametrize("rounds", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_filters_change_both_ways_under_load_and_nothing_is_lost_or_shifted(
    two: tuple[Mirrored, str, str], rounds: int
) -> None:
    mirrored, stays, leaves = two
    pair, stop = mirrored.pair, threading.Event()

    def write() -> None:
        while not stop.wait(0.05):
            for topic in (stays, leaves):
                produce(pair.east, topic, 20)

    with copying(mirrored), beside(write, stop.set, timeout_s=TIMEOUT_S):
        for number in range(rounds):
            change(mirrored, RELEASED if number % 2 else CLOSED, exclude=(leaves,))
            ended = len(read_all(pair.west, leaves))
            assert mirrored.state.departures[mirrored.name][leaves].statuses[0].lmo == ended
            change(mirrored, exclude=())
    with copying(mirrored):
        for topic in (stays, leaves):
            wait_until(is_copied(pair, topic), timeout_s=TIMEOUT_S, why="all is copied, at the same offsets")
    assert {s.state for s in mirrored.statuses.values()} == {PartitionState.MIRRORING}


def test_a_change_of_nothing_or_to_an_occupied_topic_is_refused(two: tuple[Mirrored, str, str]) -> None:
    mirrored, stays, leaves = two
    with pytest.raises(Refused, match="this changes nothing"):
        change(mirrored, exclude=())
    with pytest.raises(Refused, match="say what becomes of the copy"):
        change(mirrored, exclude=(leaves,))
    occupied = new_topic(mirrored.pair.east)
    admin = admin_client(mirrored.pair.west)
    admin.create_topics([NewTopic(occupied, 1)])[occupied].result(TIMEOUT_S)
    produce(mirrored.pair.west, occupied, 3)
    wanted = FilterChange(topics=(stays, leaves, occupied))
    assert "already holds 3 records" in prepare_change(mirrored.link, mirrored.state, wanted).plan.refused[0]
    assert mirrored.link.mirror.topics == (stays, leaves), "nothing was changed"


def test_on_the_command_line_a_change_is_shown_and_done_by_its_hash(desk: Desk) -> None:
    first, second = new_topic(desk.pair.east), new_topic(desk.pair.east)
    mirrored = desk.started(first)
    mirrored.copy()
    asked = ("mirror", "change", mirrored.name, "--topics", second, "--groups", "", "--keep-closed")
    shown = desk.run("mirror", "change", mirrored.name, "--topics", second, "--groups", "", "--dry-run", "--json")
    assert shown.code == 3, "what becomes of the first one is not said"
    assert "--keep-closed" in shown.err
    plan = json.loads(desk.run(*asked, "--dry-run", "--json").out)
    assert (plan["starts"], plan["stops"], plan["kept_closed"]) == ([second], [first], [first])
    assert mirrored.link.mirror.topics == (first,)
    assert desk.run(*asked, "--plan-hash", "0" * 64, "--yes").code == 3
    done = desk.run(*asked, "--plan-hash", plan["hash"], "--yes")
    assert done.code == 0, done.err
    assert f"{first}: kept closed" in done.out
    assert (mirrored.link.mirror.topics, mirrored.link.mirror.groups) == ((second,), ())
    assert f"topics kept closed: {first}" in " ".join(
        desk.run("mirror", "describe", mirrored.name, "--all").out.split()
    )
    assert any(first in warning for warning in map(str, mirrored.failover.plan().warnings)), (
        "a failover does not promote it"
    )
    released = desk.run("mirror", "change", mirrored.name, "--release", "--yes")
    assert released.code == 0, released.err
    assert desk.run("mirror", "change", mirrored.name, "--release", "--yes").code == 3, "nothing is left to release"
