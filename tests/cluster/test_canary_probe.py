"""The canary on a real broker: every kind is tried, nothing is left, and what may not be tried is named."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AclOperation, AclPermissionType, ResourceType

from mirror_core.decide.canary_result import CanaryKind
from mirror_core.kafka.config import ClusterConfig, load_config
from mirror_core.model.errors import MissingPermission
from mirror_core.model.names import MirrorName
from mirror_core.runbook import canary_probe
from mirror_core.runbook.canary_probe import CANARY_TOPIC, run_canary
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client, grant, new_topic
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

CONTROL = "mirror-control"


@pytest.fixture
def west(pair: Pair) -> ClusterConfig:
    return load_config(pair.config_path).cluster("west")


@pytest.fixture
def name() -> MirrorName:
    return MirrorName("m-" + secrets.token_hex(4))


def canaries(pair: Pair) -> set[str]:
    return {t for t in admin_client(pair.west).list_topics(timeout=TIMEOUT_S).topics if t.startswith(CANARY_TOPIC)}


def test_every_kind_is_tried_again_and_again_and_nothing_is_left(
    pair: Pair, west: ClusterConfig, name: MirrorName
) -> None:
    topic = new_topic(pair.west)
    before = canaries(pair)
    for number in range(3):
        shown = run_canary(west, name, f"run {number}", {topic})
        assert {kind: str(shown[kind]).split()[0] for kind in CanaryKind} == dict.fromkeys(CanaryKind, "passed"), shown
        assert "left behind" not in shown
        assert canaries(pair) == before

    asked, admin = ConsumerGroupTopicPartitions(f"mirrorbook-canary-{name}"), admin_client(pair.west)

    def committed() -> bool:
        futures = admin.list_consumer_group_offsets([asked], request_timeout=TIMEOUT_S)
        return any(future.result(TIMEOUT_S).topic_partitions for future in futures.values())

    wait_until(lambda: not committed(), timeout_s=TIMEOUT_S, why="the group's offsets go with the topic")


@pytest.mark.parametrize(
    ("kind", "resource", "operation", "named"),
    [
        (CanaryKind.TRANSACTIONAL, ResourceType.TRANSACTIONAL_ID, AclOperation.WRITE, "mirrorbook.canary.{}.1"),
        (CanaryKind.GROUP, ResourceType.GROUP, AclOperation.READ, "mirrorbook-canary-{}"),
    ],
)
def test_a_kind_that_may_not_be_tried_is_named(
    pair: Pair,
    west: ClusterConfig,
    name: MirrorName,
    kind: CanaryKind,
    resource: ResourceType,
    operation: AclOperation,
    named: str,
) -> None:
    grant(pair.west, CONTROL, resource, named.format(name), [operation], permission=AclPermissionType.DENY)
    shown = run_canary(west, name, "run", {new_topic(pair.west)})
    assert str(shown[kind]).startswith("not tried: "), shown
    assert CONTROL in str(shown[kind])
    assert {str(shown[other]).split()[0] for other in CanaryKind if other is not kind} == {"passed"}


@pytest.mark.parametrize("operation", [AclOperation.WRITE, AclOperation.CREATE])
def test_a_canary_that_could_try_nothing_has_not_passed(
    pair: Pair, west: ClusterConfig, name: MirrorName, operation: AclOperation
) -> None:
    topic = f"{CANARY_TOPIC}.{name}"
    grant(pair.west, CONTROL, ResourceType.TOPIC, topic, [operation], permission=AclPermissionType.DENY)
    with pytest.raises(MissingPermission, match=topic):
        run_canary(west, name, "run", {new_topic(pair.west)})


def test_what_a_killed_canary_has_left_is_in_nobodys_way(
    pair: Pair, west: ClusterConfig, name: MirrorName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its topic, and what its group has committed there."""
    clean: Callable[..., str] = canary_probe._delete_canary_topic
    monkeypatch.setattr(canary_probe, "_delete_canary_topic", lambda client, topic: "killed before")
    run_canary(west, name, "first", set())
    monkeypatch.setattr(canary_probe, "_delete_canary_topic", clean)
    shown = run_canary(west, name, "second", set())
    assert {str(shown[kind]).split()[0] for kind in CanaryKind} == {"passed"}
    assert f"{CANARY_TOPIC}.{name}" not in canaries(pair)
