"""Who may do what with mirror topics, on real brokers: before promotion, after it, and demoted again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from mirror_core.decide.mirror_change import FilterChange
from mirror_core.decide.topic_settings import ACCEPTANCE_KEYS
from mirror_core.kafka.acl_requests import (
    BrokerAcls,
    create_acls,
    delete_acls,
    describe_acls,
    wait_until_acls_absent,
    wait_until_acls_present,
)
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.topics import describe_configs
from mirror_core.mirrors.describe import describe_mirror
from mirror_core.mirrors.mirror_change import prepare_change
from mirror_core.mirrors.mirror_creation import ensure_state_topic
from mirror_core.mirrors.mirror_facts import FactKey
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Operation, Pattern, Permission, Resource
from mirror_core.model.errors import Refused
from mirror_core.model.mirror import PartitionState
from mirror_core.model.names import format_reverse_name
from mirror_core.model.sync_state import DriftRow, SyncAction, SyncCategory
from mirror_core.model.timing import now_ms
from mirror_core.state.mirror_link import MirrorLink, make_mirror_link
from mirror_core.state.state_topic import read_state
from mirror_core.state.writer import StateWriter
from mirror_core.sync import acl_sync
from mirror_core.sync.acl_ledger import copy_demotions, list_entries, restage_grants
from mirror_core.sync.acl_sync import apply_promotion, demote_topics, list_promotion_warnings
from mirror_core.sync.mirror_sync import sync_mirror
from mirror_core.sync.principals import list_own_principals
from mirror_core.sync.promotion_acls import record_withdrawn_rights
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.cluster.links import new_link, record, writer_of
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


class Died(Exception):
    """The process, as far as the test is concerned."""


ACLS = frozenset({SyncCategory.TOPICS, SyncCategory.ACLS})
APP = "User:app"


@pytest.fixture
def topic(pair: Pair) -> str:
    return new_topic(pair.east, cleanup_policy="compact")


@pytest.fixture
def link(pair: Pair, topic: str) -> Iterator[MirrorLink]:
    """A mirror of one topic that `app` may write on the source. Leaves no ACL of this test behind."""
    made = new_link(pair, topic)
    grant(made, acl(topic, Operation.READ), acl(topic, Operation.WRITE))
    yield made
    for cluster in (made.source, made.destination):
        with ClusterClient(cluster) as client:
            delete_acls(client, [a for a in entries(client) if a.name.startswith(topic)])


def acl(name: str, operation: Operation, principal: str = APP, permission: Permission = Permission.ALLOW) -> Acl:
    return Acl(resource=Resource.TOPIC, name=name, principal=principal, operation=operation, permission=permission)


def entries(client: ClusterClient) -> frozenset[Acl]:
    found = describe_acls(client)
    assert isinstance(found, BrokerAcls)
    return found.entries


def on(link: MirrorLink, side: str, topic: str) -> set[Acl]:
    with ClusterClient(link.source if side == "source" else link.destination) as client:
        return {a for a in entries(client) if a.name.startswith(topic)}


def grant(link: MirrorLink, *acls: Acl, side: str = "source") -> None:
    with ClusterClient(link.source if side == "source" else link.destination) as client:
        create_acls(client, acls)
        wait_until_acls_present(client, acls, 30)


def withdraw(link: MirrorLink, *acls: Acl, side: str = "source") -> None:
    with ClusterClient(link.source if side == "source" else link.destination) as client:
        delete_acls(client, acls)
        wait_until_acls_absent(client, acls)


def settings_become(client: ClusterClient, topic: str, wanted: Mapping[str, str]) -> None:
    """These overrides, and no others: a broker shows a change some time after the controller has taken it."""

    def shown() -> bool:
        return describe_configs(client, [topic])[topic].overrides == wanted

    wait_until(shown, timeout_s=TIMEOUT_S, why=f"{topic} has the settings {wanted}")


def home_of(link: MirrorLink) -> MirrorLink:
    """Its way home, of which only the state topic is there."""
    mirror = link.mirror
    with ClusterClient(link.source) as client:
        ensure_state_topic(client)
    back = replace(
        mirror,
        name=format_reverse_name(mirror.name),
        source=mirror.destination,
        destination=mirror.source,
        source_id=mirror.destination_id,
        destination_id=mirror.source_id,
    )
    return make_mirror_link(link.config, back)


def home_again(link: MirrorLink, writer: StateWriter, topic: str) -> None:
    """What a failback does at its end to rights on the destination."""
    demote_topics(link, writer, [topic], link.destination.name)
    with ClusterClient(link.destination) as client:
        restage_grants(writer, link.mirror.name, client, list_own_principals(link))


def synced(link: MirrorLink) -> dict[str, DriftRow]:
    with writer_of(link) as writer:
        return {row.subject: row for row in sync_mirror(link, writer, only=ACLS).rows if row.part is SyncCategory.ACLS}


def may_write(cluster: SandboxCluster, topic: str, user: str = "app") -> bool:
    """One record, by a client of its own, as this user."""
    failed: list[KafkaError] = []
    producer = Producer({**cluster.client_config(user), "message.timeout.ms": 20_000, "log_level": 0})

    def delivered(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failed.append(error)

    try:
        producer.produce(topic, key=b"k", value=b"v", on_delivery=delivered)
    except KafkaException as error:
        failed.append(error.args[0])
    producer.flush(30)
    assert all(error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED for error in failed), failed
    return not failed


def test_reading_is_granted_at_once_and_writing_only_by_promotion(pair: Pair, link: MirrorLink, topic: str) -> None:
    rows = synced(link)
    assert rows[str(acl(topic, Operation.READ))].action is SyncAction.CREATE
    assert rows[str(acl(topic, Operation.WRITE))].action is SyncAction.STAGE
    assert on(link, "destination", topic) == {acl(topic, Operation.READ)}
    assert not may_write(pair.west, topic)
    with writer_of(link) as writer:
        assert [e.acl for e in list_entries(writer, link.mirror.name, link.destination.name, AclPurpose.STAGED)] == [
            acl(topic, Operation.WRITE)
        ]


def test_a_mirror_syncs_the_rights_of_its_principals_only(pair: Pair, link: MirrorLink, topic: str) -> None:
    reader, denied = (
        acl(topic, Operation.READ, "User:reader"),
        acl(topic, Operation.READ, "User:guest", Permission.DENY),
    )
    grant(link, reader, denied)
    narrowed = replace(link, mirror=replace(link.mirror, exclude_principals=("User:app",)))
    rows = synced(narrowed)
    assert rows[str(acl(topic, Operation.WRITE))].action is SyncAction.SKIP
    assert on(link, "destination", topic) == {reader, denied}
    synced(link)
    assert on(link, "destination", topic) == {acl(topic, Operation.READ), reader, denied}
    # The filter narrows again: what was copied goes, and a promotion before the next sync gives nothing, either.
    with writer_of(narrowed) as writer:
        apply_promotion(narrowed, writer, [topic])
    assert not may_write(pair.west, topic)
    rows = synced(narrowed)
    assert rows[str(acl(topic, Operation.READ))].action is SyncAction.REMOVE
    applications = {a for a in on(link, "destination", topic) if a.principal != "User:mirror-data"}
    assert applications == {reader, denied}


def test_excluded_rights_are_neither_copied_nor_granted_by_a_promotion(
    pair: Pair, link: MirrorLink, topic: str
) -> None:
    denied = acl(topic, Operation.READ, "User:guest", Permission.DENY)
    prefixed = replace(acl(topic[:-1], Operation.READ, "User:reader"), pattern=Pattern.PREFIXED)
    grant(link, denied, prefixed)
    synced(link)
    assert on(link, "destination", topic) >= {acl(topic, Operation.READ), acl(topic, Operation.READ, "User:reader")}
    record(link, [topic])
    narrowing = FilterChange(exclude_rights=("READ TOPIC .*",))
    plan = prepare_change(link, read_state(link.destination), narrowing).plan
    assert (plan.right_starts, plan.refused) == ((), ())
    assert plan.right_stops == tuple(sorted(str(acl(topic, Operation.READ, who)) for who in (APP, "User:reader")))
    without_reading = replace(link, mirror=replace(link.mirror, exclude_rights=("READ TOPIC .*",)))
    rows = synced(without_reading)
    assert rows[str(acl(topic, Operation.READ))].action is SyncAction.REMOVE
    assert rows[str(prefixed)].action is SyncAction.KEEP, "staged, and not granted"
    assert on(link, "destination", topic) == {denied}
    with writer_of(without_reading) as writer:
        apply_promotion(without_reading, writer, [topic])
    assert may_write(pair.west, topic)
    granted = {a for a in on(link, "destination", topic) if a.principal != "User:mirror-data"}
    assert granted == {acl(topic, Operation.WRITE), denied}
    with ClusterClient(link.destination) as client:
        assert prefixed not in entries(client)


def test_wider_rights_open_the_mirrors_topics_and_groups_alone_until_promotion(pair: Pair, topic: str) -> None:
    """Of a right by `*` or prefix, for somebody or for everybody; the denial that goes with one stays as wide."""
    other, group = new_topic(pair.west), f"g-{topic}"
    link = new_link(pair, topic, groups=(group,))
    wide = {
        replace(acl("*", Operation.READ, "User:wide"), host="10.9.9.9"),
        replace(acl(topic[:3], Operation.READ, "User:intern"), pattern=Pattern.PREFIXED),
        replace(acl("*", Operation.ALL, "User:intern"), resource=Resource.GROUP),
    }
    denied = replace(acl(topic[:-1], Operation.READ, "User:nobody", Permission.DENY), pattern=Pattern.PREFIXED)
    everybody = acl(topic, Operation.DESCRIBE, "User:*")
    commits_of(pair, group, topic)
    grant(link, *wide, denied, everybody)
    mine = {"User:wide", "User:intern", "User:nobody"}
    try:
        with writer_of(link) as writer:
            rows = {row.subject: row for row in sync_mirror(link, writer).rows if row.part is SyncCategory.ACLS}
        record(link, [topic])
        with ClusterClient(link.destination) as client:
            there = {a for a in entries(client) if a.principal in mine}
        assert denied in there
        opened = {(a.resource, a.pattern, a.name) for a in there - {denied}}
        assert (Resource.TOPIC, Pattern.LITERAL, topic) in opened
        assert (Resource.GROUP, Pattern.LITERAL, group) in opened
        assert {pattern for _, pattern, _ in opened} == {Pattern.LITERAL}
        assert {name for resource, _, name in opened if resource is Resource.TOPIC} == {topic}
        assert "*" not in {name for _, _, name in opened}
        assert other not in {name for _, _, name in opened}
        for one in wide:
            assert (rows[str(one)].action, rows[str(one)].done) == (SyncAction.STAGE, True)
            assert rows[str(one)].reason.startswith("wider than the mirror")
        assert rows[str(everybody)].reason == format_sentence("every_user_of_destination_may")
        state = read_state(link.destination)
        narrowed = str(describe_mirror(link, state, now_ms()).facts[FactKey.NARROWED_RIGHTS].text)
        assert all(str(one) in narrowed for one in wide)
        with ClusterClient(link.destination) as client:
            held = describe_acls(client)
            remarks = " ".join(map(str, list_promotion_warnings(link, state, held, client.metadata().topics)))
        assert all(str(one) in remarks for one in wide if one.pattern is Pattern.LITERAL)
    finally:
        for side in ("source", "destination"):
            with ClusterClient(link.source if side == "source" else link.destination) as client:
                delete_acls(client, [a for a in entries(client) if a.principal in mine])


def commits_of(pair: Pair, group: str, topic: str) -> None:
    """A group of the source that has committed something."""
    consumer = Consumer({**pair.east.client_config("admin"), "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    consumer.close()


def test_a_second_cycle_changes_nothing(link: MirrorLink, topic: str) -> None:
    synced(link)
    before = on(link, "destination", topic)
    again = synced(link)
    assert {row.action for subject, row in again.items() if topic in subject} == {SyncAction.EQUAL, SyncAction.STAGE}
    assert on(link, "destination", topic) == before


def test_only_our_own_copies_go_when_the_source_withdraws(link: MirrorLink, topic: str) -> None:
    local = acl(topic, Operation.READ, "User:local")
    mine_too = acl(topic, Operation.DESCRIBE)
    grant(link, local, mine_too, side="destination")
    grant(link, mine_too)
    assert synced(link)[str(mine_too)].action is SyncAction.KEEP
    withdraw(link, acl(topic, Operation.READ), acl(topic, Operation.WRITE), mine_too)
    rows = synced(link)
    assert rows[str(acl(topic, Operation.READ))].action is SyncAction.REMOVE
    assert on(link, "destination", topic) == {local, mine_too}
    with writer_of(link) as writer:
        assert not [e for e in writer.state.ledger_entries(link.mirror.name) if e.acl.name == topic]


def test_a_copy_that_was_deleted_on_the_destination_comes_back(link: MirrorLink, topic: str) -> None:
    synced(link)
    withdraw(link, acl(topic, Operation.READ), side="destination")
    assert synced(link)[str(acl(topic, Operation.READ))].action is SyncAction.CREATE
    assert on(link, "destination", topic) == {acl(topic, Operation.READ)}


def test_our_own_fence_on_the_source_does_not_cross(link: MirrorLink, topic: str) -> None:
    fence = acl(topic, Operation.WRITE, "User:*", Permission.DENY)
    with writer_of(link) as writer:
        writer.put(LedgerEntry(mirror=link.mirror.name, cluster=link.source.name, acl=fence, purpose=AclPurpose.FENCE))
    grant(link, fence)
    assert str(fence) not in synced(link)


def test_an_application_that_could_write_a_mirror_topic_anyhow_is_named(link: MirrorLink, topic: str) -> None:
    door = Acl(
        resource=Resource.TOPIC,
        name=topic[:-1],
        pattern=Pattern.PREFIXED,
        principal="User:local",
        operation=Operation.WRITE,
    )
    grant(link, door, side="destination")
    try:
        assert synced(link)[str(door)].action is SyncAction.REFUSE
    finally:
        withdraw(link, door, side="destination")


def test_promotion_opens_the_topic_to_applications_and_closes_it_to_copying_tasks(
    pair: Pair, link: MirrorLink, topic: str
) -> None:
    with writer_of(link) as writer:
        sync_mirror(link, writer)
    assert may_write(pair.west, topic, "mirror-data")
    record(link, [topic], PartitionState.STOPPED)
    for _ in range(2):  # a run that was killed in the middle does it again
        with writer_of(link) as writer:
            apply_promotion(link, writer, [topic])
    assert may_write(pair.west, topic)
    assert not may_write(pair.west, topic, "mirror-data")
    with ClusterClient(link.destination) as west, ClusterClient(link.source) as east:
        for client in (east, west):
            settings_become(client, topic, {"cleanup.policy": "compact"})


def test_applications_wait_for_what_a_topic_takes_and_not_for_how_long_it_keeps_it(
    link: MirrorLink, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A promotion that dies right after it has given rights: what is left is done by the next one."""
    given = acl_sync._promote_access

    def dies(*args: Any, **named: Any) -> None:
        given(*args, **named)
        raise Died

    with writer_of(link) as writer, ClusterClient(link.destination) as west:
        sync_mirror(link, writer)
        monkeypatch.setattr(acl_sync, "_promote_access", dies)
        with pytest.raises(Died):
            apply_promotion(link, writer, [topic])

        def taken() -> Mapping[str, str] | None:
            shown = describe_configs(west, [topic])[topic].overrides
            return shown if shown["cleanup.policy"] == "compact" else None

        there = wait_until(taken, timeout_s=TIMEOUT_S, why="the topic is compacted only")
        assert there is not None
        assert not (ACCEPTANCE_KEYS - {"cleanup.policy"}) & there.keys(), "the source has none of them set"
        assert there["retention.ms"] == "-1"
        monkeypatch.setattr(acl_sync, "_promote_access", given)
        rows = apply_promotion(link, writer, [topic])
        assert f"{topic}: retention.ms" in {row.subject for row in rows if row.done}
        settings_become(west, topic, {"cleanup.policy": "compact"})


