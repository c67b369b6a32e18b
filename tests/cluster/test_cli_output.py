"""Commands that do what they were asked to: what they print, for people and for machines, and what is then so."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from typing import Any, Final

import pytest
from jsonschema import Draft202012Validator

from mirror_core.decide.approval_rules import APPROVAL_VALIDITY_S
from mirror_core.decide.steps import list_step_names
from mirror_core.model.mirror import FILTER_NAMES, PartitionState
from mirror_core.model.names import Partition
from mirror_core.model.run import RunKind, RunMode, RunState
from mirror_core.runbook.failback_conductor import Failback
from mirror_core.state.state_topic import read_state
from mirror_core.state.writer import StateWriter, make_control_id
from tests.cluster.desk import Desk, Said
from tests.support.cli_process import completed, on_terminal
from tests.support.cluster_admin import as_admin
from tests.support.failover_runs import app_topic, denied
from tests.support.kafka_clients import TIMEOUT_S, new_topic, produce, read_all
from tests.support.mirrored_topics import Mirrored, replicate
from tests.support.synced_groups import made_anew
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

PLAN: Final = {
    *("kind", "mirror", "mode", "hash", "steps", "figures", "partitions", "groups", "rights", "bound"),
    *("strategies", "discarded", "forecast", "warnings", "unknown", "refused"),
}
RUN: Final = {
    *(
        "id",
        "number",
        "state",
        "plan",
        "plan_hash",
        "started_by",
        "approved_by",
        "conducted_by",
        "conducted",
        "started_ms",
        "ended_ms",
        "notes",
        "attention",
        "note",
        "result",
    ),
    "steps",
}
STEP: Final = {"step", "state", "attempt", "started_ms", "ended_ms", "evidence", "error"}
IDS: Final = {"source_cluster_id", "destination_cluster_id"}
FILTERS: Final = set(FILTER_NAMES)
ACCESS: Final = {"writes", "writes_on", "open_run"}
GLANCE: Final = {"activity", "behind_s", "oldest_proof_s", "unproved", "troubles"}
MIRROR: Final = {
    "name",
    "source",
    "destination",
    "desired",
    "partitions",
    "failed",
    "paused_topics",
    *IDS,
    *ACCESS,
    *GLANCE,
    *FILTERS,
}
ROW: Final = {
    *("partition", "state", "position", "source_start", "source_end", "lag", "lmo", "verified_end", "kind", "reason"),
    *("never_copied", "source_topic_id", "destination_topic_id"),
}


def done(said: Said) -> str:
    """What a command has printed that ended well."""
    assert (said.code, said.err) == (0, "")
    return said.out


def document(said: Said) -> dict[str, Any]:
    """What machines read. What a run tells people meanwhile is on standard error."""
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert isinstance(found, dict)
    return found


def refused(said: Said) -> str:
    assert said.code == 3, said.out + said.err
    return said.err


def completes(desk: Desk, offered: list[str], *words: str) -> None:
    """A cluster that is silent for two seconds has no names: then a shell's user presses the key again."""
    wait_until(
        lambda: completed(desk.config, *words) == offered, timeout_s=TIMEOUT_S, why=f"{words} is completed to {offered}"
    )


def listed(desk: Desk, name: str) -> list[dict[str, Any]]:
    found = document(desk.run("mirror", "list", "--json"))
    assert set(found) == {"mirrors", "returned", "silent", "unreadable", "unseen"}
    assert found["silent"] == []
    Draft202012Validator(document(desk.run("json-schema", "mirror", "list"))).validate(found)
    return [row for row in found["mirrors"] if row["name"] == name]


