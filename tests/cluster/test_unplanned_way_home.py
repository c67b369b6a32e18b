"""A way home one of whose clusters dies: the new primary, which comes back with a writer; or the old source."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mirror_core.decide.steps import list_step_names
from mirror_core.model.names import MirrorName, format_reverse_name
from mirror_core.model.run import Run, RunKind, RunMode, RunState
from mirror_core.runbook.failback_steps import load_reverse_link
from tests.support.broker_faults import killed
from tests.support.cli_process import invoked, mirrorbook
from tests.support.failback_runs import failback_of, failed_over
from tests.support.failover_runs import app_topic, denied
from tests.support.kafka_clients import Pair, produce
from tests.support.mirrored_topics import Mirrored, replicate
from tests.support.saved_tails import saved_rows
from tests.support.topic_equality import assert_same_offsets

pytestmark = pytest.mark.cluster


@dataclass(frozen=True)
class GivenUp:
    """Applications went home without west, which came back and took 7 records beside the 3 that were not copied."""

    mirrored: Mirrored
    topic: str
    failback: Run
    home: Run

    @property
    def names(self) -> tuple[MirrorName, MirrorName]:
        return self.mirrored.name, format_reverse_name(self.mirrored.name)

    def show(self, *command: str) -> str:
        return invoked(*command, "--config", str(self.mirrored.config.path)).stdout

    def read(self, *command: str) -> Any:
        return json.loads(self.show(*command, "--json"))


@pytest.fixture
def given_up(pair: Pair, tmp_path: Path) -> GivenUp:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = failed_over(pair, tmp_path, topic)
    produce(pair.west, topic, 5, user="app")
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    assert failback.drive(run.id).state is RunState.RUNNING
    replicate(load_reverse_link(mirrored.link))
    home = failback.make_reverse_failover()
    produce(pair.west, topic, 3, user="app")
    with killed(pair.west):
        plan = home.plan(RunMode.UNPLANNED)
        led = home.drive(home.begin(plan.hash, RunMode.UNPLANNED).id)
    assert led.state is RunState.DONE
    produce(pair.west, topic, 7, user="app")
    return GivenUp(mirrored, topic, run, led)


def test_every_screen_of_either_name_begins_with_the_cluster_that_is_not_fenced(pair: Pair, given_up: GivenUp) -> None:
    name, way_home = given_up.names
    command = f"mirrorbook mirror watch {way_home} --once"
    runs = [("failover", "status", name), ("failover", "status", way_home), ("failback", "status", name)]
    described = [given_up.read("mirror", "describe", each)["returned"] for each in given_up.names]
    found = [*described, *(given_up.read(*run)["attention"][0] for run in runs)]
    listed = given_up.read("mirror", "list")
    found += [one for one in listed["returned"] if one["values"]["mirror"] == way_home]
    assert [(one["subject"], one["values"]["taken"], one["values"]["lost"]) for one in found] == [("west", 7, 3)] * 6
    rows = {row["name"]: [trouble["code"] for trouble in row["troubles"]] for row in listed["mirrors"]}
    assert all("source_not_fenced" in rows[each] for each in given_up.names)

    readiness = mirrorbook("readiness", name, "--config", str(given_up.mirrored.config.path)).stdout
    shown = [readiness, *(given_up.show("mirror", "describe", each) for each in given_up.names)]
    shown += [given_up.show(*run) for run in runs]
    for screen in shown:
        assert screen.startswith(found[0]["text"]), screen
        assert command in screen.splitlines()[2], screen
    assert f"Then: mirrorbook failback resume {name}" in shown[1]
    lines = given_up.show("mirror", "list").splitlines()
    assert next(n for n, line in enumerate(lines) if command in line) < lines.index("Mirrors")

    assert not denied(pair.west, given_up.topic)
    watched = mirrorbook("mirror", "watch", name, "--once", "--config", str(given_up.mirrored.config.path))
    assert watched.returncode == 1, watched.stderr
    assert denied(pair.west, given_up.topic), "the mirror's name did not lead to the fence of its way home"
    assert [given_up.read("mirror", "describe", each)["returned"] for each in given_up.names] == [None, None]


def test_what_only_the_cluster_that_was_left_has_is_told_until_it_is_saved(given_up: GivenUp, tmp_path: Path) -> None:
    (name, _), evidence = given_up.names, tmp_path / "evidence"
    resume = ("failback", "resume", name, "--yes", "--runner", "local", "--evidence", str(evidence))
    ended = given_up.show(*resume)
    recover = ("mirror", "recover", name, "--action", "recopy", "--salvage")
    command = " ".join(("mirrorbook", *recover, "FOLDER"))
    assert command in " ".join(ended.split())
    report = (evidence / f"run-{given_up.failback.id}" / "report.html").read_text()
    assert command in report
    assert f"10 offsets of {given_up.topic}-0" in report

    status = given_up.read("failback", "status", name)
    described = [given_up.read("mirror", "describe", each)["unsaved"] for each in given_up.names]
    found = [*described, *status["attention"]]
    assert [(one["subject"], one["values"]["offsets"]) for one in found] == [("west", 10)] * 3
    assert all(one["values"]["partitions"] == [f"{given_up.topic}-0"] for one in found)
    for each in given_up.names:
        shown = given_up.show("mirror", "describe", each)
        assert shown.startswith(found[0]["text"])
        assert command in shown

    result = status["result"]
    assert (result["moved_by"], result["mode"], result["left"]) == (given_up.home.id, "unplanned", "west")
    assert result["outage"]["at_most_s"] > result["outage"]["promotion_s"]
    assert f"mirrorbook runs show {given_up.home.id}" in " ".join(ended.split())

    given_up.show(*recover, str(tmp_path / "saved"), "--yes")
    values = [row["value"] for row in saved_rows(tmp_path / "saved")]
    assert len(values) == 10
    assert [given_up.read("mirror", "describe", each)["unsaved"] for each in given_up.names] == [None, None]
    given_up.mirrored.copy()
    assert_same_offsets(given_up.mirrored.pair, [given_up.topic])


def test_a_failback_that_ends_at_a_silent_old_source_says_where_applications_write(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = failed_over(pair, tmp_path, topic)
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    assert failback.drive(run.id).state is RunState.RUNNING
    home, config = failback.make_reverse_failover(), ("--config", str(mirrored.config.path))
    way_home = format_reverse_name(mirrored.name)
    verbs = [("resume", "--runner", "local", "--yes"), ("resume", "--take-over", "--runner", "local", "--yes")]

    not_fenced = f"west is not fenced for failover {way_home}: applications write {mirrored.name} there"
    with killed(pair.east):
        for verb, *options in verbs:
            ended = mirrorbook("failback", verb, mirrored.name, *options, *config)
            assert (ended.returncode, not_fenced in ended.stderr) == (1, True), ended.stderr
            assert f"`mirrorbook failback resume {mirrored.name}` goes on" in ended.stderr
        assert not_fenced in " ".join(mirrorbook("failback", "status", mirrored.name, *config).stdout.split())
        listed = json.loads(mirrorbook("mirror", "list", "--json", *config).stdout)["mirrors"]
        assert [row["writes_on"] for row in listed if row["name"] == mirrored.name] == [None]

    home_run = home.begin(home.plan().hash)
    home.run_steps(home_run.id, ("prove", "fence"))
    with killed(pair.east):
        ended = mirrorbook("failback", "resume", mirrored.name, "--take-over", "--runner", "local", "--yes", *config)
        assert (ended.returncode, "NOBODY CAN WRITE" in ended.stderr) == (1, True), ended.stderr
        assert "mirrorbook cluster unfence west --from FILE" in ended.stderr, "the fence's file is in another folder"

    assert home.drive(home_run.id).state is RunState.DONE
    assert failback.drive(run.id).state is RunState.DONE
    status = invoked("failover", "status", way_home, *config).stdout
    assert f"failback {run.id} has ended" in status
    assert "failback resume" not in status
    assert "applications moved to:" in status, "a later failover may have moved them again"
    with killed(pair.west):
        refused = mirrorbook("failover", "plan", way_home, *config)
        assert (refused.returncode, "`mirrorbook mirror list`" in refused.stderr) == (3, True), refused.stderr


def test_an_open_way_home_is_named_where_the_new_primary_that_it_leaves_has_died(pair: Pair, tmp_path: Path) -> None:
    """All is proved on the cluster that applications come home to: they need not wait for the other one."""
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = failed_over(pair, tmp_path, topic)
    produce(pair.west, topic, 5, user="app")
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan().hash)
    assert failback.drive(run.id).state is RunState.RUNNING
    replicate(load_reverse_link(mirrored.link))
    home, config = failback.make_reverse_failover(), ("--config", str(mirrored.config.path))
    home_run = home.begin(home.plan().hash)
    steps = list_step_names(RunKind.FAILOVER)
    home.run_steps(home_run.id, steps[: steps.index("promote")])
    way_home = format_reverse_name(mirrored.name)
    open_run = f"failover {home_run.id} of {way_home} is open"
    with killed(pair.west):
        commands = [("mirror", "describe"), ("failback", "status"), ("failback", "resume"), ("failover", "status")]
        for command in commands:
            ended = mirrorbook(*command, mirrored.name, *config)
            shown = " ".join((ended.stdout + ended.stderr).split())
            assert open_run in shown, shown
            assert f"`mirrorbook failover status {way_home}`" in shown
        assert home.drive(home_run.id).state is RunState.DONE
    produce(pair.east, topic, 1, user="app")
