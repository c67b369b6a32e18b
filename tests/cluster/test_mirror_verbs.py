"""The verbs of a mirror on real clusters: what they record, what they refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.decide.command_rules import MirrorCommand
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.topics import describe_configs
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.describe import ClockState, describe_mirror
from mirror_core.mirrors.mirror_commands import DeletionChoice
from mirror_core.mirrors.mirror_creation import ensure_state_topic
from mirror_core.mirrors.mirror_facts import FactKey
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Operation, Resource
from mirror_core.model.errors import Indeterminate, Refused
from mirror_core.model.mirror import DesiredState, PartitionState
from mirror_core.model.names import Partition
from mirror_core.model.timing import now_ms
from mirror_core.state.mirror_link import find_mirror_link
from mirror_core.state.state_records import Tombstone
from mirror_core.state.writer import StateWriter, make_control_id
from mirror_core.sync.acl_sync import demote_topics
from mirror_core.sync.fence_acls import deny_writes
from tests.cluster.links import writer_of
from tests.support.broker_faults import suspended
from tests.support.cluster_admin import rights_of
from tests.support.kafka_clients import Pair, grant, new_topic, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror, replicate
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


@pytest.fixture
def mirrored(pair: Pair, tmp_path: Path) -> Mirrored:
    topic = new_topic(pair.east)
    produce(pair.east, topic, 100)
    made = new_mirror(pair, tmp_path, topic)
    made.copy()
    return made


def test_a_record_on_its_source_is_not_taken_for_a_mirror(mirrored: Mirrored) -> None:
    """On a source applications may write that topic, and it may be the only one that answers."""
    ours, config = mirrored.link.mirror, mirrored.config
    with ClusterClient(config.cluster("east")) as east:
        ensure_state_topic(east)
    with StateWriter(config.cluster("east"), make_control_id(ours.name)) as stranger:
        stranger.put(replace(ours, topics=(".*",)))
        with (
            suspended(mirrored.pair.west),
            pytest.raises(Indeterminate, match=f"cluster east has a record of mirror {ours.name} towards west"),
        ):
            find_mirror_link(config, ours.name)
        assert find_mirror_link(config, ours.name)[0].mirror == ours
        stranger.put(Tombstone(ours))


def test_a_paused_mirror_is_not_copied_and_goes_on_when_resumed(mirrored: Mirrored) -> None:
    [topic] = mirrored.link.mirror.topics
    mirror_commands.pause_mirror(mirrored.link)
    produce(mirrored.pair.east, topic, 10)
    with pytest.raises(Refused, match="it is PAUSED"):
        replicate(mirrored.link)
    mirror_commands.resume_mirror(mirrored.link)
    mirrored.copy()
    assert read_all(mirrored.pair.east, topic) == read_all(mirrored.pair.west, topic)


def test_of_a_mirror_that_has_copied_nothing_nothing_is_said_to_be_there(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(pair.east)
    produce(pair.east, topic, 100)
    made = new_mirror(pair, tmp_path, topic)
    facts = describe_mirror(made.link, made.state, now_ms()).facts
    assert (facts[FactKey.LAG].value, facts[FactKey.MISSING_OFFSETS].value) == (None, None)
    made.copy()
    facts = describe_mirror(made.link, made.state, now_ms()).facts
    assert (facts[FactKey.LAG].value, facts[FactKey.CLOCK].value) == (0, ClockState.NOT_BEHIND)
    early = describe_mirror(made.link, made.state, now_ms() - 600_000).facts
    assert "leads `__mirrorbook_state` on west" in str(early[FactKey.CLOCK].text), "by the controller's clock"
    monkeypatch.setattr("mirror_core.mirrors.describe.measure_clock_ahead_ms", lambda *asked, **limits: None)
    slow = describe_mirror(made.link, made.state, now_ms() - 600_000).facts
    assert "the clock here is at least " in str(slow[FactKey.CLOCK].text)
    for facts in (early, slow):
        assert facts[FactKey.SOURCE_SEEN].text == "at an unknown time (clocks differ)"


def test_stop_records_where_mirroring_ended_and_start_goes_on_from_there(mirrored: Mirrored) -> None:
    [topic] = mirrored.link.mirror.topics
    east, west = mirrored.pair.east, mirrored.pair.west
    assert mirror_commands.stop_mirror(mirrored.link) == {Partition(topic, 0): 100}
    status = mirrored.statuses[Partition(topic, 0)]
    assert (status.state, status.lmo) == (PartitionState.STOPPED, 100)
    assert mirrored.link.mirror.desired is DesiredState.STOPPED

    produce(east, topic, 50)
    mirror_commands.start_mirror(mirrored.link)
    assert mirrored.statuses[Partition(topic, 0)].lmo is None
    mirrored.copy()
    assert read_all(east, topic) == read_all(west, topic)

    mirror_commands.stop_mirror(mirrored.link)
    produce(west, topic, 1)
    with pytest.raises(Refused, match=f"cluster west, {topic}-0: mirroring ended at 150, it ends at 151 now"):
        mirror_commands.start_mirror(mirrored.link)
    assert mirrored.statuses[Partition(topic, 0)].lmo == 150
    assert mirrored.link.mirror.desired is DesiredState.STOPPED


def test_only_a_stopped_mirror_can_be_deleted_and_then_nothing_of_it_is_left(mirrored: Mirrored) -> None:
    with pytest.raises(Refused, match="stop it first"):
        mirror_commands.delete_mirror(mirrored.link)
    mirror_commands.stop_mirror(mirrored.link)
    mirror_commands.delete_mirror(mirrored.link)
    after = mirrored.state
    assert mirrored.name not in after.mirrors
    assert not after.partitions.get(mirrored.name)
    assert not after.ledger_entries(mirrored.name)
    assert mirrored.name not in {mirror for mirror, _ in after.topic_settings}


def copied_rights(mirrored: Mirrored) -> tuple[Acl, Acl]:
    """A right that a sync has copied to west, and one that somebody has granted there. The mirror is stopped."""
    [topic] = mirrored.link.mirror.topics
    east, west = mirrored.pair.east, mirrored.pair.west
    grant(east, "app", ResourceType.TOPIC, topic, [AclOperation.READ])
    grant(west, "local", ResourceType.TOPIC, topic, [AclOperation.READ])
    ours, local = (
        Acl(resource=Resource.TOPIC, name=topic, principal=f"User:{user}", operation=Operation.READ)
        for user in ("app", "local")
    )
    mirror_commands.run_sync(mirrored.link)
    assert {ours, local} <= rights_of(west)
    mirror_commands.stop_mirror(mirrored.link)
    return ours, local


def test_a_deleted_mirror_takes_the_rights_along_that_it_copied(mirrored: Mirrored) -> None:
    ours, local = copied_rights(mirrored)
    link = mirrored.link
    lines = mirror_commands.preview(link, MirrorCommand.DELETE).lines
    assert [line for line in lines if "copied to west" in line and "are withdrawn" in line]
    assert mirror_commands.delete_mirror(link) == ()
    assert rights_of(mirrored.pair.west) & {ours, local} == {local}
    assert not mirrored.state.ledger_entries(mirrored.name)


def test_a_deleted_mirror_leaves_a_right_that_another_mirror_has_copied_too(mirrored: Mirrored, tmp_path: Path) -> None:
    ours, _ = copied_rights(mirrored)
    link = mirrored.link
    other = new_mirror(mirrored.pair, tmp_path / "other", new_topic(mirrored.pair.east))
    with writer_of(other.link) as log:
        log.put(LedgerEntry(mirror=other.name, cluster=link.destination.name, acl=ours, purpose=AclPurpose.COPIED))
    mirror_commands.delete_mirror(link)
    assert ours in rights_of(mirrored.pair.west)


def test_copied_rights_are_handed_over_by_a_list_on_request(mirrored: Mirrored) -> None:
    ours, local = copied_rights(mirrored)
    [topic], link = mirrored.link.mirror.topics, mirrored.link
    choice = DeletionChoice(keep_rights=True)
    assert [
        line
        for line in mirror_commands.preview(link, MirrorCommand.DELETE, choice=choice).lines
        if "Mirrorbook forgets them" in line
    ]
    listed = mirror_commands.delete_mirror(link, choice=choice)
    assert rights_of(mirrored.pair.west) >= {ours, local}
    assert [line for line in listed if "--remove" in line and "User:app" in line and topic in line]
    assert not [line for line in listed if "User:local" in line]
    assert not mirrored.state.ledger_entries(mirrored.name)


@pytest.mark.parametrize("restored", [True, False])
def test_a_deleted_mirrors_topics_get_the_sources_settings_if_that_is_wanted(
    pair: Pair, tmp_path: Path, *, restored: bool
) -> None:
    topic = new_topic(pair.east, retention_ms="7200000")
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    mirror_commands.run_sync(mirrored.link)
    mirror_commands.stop_mirror(mirrored.link)
    choice = DeletionChoice(restore_settings=restored)
    lines = mirror_commands.preview(mirrored.link, MirrorCommand.DELETE, choice=choice).lines
    assert bool([line for line in lines if "get the settings of east" in line]) is restored
    assert bool([line for line in lines if "keep a mirror topic's settings" in line]) is not restored
    config = mirrored.link.destination
    mirror_commands.delete_mirror(mirrored.link, choice=choice)

    def shown() -> bool:
        with ClusterClient(config) as client:
            return describe_configs(client, [topic])[topic].overrides["retention.ms"] == (
                "7200000" if restored else "-1"
            )

    wait_until(shown, timeout_s=60, why="the settings are those that were asked for")


def test_a_mirror_whose_denials_stand_is_not_forgotten(mirrored: Mirrored) -> None:
    [topic] = mirrored.link.mirror.topics
    link = mirrored.link
    grant(mirrored.pair.east, "app", ResourceType.TOPIC, topic, [AclOperation.WRITE])
    mirror_commands.stop_mirror(link)
    with writer_of(link) as log:
        demote_topics(link, log, [topic], link.source.name)
    with pytest.raises(Refused, match=f"--remove --deny-principal User:app --operation Write --topic {topic}"):
        mirror_commands.delete_mirror(link)
    assert mirrored.name in mirrored.state.mirrors


@pytest.mark.slow
def test_a_mirror_is_forgotten_with_a_cluster_that_is_gone_for_good(mirrored: Mirrored) -> None:
    [topic] = mirrored.link.mirror.topics
    link, east = mirrored.link, mirrored.pair.east
    mirror_commands.stop_mirror(link)
    with writer_of(link) as log, ClusterClient(link.source) as source:
        deny_writes(link, log, source, [topic])
    with pytest.raises(Refused, match="cluster east answers: it is not gone"):
        mirror_commands.delete_mirror(link, link.source.name)
    east.kill()
    try:
        with pytest.raises(Refused, match=r"stand there is not known: .* never come back: --gone east"):
            mirror_commands.delete_mirror(link)
        assert mirrored.name in mirrored.state.mirrors
        mirror_commands.delete_mirror(link, link.source.name)
    finally:
        east.start()
    assert mirrored.name not in mirrored.state.mirrors
    assert not mirrored.state.ledger_entries(mirrored.name)
