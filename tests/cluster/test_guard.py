"""A cluster that was failed away from does not open its listeners before somebody has fenced it."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.mirrors.fence_watcher import check_fence
from mirror_core.state.state_records import STATE_TOPIC
from mirrorbook_tools.sandbox.ports import choose_ports
from tests.cluster.desk import Desk
from tests.support.broker_faults import suspended
from tests.support.failover_runs import app_topic
from tests.support.kafka_clients import grant, produce
from tests.support.pending_fences import TIMEOUT_S, copied, promoted, stood
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def test_it_opens_until_it_is_failed_away_from_and_again_when_its_fence_is_seen(desk: Desk) -> None:
    pair, topic = desk.pair, app_topic(desk.pair)
    produce(pair.east, topic, 5)
    mirrored = copied(pair, desk.folder, topic)
    east = ("guard", mirrored.name, "--cluster", "east")
    assert desk.run(*east).code == 0
    west = ("guard", mirrored.name, "--cluster", "west")
    assert desk.run(*west).code == 4
    with suspended(pair.east):
        promoted(mirrored)
        shut = desk.run(*east, "--on-silence", "allow")
        assert (shut.code, shut.out) == (3, "")
        assert f"`mirrorbook mirror watch {mirrored.name} --once` makes this check pass" in shut.err
    wait_until(lambda: stood(check_fence(mirrored.link)), timeout_s=TIMEOUT_S, why="east answers again")
    seen = desk.run(*east)
    assert (seen.code, seen.err) == (0, "")
    assert "each broker of east had its fence" in seen.out


def test_an_observer_with_one_right_is_enough(desk: Desk) -> None:
    """The right that install.md names; the control principal's password stays away from broker hosts."""
    pair, topic = desk.pair, app_topic(desk.pair)
    produce(pair.east, topic, 5)
    mirrored = copied(pair, desk.folder, topic)
    name, password = desk.new_user(pair.west)
    desk.change("west", sasl_username=name, sasl_password=password)
    asked = ("guard", mirrored.name, "--cluster", "east")
    assert desk.run(*asked).code == 4, "without any right it knows nothing, and does not say that all is well"
    grant(pair.west, name, ResourceType.TOPIC, STATE_TOPIC, [AclOperation.READ])
    assert desk.run(*asked).code == 0
    assert desk.run("mirror", "pause", mirrored.name, "--yes").code != 0
    with suspended(pair.east):
        promoted(mirrored)
        assert desk.run(*asked).code == 3


def test_nobody_who_knows_answers_and_the_operator_has_said_what_that_means(desk: Desk) -> None:
    (port,) = choose_ports(1)
    desk.change("west", bootstrap_servers=f"127.0.0.1:{port}")
    asked = ("guard", "orders", "--cluster", "east")
    refused = desk.run(*asked)
    assert (refused.code, refused.out) == (4, "")
    assert "nobody who answered knows of mirror orders" in refused.err
    allowed = desk.run(*asked, "--on-silence", "allow")
    assert (allowed.code, allowed.out) == (0, "")
    assert "nobody who answered knows of mirror orders" in allowed.err
    assert desk.run("guard", "orders", "--cluster", "nowhere").code == 2
