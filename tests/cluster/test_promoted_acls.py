"""Transactional applications need nothing by hand on the other side; and nobody gets what was never meant for him."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from mirror_core.kafka.acl_requests import create_acls, delete_acls, wait_until_acls_absent, wait_until_acls_present
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Operation, Pattern, Resource
from mirror_core.model.run import RunMode, RunState
from mirror_core.model.sync_state import SyncAction, SyncCategory
from mirror_core.rights.acl_rules import OWN_NAME_PREFIX, OWN_TOPIC_PREFIX, build_denial, can_change_topic
from mirror_core.state.state_records import STATE_TOPIC as STATE
from mirror_core.sync.acl_sync import apply_promotion, demote_topics
from mirror_core.sync.mirror_sync import sync_mirror
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.cluster.links import new_link, writer_of
from tests.support.cluster_admin import as_admin, rights_of
from tests.support.failover_runs import denied
from tests.support.kafka_clients import Pair, new_topic, produce, read_all
from tests.support.mirrored_topics import new_mirror
from tests.support.sentences import format_sentence

pytestmark = pytest.mark.cluster
APP = "User:app"
ACLS = frozenset({SyncCategory.TOPICS, SyncCategory.ACLS})


def right(
    resource: Resource, name: str, *operations: Operation, principal: str = APP, pattern: Pattern = Pattern.LITERAL
) -> set[Acl]:
    return {Acl(resource=resource, name=name, pattern=pattern, principal=principal, operation=o) for o in operations}


def grant(cluster: SandboxCluster, *acls: Acl) -> None:
    with as_admin(cluster) as client:
        create_acls(client, acls)
        wait_until_acls_present(client, acls)


def withdraw(cluster: SandboxCluster, *acls: Acl) -> None:
    with as_admin(cluster) as client:
        delete_acls(client, acls)
        wait_until_acls_absent(client, acls)


def transactional(cluster: SandboxCluster, name: str) -> Producer:
    producer = Producer({**cluster.client_config("app"), "transactional.id": name, "log_level": 0})
    producer.init_transactions(30)
    return producer


def refused(error: pytest.ExceptionInfo[KafkaException]) -> int:
    return int(error.value.args[0].code())


def test_a_transactional_application_goes_over_with_nothing_done_by_hand(pair: Pair, tmp_path: Path) -> None:
    """It writes, and commits what it has read in the same transaction: on the source before, and there afterwards."""
    topic, word = new_topic(pair.east), secrets.token_hex(4)
    group, ids = f"g-{word}", f"tx-{word}-"
    write = right(Resource.TOPIC, topic, Operation.READ, Operation.WRITE)
    txn = right(Resource.TRANSACTIONAL_ID, ids, Operation.WRITE, Operation.DESCRIBE, pattern=Pattern.PREFIXED)
    idempotent = right(Resource.CLUSTER, "kafka-cluster", Operation.IDEMPOTENT_WRITE)
    grant(pair.east, *write, *txn, *idempotent, *right(Resource.GROUP, group, Operation.READ))
    before = rights_of(pair.west)

    def round_on(cluster: SandboxCluster, producer: Producer, value: bytes, offset: int) -> None:
        consumer = Consumer({**cluster.client_config("app"), "group.id": group})
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, offset)], consumer.consumer_group_metadata(), 30)
        producer.commit_transaction(30)
        consumer.close()

    round_on(pair.east, transactional(pair.east, ids + "1"), b"on east", 1)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(group,))
    mirrored.copy()
    with writer_of(mirrored.link) as writer:
        assert not [row for row in sync_mirror(mirrored.link, writer, only=ACLS).rows if row.action is SyncAction.SKIP]
    for name in (ids + "1", "another"):
        with pytest.raises(KafkaException) as early:
            transactional(pair.west, name)
        assert refused(early) == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    failover = mirrored.failover
    run = failover.begin(failover.plan(RunMode.PLANNED).hash)
    assert mirrored.failover.drive(run.id).state is RunState.DONE

    round_on(pair.west, transactional(pair.west, ids + "1"), b"on west", 2)
    assert [r.value for r in read_all(pair.west, topic)] == [b"on east", b"on west"]
    assert {a for a in rights_of(pair.west) - before if a.resource not in (Resource.TOPIC, Resource.GROUP)} == {
        *txn,
        *idempotent,
    }


def test_a_right_to_all_transactional_ids_takes_nobodys_journal_over(pair: Pair) -> None:
    topic = new_topic(pair.east)
    every = right(Resource.TRANSACTIONAL_ID, "*", Operation.WRITE)
    grant(pair.east, *every, *right(Resource.TOPIC, topic, Operation.WRITE))
    link = new_link(pair, topic)
    with writer_of(link) as writer:
        sync_mirror(link, writer)
        ours = build_denial(OWN_NAME_PREFIX, APP, resource=Resource.TRANSACTIONAL_ID, pattern=Pattern.PREFIXED)
        assert rights_of(pair.west) & {*every, ours} == {ours}, "nobody needs the right before promotion"
        withdraw(pair.east, *every)
        sync_mirror(link, writer, only=ACLS)
        assert not rights_of(pair.west) & {*every, ours}
        grant(pair.east, *every)
        sync_mirror(link, writer)
        apply_promotion(link, writer, [topic])
    assert rights_of(pair.west) >= {*every, ours}
    transactional(pair.west, "anything")
    with pytest.raises(KafkaException) as error:
        transactional(pair.west, f"mirrorbook.control-{link.mirror.name}")
    assert refused(error) == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    withdraw(pair.west, *every, ours)


def test_delegation_between_applications_is_carried(pair: Pair) -> None:
    topic = new_topic(pair.east)
    for_app = right(Resource.USER, APP, Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS, principal="User:web")
    for_all = right(Resource.DELEGATION_TOKEN, "*", Operation.DESCRIBE)
    readers = {a for p in (APP, "User:web") for a in right(Resource.TOPIC, topic, Operation.READ, principal=p)}
    grant(pair.east, *for_app, *for_all, *readers)
    link = new_link(pair, topic)
    with writer_of(link) as writer:
        rows = {row.subject: row.action for row in sync_mirror(link, writer, only=ACLS).rows}
    assert {rows[str(a)] for a in for_app} == {SyncAction.CREATE}
    assert {rows[str(a)] for a in for_all} == {SyncAction.SKIP}
    assert for_app <= rights_of(pair.west)
    assert not for_all & rights_of(pair.west)


def test_a_forged_record_makes_nobody_an_administrator(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east)
    write = right(Resource.TOPIC, topic, Operation.WRITE)
    grant(pair.east, *write)
    forged = right(Resource.CLUSTER, "kafka-cluster", Operation.ALTER) | {
        build_denial("*", resource=Resource.TRANSACTIONAL_ID)
    }
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    link = mirrored.link
    with writer_of(link) as writer:
        sync_mirror(link, writer, only=ACLS)
        name, cluster, staged = link.mirror.name, link.destination.name, AclPurpose.STAGED
        writer.put(*(LedgerEntry(mirror=name, cluster=cluster, acl=a, purpose=staged) for a in forged))
    plan = mirrored.failover.plan(RunMode.PLANNED)
    for acl in forged:
        assert [
            w for w in map(str, plan.warnings) if w.startswith(f"{acl} is recorded as staged, but will not be granted")
        ]
    with writer_of(link) as writer:
        rows = {row.subject: row for row in apply_promotion(link, writer, [topic])}
    assert {rows[str(acl)].action for acl in forged} == {SyncAction.REFUSE}
    assert not rights_of(pair.west) & forged
    assert not denied(pair.west, topic), "held up by it"


def test_copying_tasks_cannot_write_what_is_remembered(pair: Pair) -> None:
    guards = {
        build_denial(OWN_TOPIC_PREFIX, "User:mirror-data", operation=operation, pattern=Pattern.PREFIXED)
        for operation in (Operation.WRITE, Operation.DELETE)
    }
    link = new_link(pair, new_topic(pair.east))
    assert denied(pair.west, STATE, "mirror-data"), "the sandbox has them from the beginning"
    withdraw(pair.west, *guards)
    with writer_of(link) as writer:
        assert {str(g) for g in guards} <= {r.subject for r in sync_mirror(link, writer, only=ACLS).rows if r.done}
        assert guards <= rights_of(pair.west)
        assert denied(pair.west, STATE, "mirror-data")
        assert not [r for r in sync_mirror(link, writer, only=ACLS).rows if r.done and r.part is SyncCategory.ACLS]


@pytest.mark.parametrize("pattern", Pattern)
def test_a_grant_that_would_open_more_is_given_topic_by_topic(pair: Pair, tmp_path: Path, pattern: Pattern) -> None:
    topic = new_topic(pair.east)
    other = new_topic(pair.west, prefix=topic)
    name = "*" if pattern is Pattern.LITERAL else topic
    [wide] = right(Resource.TOPIC, name, Operation.WRITE, pattern=pattern)
    grant(pair.east, wide)
    produce(pair.east, topic, 10)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    with writer_of(mirrored.link) as writer:
        sync_mirror(mirrored.link, writer, only=ACLS)
    failover = mirrored.failover
    plan = failover.plan(RunMode.PLANNED)
    [said] = [w for w in map(str, plan.warnings) if str(wide) in w]
    assert said.startswith(format_sentence("granted_topic_by_topic", wide))
    run = failover.begin(plan.hash)
    assert mirrored.failover.drive(run.id).state is RunState.DONE
    assert not denied(pair.west, topic)
    assert denied(pair.west, other)
    assert denied(pair.west, STATE)
    assert replace(wide, name=topic, pattern=Pattern.LITERAL) in rights_of(pair.west)
    assert wide not in rights_of(pair.west)
    with writer_of(mirrored.link) as writer:  # as a failback does it at its end, and the failover after that
        demote_topics(mirrored.link, writer, [topic], mirrored.link.destination.name)
        assert denied(pair.west, topic)
        apply_promotion(mirrored.link, writer, [topic])
    assert not denied(pair.west, topic)


def test_a_plan_lists_exactly_the_rights_that_promotion_gives(pair: Pair, tmp_path: Path) -> None:
    """Also one that was granted since the last sync; and not one that was withdrawn since, or that somebody forged."""
    topic = new_topic(pair.east)
    kept, new, gone, forged = (right(Resource.TOPIC, topic, Operation.WRITE, principal=f"User:{w}") for w in "abcd")
    grant(pair.east, *kept, *gone)
    before = rights_of(pair.west)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    with writer_of(mirrored.link) as writer:
        sync_mirror(mirrored.link, writer, only=ACLS)
        entry = LedgerEntry(
            mirror=mirrored.link.mirror.name,
            cluster=mirrored.link.mirror.destination,
            acl=next(iter(forged)),
            purpose=AclPurpose.STAGED,
        )
        writer.put(entry)
    grant(pair.east, *new)
    withdraw(pair.east, *gone)

    lost = mirrored.failover.plan(RunMode.UNPLANNED)
    assert lost.rights == tuple(sorted(str(a) for a in {*kept, *gone, *forged}))
    (unbacked,) = [line for line in map(str, lost.warnings) if "nobody holds on east now" in line]
    assert [str(a) in unbacked for a in (*kept, *gone, *forged)] == [False, True, True]

    plan = mirrored.failover.plan(RunMode.PLANNED)
    assert mirrored.failover.drive(mirrored.failover.begin(plan.hash).id).state is RunState.DONE
    given = {a for a in rights_of(pair.west) - before if can_change_topic(a)}
    assert given == {*kept, *new}
    assert plan.rights == tuple(sorted(str(a) for a in given))
