"""Applications move: the active cluster is announced on both sides, hooks are called, and none of it holds a run up."""

from __future__ import annotations

import html
import json
import secrets
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import AclOperation, AclPermissionType, ResourceType

from mirror_core.decide.run_result import RtoVerdict
from mirror_core.decide.steps import list_step_names
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import load_config
from mirror_core.kafka.fetch_link import FetchLink, fetch_once
from mirror_core.kafka.topics import describe_configs
from mirror_core.mirrors import mirror_commands
from mirror_core.model.errors import MirrorError, Unreachable
from mirror_core.model.figures import FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.names import ACTIVE_TOPIC, ClusterName, MirrorName, Partition
from mirror_core.model.run import RunKind, RunMode, RunState, StepState
from mirror_core.model.timing import TIMEOUTS
from mirror_core.runbook import switch
from mirror_core.runbook.run_outcome import read_run_result
from mirror_core.state.active_cluster import (
    ActiveCluster,
    announce_active_cluster,
    copy_announcement,
    read_active_cluster,
)
from mirror_core.state.state_topic import read_state
from mirror_core.wire.fetch import FetchedPartition
from tests.support.broker_faults import killed, suspended
from tests.support.cli_process import Forked
from tests.support.failover_runs import app_topic
from tests.support.kafka_clients import Pair, grant, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

SECRET = "hush-hush-4711"
LOOK_S = 20.0


def announced(pair: Pair, cluster: str, mirror: str) -> dict[str, object] | None:
    """What a plain consumer of the topic reads last about a mirror."""
    found = [r.value for r in read_all(getattr(pair, cluster), ACTIVE_TOPIC) if r.key == mirror.encode() and r.value]
    return json.loads(found[-1]) if found else None


def an_active(cluster: str = "west", generation: int = 1, since_ms: int = 7) -> ActiveCluster:
    return ActiveCluster(
        mirror=MirrorName("m-" + secrets.token_hex(4)),
        active=ClusterName(cluster),
        cluster_id="an id",
        bootstrap_servers="host:9092",
        since_ms=since_ms,
        run="a run",
        generation=generation,
    )


def hooked(pair: Pair, folder: Path, topic: str, *hooks: object, **settings: object) -> Mirrored:
    """A mirror whose mirrorbook.yaml has these hooks and settings for it."""
    made = new_mirror(pair, folder, topic)
    made.copy()
    path = folder / "mirrorbook.yaml"
    document = yaml.safe_load(pair.config_path.read_text(encoding="utf-8"))
    path.write_text(
        yaml.safe_dump({**document, "mirrors": {made.name: {"switch": list(hooks), **settings}}}), encoding="utf-8"
    )
    return Mirrored(pair, load_config(path), made.name, folder)


def test_the_topic_is_made_with_the_mirror_and_is_no_mirrors_to_carry(pair: Pair, tmp_path: Path) -> None:
    mirrored = new_mirror(pair, tmp_path, app_topic(pair), ".*active")
    for cluster in ("east", "west"):
        with ClusterClient(mirrored.config.cluster(cluster)) as client:
            assert describe_configs(client, [ACTIVE_TOPIC])[ACTIVE_TOPIC].overrides["cleanup.policy"] == "compact"
    mirrored.copy()
    assert ACTIVE_TOPIC not in {p.topic for p in mirrored.statuses}


def test_a_later_announcement_is_never_written_over_by_an_earlier_one(pair: Pair) -> None:
    west = load_config(pair.config_path).cluster("west")
    first = an_active(generation=3)
    assert announce_active_cluster(west, first, LOOK_S) == first
    ends = len(read_all(pair.west, ACTIVE_TOPIC))
    assert announce_active_cluster(west, first, LOOK_S) == first
    assert len(read_all(pair.west, ACTIVE_TOPIC)) == ends, "what stands there is not written again"

    def changed(**values: object) -> ActiveCluster:
        return ActiveCluster(**{f: getattr(first, f) for f in first.__slots__} | values)

    for stale in (changed(active="east", generation=2), changed(active="east", since_ms=6)):
        assert announce_active_cluster(west, stale, LOOK_S) == first
        assert read_active_cluster(west, first.mirror, LOOK_S) == first
    later = changed(active="east", since_ms=8)
    assert announce_active_cluster(west, later, LOOK_S) == later
    assert announced(pair, "west", first.mirror) == {
        "mirror": first.mirror,
        "active": "east",
        "cluster_id": "an id",
        "bootstrap_servers": "host:9092",
        "since_ms": 8,
        "run": "a run",
        "generation": 3,
    }


