"""A plan while a cluster is dead or hangs: there within seconds, with what is known and what is not."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from tests.support.broker_faults import Harm, killed, suspended
from tests.support.json_schemas import check_document
from tests.support.kafka_clients import Pair, new_topic, produce
from tests.support.mirrored_topics import Mirrored, new_mirror

pytestmark = pytest.mark.cluster

PROMISE_S = 5.0
"""A product promise, so it is asserted; with the interpreter's start and room for a busy machine on top."""
MARGIN_S = 7.0


@pytest.fixture(scope="module")
def mirrored(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Mirrored:
    topic = new_topic(pair.east, 2)
    produce(pair.east, topic, 30)
    made = new_mirror(pair, tmp_path_factory.mktemp("evidence"), topic)
    made.copy()
    return made


def mirrorbook(mirrored: Mirrored, *arguments: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """The command, as a person would give it, and the seconds it took."""
    command = [sys.executable, "-c", "from mirror_core.cli.main import main; main()", *arguments]
    started = time.monotonic()
    done = subprocess.run(
        [*command, "--config", str(mirrored.config.path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    seconds = time.monotonic() - started
    check_document(arguments, done.stdout)
    return done, seconds


@pytest.mark.slow
@pytest.mark.parametrize("harm", [killed, suspended])
def test_with_a_dead_source_the_plan_says_what_is_known_and_only_an_unplanned_one_may_be_run(
    mirrored: Mirrored, harm: Harm
) -> None:
    with harm(mirrored.pair.east):
        planned, _ = mirrorbook(mirrored, "failover", "plan", mirrored.name, "--json")
        unplanned, _ = mirrorbook(mirrored, "failover", "plan", mirrored.name, "--mode", "unplanned", "--json")
        run, _ = mirrorbook(mirrored, "failover", "run", mirrored.name, "--yes")
    plan = json.loads(planned.stdout)
    assert planned.returncode == 3, planned.stderr
    assert [r for r in plan["refused"] if "east could not be read, hence neither fenced nor drained" in r["text"]]
    values = {key: figure["value"] for key, figure in plan["figures"].items()}
    assert (values["lag_offsets"], values["lost_offsets"], values["partitions"]) == (None, 0, 2)
    assert values["source_seen_s"] > 0
    assert any(line["text"].startswith("everything on east") for line in plan["unknown"])
    assert "east could not be read" in planned.stderr
    assert unplanned.returncode == 0, unplanned.stderr
    assert json.loads(unplanned.stdout)["hash"] != plan["hash"]
    assert run.returncode == 3
    assert "--mode unplanned" in run.stderr
    assert "Traceback" not in planned.stderr + unplanned.stderr + run.stderr
    assert mirrored.state.active_run(mirrored.name) is None


@pytest.mark.parametrize("harm", [killed, pytest.param(suspended, marks=pytest.mark.slow)])
def test_with_a_dead_destination_the_answer_is_indeterminate(mirrored: Mirrored, harm: Harm) -> None:
    with harm(mirrored.pair.west):
        done, _ = mirrorbook(mirrored, "failover", "plan", mirrored.name)
    assert done.returncode == 4, done.stderr
    assert "west" in done.stderr
    assert "Traceback" not in done.stderr


def test_with_both_sides_alive_the_plan_may_be_run(mirrored: Mirrored) -> None:
    done, _ = mirrorbook(mirrored, "failover", "plan", mirrored.name, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["figures"]["lag_offsets"]["value"] == 0


@pytest.mark.timed
@pytest.mark.parametrize("harm", [killed, suspended])
@pytest.mark.parametrize("side", ["east", "west"])
def test_a_plan_is_there_within_seconds(mirrored: Mirrored, side: str, harm: Harm) -> None:
    with harm(getattr(mirrored.pair, side)):
        for mode in ("planned", "unplanned"):
            _, seconds = mirrorbook(mirrored, "failover", "plan", mirrored.name, "--mode", mode)
            assert seconds < PROMISE_S + MARGIN_S, mode
    _, seconds = mirrorbook(mirrored, "failover", "plan", mirrored.name)
    assert seconds < PROMISE_S + MARGIN_S, "with both sides alive"
