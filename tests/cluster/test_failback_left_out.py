"""Home again when not all topics come: what a homecoming leaves behind must not keep the rest unprotected."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.dataplane.epoch_results import raise_if_failed
from mirror_core.kafka.topics import NewTopic, create_topics, delete_topic, delete_topics
from mirror_core.model.errors import Refused
from mirror_core.model.mirror import PartitionState
from mirror_core.model.names import Partition
from mirror_core.runbook.failback_steps import load_reverse_link
from tests.support.broker_faults import suspended
from tests.support.cluster_admin import as_admin
from tests.support.failback_runs import failback_of, go_home
from tests.support.failover_runs import app_topic, begin, denied
from tests.support.kafka_clients import Pair, grant, produce, read_all
from tests.support.mirrored_topics import new_mirror, replicate
from tests.support.topic_equality import assert_parity
from tests.support.unplanned_runs import begin as give_up

pytestmark = pytest.mark.cluster


def test_a_topic_that_is_deleted_on_the_new_primary_on_the_way_holds_nothing_up(pair: Pair, tmp_path: Path) -> None:
    kept, gone = app_topic(pair), app_topic(pair)
    for topic in (kept, gone):
        produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, kept, gone)
    mirrored.copy()
    mirrored.failover.drive(begin(mirrored.failover))
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    for step in ("salvage", "align"):
        failback.run_step(run.id, step)
    with as_admin(pair.west) as client:
        delete_topic(client, gone, client.metadata([gone]).topics[gone].id)
    produce(pair.west, kept, 5)
    failback.drive(run.id)
    go_home(failback, run.id)
    mirrored.copy()  # what the old source has of it is protected again, too
    assert {p.topic: s.state for p, s in mirrored.statuses.items()} == dict.fromkeys(
        (kept, gone), PartitionState.MIRRORING
    )
    assert_parity(mirrored)


@pytest.mark.slow
def test_a_topic_without_a_copy_on_the_way_home_holds_it_up_until_its_owner_makes_room(
    pair: Pair, tmp_path: Path
) -> None:
    prefix = f"t-{secrets.token_hex(4)}-"
    topic, strange = app_topic(pair, prefix=prefix), f"{prefix}strange"
    produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, f"{prefix}.*")
    mirrored.copy()
    mirrored.failover.drive(begin(mirrored.failover))
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    failback.drive(run.id)
    for cluster in (pair.east, pair.west):
        with as_admin(cluster) as client:
            new = NewTopic(name=strange, partitions=1, replication_factor=1, configs={})
            create_topics(client, [new])
        produce(cluster, strange, 3 if cluster is pair.east else 7)
    assert set(replicate(load_reverse_link(mirrored.link)).failed) == {Partition(strange, 0)}
    with pytest.raises(Refused, match=f"topic {strange} has no copy on east"):
        go_home(failback, run.id)
    with as_admin(pair.east) as client:
        delete_topics(client, [strange])
    raise_if_failed(replicate(load_reverse_link(mirrored.link)))
    go_home(failback, run.id)
    assert len(read_all(pair.east, strange)) == 7
    assert {status.state for status in mirrored.statuses.values()} == {PartitionState.MIRRORING}


@pytest.mark.slow
def test_a_topic_that_began_on_the_new_primary_is_a_mirror_topic_there_afterwards(pair: Pair, tmp_path: Path) -> None:
    prefix = f"t-{secrets.token_hex(4)}-"
    topic, newcomer, group = app_topic(pair, prefix=prefix), f"{prefix}new", f"g-{prefix}"
    produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, f"{prefix}.*", groups=(group,))
    mirrored.copy()
    mirrored.failover.drive(begin(mirrored.failover))
    with as_admin(pair.west) as client:
        create_topics(client, [NewTopic(name=newcomer, partitions=1, replication_factor=1, configs={})])
    grant(pair.west, "app", ResourceType.TOPIC, newcomer, [AclOperation.READ, AclOperation.WRITE])
    sent = produce(pair.west, newcomer, 10)
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    failback.drive(run.id)
    raise_if_failed(replicate(load_reverse_link(mirrored.link)))
    go_home(failback, run.id)
    assert read_all(pair.east, newcomer) == sent
    mirrored.copy()
    assert denied(pair.west, newcomer)
    assert denied(pair.west, topic)
    mirrored.failover.drive(begin(mirrored.failover))
    assert not denied(pair.west, newcomer)


@pytest.mark.slow
def test_a_topic_that_never_came_to_the_new_primary_stays_where_it_is(pair: Pair, tmp_path: Path) -> None:
    prefix = f"t-{secrets.token_hex(4)}-"
    topic, strange = app_topic(pair, prefix=prefix), app_topic(pair, prefix=prefix)
    mirrored = new_mirror(pair, tmp_path, f"{prefix}.*")
    with as_admin(pair.west) as client:
        create_topics(client, [NewTopic(name=strange, partitions=1, replication_factor=1, configs={})])
    for cluster, name in ((pair.east, topic), (pair.east, strange), (pair.west, strange)):
        produce(cluster, name, 20)
    assert set(replicate(mirrored.link).failed) == {Partition(strange, 0)}
    only = read_all(pair.east, strange)
    with suspended(pair.east):
        mirrored.failover.drive(give_up(mirrored.failover).id)
    failback = failback_of(mirrored)
    with pytest.raises(Refused, match=f"topic {strange} exists on west and on east"):
        failback.begin(failback.plan().hash)
    with as_admin(pair.west) as client:
        delete_topic(client, strange, client.metadata([strange]).topics[strange].id)
    run = failback.begin(failback.plan().hash)
    failback.drive(run.id)
    go_home(failback, run.id)
    assert read_all(pair.east, strange) == only
    mirrored.copy()
    assert {s.state for s in mirrored.statuses.values()} == {PartitionState.MIRRORING}
    assert_parity(mirrored)
