"""`mirrorbook sync` and `mirrorbook cluster check` as a person or a script calls them."""

from __future__ import annotations

import json

import pytest

from tests.cluster.links import new_link, record
from tests.support.cli_process import mirrorbook
from tests.support.kafka_clients import Pair, new_topic, produce
from tests.support.synced_topics import put_topic

pytestmark = pytest.mark.cluster


def test_a_dry_run_prints_what_the_sync_then_does(pair: Pair) -> None:
    topic = new_topic(pair.east)
    link = new_link(pair, topic)
    command = ("sync", link.mirror.name, "--config", str(pair.config_path), "--only", "topics,configs", "--json")
    said, done = mirrorbook(*command, "--dry-run"), mirrorbook(*command)
    assert (said.returncode, done.returncode) == (0, 0), said.stderr + done.stderr
    plan, actions = json.loads(said.stdout), json.loads(done.stdout)
    assert plan == {
        "mirror": link.mirror.name,
        "dry_run": True,
        "parts": ["topics", "configs"],
        "rows": [
            {
                "part": "topics",
                "subject": topic,
                "source": "1 partitions",
                "destination": "",
                "action": "create",
                "reason": "",
                "done": False,
            }
        ],
    }
    assert actions["rows"] == [{**plan["rows"][0], "done": True}]
    record(link, [topic])
    assert json.loads(mirrorbook(*command).stdout)["rows"] == []


def test_what_a_person_must_decide_ends_with_exit_code_3_after_the_table(pair: Pair) -> None:
    good, taken = new_topic(pair.east), new_topic(pair.east)
    link = new_link(pair, good, taken)
    put_topic(pair, taken, 1)
    produce(pair.west, taken, 3)
    done = mirrorbook("sync", link.mirror.name, "--config", str(pair.config_path), "--only", "topics")
    assert done.returncode == 3
    assert good in done.stdout
    assert f"destination topic {taken} on cluster west already holds 3 records" in done.stderr
    assert "Traceback" not in done.stderr


def test_cluster_check_has_a_stable_json_shape(pair: Pair) -> None:
    new_topic(pair.east)
    done = mirrorbook("cluster", "check", "east", "--config", str(pair.config_path), "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["roles"]) == (0, ["source", "destination"]), done.stderr
    assert found.keys() == {
        "cluster",
        "cluster_id",
        "brokers",
        "features",
        "authorizer",
        "first_acl",
        "rights",
        "problems",
        "advice",
        "expiring_producers",
        "roles",
    }
    assert found["first_acl"].keys() == {"shuts_out", "reason", "advice"}
    assert found["rights"][0].keys() == {
        "role",
        "principal",
        "user",
        "resource",
        "operation",
        "why",
        "verdict",
        "detail",
        "command",
        "permission",
    }