def test_a_mirror_is_made_listed_stopped_and_forgotten(desk: Desk) -> None:
    topic, name = new_topic(desk.pair.east, 2), "m-" + secrets.token_hex(4)
    produce(desk.pair.east, topic, 30)
    assert f"`mirrorbook mirror start {name}` lets it run" in done(desk.create("--topics", topic, name=name))
    with as_admin(desk.pair.east) as east, as_admin(desk.pair.west) as west:
        ids = {f"{s}_cluster_id": c.metadata(()).cluster_id for s, c in (("source", east), ("destination", west))}
    ends = {"name": name, "source": "east", "destination": "west", **ids}
    filters = {
        "topics": [topic],
        "exclude_topics": [],
        "groups": [".*"],
        "exclude_groups": [],
        "principals": [".*"],
        "exclude_principals": [],
        "exclude_rights": [],
        "exclude_settings": [],
        "replication_factor": "source",
        "paused_topics": [],
    }
    at_source = {"writes": "source", "writes_on": "east", "open_run": None}
    nothing_known: dict[str, object] = {"behind_s": None, "oldest_proof_s": None, "unproved": 0, "troubles": []}
    stopped = {"desired": "STOPPED", "activity": "stopped", "partitions": 0, "failed": 0}
    assert listed(desk, name) == [{**ends, **filters, **at_source, **nothing_known, **stopped}]

    assert "STARTED" in done(desk.run("mirror", "start", name, "--yes"))
    assert desk.run("replicate", name, "--runner", "local", "--until-caught-up").code == 0
    (row,) = listed(desk, name)
    assert set(row) == MIRROR
    assert (row["desired"], row["partitions"], row["failed"]) == ("STARTED", 2, 0)
    assert (row["writes"], row["writes_on"], row["open_run"]) == ("source", "east", None)
    assert name in done(desk.run("mirror", "list"))
    completes(desk, [name], "mirror", "describe", name[:-1])
    described = document(desk.run("mirror", "describe", name, "--json"))
    assert set(described) == {
        *IDS,
        "access",
        "copying",
        "facts",
        "figures",
        "groups",
        "home",
        "not_normal",
        "returned",
        "rows",
        "silent",
        "unsaved",
    }
    assert described["access"] == {"writes": "source", "cluster": "east", "action": "run the data plane", "run": None}
    assert (described["copying"], described["silent"]) == (False, [])
    assert "data_plane" in described["not_normal"]
    shown = done(desk.run("mirror", "describe", name)).splitlines()
    assert shown[0] == f"Applications write {name} on east; west is its mirror."
    assert f"    mirrorbook supervise {name}" in shown[:4]
    assert not any(line.startswith("topics: ") for line in shown), "normal"
    assert f"topics: {topic}" in done(desk.run("mirror", "describe", name, "--all")).splitlines()
    assert described["facts"]["lag"]["value"] == 0
    assert all(set(found) == ROW for found in described["rows"])
    assert [(r["partition"], r["position"], r["lag"]) for r in described["rows"]] == [
        (f"{topic}-0", 30, 0),
        (f"{topic}-1", 0, 0),
    ]

    assert "stop it first" in refused(desk.run("mirror", "delete", name, "--yes"))
    before = desk.traces()
    done(desk.run("mirror", "stop", name, "--dry-run"))
    assert desk.traces() == before
    said = done(desk.run("mirror", "stop", name, "--yes"))
    assert f"{topic}-0: STOPPED, LMO 30\n{topic}-1: STOPPED, LMO 0\n" in said
    assert listed(desk, name)[0]["desired"] == "STOPPED"

    assert "its topics are still on cluster west" in done(desk.run("mirror", "delete", name, "--yes"))
    assert listed(desk, name) == []
    assert desk.run("mirror", "describe", name).code == 2
    assert len(read_all(desk.pair.west, topic)) == 30


def test_a_list_says_of_each_mirror_what_somebody_on_call_asks_first(desk: Desk) -> None:
    """One may be copied, one was failed over, one is broken: its topic was created anew on the source."""
    topics = [app_topic(desk.pair) for _ in range(3)]
    for topic in topics:
        produce(desk.pair.east, topic, 20)
    copied, moved, broken = (desk.started(topic) for topic in topics)
    for mirrored in (copied, moved, broken):
        mirrored.copy()
    assert desk.run("parity", copied.name, "--runner", "local").code == 0
    moved.failover.drive(moved.failover.begin(moved.failover.plan(RunMode.PLANNED).hash).id)
    made_anew(desk.pair, topics[2], partitions=1, records=5)
    replicate(broken.link)

    (row,) = listed(desk, copied.name)
    assert (row["activity"], row["writes_on"], row["troubles"]) == ("NOT COPIED", "east", [])
    assert 0 <= row["behind_s"] < TIMEOUT_S
    assert 0 <= row["oldest_proof_s"] < TIMEOUT_S
    assert row["unproved"] == 0
    (row,) = listed(desk, moved.name)
    assert (row["activity"], row["writes_on"], row["behind_s"]) == ("failed over", "west", None)
    (row,) = listed(desk, broken.name)
    assert [(t["code"], t["values"]) for t in row["troubles"]] == [
        ("failed_partitions", {"partitions": [f"{topics[2]}-0"], "count": 1})
    ]
    assert (row["failed"], row["unproved"], row["oldest_proof_s"]) == (1, 1, None)
    lines = done(desk.run("mirror", "list")).splitlines()
    assert all(sum(line.startswith(m.name) for line in lines) == 1 for m in (copied, moved, broken))


