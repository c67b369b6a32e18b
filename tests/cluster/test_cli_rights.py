"""What the commands answer when a right is missing: which one, whose, and how to grant it."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.decide.command_rules import COMMAND_RULES, MirrorCommand
from mirror_core.model.mirror import PartitionState
from mirror_core.model.names import get_heartbeat_topic
from mirror_core.rights.required_acls import CLUSTER_NAME
from mirror_core.state.state_records import STATE_TOPIC
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.cluster.desk import MENDED, Desk, Said
from tests.support.kafka_clients import TIMEOUT_S, admin_client, grant, new_topic, produce, read_all
from tests.support.mirrored_topics import Mirrored
from tests.support.sentences import format_sentence

pytestmark = pytest.mark.cluster


def control_user(desk: Desk, cluster: SandboxCluster, *topic_operations: AclOperation) -> str:
    """From now on the control principal there is a user that may do only this with topics."""
    name, password = desk.new_user(cluster)
    op = AclOperation
    grant(cluster, name, ResourceType.TOPIC, "*", topic_operations)
    grant(cluster, name, ResourceType.GROUP, "*", [op.READ, op.DESCRIBE])
    grant(cluster, name, ResourceType.BROKER, CLUSTER_NAME, [op.DESCRIBE, op.DESCRIBE_CONFIGS])
    grant(cluster, name, ResourceType.TRANSACTIONAL_ID, "mirrorbook.", [op.WRITE, op.DESCRIBE], prefixed=True)
    desk.change(cluster.name, sasl_username=name, sasl_password=password)
    return name


def data_user(desk: Desk, cluster: SandboxCluster) -> str:
    """From now on the data principal there is a user without any right."""
    name, password = desk.new_user(cluster)
    desk.change(cluster.name, {"sasl.username": name, "sasl.password": password})
    return name


def test_a_control_principal_that_may_not_create_topics(desk: Desk) -> None:
    op = AclOperation
    topic = new_topic(desk.pair.east)
    mirrored = desk.started(topic)
    user = control_user(desk, desk.pair.west, op.READ, op.WRITE, op.ALTER, op.DESCRIBE_CONFIGS, op.ALTER_CONFIGS)
    said = desk.run("replicate", mirrored.name, "--runner", "local")
    assert (said.code, said.out) == (2, "")
    assert said.err.replace(get_heartbeat_topic(mirrored.name), topic) == (  # whichever is named
        format_sentence("create_topics_not_authorized", "west", topic, 1, user, "west")
    )
    assert topic not in admin_client(desk.pair.west).list_topics(timeout=TIMEOUT_S).topics
    assert mirrored.statuses == {}


def test_a_control_principal_that_may_not_see_the_topic(desk: Desk, unchanged: None) -> None:
    user = control_user(desk, desk.pair.east, AclOperation.WRITE)
    assert desk.create("--topics", "__consumer_offsets_x") == Said(
        2,
        "",
        format_sentence("unknown_topic", "__consumer_offsets_x", "east", user),
    )


def test_a_control_principal_that_may_not_read_the_state(desk: Desk) -> None:
    mirrored = desk.started(new_topic(desk.pair.east))
    name, password = desk.new_user(desk.pair.west)
    desk.change("west", sasl_username=name, sasl_password=password)
    before = desk.traces()
    said = desk.run("mirror", "start", mirrored.name)
    assert (said.code, said.out) == (2, "")
    assert said.err == format_sentence(
        "mirror_not_known_state_not_authorized", f"{mirrored.name!r}", "west", STATE_TOPIC, name, "west"
    )
    assert desk.traces() == before


def test_a_control_principal_that_may_not_write_the_state(desk: Desk) -> None:
    op = AclOperation
    mirrored = desk.started(new_topic(desk.pair.east))
    user = control_user(desk, desk.pair.west, op.READ)
    before = desk.traces()
    assert desk.run("mirror", "pause", mirrored.name) == Said(
        2,
        f"pause mirror {mirrored.name} (east -> west, STARTED): {COMMAND_RULES[MirrorCommand.PAUSE].effect}\n",
        f"error: cluster west, state topic {STATE_TOPIC}: cannot write: TOPIC_AUTHORIZATION_FAILED for {user}; "
        "`mirrorbook cluster check west` names the rights\n",
    )
    assert desk.traces() == before


@pytest.fixture
def good_and_bad(desk: Desk) -> tuple[Mirrored, str, str]:
    """A started mirror of two topics with something to copy."""
    good, bad = new_topic(desk.pair.east), new_topic(desk.pair.east)
    for topic in (good, bad):
        produce(desk.pair.east, topic, 30)
    return desk.started(good, bad), good, bad


BESIDE_A_DENIAL = format_sentence("no_grant_helps_beside_a_denial")


def replicate_with_one_bad(desk: Desk, mirrored: Mirrored, good: str, bad: str, reason: str) -> None:
    said = desk.run("replicate", mirrored.name, "--runner", "local", "--until-caught-up")
    assert (said.code, said.err) == (1, f"error: 1 {MENDED}\n  - {bad}-0: {reason}\n")
    statuses = {partition.topic: status for partition, status in mirrored.statuses.items()}
    assert statuses[bad].state is PartitionState.FAILED
    assert statuses[bad].reason == reason
    assert statuses[good].state is PartitionState.MIRRORING
    assert read_all(desk.pair.west, bad) == []
    assert len(read_all(desk.pair.west, good)) == 30


def test_a_data_principal_that_may_not_write_one_topic(desk: Desk, good_and_bad: tuple[Mirrored, str, str]) -> None:
    mirrored, good, bad = good_and_bad
    user = data_user(desk, desk.pair.west)
    grant(desk.pair.west, user, ResourceType.TOPIC, "*", [AclOperation.READ])
    grant(desk.pair.west, user, ResourceType.TOPIC, good, [AclOperation.WRITE])
    reason = format_sentence("data_principal_may_not_write", "west", bad, user, bad, BESIDE_A_DENIAL)
    replicate_with_one_bad(desk, mirrored, good, bad, reason)
    # The remedy that it names is one.
    grant(desk.pair.west, user, ResourceType.TOPIC, bad, [AclOperation.WRITE])
    assert desk.run("mirror", "recover", mirrored.name, "--yes").code == 0
    said = desk.run("replicate", mirrored.name, "--runner", "local", "--until-caught-up")
    assert (said.code, said.err) == (0, "")
    assert len(read_all(desk.pair.west, bad)) == 30


def test_a_data_principal_that_may_not_read_one_topic(desk: Desk, good_and_bad: tuple[Mirrored, str, str]) -> None:
    mirrored, good, bad = good_and_bad
    user = data_user(desk, desk.pair.east)
    grant(desk.pair.east, user, ResourceType.TOPIC, "*", [AclOperation.DESCRIBE])
    grant(desk.pair.east, user, ResourceType.TOPIC, good, [AclOperation.READ])
    reason = format_sentence("data_principal_may_not_read", "east", bad, user, bad, BESIDE_A_DENIAL)
    replicate_with_one_bad(desk, mirrored, good, bad, reason)


def test_a_data_principal_that_may_not_see_one_topic(desk: Desk, good_and_bad: tuple[Mirrored, str, str]) -> None:
    mirrored, good, bad = good_and_bad
    user = data_user(desk, desk.pair.west)
    grant(desk.pair.west, user, ResourceType.TOPIC, good, [AclOperation.READ, AclOperation.WRITE])
    reason = format_sentence("data_principal_may_not_describe", "west", bad, user, bad, BESIDE_A_DENIAL)
    replicate_with_one_bad(desk, mirrored, good, bad, reason)
