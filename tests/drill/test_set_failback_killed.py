"""The conductor of a set's failback is killed at each stage; the same command goes on, and all come home as one."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
import yaml

from mirror_core.decide.steps import list_step_names
from mirror_core.model.names import ClusterName
from mirror_core.model.run import RunKind, RunState
from mirror_core.state.state_topic import read_state
from tests.drill.dying import Death
from tests.support.cli_process import Forked
from tests.support.kafka_clients import Pair, produce, read_all
from tests.support.killed_conductors import ENDS_S
from tests.support.mirrored_topics import replicate
from tests.support.random_seeds import seed_of
from tests.support.set_of_three import SET, contents, make_set_of_three, read_both, read_page

pytestmark = [pytest.mark.cluster, pytest.mark.drill]

*UNTIL_HOME, LAST = list_step_names(RunKind.FAILBACK)
STAGES = [*UNTIL_HOME, *list_step_names(RunKind.FAILOVER), LAST]


def test_a_failback_of_a_set_killed_at_every_stage_brings_all_home(pair: Pair, tmp_path: Path) -> None:
    chance = random.Random(seed_of("failback of a set killed at every stage"))
    three = make_set_of_three(pair, pair.config_path, tmp_path, ("east", pair.east, "west", pair.west))
    three.fail_over()
    tails = {one.name: produce(pair.east, one.topic, number) for number, one in enumerate(three.members)}
    for one in three.members:
        produce(pair.west, one.topic, 9, user="app")
    primaries = {one.name: contents(read_all(pair.west, one.topic)) for one in three.members}
    document = yaml.safe_load(pair.config_path.read_text(encoding="utf-8"))
    document["sets"] = {SET: {"mirrors": [str(one.name) for one in three.members]}}
    config, log, told = tmp_path / "set.yaml", tmp_path / "conductor.log", tmp_path / "actions"
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    options = ("--runner", "local", "--config", str(config), "--evidence", str(tmp_path))
    typed = ("failback", "run-set", SET, "--yes", *options)

    for step in STAGES:
        told.unlink(missing_ok=True)
        process = Forked(*typed, log=log, before=Death(step, chance.randrange(1, 16), told))
        assert process.wait(ENDS_S) == -signal.SIGKILL, f"{step}: {log.read_text(encoding='utf-8')}"
        assert told.is_file(), step
        for one in three.members:
            assert len(one.find_writable()) <= 1, f"{one.name} is writable on both sides after a death in {step}"
    process = Forked(*typed, log=log)
    assert process.wait(ENDS_S) == 0, log.read_text(encoding="utf-8")

    clusters = three.members[0].mirrored.config.clusters
    states = {cluster: read_state(clusters[ClusterName(cluster)]) for cluster in ("east", "west")}
    backs, names = {f"{one.name}-back" for one in three.members}, {one.name for one in three.members}
    failbacks = [r for r in states["west"].runs.values() if r.plan.mirror in names and r.plan.kind is RunKind.FAILBACK]
    homes = [r for r in states["east"].runs.values() if r.plan.mirror in backs and r.state is RunState.DONE]
    assert [run.state for run in failbacks] == [RunState.DONE] * 3
    assert {run.failback_run for run in homes} == {run.id for run in failbacks}
    assert len({run.set_run for run in failbacks}) == len({run.set_run for run in homes}) == 1
    page = read_page(tmp_path / f"set-{failbacks[0].set_run}" / "index.html")
    for one in three.members:
        assert one.find_writable() == [pair.east]
        assert "Applications write on east again" in page[one.name]
        (run,) = [run for run in failbacks if run.plan.mirror == one.name]
        assert states["west"].steps[run.id, "salvage"].evidence["records"] == len(tails[one.name])
        home = contents(read_all(pair.east, one.topic))
        assert home == primaries[one.name], "something is lost, or in another place"
        replicate(one.mirrored.link)
        ours, theirs = read_both(one)
        assert ours == theirs
