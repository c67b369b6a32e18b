"""A topic of the mirror on which we may nothing on the destination: it strands no failover of the others."""

from __future__ import annotations

import secrets
from dataclasses import replace

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.kafka.config import load_config
from mirror_core.model.names import Partition
from mirror_core.model.run import RunMode, RunState
from mirror_core.rights.required_acls import CLUSTER_NAME
from tests.cluster.desk import Desk
from tests.support.data_plane_thread import driving
from tests.support.kafka_clients import TIMEOUT_S, grant, new_topic, produce, read_all
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def test_what_can_be_promoted_is_and_nobody_is_locked_out_on_both_sides(desk: Desk) -> None:
    op, prefix, west = AclOperation, f"p-{secrets.token_hex(4)}-", desk.pair.west
    inside = new_topic(desk.pair.east, prefix=prefix)
    mirrored = desk.started(f"{prefix}.*|beside-{prefix}.*")
    user, password = desk.new_user(west)
    grant(west, user, ResourceType.TOPIC, "*", [op.READ, op.WRITE, op.ALTER, op.DELETE])
    for named in (prefix, "mirrorbook.", "__mirrorbook"):
        grant(west, user, ResourceType.TOPIC, named, [op.CREATE, op.ALTER_CONFIGS, op.DESCRIBE_CONFIGS], prefixed=True)
    grant(west, user, ResourceType.GROUP, "*", [op.READ, op.DESCRIBE, op.DELETE])
    rights = [op.DESCRIBE, op.DESCRIBE_CONFIGS, op.CLUSTER_ACTION, op.ALTER]
    grant(west, user, ResourceType.BROKER, CLUSTER_NAME, rights)
    grant(west, user, ResourceType.TRANSACTIONAL_ID, "mirrorbook.", [op.WRITE, op.DESCRIBE], prefixed=True)
    desk.change("west", sasl_username=user, sasl_password=password)
    mirrored = replace(mirrored, config=load_config(desk.config))
    sent = produce(desk.pair.east, inside, 10)
    beside = Partition(new_topic(desk.pair.east, prefix=f"beside-{prefix}"), 0)
    with driving(mirrored, epoch_s=1):
        wait_until(
            lambda: beside in mirrored.statuses and len(read_all(west, inside)) == len(sent),
            timeout_s=TIMEOUT_S,
            why="the one is copied, and the other one known to be denied",
        )
    failover = mirrored.failover
    (reason,) = failover.decide(RunMode.PLANNED).reasons
    assert (reason.code, reason.subject) == ("topic_without_copy", beside.topic)
    run = failover.begin(failover.plan(RunMode.UNPLANNED).hash, RunMode.UNPLANNED)
    assert failover.drive(run.id).state is RunState.DONE
    assert beside.topic in str([s.evidence for s in mirrored.state.steps_of(run)])