def test_demotion_is_undone_by_the_next_promotion(pair: Pair, link: MirrorLink, topic: str) -> None:
    with writer_of(link) as writer:
        sync_mirror(link, writer)
        apply_promotion(link, writer, [topic])
        for _ in range(2):
            demote_topics(link, writer, [topic], link.destination.name)
    assert not may_write(pair.west, topic)
    assert may_write(pair.west, topic, "mirror-data")
    assert not [row for row in synced(link).values() if row.action is SyncAction.REFUSE and topic in row.subject]
    with writer_of(link) as writer:
        apply_promotion(link, writer, [topic])
        assert not [e for e in writer.state.ledger.values() if e.purpose is AclPurpose.DEMOTED and e.acl.name == topic]
    assert may_write(pair.west, topic)


def test_a_demotion_in_the_other_directions_ledger_is_undone_too(pair: Pair, topic: str, link: MirrorLink) -> None:
    """A failback demotes the old source with the forward mirror's ledger, and promotes it with the reverse mirror's."""
    with writer_of(link) as writer:
        demote_topics(link, writer, [topic], link.source.name)
    assert not may_write(pair.east, topic)
    reverse = home_of(link)
    with writer_of(reverse) as writer:
        apply_promotion(reverse, writer, [topic])
    assert may_write(pair.east, topic)