def test_a_person_on_a_terminal_is_asked_and_the_answer_counts(desk: Desk) -> None:
    topic = new_topic(desk.pair.east)
    produce(desk.pair.east, topic, 5)
    mirrored = desk.started(topic)
    mirrored.copy()
    stop = ("mirror", "stop", mirrored.name, "--config", str(desk.config))

    code, said = on_terminal(*stop, answer="n")
    assert (code, mirrored.link.mirror.desired) == (3, "STARTED")
    assert "cancelled" in said

    code, said = on_terminal(*stop, answer="")
    assert (code, mirrored.link.mirror.desired) == (3, "STARTED"), "Enter alone is no yes"

    code, said = on_terminal(*stop, answer="y")
    assert code == 0, said
    assert f"{topic}-0: STOPPED, LMO 5" in said
    assert mirrored.statuses[Partition(topic, 0)].state is PartitionState.STOPPED


def failover(desk: Desk, verb: str, mirrored: Mirrored, *options: str) -> Said:
    return desk.run("failover", verb, mirrored.name, *options)


def test_a_failover_and_a_failback_by_commands(desk: Desk) -> None:
    topic = app_topic(desk.pair)
    sent = produce(desk.pair.east, topic, 40)
    mirrored = desk.started(topic)
    mirrored.copy()
    name, local = mirrored.name, ("--runner", "local", "--yes")
    assert f"mirror {name} has no failover run" in failover(desk, "status", mirrored).err
    before = desk.traces()

    plan = document(failover(desk, "plan", mirrored, "--json"))
    assert set(plan) == PLAN
    assert (plan["kind"], plan["mirror"], plan["mode"], plan["refused"]) == ("failover", name, "planned", [])
    assert [step["name"] for step in plan["steps"]] == list(list_step_names(RunKind.FAILOVER))
    assert f"hash: {plan['hash']}" in done(failover(desk, "plan", mirrored))
    assert document(failover(desk, "run", mirrored, "--dry-run", "--json"))["hash"] == plan["hash"]
    assert f"hash: {plan['hash']}" in done(failover(desk, "run", mirrored, "--dry-run"))
    words = f"plan 000000000000 is out of date, the current one is {plan['hash'][:12]}"
    assert words in refused(failover(desk, "run", mirrored, "--plan-hash", "0" * 64, *local))
    assert desk.traces() == before

    run = document(failover(desk, "run", mirrored, "--plan-hash", plan["hash"], "--json", *local))
    assert set(run) == RUN
    assert (run["state"], run["plan_hash"], set(run["plan"])) == ("DONE", plan["hash"], PLAN)
    assert run["approved_by"] == run["started_by"] != ""
    assert all(set(step) == STEP for step in run["steps"])
    assert [(s["step"], s["state"]) for s in run["steps"]] == [
        (step, "DONE") for step in list_step_names(RunKind.FAILOVER)
    ]
    assert not denied(desk.pair.west, topic)
    assert document(failover(desk, "status", mirrored, "--json")) == run
    assert "state: DONE" in done(failover(desk, "status", mirrored))
    found = document(desk.run("runs", "list", "--json"))
    assert set(found) == {"runs", "silent"}
    assert [(r["id"], r["steps"]) for r in found["runs"] if r["plan"]["mirror"] == name] == [(run["id"], [])]
    assert run["id"] in done(desk.run("runs", "list"))
    assert document(desk.run("runs", "show", run["id"], "--json")) == run
    assert "Evidence" in done(desk.run("runs", "show", run["id"]))
    assert desk.run("runs", "show", "no-such-run").code == 2
    printed = done(desk.run("mirror", "runbook", name))
    assert f"# Runbook of mirror {name}" in printed
    assert f"| {run['id']} | planned | DONE | " in printed
    assert "(last run) |" in printed
    assert "only a failback leads back" in refused(failover(desk, "abort", mirrored, "--yes"))

    assert f"mirror {name} has no failback run" in desk.run("failback", "status", name).err
    before = desk.traces()
    home = document(desk.run("failback", "plan", name, "--json"))
    assert set(home) == PLAN
    assert (home["kind"], home["strategies"], home["refused"]) == ("failback", {topic: "none"}, [])
    assert f"hash: {home['hash']}" in done(desk.run("failback", "plan", name))
    assert f"hash: {home['hash']}" in done(desk.run("failback", "run", name, "--dry-run"))
    assert document(desk.run("failback", "run", name, "--dry-run", "--json"))["hash"] == home["hash"]
    assert f"the current one is {home['hash'][:12]}" in refused(
        desk.run("failback", "run", name, "--plan-hash", plan["hash"], *local)
    )
    assert desk.traces() == before
    printed = " ".join(done(desk.run("failback", "run", name, *local)).split())
    assert f"`mirrorbook supervise {name}`" in printed
    back = document(desk.run("failback", "status", name, "--json"))
    assert set(back) == RUN
    assert [(s["step"], s["state"]) for s in back["steps"]] == [
        (step, "DONE") for step in list_step_names(RunKind.FAILBACK)
    ]
    assert "state: DONE" in done(desk.run("failback", "status", name))
    runs = read_state(mirrored.config.cluster("east")).runs.values()
    (led_home,) = (run for run in runs if run.failback_run == back["id"])
    assert led_home.approved_by == led_home.started_by == back["approved_by"]
    (approval,) = led_home.approvals
    (first,) = mirrored.state.runs[back["id"]].approvals
    assert approval.name == led_home.started_by
    assert approval.approval_id != first.approval_id
    assert approval.at_ms is not None
    assert approval.until_ms == approval.at_ms + round(APPROVAL_VALIDITY_S * 1000)
    assert not denied(desk.pair.east, topic)
    assert denied(desk.pair.west, topic)
    assert [r for r in read_all(desk.pair.east, topic) if r.value != b"x"] == sent


