"""What an operator types when the old source comes back, and what a supervisor does without being asked."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from mirror_core.decide.run_result import find_saved
from mirror_core.decide.truncation import AllowedStrategies
from mirror_core.model.acl import Permission
from mirror_core.model.findings import Finding
from mirror_core.model.names import Partition
from mirror_core.model.run import RunMode
from tests.cluster.desk import Desk
from tests.support.broker_faults import killed, suspended
from tests.support.cluster_admin import rights_of
from tests.support.detached_supervisor import ensure_supervisor, stop_supervisor
from tests.support.failback_runs import failback_of
from tests.support.failover_runs import app_topic, denied
from tests.support.kafka_clients import Pair, produce, read_all
from tests.support.pending_fences import copied, debt_of, promoted
from tests.support.unplanned_runs import begin
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill]
TIMEOUT_S = 90.0


def test_the_lines_to_paste_fence_the_source_through_its_controllers(desk: Desk) -> None:
    pair, topic = desk.pair, app_topic(desk.pair)
    produce(pair.east, topic, 5)
    mirrored = copied(pair, desk.folder, topic)
    healthy = desk.run("mirror", "fence", mirrored.name)
    assert (healthy.code, "applications of east are stopped by this" in healthy.err) == (0, True)
    nowhere = desk.run("mirror", "fence", mirrored.name, "--bootstrap-controller", "nope")
    assert (nowhere.code, nowhere.out) == (2, ""), "lines that cannot work are not printed"
    assert "--bootstrap-controller: 'nope' is not host:port" in nowhere.err
    with suspended(pair.east):
        promoted(mirrored)
        said = desk.run("mirror", "fence", mirrored.name, "--bootstrap-controller", pair.east.controllers)
        assert (said.code, said.err) == (0, "")
        given = json.loads(
            desk.run("mirror", "fence", mirrored.name, "--bootstrap-controller", pair.east.controllers, "--json").out
        )
    assert (given["mirror"], given["cluster"], given["desired"]) == (mirrored.name, "east", "STOPPED")
    assert given["commands"] == said.out.splitlines()
    assert given["lift"] == [], "the run's own, which its failback lifts"
    assert not denied(pair.east, topic)
    properties = desk.folder / "ADMIN.properties"
    properties.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="admin" password="{pair.east.passwords["admin"]}";\n',
        encoding="utf-8",
    )
    for _ in range(2):  # pasted twice
        for line in said.out.splitlines():
            script, *arguments = shlex.split(line)
            assert script == "kafka-acls.sh"
            done = pair.east.tool("org.apache.kafka.tools.AclCommand", *arguments)
            assert done.returncode == 0, done.stderr
    wait_until(lambda: denied(pair.east, topic), timeout_s=TIMEOUT_S, why="it is fenced")

    looked = desk.run("mirror", "watch", mirrored.name, "--once")

    assert "its fence is seen on every broker" in looked.out
    again = json.loads(desk.run("mirror", "watch", mirrored.name, "--once", "--json").out)
    assert (again["cluster"], again["state"], again["answers"], again["alarms"]) == ("east", "applied", True, [])
    assert desk.run("mirror", "watch", mirrored.name, "--json").code == 2
    [denial] = [a for a in rights_of(pair.east) if a.name == topic and a.permission is Permission.DENY]
    assert str(denial) in {str(e.acl) for e in mirrored.state.ledger_entries(mirrored.name)}


def test_what_is_owed_and_what_slipped_in_is_described_and_a_writer_pages(desk: Desk) -> None:
    pair, topic = desk.pair, app_topic(desk.pair)
    produce(pair.east, topic, 20)
    mirrored = copied(pair, desk.folder, topic)
    produce(pair.east, topic, 4)
    with suspended(pair.east):
        promoted(mirrored)
        owed = desk.run("mirror", "describe", mirrored.name)
        assert "fence on the old source: east: fence pending since" in owed.out
        assert owed.out.startswith(f"Applications write {mirrored.name} on west: it was moved from east.")
        described = json.loads(desk.run("mirror", "describe", mirrored.name, "--json").out)
        moved = {"writes": "destination", "cluster": "west", "action": "watch the old source", "run": None}
        assert described["access"] == moved
        assert described["silent"] == ["east"]
        silent = desk.run("mirror", "watch", mirrored.name, "--once")
        assert silent.code == 4
        assert "no answer: " in silent.out

    first = desk.run("mirror", "watch", mirrored.name, "--once")

    slipped = f"{Partition(topic, 0)} [20, 24)"
    assert first.code == 1
    assert slipped in first.err
    facts = json.loads(desk.run("mirror", "describe", mirrored.name, "--json").out)["facts"]
    parted = Finding("late_ranges_parted", "east", taken=0, taken_ranges="", lost=4, lost_ranges=slipped)
    assert facts["late_writes"]["text"] == str(parted)
    assert facts["old_source_fence"]["text"].startswith("east: its fence stands since ")
    assert desk.run("mirror", "watch", mirrored.name, "--once").code == 0
    produce(pair.east, topic, 1, user="admin")
    paged = desk.run("mirror", "watch", mirrored.name, "--once")
    assert (paged.code, "that no fence stopped" in paged.err) == (1, True)

    failback, strategies = failback_of(mirrored), AllowedStrategies.parse(("recreate",))
    run = failback.begin(failback.plan(strategies).hash, strategies)
    failback.run_step(run.id, "salvage")
    saved_to, saved = find_saved(mirrored.state.steps_of(mirrored.state.runs[run.id]))[::-1]
    assert saved == 5
    facts = json.loads(desk.run("mirror", "describe", mirrored.name, "--json").out)["facts"]
    assert slipped in facts["late_writes"]["text"], "they are still on east"
    failback.run_step(run.id, "align")
    facts = json.loads(desk.run("mirror", "describe", mirrored.name, "--json").out)["facts"]
    where = {"run": run.id, "folders": saved_to, "records": 5}
    assert facts["late_writes"]["text"] == str(Finding("late_ranges_discarded", "east", **where))


def test_a_mirror_that_owes_nothing_is_not_watched(desk: Desk) -> None:
    topic = app_topic(desk.pair)
    mirrored = desk.started(topic)
    said = desk.run("mirror", "watch", mirrored.name)
    assert (said.code, said.out, said.err) == (0, "no fence is pending on any cluster\n", "")
    assert desk.run("mirror", "fence", mirrored.name).code == 2


def test_a_supervisor_keeps_the_old_source_fenced_when_its_mirror_was_failed_over(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = copied(pair, tmp_path, topic)
    home = tmp_path / "home"
    with killed(pair.east):
        promoted(mirrored)
        ensure_supervisor(pair.config_path, mirrored.name, home, ("--runner", "local", "--receipts", str(tmp_path)))
        log = home / mirrored.name / "replicate.log"
        wait_until(
            lambda: log.exists() and "fence pending since" in log.read_text(), timeout_s=TIMEOUT_S, why="it waits"
        )
    try:
        wait_until(lambda: debt_of(mirrored).applied_at_ms, timeout_s=TIMEOUT_S, why="east is fenced")
        assert denied(pair.east, topic)
    finally:
        stop_supervisor(home, mirrored.name)


def test_a_supervisor_lifts_what_an_abort_had_to_leave_and_copies_again(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = copied(pair, tmp_path, topic)
    failover, home = mirrored.failover, tmp_path / "home"
    run = begin(failover, RunMode.PLANNED)
    for name in ("prove", "fence"):
        failover.run_step(run.id, name)
    try:
        with killed(pair.east):
            failover.abort(run.id)
            ensure_supervisor(pair.config_path, mirrored.name, home, ("--runner", "local", "--receipts", str(tmp_path)))
            log = home / mirrored.name / "replicate.log"
            waits = "its fence waits to be removed"
            wait_until(lambda: log.exists() and waits in log.read_text(), timeout_s=TIMEOUT_S, why="it waits")
        wait_until(lambda: mirrored.name not in mirrored.state.pending_fences, timeout_s=TIMEOUT_S, why="it is lifted")
        sent = produce(pair.east, topic, 5)
        wait_until(
            lambda: len(read_all(pair.west, topic)) == 20 + len(sent), timeout_s=TIMEOUT_S, why="copying goes on"
        )
    finally:
        stop_supervisor(home, mirrored.name)
