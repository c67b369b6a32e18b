"""Mirrors in both directions, in rings, in chains and towards one cluster: no topic ever comes back."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.dataplane.driver import Replication, ReplicationOptions
from mirror_core.dataplane.task_runner import LocalRunner
from mirror_core.decide.command_rules import MirrorCommand
from mirror_core.kafka.config import Config, load_config
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.mirror_creation import create_mirror
from mirror_core.model.errors import Refused
from mirror_core.model.mirror import DesiredState, FailureKind, GapFilling, PartitionState
from mirror_core.model.names import MirrorName, Partition, format_reverse_name
from mirror_core.model.run import RunState
from mirror_core.model.sync_state import SyncAction
from mirror_core.state.mirror_link import MirrorLink, find_mirror_link
from mirror_core.state.state_topic import read_state
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.cluster.desk import Desk
from tests.cluster.links import writer_of
from tests.cluster.test_mirror_fleet import fleet
from tests.support.cluster_admin import as_admin
from tests.support.dedicated_clusters import third_cluster
from tests.support.failback_runs import failback_of
from tests.support.failover_runs import app_topic, begin, denied
from tests.support.gap_logs import bounds, transaction, transactional
from tests.support.kafka_clients import Pair, grant, new_topic, produce, read_all, read_all_aiokafka
from tests.support.mirrored_topics import Mirrored, new_mirror, replicate
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


@dataclass(frozen=True, slots=True)
class Move:
    """A mirror of one topic, and the clusters it leads from and to."""

    mirrored: Mirrored
    topic: str
    here: SandboxCluster
    there: SandboxCluster

    def is_level(self) -> bool:
        return is_level(self.topic, self.here, self.there)


def made(config: Config, source: str, destination: str, *topics: str, gaps: GapFilling | None = None) -> MirrorLink:
    """Created, not started."""
    name = MirrorName("c-" + secrets.token_hex(4))
    create_mirror(config, name, source=source, destination=destination, topics=topics, groups=(), gaps=gaps)
    return find_mirror_link(config, name)[0]


def started(config: Config, source: str, destination: str, *topics: str, gaps: GapFilling | None = None) -> MirrorLink:
    link = made(config, source, destination, *topics, gaps=gaps)
    mirror_commands.start_mirror(link)
    return link


def copied(*links: MirrorLink) -> None:
    for link in links:
        summary = replicate(link)
        assert not summary.failed, summary.failed


def prefixes() -> tuple[str, str]:
    """Of topics that belong to either side."""
    run = secrets.token_hex(4)
    return f"east-{run}-", f"west-{run}-"


def refused(link: MirrorLink, verb: MirrorCommand) -> str:
    intent = mirror_commands.preview(link, verb)
    assert intent.refusal is not None
    return str(intent.refusal)


def copied_both_ways(pair: Pair, folder: Path, count: int) -> None:
    """So many pairs of mirrors, each with a topic of its own in each direction, while both sides are written to."""
    config, links, topics = load_config(pair.config_path), list[MirrorLink](), list[tuple[SandboxCluster, str]]()
    for _ in range(count):
        there, back = prefixes()
        topics += [(pair.east, new_topic(pair.east, 2, there)), (pair.west, new_topic(pair.west, 2, back))]
        links += [started(config, "east", "west", f"{there}.*"), started(config, "west", "east", f"{back}.*")]
    sent = dict[str, int]()
    stop, errors = threading.Event(), list[BaseException]()

    def keep_copying(link: MirrorLink) -> None:
        try:
            Replication(link, LocalRunner, ReplicationOptions(), stop=stop, report_line=lambda line: None).run()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            errors.append(error)

    threads = [threading.Thread(target=keep_copying, args=(link,)) for link in links]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            for cluster, topic in topics:
                sent[topic] = (
                    sent.get(topic, 0)
                    + len(produce(cluster, topic, 20))
                    + len(produce(cluster, topic, 20, partition=1))
                )
        for cluster, topic in topics:
            other = pair.west if cluster is pair.east else pair.east

            def equal(here: SandboxCluster = cluster, there: SandboxCluster = other, name: str = topic) -> bool:
                assert not errors, errors
                return is_level(name, here, there)

            wait_until(equal, timeout_s=120, why=f"{topic} is copied to {other.name}")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors
    for cluster, topic in topics:
        other = pair.west if cluster is pair.east else pair.east
        assert len(read_all(cluster, topic)) == sent[topic], "records came back"
        assert read_all(other, topic) == read_all(cluster, topic)
        assert read_all_aiokafka(other, topic) == read_all_aiokafka(cluster, topic)
    for link in links:
        statuses = read_state(link.destination).partitions[link.mirror.name].values()
        assert {s.state for s in statuses} == {PartitionState.MIRRORING}
        assert len({s.partition.topic for s in statuses if not s.partition.topic.startswith("mirrorbook.")}) == 1


def is_level(topic: str, here: SandboxCluster, there: SandboxCluster) -> bool:
    return topic in _topics(there) and bounds(there, topic) == bounds(here, topic)


def _topics(cluster: SandboxCluster) -> set[str]:
    with as_admin(cluster) as client:
        return set(client.metadata().topics)


def test_disjoint_topics_are_copied_in_both_directions_and_nothing_comes_back(pair: Pair, tmp_path: Path) -> None:
    copied_both_ways(pair, tmp_path, 1)


@pytest.mark.slow
def test_eight_pairs_of_mirrors_are_copied_in_both_directions(pair: Pair, tmp_path: Path) -> None:
    copied_both_ways(pair, tmp_path, 8)


PAIRS = [1, pytest.param(8, marks=[pytest.mark.slow, pytest.mark.timeout(2_400)])]


@pytest.mark.parametrize("pairs", PAIRS)
def test_pairs_of_mirrors_in_one_process_fail_over_both_ways_and_nothing_comes_back(
    pair: Pair, tmp_path: Path, pairs: int
) -> None:
    moves = make_moves(pair, load_config(pair.config_path), tmp_path, pairs)
    with fleet("local", tmp_path, pair.config_path, *(move.mirrored for move in moves)) as running:
        for move in moves:
            produce(move.here, move.topic, 20, user="app")
        for number, move in enumerate(moves):
            for other in moves[number:]:
                produce(other.here, other.topic, 1, user="app")
                wait_until(other.is_level, timeout_s=120, why=f"{other.topic} goes on to {other.there.name}")
            failover = move.mirrored.failover
            assert failover.drive(begin(failover)).state is RunState.DONE
            produce(move.there, move.topic, 5, user="app")
            assert denied(move.here, move.topic)
        for number, move in enumerate(moves):
            before, after = read_all(move.here, move.topic), read_all(move.there, move.topic)
            assert (len(before), len(after)) == (21 + number, 26 + number), "something came back"
            assert after[: len(before)] == before
        assert running.process.poll() is None, running.said


@pytest.mark.parametrize("pairs", PAIRS)
def test_pairs_of_mirrors_in_one_process_move_both_ways_as_one_set_and_home(
    desk: Desk, tmp_path: Path, pairs: int
) -> None:
    moves = make_moves(desk.pair, load_config(desk.config), tmp_path, pairs)
    document = yaml.safe_load(desk.config.read_text(encoding="utf-8"))
    document["sets"] = {"both": {"mirrors": [str(move.mirrored.name) for move in moves]}}
    desk.config.write_text(yaml.safe_dump(document), encoding="utf-8")
    ways_home = [replace(move.mirrored, name=format_reverse_name(move.mirrored.name)) for move in moves]
    with fleet("local", tmp_path, desk.config, *(move.mirrored for move in moves), *ways_home) as running:
        for move in moves:
            produce(move.here, move.topic, 20, user="app")
            wait_until(move.is_level, timeout_s=120, why=f"{move.topic} is copied to {move.there.name}")
        run_set(desk, "failover")
        for move in moves:
            assert len(read_all(move.there, move.topic)) == 20, "something came back"
            assert denied(move.here, move.topic)
            produce(move.there, move.topic, 5, user="app")
        run_set(desk, "failback")
        for move in moves:
            primary = read_all(move.there, move.topic)
            assert (len(primary), read_all(move.here, move.topic)) == (25, primary)
            assert denied(move.there, move.topic)
            produce(move.here, move.topic, 5, user="app")
            wait_until(move.is_level, timeout_s=120, why=f"{move.topic} goes on to {move.there.name}")
            assert len(read_all(move.there, move.topic)) == 30, "something came back"
            statuses = read_state(move.mirrored.link.destination).partitions[move.mirrored.name].values()
            topics = {status.partition.topic for status in statuses}
            assert {topic for topic in topics if not topic.startswith("mirrorbook.")} == {move.topic}
        assert running.process.poll() is None, running.said


def make_moves(pair: Pair, config: Config, folder: Path, pairs: int) -> list[Move]:
    moves = list[Move]()
    for here, there in [(pair.east, pair.west), (pair.west, pair.east)] * pairs:
        topic = new_topic(here, prefix="both-")
        grant(here, "app", ResourceType.TOPIC, topic, [AclOperation.READ, AclOperation.WRITE])
        link = started(config, here.name, there.name, topic)
        moves.append(Move(Mirrored(pair, config, link.mirror.name, folder), topic, here, there))
    return moves


def run_set(desk: Desk, way: str) -> None:
    said = desk.run(way, "run-set", "both", "--runner", "local", "--yes")
    assert said.code == 0, said


def test_mirrors_in_both_directions_are_refused_where_a_topic_passes_both_filters(pair: Pair) -> None:
    config, (there, back) = load_config(pair.config_path), prefixes()
    new_topic(pair.east, prefix=there)
    mine = new_topic(pair.west, prefix=back)
    forward = made(config, "east", "west", f"{there}.*", f"{mine}.*")
    both = f"({there}|{back}).*"
    backward = made(config, "west", "east", both)
    assert mirror_commands.preview(backward, MirrorCommand.START).refusal is None, (
        "nothing runs in the other direction yet"
    )
    mirror_commands.start_mirror(forward)
    assert f"it would close a circle with {forward.mirror.name}, back to cluster west" in refused(
        backward, MirrorCommand.START
    )
    with pytest.raises(Refused, match=f"both directions select topic .*{mine}"):
        made(config, "west", "east", f"{back}.*")
    mirror_commands.pause_mirror(forward)
    assert "it would close a circle" in refused(backward, MirrorCommand.START), "a paused mirror can be resumed"


def test_pause_start_resume_does_not_pass_the_check(pair: Pair) -> None:
    config, (there, back) = load_config(pair.config_path), prefixes()
    new_topic(pair.east, prefix=there)
    forward = started(config, "east", "west", f"{there}.*", f"{back}.*")
    new_topic(pair.west, prefix=back + "own-")
    mirror_commands.pause_mirror(forward)
    backward = made_in_spite(config, forward, f"{back}.*")
    assert "it would close a circle" in refused(find_mirror_link(config, forward.mirror.name)[0], MirrorCommand.RESUME)
    mirror_commands.stop_mirror(backward)
    mirror_commands.resume_mirror(forward)


def made_in_spite(config: Config, forward: MirrorLink, topics: str) -> MirrorLink:
    """A started mirror in the other direction, made by a version that did not look at paused mirrors."""
    with writer_of(forward) as writer:
        paused = writer.state.mirrors[forward.mirror.name]
        writer.put(replace(paused, desired=DesiredState.STOPPED))
        backward = started(config, "west", "east", topics)
        writer.put(paused)
    return backward


def test_a_topic_that_begins_to_match_both_ways_is_copied_by_neither_and_told(pair: Pair, tmp_path: Path) -> None:
    config, (there, back) = load_config(pair.config_path), prefixes()
    own, other = new_topic(pair.east, prefix=there), new_topic(pair.west, prefix=back)
    forward = started(config, "east", "west", f"{there}.*")
    backward = started(config, "west", "east", f"{back}.*", f"{there}both-.*")
    copied(forward, backward)
    late = new_topic(pair.east, prefix=there + "both-")
    records = produce(pair.east, late, 10)
    summary = replicate(forward)
    assert set(summary.failed) == {Partition(late, 0)}
    assert f"mirror {backward.mirror.name} would bring it back to east" in summary.failed[Partition(late, 0)]
    assert late not in _topics(pair.west)
    status = read_state(forward.destination).partitions[forward.mirror.name][Partition(late, 0)]
    assert (status.state, status.kind) == (PartitionState.FAILED, FailureKind.CIRCLE)
    row = next(row for row in mirror_commands.run_sync(forward).rows if row.subject == late)
    assert (row.action, f"mirror {backward.mirror.name} would bring it back" in row.reason) == (SyncAction.REFUSE, True)
    copied(backward)
    assert read_all(pair.east, late) == records
    for topic in (own, other):
        assert topic in _topics(pair.east) & _topics(pair.west)


def test_a_failback_is_refused_while_another_mirror_would_take_what_comes_home_away(pair: Pair, tmp_path: Path) -> None:
    """And it may be made beside a mirror in the same direction that shares no topic; that one may be started then."""
    config, (there, back) = load_config(pair.config_path), prefixes()
    topic = app_topic(pair)
    new_topic(pair.east, prefix=there)
    produce(pair.east, topic, 10)
    mirrored = new_mirror(pair, tmp_path, f"{topic}|{back}.*")
    mirrored.copy()
    mirrored.failover.drive(begin(mirrored.failover))
    beside = started(config, "east", "west", f"{there}.*")
    assert not failback_of(mirrored).decide().reasons
    other = started(config, "east", "west", f"{there}.*|{back}both-.*")
    new_topic(pair.west, prefix=back + "both-")
    [reason] = failback_of(mirrored).decide().reasons
    assert f"it would close a circle with {other.mirror.name}, back to cluster west" in str(reason)
    mirror_commands.stop_mirror(other)
    mirror_commands.stop_mirror(beside)


def test_a_circle_is_said_by_the_command_and_nothing_is_changed(desk: Desk) -> None:
    there, back = prefixes()
    new_topic(desk.pair.east, prefix=there)
    mine = new_topic(desk.pair.west, prefix=back)
    name = "m-back-" + secrets.token_hex(4)
    assert desk.create("--topics", f"({there}|{back}).*", name=name, source="west", destination="east").code == 0
    mirrored = desk.started(f"{there}.*", f"{back}.*")
    before = desk.traces()
    said = desk.run("mirror", "start", name)
    assert (said.code, said.out) == (3, "")
    what, reason = said.err.splitlines()
    assert what == f"error: mirror {name}: start:"
    assert reason.startswith(f"  - it would close a circle with {mirrored.name}, back to cluster west")
    assert mine in reason
    assert desk.traces() == before


@pytest.fixture
def three(pair: Pair, tmp_path: Path) -> Iterator[tuple[SandboxCluster, Config]]:
    with third_cluster(pair, tmp_path) as (south, path):
        yield south, load_config(path)


@pytest.mark.slow
def test_a_ring_of_three_is_refused_and_clusters_that_cannot_be_asked_are_named(
    pair: Pair, three: tuple[SandboxCluster, Config]
) -> None:
    south, config = three
    (prefix, other) = prefixes()
    new_topic(pair.east, prefix=prefix)
    one, two = started(config, "east", "west", f"{prefix}.*"), made(config, "west", "south", f"{prefix}.*")
    mirror_commands.start_mirror(two)
    copied(one, two)
    new_topic(south, prefix=other)
    with pytest.raises(Refused, match=f"close a circle with {one.mirror.name} -> {two.mirror.name}, back to"):
        made(config, "south", "east", f"{prefix}.*", f"{other}.*")
    free = started(config, "south", "east", f"{other}.*")
    copied(free)

    mirror_commands.pause_mirror(one)
    south.terminate()
    assert mirror_commands.preview(one, MirrorCommand.RESUME).refusal is None
    assert not [
        line for line in mirror_commands.preview(one, MirrorCommand.RESUME).lines if "could not be asked" in line
    ], "nothing of these topics can come from there"
    south.start()
    mirror_commands.stop_mirror(two)
    mirror_commands.stop_mirror(free)
    coming = started(config, "south", "east", f"{prefix}more-.*")
    new_topic(pair.east, prefix=prefix + "more-")
    south.terminate()
    intent = mirror_commands.preview(one, MirrorCommand.RESUME)
    assert intent.refusal is None
    [line] = [line for line in intent.lines if "could not be asked" in line]
    assert line.startswith(format_sentence("circles_unknown_on_cluster", "south"))
    south.start()
    mirror_commands.stop_mirror(coming)


@pytest.mark.slow
def test_two_sources_are_copied_into_one_destination(pair: Pair, three: tuple[SandboxCluster, Config]) -> None:
    south, config = three
    here, there = prefixes()
    topics = [(pair.east, new_topic(pair.east, 2, here)), (south, new_topic(south, 2, there))]
    links = [started(config, "east", "west", f"{here}.*"), started(config, "south", "west", f"{there}.*")]
    for _ in range(2):
        for source, topic in topics:
            produce(source, topic, 50)
            produce(source, topic, 30, partition=1)
        copied(*links)
    for source, topic in topics:
        assert bounds(pair.west, topic) == bounds(source, topic)
        assert read_all(pair.west, topic) == read_all(source, topic)
        assert len(read_all(source, topic)) == 160


@pytest.mark.slow
@pytest.mark.parametrize("first", GapFilling)
@pytest.mark.parametrize("then", GapFilling)
def test_a_chain_of_mirrors_is_exact_at_its_end(
    pair: Pair, three: tuple[SandboxCluster, Config], first: GapFilling, then: GapFilling
) -> None:
    """East to west to south: gaps that the first mirror has filled are gaps to the second one."""
    south, config = three
    prefix, _ = prefixes()
    topic = new_topic(pair.east, 2, prefix)
    producer = transactional(pair.east)
    one = started(config, "east", "west", f"{prefix}.*", gaps=first)
    two: MirrorLink | None = None
    for turn in range(3):
        transaction(producer, topic, 5, commit=turn % 2 == 0, partitions=(0, 1))
        produce(pair.east, topic, 7, partition=turn % 2)
        transaction(producer, topic, 3, commit=turn % 2 == 1, partitions=(0, 1))
        copied(one)
        two = two or started(config, "west", "south", f"{prefix}.*", gaps=then)
        copied(two)
    assert bounds(south, topic) == bounds(pair.west, topic) == bounds(pair.east, topic)
    sent = read_all(pair.east, topic)
    assert read_all(south, topic) == read_all(pair.west, topic) == sent
    assert read_all_aiokafka(south, topic) == read_all_aiokafka(pair.east, topic)
    assert read_all(south, topic, committed=False) == sent, "a record was invented, or an aborted one copied"