def test_a_run_that_is_given_up_by_a_command_leaves_the_source_writable(desk: Desk) -> None:
    topic = app_topic(desk.pair)
    produce(desk.pair.east, topic, 4)
    mirrored = desk.started(topic)
    mirrored.copy()
    by_hand = mirrored.failover
    run = by_hand.begin(by_hand.plan(RunMode.PLANNED).hash).id
    for step in ("prove", "fence"):
        by_hand.run_step(run, step)
    assert denied(desk.pair.east, topic)
    assert document(failover(desk, "status", mirrored, "--json"))["state"] == "RUNNING"
    completes(desk, [run], "failover", "status", mirrored.name, "--run", f"{mirrored.name}-")
    wait_until(
        lambda: run in completed(desk.config, "runs", "show", run[:4]), timeout_s=TIMEOUT_S, why=f"{run} is completed"
    )

    assert "pass --yes" in refused(failover(desk, "abort", mirrored))
    assert mirrored.state.runs[run].state is RunState.RUNNING
    aborted = document(failover(desk, "abort", mirrored, "--yes", "--json"))

    assert (aborted["id"], aborted["state"]) == (run, "ABORTED")
    assert not denied(desk.pair.east, topic)
    assert {s.state for s in mirrored.statuses.values()} == {PartitionState.MIRRORING}


def test_a_run_that_was_approved_long_ago_is_asked_for_again_before_it_fences(desk: Desk) -> None:
    topic = app_topic(desk.pair)
    produce(desk.pair.east, topic, 4)
    mirrored = desk.started(topic)
    mirrored.copy()
    by_hand = mirrored.failover
    run = by_hand.begin(by_hand.plan(RunMode.PLANNED).hash).id
    by_hand.run_step(run, "prove")
    with StateWriter(mirrored.config.cluster("west"), make_control_id(mirrored.name)) as writer:
        begun = writer.state.runs[run]
        writer.put(replace(begun, started_ms=begun.started_ms - 2 * 3_600_000))

    asked = failover(desk, "resume", mirrored, "--runner", "local")

    assert "pass --yes" in refused(asked)
    assert "was approved 120 minutes ago" in asked.out
    assert f"hash: {begun.plan_hash}" in asked.out
    assert not denied(desk.pair.east, topic)
    assert set(mirrored.state.steps) & {(run, "fence")} == set()

    by_hand.run_step(run, "fence")
    assert denied(desk.pair.east, topic)
    resumed = document(failover(desk, "resume", mirrored, "--runner", "local", "--json"))
    assert resumed["state"] == "DONE", "applications wait behind a question"


@pytest.mark.slow
def test_a_failback_is_given_up_before_anything_was_changed(desk: Desk) -> None:
    topic = app_topic(desk.pair)
    produce(desk.pair.east, topic, 4)
    mirrored = desk.started(topic)
    mirrored.copy()
    mirrored.failover.drive(mirrored.failover.begin(mirrored.failover.plan(RunMode.PLANNED).hash).id)
    by_hand = Failback(mirrored.link, mirrored.services, started_by="test")
    run = by_hand.begin(by_hand.plan().hash).id
    assert "state: RUNNING" in done(desk.run("failback", "status", mirrored.name))

    aborted = document(desk.run("failback", "abort", mirrored.name, "--yes", "--json"))

    assert (aborted["id"], aborted["state"]) == (run, "ABORTED")
    assert document(desk.run("failback", "status", mirrored.name, "--json"))["state"] == "ABORTED"
    assert read_state(mirrored.config.cluster("west")).active_run(mirrored.name) is None
    assert denied(desk.pair.east, topic), "the old source is still fenced"
    assert not denied(desk.pair.west, topic), "applications stay where they are"