@pytest.mark.parametrize(
    "narrowed", [{"exclude_principals": (APP,)}, {"exclude_rights": ("WRITE TOPIC .*",)}], ids=["principals", "rights"]
)
def test_a_right_that_a_filter_kept_from_being_promoted_comes_back_at_home(
    pair: Pair, topic: str, link: MirrorLink, narrowed: dict[str, Any]
) -> None:
    """It was staged before the filter narrowed: nobody withdrew it on the new primary, which never had it."""
    synced(link)
    link = replace(link, mirror=replace(link.mirror, **narrowed))
    synced(link)
    with writer_of(link) as writer:
        apply_promotion(link, writer, [topic])
        assert not may_write(pair.west, topic)
        demote_topics(link, writer, [topic], link.source.name)
        forward = writer.state
    assert not may_write(pair.east, topic)
    reverse = home_of(link)
    reverse = replace(reverse, mirror=replace(reverse.mirror, failback_run="run-1"))
    with writer_of(reverse) as writer, ClusterClient(link.destination) as west:
        copy_demotions(writer, reverse.mirror.name, forward, link.source.name, [topic])
        record_withdrawn_rights(reverse, forward, writer, west)
        apply_promotion(reverse, writer, [topic])
    assert may_write(pair.east, topic)


def test_a_demotion_by_another_mirror_stays_also_on_a_promoted_topic_and_is_told(
    pair: Pair, link: MirrorLink, topic: str
) -> None:
    """It may have had the topic before. Whether it is still needed is not ours to say."""
    another = new_link(pair, new_topic(pair.east))
    with writer_of(link) as writer:
        sync_mirror(link, writer)
    grant(link, acl(topic, Operation.WRITE), side="destination")
    with writer_of(another) as writer:
        demote_topics(another, writer, [topic], link.destination.name)
    denied = acl(topic, Operation.WRITE, permission=Permission.DENY)
    record(link, [topic], PartitionState.STOPPED)
    with writer_of(link) as writer:
        [told] = [
            row
            for row in apply_promotion(link, writer, [topic])
            if row.subject == str(denied) and row.action is SyncAction.KEEP
        ]
        assert f"belongs to mirror {another.mirror.name}" in told.reason
        assert "kafka-acls.sh --bootstrap-server" in told.reason
        with ClusterClient(link.destination) as client:
            held = describe_acls(client)
        said = [w for w in list_promotion_warnings(link, writer.refresh(), held, [topic]) if w.subject == str(denied)]
    assert [(w.code, w.values["sibling"], str(w)) for w in said] == [
        ("denial_remains", another.mirror.name, told.reason)
    ]
    assert not may_write(pair.west, topic)
    with writer_of(another) as writer:
        assert [e.acl for e in list_entries(writer, another.mirror.name, link.destination.name, AclPurpose.DEMOTED)]
        apply_promotion(another, writer, [topic])
    assert may_write(pair.west, topic)


