"""A part of Airflow is killed in the middle of each DAG: once it is back the run ends as if nothing had been."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from mirror_core.decide.drills import to_drill_name
from mirror_core.mirrors import mirror_commands
from mirror_core.model.mirror import DesiredState
from mirror_core.model.names import MirrorName
from mirror_core.model.run import RunMode, RunState
from mirror_core.runbook import drill
from tests.drill.airflow_parts import (
    RUN_S,
    Parts,
    airflow_in_parts,
    at_home,
    copied_mirror,
    goes_on,
    in_step,
    in_step_home,
    promoted,
)
from tests.support.broker_faults import killed
from tests.support.kafka_clients import Pair, new_topic, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.replicate_process import supervising
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.dag, pytest.mark.cluster, pytest.mark.drill, pytest.mark.heavy]


@pytest.fixture(scope="module")
def parts(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    with airflow_in_parts(pair, tmp_path_factory.mktemp("airflow")) as made:
        yield made


@pytest.fixture
def mirrored(pair: Pair, tmp_path: Path) -> Mirrored:
    return copied_mirror(pair, tmp_path)


@pytest.mark.parametrize(
    "part",
    ["scheduler", *(pytest.param(part, marks=pytest.mark.slow) for part in ("worker", "api-server", "triggerer"))],
)
def test_a_failover(parts: Parts, mirrored: Mirrored, part: str) -> None:
    begun = in_step(mirrored, "fence")
    goes_on(parts, part, "mirror_failover", {"mirror": mirrored.name}, "cut_over", begun=begun)
    promoted(mirrored)


@pytest.mark.slow
@pytest.mark.parametrize(("part", "step"), [("worker", "final_offsets")])
def test_a_source_that_is_given_up(parts: Parts, mirrored: Mirrored, part: str, step: str) -> None:
    conf = {"mirror": mirrored.name}
    goes_on(parts, part, "mirror_failover_unplanned", conf, "cut_over", begun=in_step(mirrored, step))
    promoted(mirrored)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dag", "part", "step"),
    [("mirror_failover_set", "scheduler", "fence"), ("mirror_failover_set_unplanned", "worker", "final_offsets")],
)
def test_a_set(parts: Parts, pair: Pair, tmp_path: Path, dag: str, part: str, step: str) -> None:
    both = [copied_mirror(pair, tmp_path) for _ in range(2)]
    known = {"sets": {"shop": {"mirrors": [str(one.name) for one in both]}}}
    (parts.airflow.folder / "mirrorbook" / "mirrors.yaml").write_text(yaml.safe_dump(known), encoding="utf-8")
    goes_on(parts, part, dag, {"set": "shop"}, "cut_over", begun=in_step(both[0], step))
    for one in both:
        promoted(one)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "begun"),
    [
        pytest.param("scheduler", lambda mirror: in_step(mirror, "catch_up"), id="while it copies home"),
        pytest.param("worker", lambda mirror: in_step_home(mirror, "fence"), id="while nobody can write"),
    ],
)
def test_a_failback(
    parts: Parts, mirrored: Mirrored, part: str, begun: Callable[[Mirrored], Callable[[], bool]]
) -> None:
    failover = mirrored.failover
    failover.drive(failover.begin(failover.plan(RunMode.PLANNED).hash).id)
    conf = {"mirror": mirrored.name, "patience_s": 10}  # nothing copies home: step `catch_up` does
    goes_on(parts, part, "mirror_failback", conf, "home.cut_over", begun=begun(mirrored))
    at_home(mirrored)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["worker"])
def test_a_mirror_is_created(parts: Parts, pair: Pair, tmp_path: Path, part: str) -> None:
    topic = new_topic(pair.east)
    known = new_mirror(pair, tmp_path, topic)
    conf = {"mirror": f"{known.name}-2", "source": "east", "destination": "west", "topics": [new_topic(pair.east)]}
    goes_on(parts, part, "mirror_create", conf, "create")
    assert known.state.mirrors[MirrorName(f"{known.name}-2")].desired is DesiredState.STARTED


@pytest.mark.slow
@pytest.mark.parametrize("part", ["scheduler"])
def test_a_drill(parts: Parts, mirrored: Mirrored, part: str) -> None:
    def standing() -> bool:
        return to_drill_name(mirrored.name) in mirrored.state.mirrors

    goes_on(parts, part, "mirror_drill", {"mirrors": [mirrored.name]}, "drill", begun=standing)
    assert drill.list_past_drills(mirrored.state, mirrored.name)[0].state is RunState.DONE
    assert to_drill_name(mirrored.name) not in mirrored.state.mirrors


@pytest.mark.parametrize(
    ("part", "dag", "during"),
    [
        ("worker", "mirror_sync", "sync"),
        pytest.param("api-server", "mirror_parity", "parity", marks=pytest.mark.slow),
        pytest.param("worker", "mirror_check", "check", marks=pytest.mark.slow),
    ],
)
def test_what_runs_by_the_clock(parts: Parts, mirrored: Mirrored, part: str, dag: str, during: str) -> None:
    goes_on(parts, part, dag, {"mirrors": [mirrored.name]}, during)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["worker"])
def test_what_a_mirror_shall_do(parts: Parts, mirrored: Mirrored, part: str) -> None:
    goes_on(parts, part, "mirror_control", {"mirror": mirrored.name, "action": "pause"}, "control")
    assert mirrored.link.mirror.desired is DesiredState.PAUSED


@pytest.mark.parametrize("part", ["triggerer"])
def test_a_data_plane_is_watched(parts: Parts, mirrored: Mirrored, part: str, tmp_path: Path) -> None:
    """It lives outside of Airflow, so it goes on copying; the watch ends green when the mirror is stopped."""
    (topic,) = {partition.topic for partition in mirrored.statuses}

    def live() -> None:
        produce(mirrored.pair.east, topic, 10)
        want = read_all(mirrored.pair.east, topic)
        wait_until(lambda: read_all(mirrored.pair.west, topic) == want, timeout_s=RUN_S, why="it is copied")
        mirror_commands.stop_mirror(mirrored.link)

    with supervising(mirrored.pair.config_path, mirrored.name, tmp_path / "data-plane"):
        goes_on(parts, part, "mirror_replicate", {"mirror": mirrored.name}, "watch", then=live)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["triggerer"])
def test_a_silent_source_is_watched(parts: Parts, mirrored: Mirrored, part: str) -> None:
    """It comes back while nobody waits for it; whoever waits next fences it."""
    failover = mirrored.failover
    with ExitStack() as dead:
        dead.enter_context(killed(mirrored.pair.east))
        failover.drive(failover.begin(failover.plan(RunMode.UNPLANNED).hash, RunMode.UNPLANNED).id)
        goes_on(parts, part, "mirror_watch", {"mirrors": [mirrored.name]}, "watch", then=dead.close)
    promoted(mirrored)
