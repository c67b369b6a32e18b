"""The sandbox on its shared pair: what `up` promises, who may do what, and where passwords are."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from mirror_core.kafka.config import Principal, load_config
from mirror_core.model.errors import BadRequest
from mirrorbook_tools.sandbox.credentials import USERS, load_passwords
from tests.support.broker_faults import suspended
from tests.support.kafka_clients import Pair, admin_client, new_topic, produce, read_all

pytestmark = pytest.mark.cluster


def pids(pair: Pair) -> list[int | None]:
    return [pair.east.pid(), pair.west.pid()]


def test_a_second_up_leaves_living_brokers_alone(pair: Pair) -> None:
    before, said = pids(pair), list[str]()
    type(pair.sandbox)(pair.sandbox.dir, say=said.append).up()
    assert None not in before
    assert pids(pair) == before
    assert "already running" in said


def test_up_starts_a_dead_broker_again_on_its_data(pair: Pair) -> None:
    topic = new_topic(pair.west)
    sent = produce(pair.west, topic, 50)
    east, west = pids(pair)
    pair.west.kill()
    assert pair.west.pid() is None
    pair.sandbox.up()
    assert pair.east.pid() == east
    assert pair.west.pid() not in (None, west)
    assert read_all(pair.west, topic) == sent


def test_a_suspended_broker_is_alive_and_not_answering(pair: Pair) -> None:
    with suspended(pair.east):
        assert pair.east.pid() is not None
        assert pair.east.answering(1) == []
    assert pair.east.answering(1) == [1]


def test_another_number_of_nodes_is_refused_while_data_is_there(pair: Pair) -> None:
    with pytest.raises(BadRequest, match=r"has 1 node\(s\) in each cluster, not 3"):
        pair.sandbox.up(nodes=3)


def test_up_does_not_put_back_a_grant_that_was_taken_away(pair: Pair) -> None:
    mine = AclBindingFilter(
        ResourceType.GROUP,
        "orders",
        ResourcePatternType.PREFIXED,
        "User:app",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    admin = admin_client(pair.east)
    deleted = admin.delete_acls([mine])
    (taken,) = deleted[mine].result(30)
    try:
        pair.sandbox.up()
        described = admin.describe_acls(mine)
        assert described.result(30) == []
    finally:
        restored = admin.create_acls([taken])
        restored[taken].result(30)


def files_in(folder: Path) -> Iterator[tuple[Path, bytes, int]]:
    """Each file with its content and permissions, but for those that a broker removes on the way."""
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            with suppress(FileNotFoundError), path.open("rb") as file:
                yield path, file.read(), stat.S_IMODE(os.fstat(file.fileno()).st_mode)


def test_passwords_are_in_private_files_and_in_no_command_line(pair: Pair) -> None:
    passwords = load_passwords(pair.sandbox.dir)
    assert sorted(passwords) == sorted(USERS)
    holders = set()
    for path, content, mode in files_in(pair.sandbox.dir):
        if any(password.encode() in content for password in passwords.values()):
            holders.add(path.name)
            assert mode == 0o600, f"{path} is open to others"
    assert holders == {"secrets.properties", "server.properties"}
    for pid in pids(pair):
        command = " ".join(psutil.Process(pid).cmdline())
        assert not any(password in command for password in passwords.values())
    assert not any(password in repr(pair) for password in passwords.values())
    assert not any(password in pair.config_path.read_text() for password in passwords.values())


@pytest.mark.parametrize("principal", list(Principal))
def test_the_printed_config_connects_as_both_principals(pair: Pair, principal: Principal) -> None:
    for cluster in (pair.east, pair.west):
        properties = load_config(pair.config_path).cluster(cluster.name).properties(principal)
        assert properties == cluster.client_config(f"mirror-{principal}")


def test_the_data_principal_may_not_create_topics_nor_grants(pair: Pair) -> None:
    admin = admin_client(pair.west, "mirror-data")
    created = admin.create_topics([NewTopic("t-not-mine", 1)])
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        created["t-not-mine"].result(30)
    # Not describe_acls: confluent-kafka answers its refusal with an empty list.
    own = AclBinding(
        ResourceType.TOPIC,
        "*",
        ResourcePatternType.LITERAL,
        "User:mirror-data",
        "*",
        AclOperation.ALL,
        AclPermissionType.ALLOW,
    )
    granted = admin.create_acls([own])
    with pytest.raises(KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
        granted[own].result(30)


def test_the_application_lives_in_the_east_only(pair: Pair) -> None:
    here, there = new_topic(pair.east, prefix="orders-"), new_topic(pair.west, prefix="orders-")
    other = new_topic(pair.east)
    sent = produce(pair.east, here, 5, user="app")
    assert read_all(pair.east, here) == sent
    for cluster, topic in ((pair.west, there), (pair.east, other)):
        with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
            produce(cluster, topic, 1, user="app")