def test_a_promotion_opens_no_topic_of_another_mirror(pair: Pair, link: MirrorLink, topic: str) -> None:
    """Each of two mirrors was failed over and came home; then one of them goes again, or a drill does."""
    elsewhere = new_topic(pair.east)
    other = new_link(pair, elsewhere)
    with writer_of(link) as writer:
        sync_mirror(link, writer)
        apply_promotion(link, writer, [topic])
        demote_topics(link, writer, [topic], link.destination.name)
    with writer_of(other) as writer:
        apply_promotion(other, writer, [elsewhere])
    assert not may_write(pair.west, topic)
    with writer_of(link) as writer:
        apply_promotion(link, writer, [topic])
    assert may_write(pair.west, topic)


def test_a_promotion_opens_no_topic_of_another_way_home(pair: Pair, link: MirrorLink, topic: str) -> None:
    """The same, of what the mirror of the other direction has in its ledger only."""
    elsewhere = new_topic(pair.west)
    other = new_link(pair, elsewhere, source="west", destination="east")
    with writer_of(link) as writer:
        demote_topics(link, writer, [topic], link.source.name)
    with writer_of(other) as writer:
        apply_promotion(other, writer, [elsewhere])
    assert not may_write(pair.east, topic)


def test_a_promotion_takes_no_grant_away_because_somebody_wrote_so_into_the_other_sides_state(
    pair: Pair, link: MirrorLink, topic: str
) -> None:
    granted = acl(topic, Operation.WRITE)
    grant(link, granted)
    forgery = LedgerEntry(mirror=link.mirror.name, cluster=link.source.name, acl=granted, purpose=AclPurpose.DEMOTED)
    reverse = home_of(link)
    with writer_of(link) as writer:
        writer.put(forgery)
    with writer_of(reverse) as writer:
        apply_promotion(reverse, writer, [topic])
    assert granted in on(link, "source", topic)


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(("User:mirror-data", "LITERAL"), id="what stops earlier copying tasks"),
        pytest.param(("User:*", "LITERAL"), id="a denial for everybody"),
        pytest.param((APP, "PREFIXED"), id="a denial by prefix"),
    ],
)
def test_a_promotion_takes_no_denial_away_that_no_demotion_has_made(
    pair: Pair, link: MirrorLink, topic: str, planted: tuple[str, str]
) -> None:
    principal, pattern = planted
    denied = replace(acl(topic, Operation.WRITE, principal, Permission.DENY), pattern=Pattern(pattern))
    reverse = home_of(link)
    with writer_of(link) as writer:
        writer.put(
            LedgerEntry(mirror=link.mirror.name, cluster=link.source.name, acl=denied, purpose=AclPurpose.DEMOTED)
        )
    grant(link, denied)
    with writer_of(reverse) as writer:
        apply_promotion(reverse, writer, [topic])
    assert denied in on(link, "source", topic)


