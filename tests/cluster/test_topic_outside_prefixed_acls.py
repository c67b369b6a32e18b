"""Rights by prefix, and a new topic beside it: that topic is not copied, with the reason, and all others are."""

from __future__ import annotations

import secrets
from dataclasses import replace

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.kafka.config import load_config
from mirror_core.model.mirror import FailureKind, PartitionState
from mirror_core.model.names import Partition
from mirror_core.rights.required_acls import CLUSTER_NAME
from tests.cluster.desk import Desk
from tests.support.data_errors import about_data
from tests.support.data_plane_thread import driving
from tests.support.kafka_clients import TIMEOUT_S, grant, new_topic, produce, read_all
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(
    ("side", "right", "needs"),
    [
        ("east", AclOperation.DESCRIBE_CONFIGS, "DescribeConfigs (needs DESCRIBE_CONFIGS)"),
        ("west", AclOperation.CREATE, "CreateTopics (needs CREATE)"),
    ],
)
def test_a_new_topic_beside_the_prefix_is_left_out_alone(
    desk: Desk, side: str, right: AclOperation, needs: str
) -> None:
    """A control principal that has this right on a prefix only, and all others on all topics."""
    op, prefix = AclOperation, f"p-{secrets.token_hex(4)}-"
    others = {op.READ, op.WRITE, op.ALTER, op.DELETE, op.CREATE, op.DESCRIBE_CONFIGS} - {right}
    others |= {op.ALTER_CONFIGS} if side == "west" else set()  # it implies DESCRIBE_CONFIGS
    inside, heartbeats = new_topic(desk.pair.east, prefix=prefix), "mirrorbook."
    mirrored = desk.started(f"{prefix}.*|beside-{prefix}.*")
    cluster = getattr(desk.pair, side)
    user, password = desk.new_user(cluster)
    grant(cluster, user, ResourceType.TOPIC, "*", list(others))
    for named in (prefix, heartbeats):
        grant(cluster, user, ResourceType.TOPIC, named, [right], prefixed=True)
    grant(cluster, user, ResourceType.GROUP, "*", [op.READ, op.DESCRIBE])
    on_cluster = [op.DESCRIBE, op.DESCRIBE_CONFIGS, op.CLUSTER_ACTION, op.ALTER]
    grant(cluster, user, ResourceType.BROKER, CLUSTER_NAME, on_cluster)
    grant(cluster, user, ResourceType.TRANSACTIONAL_ID, heartbeats, [op.WRITE, op.DESCRIBE], prefixed=True)
    desk.change(side, sasl_username=user, sasl_password=password)
    mirrored = replace(mirrored, config=load_config(desk.config))

    def copied() -> bool:
        assert not [line for line in said if line.startswith("the data plane ended")]
        return Partition(inside, 0) in mirrored.statuses and len(read_all(desk.pair.west, inside)) == len(sent)

    sent = produce(desk.pair.east, inside, 10)
    with driving(mirrored, epoch_s=1) as said:
        wait_until(copied, timeout_s=TIMEOUT_S, why="what is inside is copied")
        beside = new_topic(desk.pair.east, prefix=f"beside-{prefix}")
        wait_until(
            lambda: copied() and Partition(beside, 0) in mirrored.statuses,
            timeout_s=TIMEOUT_S,
            why="the new topic is seen",
        )
        sent += produce(desk.pair.east, inside, 10)
        wait_until(copied, timeout_s=TIMEOUT_S, why="what is inside is still copied")
    status = mirrored.statuses[Partition(beside, 0)]
    assert (status.state, status.kind) == (PartitionState.FAILED, FailureKind.DENIED)
    assert f"{beside}: {needs}: topic_authorization_failed" in (status.reason or "")
    assert mirrored.statuses[Partition(inside, 0)].state is PartitionState.MIRRORING
    with about_data():
        assert read_all(desk.pair.west, inside) == sorted(sent)