def test_a_topic_that_is_read_only_so_far_ends_the_reading_in_time(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    config, known = load_config(pair.config_path).cluster("west"), an_active()
    announce_active_cluster(config, known, LOOK_S)
    real, empty = fetch_once, 3

    def fetched(link: FetchLink, partition: Partition, offset: int) -> FetchedPartition | None:
        nonlocal empty
        empty -= 1
        answer = real(link, partition, offset)
        return answer and (answer._replace(records=memoryview(b"")) if empty >= 0 else answer)

    monkeypatch.setattr("mirror_core.state.active_cluster.fetch_once", fetched)
    assert read_active_cluster(config, known.mirror, LOOK_S) == known, "asked again"
    empty = sys.maxsize
    with pytest.raises(Unreachable, match=format_sentence("not_read_in_time_pattern")):
        read_active_cluster(config, known.mirror, 4.0)  # more than it takes to sign in while somebody is held up


def test_the_example_of_the_documentation_follows_the_topic(pair: Pair) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operate" / "moving-applications.md").read_text(encoding="utf-8")
    example = page.split("```python\n")[1].split("answers =")[0]
    names: dict[str, Any] = {}
    exec(compile(example, "moving-applications.md", "exec"), names)
    west, said = load_config(pair.config_path).cluster("west"), an_active(generation=4)
    announce_active_cluster(west, said, LOOK_S)
    login = {key: value for key, value in pair.west.client_config("admin").items() if key != "bootstrap.servers"}
    assert names["active"](pair.west.bootstrap, said.mirror, login)["generation"] == 4
    assert names["active"](pair.west.bootstrap, "m-unknown", login) is None


def test_a_failover_announces_calls_its_hooks_and_goes_on_without_those_that_fail(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_TOKEN", SECRET)
    patient = replace(TIMEOUTS, silent_source_s=LOOK_S, plan_cluster_idle_s=LOOK_S)
    monkeypatch.setattr(switch, "TIMEOUTS", patient)  # a busy machine's source is not dead
    topic, told = app_topic(pair), tmp_path / "told"
    produce(pair.east, topic, 5)
    fails = ["/bin/sh", "-c", f"echo $HOOK_TOKEN; echo {SECRET} >&2; exit 7"]
    tells = ["/bin/sh", "-c", f'echo "$MIRRORBOOK_RUN $MIRRORBOOK_ACTIVE $MIRRORBOOK_MODE" >> {told}']
    gone = {"url": "http://127.0.0.1:1/x", "headers": {"Authorization": "Bearer ${env:HOOK_TOKEN}"}}
    mirrored = hooked(
        pair,
        tmp_path,
        topic,
        {"name": "fails", "command": fails, "retries": 0},
        {"name": "gateway", "http": gone, "retries": 0},
        {"name": "tells", "command": tells},
    )
    failover = mirrored.failover
    plan = failover.plan(RunMode.PLANNED)
    hooks = plan.figures[FigureKey.SWITCH_HOOKS]
    assert isinstance(hooks, Mapping)
    assert str(hooks["gateway"]).startswith("HTTP POST to 127.0.0.1")
    run = failover.drive(failover.begin(plan.hash).id)

    assert run.state is RunState.DONE
    assert told.read_text() == f"{run.id} west planned\n"
    steps = {s.step: s for s in failover.read_status(run.id)[1]}
    shown = steps["switch"].evidence
    assert shown["failed_hooks"] == ("fails", "gateway")
    assert "exit code 7" in str(shown["hook fails"])
    assert f"MIRRORBOOK_RUN={run.id}" in str(shown["call them by hand"])
    for cluster in ("east", "west"):
        assert shown[f"announced on {cluster}"] == "yes"
        found = announced(pair, cluster, mirrored.name)
        assert found is not None
        assert (found["active"], found["run"], found["generation"]) == ("west", run.id, 1)
    for written in tmp_path.rglob("run*"):
        if written.is_file():
            assert SECRET not in written.read_text(encoding="utf-8"), written


def test_an_application_that_never_gets_well_is_named_and_keeps_no_failover_from_its_end(
    pair: Pair, tmp_path: Path
) -> None:
    topic, told = app_topic(pair), tmp_path / "told"
    produce(pair.east, topic, 5)
    hangs = {"command": ["/bin/sh", "-c", f"echo $MIRRORBOOK_ACTIVE >> {told}; sleep 600"], "timeout_s": 2}
    mirrored = hooked(pair, tmp_path, topic, rto="1s", health=hangs)
    failover = mirrored.failover
    run = failover.drive(failover.begin(failover.plan(RunMode.PLANNED).hash).id)

    assert run.state is RunState.DONE
    assert told.read_text().split() == ["west"]
    state = read_state(mirrored.config.cluster("west"))
    result = read_run_result(mirrored.link, state, run)
    assert result is not None
    assert result.outage is not None
    assert (result.applications, result.outage.rto, result.outage.recovered_s) == ("west", RtoVerdict.MISSED, None)
    assert result.outage.health is not None
    assert (result.outage.health.command, result.outage.health.is_well) == ("/bin/sh", False)
    report = (failover.services.run_dir(run.id) / "report.html").read_text(encoding="utf-8")
    assert str(
        Finding(
            "application_not_well",
            program="/bin/sh",
            seconds=result.outage.health.seconds,
            problem=result.outage.health.problem,
        )
    ) in html.unescape(report)


@pytest.mark.slow
def test_a_topic_that_may_not_be_written_holds_no_failover_up(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 5)
    mirrored = hooked(pair, tmp_path, topic)
    failover = mirrored.failover
    run = failover.begin(failover.plan(RunMode.PLANNED).hash).id
    for cluster in (pair.east, pair.west):
        write = [AclOperation.WRITE]
        grant(cluster, "mirror-control", ResourceType.TOPIC, ACTIVE_TOPIC, write, permission=AclPermissionType.DENY)
    assert failover.drive(run).state is RunState.DONE
    (shown,) = [s.evidence for s in failover.read_status(run)[1] if s.step == "switch"]
    for cluster_name in ("east", "west"):
        assert "pending: " in str(shown[f"announced on {cluster_name}"])
        assert "TOPIC_AUTHORIZATION_FAILED" in str(shown[f"announced on {cluster_name}"])


def test_a_dead_cluster_is_owed_its_announcement_within_seconds(pair: Pair) -> None:
    config, active = load_config(pair.config_path), an_active()
    east, west = config.cluster("east"), config.cluster("west")
    announce_active_cluster(west, active, LOOK_S)
    with suspended(pair.east), pytest.raises(MirrorError):
        announce_active_cluster(east, active)
    assert copy_announcement(west, east, active.mirror, LOOK_S) == active, "paid when it answers"
    assert read_active_cluster(east, active.mirror, LOOK_S) == active
    assert copy_announcement(west, east, an_active().mirror, LOOK_S) is None


def test_a_sync_tells_the_destination_of_a_move_that_it_was_not_told_of(pair: Pair, tmp_path: Path) -> None:
    """Or else an unplanned failover, which asks the destination only, announced itself as of the same generation."""
    mirrored = new_mirror(pair, tmp_path, app_topic(pair))
    missed = replace(an_active("east", generation=2), mirror=mirrored.name)
    announce_active_cluster(mirrored.config.cluster("east"), missed, LOOK_S)
    mirrored.copy()
    mirror_commands.run_sync(mirrored.link)
    assert announced(pair, "west", mirrored.name) == announced(pair, "east", mirrored.name)
    ends = len(read_all(pair.west, ACTIVE_TOPIC))
    mirror_commands.run_sync(mirrored.link)
    assert len(read_all(pair.west, ACTIVE_TOPIC)) == ends, "what stands there is not written again"
    with killed(pair.east):
        run = mirrored.failover.begin(mirrored.failover.plan(RunMode.UNPLANNED).hash, RunMode.UNPLANNED)
        assert mirrored.failover.drive(run.id).state is RunState.DONE
    now = read_active_cluster(mirrored.config.cluster("west"), mirrored.name, LOOK_S)
    assert now is not None
    assert (now.active, now.generation) == ("west", 3)


def test_a_conductor_killed_in_a_hook_is_resumed_and_calls_none_again_that_has_ended(
    pair: Pair, tmp_path: Path
) -> None:
    topic, calls, go = app_topic(pair), tmp_path / "calls", tmp_path / "go"
    produce(pair.east, topic, 5)
    waits = f"echo second >> {calls}; while [ ! -e {go} ]; do sleep 0.1; done"
    mirrored = hooked(
        pair,
        tmp_path,
        topic,
        {"name": "first", "command": ["/bin/sh", "-c", f"echo first >> {calls}"]},
        {"name": "second", "command": ["/bin/sh", "-c", waits], "timeout_s": 300},
        {"name": "third", "command": ["/bin/sh", "-c", f"echo third >> {calls}"]},
    )
    options = ["--config", str(mirrored.config.path), "--evidence", str(tmp_path), "--runner", "local"]
    conductor = Forked("failover", "run", mirrored.name, "--yes", *options, log=tmp_path / "cli.log")
    try:
        wait_until(lambda: calls.exists() and "second" in calls.read_text(), timeout_s=120, why="the second is called")
    finally:
        conductor.kill()
        conductor.wait(60)
    assert conductor.poll() == -signal.SIGKILL
    go.touch()
    run = read_state(mirrored.config.cluster("west")).active_run(mirrored.name)
    assert run is not None
    mirrored.failover.drive(run.id)
    assert calls.read_text().split() == ["first", "second", "second", "third"]
    steps = {s.step: s for s in mirrored.failover.read_status(run.id)[1]}
    assert [steps[name].state for name in list_step_names(RunKind.FAILOVER)] == [StepState.DONE] * len(
        list_step_names(RunKind.FAILOVER)
    )
    assert "called 2 times" in str(steps["switch"].evidence["hook second"])