@pytest.mark.parametrize("purpose", [AclPurpose.FENCE, AclPurpose.DEMOTED])
def test_a_sync_copies_a_rule_of_the_source_that_a_forged_ledger_there_calls_ours(
    link: MirrorLink, topic: str, purpose: AclPurpose
) -> None:
    rule = acl(topic, Operation.READ, APP, Permission.DENY)
    reverse = home_of(link)
    with writer_of(reverse) as writer:
        writer.put(LedgerEntry(mirror=reverse.mirror.name, cluster=link.source.name, acl=rule, purpose=purpose))
    grant(link, rule)
    rows = synced(link)
    assert rule in on(link, "destination", topic)
    doubted = rows[f"ledger on {link.source.name}: {rule}"]
    assert doubted.action is SyncAction.SKIP, "nobody could clear a refusal but by writing there"
    assert "find out who may write the state topic there" in doubted.reason


def test_a_right_that_the_source_withdrew_is_not_given_by_the_next_promotion(
    pair: Pair, link: MirrorLink, topic: str
) -> None:
    with writer_of(link) as writer:
        sync_mirror(link, writer)
        apply_promotion(link, writer, [topic])
        home_again(link, writer, topic)
    assert acl(topic, Operation.WRITE) not in on(link, "destination", topic)
    withdraw(link, acl(topic, Operation.WRITE))
    assert synced(link)[str(acl(topic, Operation.WRITE))].action is SyncAction.REMOVE
    with writer_of(link) as writer:
        apply_promotion(link, writer, [topic])
        assert not list_entries(writer, link.mirror.name, link.destination.name, AclPurpose.PROMOTED)
    assert not may_write(pair.west, topic)


