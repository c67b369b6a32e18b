"""Could it be failed over now: what a person is told, and what Prometheus is."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.mirrors import mirror_commands
from mirrorbook_tools.sandbox.credentials import DATA
from tests.cluster.desk import Desk
from tests.support.cli_process import MIRRORBOOK
from tests.support.kafka_clients import TIMEOUT_S, grant, new_topic, produce
from tests.support.metrics_scrape import ADDRESS, Scraped
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def found(desk: Desk, name: str) -> tuple[int, dict[str, Any]]:
    said = desk.run("readiness", name, "--json")
    return said.code, json.loads(said.out)


def scraped(url: str, name: str) -> Scraped | None:
    """Once this mirror was looked at."""
    seen = Scraped(url)
    return None if seen("ready", mirror=name) is None else seen


def test_a_user_that_only_the_source_knows_is_named_and_a_mirror_that_was_stopped_is_not_ready(desk: Desk) -> None:
    topic = new_topic(desk.pair.east)
    user, _ = desk.new_user(desk.pair.east)
    grant(desk.pair.east, user, ResourceType.TOPIC, topic, (AclOperation.READ, AclOperation.WRITE))
    mirrored = desk.started(topic)
    produce(desk.pair.east, topic, 10)
    mirrored.copy()

    code, told = found(desk, mirrored.name)
    points = {(point["code"], point["values"].get("kind")): point for point in told["points"]}
    assert (code, told["ready"], told["run"]) == (0, True, None)
    assert points["never_done", "drill"]["remedy"].startswith(f"`mirrorbook drill run {mirrored.name}`. ")
    assert points["sides_differ", None]["values"]["differing_acls"] == 1, "the right to read is not copied yet"
    lost = told["unplanned"]
    assert (lost["refused"], lost["missing"], lost["unknown_partitions"], lost["missing_now"]) == ([], 0, 0, 0)
    assert lost["observed_s"] is not None
    assert lost["groups"] == {}

    produce(desk.pair.east, topic, 5)  # and no data plane sees it
    lost = found(desk, mirrored.name)[1]["unplanned"]
    assert (lost["missing"], lost["missing_now"]) == (0, 5), "a plan would not know of them; who looks now does"
    assert "without the source: could be failed over" in desk.run("readiness", mirrored.name).out

    assert desk.run("sync", mirrored.name).code == 0
    after_sync = {point["code"]: point for point in found(desk, mirrored.name)[1]["points"]}
    assert after_sync.get("sides_differ", {"values": {"differing_acls": 0}})["values"]["differing_acls"] == 0
    unknown = after_sync["scram_users_unknown"]
    assert (unknown["subject"], unknown["values"]["destination"]) == ("east", "west")
    assert unknown["values"]["users"] == [f"{user} (SCRAM-SHA-512)"]
    assert user in desk.run("failover", "plan", mirrored.name).out

    for cluster in ("east", "west"):  # whoever only looks is not given the data principals' secrets
        desk.change(cluster, {"sasl.password": "${env:NOBODY_HAS_THIS}"})
    command = [*MIRRORBOOK, "readiness", "--metrics", "0", "--config", str(desk.config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as serving:
        try:
            assert serving.stdout is not None
            address = ADDRESS.match(serving.stdout.readline())
            assert address is not None
            looked = partial(scraped, address[1], mirrored.name)
            seen = wait_until(looked, timeout_s=TIMEOUT_S, why="the first look at all mirrors")
        finally:
            serving.terminate()
    assert serving.returncode == 0
    assert seen is not None
    assert seen("ready", mirror=mirrored.name) == 1
    assert seen("readiness_points", mirror=mirrored.name, weight="refusal") == 0
    assert seen("desired", mirror=mirrored.name, desired="STARTED") == 1
    assert seen("unplanned_ready", mirror=mirrored.name) == 1
    assert seen("unplanned_loss_offsets", mirror=mirrored.name) == 0

    mirror_commands.stop_mirror(mirrored.link)
    for cluster, config in ((c.name, c.client_config(DATA)) for c in (desk.pair.east, desk.pair.west)):
        desk.change(cluster, {"sasl.password": config["sasl.password"]})
    code, told = found(desk, mirrored.name)
    assert (code, told["ready"]) == (3, False)
    assert told["unplanned"]["refused"]
    assert told["unplanned"]["missing"] is None, "applications are elsewhere by now, as a rule"


def test_it_wants_a_mirror_or_all_of_them(desk: Desk) -> None:
    for arguments in ((), ("m", "--metrics", "0")):
        assert desk.run("readiness", *arguments).code == 2