def test_a_withdrawn_right_that_somebody_granted_there_by_hand_stays_denied_until_it_is_granted_again(
    pair: Pair, link: MirrorLink, topic: str
) -> None:
    by_hand = acl(topic, Operation.WRITE)
    grant(link, by_hand, side="destination")
    with writer_of(link) as writer:
        sync_mirror(link, writer)
        apply_promotion(link, writer, [topic])
        home_again(link, writer, topic)
        assert by_hand in on(link, "destination", topic), "not ours to take away"
    withdraw(link, by_hand)
    denied = replace(by_hand, permission=Permission.DENY)
    assert synced(link)[str(denied)].reason == "the source grants it no more: promotion leaves this denial"
    with writer_of(link) as writer:
        rows = {row.subject: row for row in apply_promotion(link, writer, [topic]) if row.action is SyncAction.KEEP}
    assert f"stays at promotion, because {link.source.name} has withdrawn the right" in rows[str(denied)].reason
    assert not may_write(pair.west, topic)
    grant(link, by_hand)
    synced(link)
    with writer_of(link) as writer:
        apply_promotion(link, writer, [topic])
    assert may_write(pair.west, topic)


def test_a_grant_to_everybody_is_refused_by_name_at_demotion(link: MirrorLink, topic: str) -> None:
    public = acl(topic, Operation.WRITE, "User:*")
    grant(link, public, side="destination")
    with writer_of(link) as writer, pytest.raises(Refused, match="Replace it by grants to named principals") as refusal:
        demote_topics(link, writer, [topic], link.destination.name)
    assert f"--remove --allow-principal 'User:*' --operation Write --topic {topic}" in str(refusal.value)
