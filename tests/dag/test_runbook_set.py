"""Sets of mirrors in a running Airflow that wants two people, and what it tells: by REST, against real brokers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from demo.airflow import Airflow, AirflowFailed
from mirror_core.decide.audit_log_check import RunConclusion
from mirror_core.evidence.signed_bundle import verify_bundle
from mirror_core.mirrors import mirror_commands
from mirror_core.model.mirror import DesiredState
from mirror_core.model.run import RunMode, RunState
from mirror_core.state.state_records import Tombstone
from mirror_core.state.writer import StateWriter, make_control_id
from mirrorbook_tools.sandbox.credentials import CONTROL, DATA
from tests.support.broker_faults import killed
from tests.support.celery_airflow import make_airflow
from tests.support.failover_runs import denied
from tests.support.kafka_clients import Pair, produce, read_all
from tests.support.mirror_sets import at_home, mirrored, moved, runs_of, topic_of
from tests.support.mirrored_topics import Mirrored
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.dag, pytest.mark.cluster, pytest.mark.drill, pytest.mark.slow, pytest.mark.heavy]

RUN_S = 600
DAG = "mirror_failover_set"
LOST = "mirror_failover_set_unplanned"


@pytest.fixture
def both(pair: Pair, airflow: Airflow, tmp_path: Path) -> Iterator[tuple[Mirrored, Mirrored]]:
    """The set `shop`. Its fences are forgotten at the end: mirror_watch would put up again what fixture `rights` takes
    down."""
    made = mirrored(pair, tmp_path), mirrored(pair, tmp_path)
    known = {"sets": {"shop": {"mirrors": [str(one.name) for one in made]}}}
    (airflow.folder / "mirrorbook" / "mirrors.yaml").write_text(yaml.safe_dump(known), encoding="utf-8")
    yield made
    for one in made:
        with StateWriter(one.link.destination, make_control_id(one.name)) as writer:
            writer.put(*(Tombstone(fence) for fence in [writer.state.pending_fences.get(one.name)] if fence))


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notifiers") / "told"


@pytest.fixture(scope="module")
def airflow(pair: Pair, told: Path) -> Iterator[Airflow]:
    (told.parent / "our_notifiers.py").write_text(
        f"def on_call(context):\n    with open({str(told)!r}, 'a') as file:\n"
        "        print(getattr(context.get('ti'), 'task_id', None), context.get('reason'), file=file)\n"
    )
    settings = {
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,other:admin",
        "AIRFLOW__MIRRORBOOK__APPROVERS": "admin other",
        "AIRFLOW__MIRRORBOOK__TWO_PEOPLE": "true",
        "AIRFLOW__MIRRORBOOK__NOTIFY": "our_notifiers:on_call",
        "AIRFLOW__MIRRORBOOK__DEADLINE_S": "5",
        "PYTHONPATH": str(told.parent),
    }
    made = make_airflow(told.parent / "airflow", settings)
    made.start()
    try:
        made.wait_healthy()
        for cluster in (pair.east, pair.west):
            made.add_connection(cluster.name, cluster.client_config(CONTROL), cluster.client_config(DATA))
        made.call("POST", "/variables", {"key": "mirrorbook_clusters", "value": "east,west"})
        (made.folder / "mirrorbook").mkdir(mode=0o700, exist_ok=True)
        for dag in (DAG, LOST):
            made.unpause(dag)
        yield made
    finally:
        made.stop()


def test_two_people_move_a_set_and_one_alone_does_not(
    airflow: Airflow, both: tuple[Mirrored, Mirrored], told: Path
) -> None:
    run = airflow.trigger(DAG, {"set": "shop"})
    airflow.await_question(DAG, run, "approve", RUN_S)
    subject, body = airflow.question(DAG, run, "approve")
    plan = re.search(r"Plan ([0-9a-f]{12})$", subject)
    assert plan is not None, subject
    assert f"**{plan[1]}**" in body
    assert all(f"**Fail over mirror `{one.name}`**" in body for one in both)
    airflow.answer(DAG, run, "approve", "Approve")
    airflow.await_question(DAG, run, "approve_second", RUN_S)
    assert airflow.question(DAG, run, "approve_second")[1] == body
    with pytest.raises(AirflowFailed, match="403"):
        airflow.answer(DAG, run, "approve_second", "Approve")
    with airflow.signed_in("other"):
        airflow.answer(DAG, run, "approve_second", "Reject")
    ended(airflow, DAG, run, "failed")
    for one in both:
        at_home(one)
    said = airflow.log_of(DAG, run, "last_words")
    for one in both:
        assert format_sentence("nothing_begun_of_mirror", one.name, "east", "west") in said

    run = approved_by_two(airflow, DAG)
    airflow.await_question(DAG, run, "go_ahead", RUN_S)
    airflow.answer(DAG, run, "go_ahead", "Approve")
    ended(airflow, DAG, run, "success")
    said = airflow.log_of(DAG, run, "last_words")
    for one in both:
        assert f"{one.name}: Applications write on west" in said

    evidence = airflow.folder / "mirrorbook" / "evidence"
    for one in both:
        moved(one)
        [done] = runs_of(one)
        assert done.approved_by == "other, admin"
        assert [(found.name, found.at_ms is not None) for found in done.approvals] == [("other", True), ("admin", True)]
        found = verify_bundle(evidence / f"run-{done.id}", None, done.id, one.state.audit_entries)
        assert (found.verdict, found.flaws, found.approved_by) == (RunConclusion.VERIFIED, (), "other, admin")
    [page] = evidence.glob("set-shop-*/index.html")
    assert "2 of 2 mirrors moved" in page.read_text(encoding="utf-8")
    said = told.read_text(encoding="utf-8")
    assert [word for word in ("approve ", "approve_second ", "go_ahead ") if word not in said] == []
    for word, why in (("task_failure", "of the red run"), ("None not done 5 s after", "that a run is late")):
        wait_until(
            lambda word=word: word in told.read_text(encoding="utf-8"),  # type: ignore[misc]
            timeout_s=120,
            why=f"somebody is told {why}",
        )
    assert events_of(airflow, DAG) == [
        (f"mirrorbook://{name}/{what}", "switched", name)
        for name in sorted(one.name for one in both)
        for what in ("active", "fenced")
    ]


def test_a_set_whose_sources_die_before_the_moment_is_given_up_and_the_planned_run_finds_it_done(
    airflow: Airflow, both: tuple[Mirrored, Mirrored]
) -> None:
    first, second = both
    for one in both:
        mirror_commands.run_sync(one.link)  # who may write is asked of no source that is dead
    planned = approved_by_two(airflow, DAG)
    airflow.await_question(DAG, planned, "go_ahead", RUN_S)
    produce(first.pair.east, topic_of(second), 3, user="app")  # which nobody copies any more
    copied = {one.name: read_all(one.pair.west, topic_of(one)) for one in both}
    with killed(first.pair.east):
        run = approved_by_two(airflow, LOST)
        ended(airflow, LOST, run, "success")
        airflow.answer(DAG, planned, "go_ahead", "Approve")
        ended(airflow, DAG, planned, "failed")
        for one in both:
            assert one.state.mirrors[one.name].desired is DesiredState.STOPPED
            assert not denied(one.pair.west, topic_of(one))
            assert read_all(one.pair.west, topic_of(one))[: len(copied[one.name])] == copied[one.name]
    found = sorted((done.plan.mode, done.state) for done in runs_of(*both))
    assert found == [(RunMode.PLANNED, RunState.SUPERSEDED)] * 2 + [(RunMode.UNPLANNED, RunState.DONE)] * 2
    assert events_of(airflow, LOST) == [
        (f"mirrorbook://{name}/active", "switched", name) for name in sorted((first.name, second.name))
    ]


def test_an_ill_data_plane_is_told_of_once(airflow: Airflow, both: tuple[Mirrored, Mirrored]) -> None:
    """There is none at all: its run is red after the patience, and so is the one that follows. By then workers, the
    triggerer and the API server have signed in, and no password is on the disk."""
    ill = both[0]
    dag = "mirror_replicate"
    airflow.unpause(dag)
    airflow.trigger(dag, {"mirror": str(ill.name), "patience_s": 10})

    def red() -> bool:
        runs = airflow.call("GET", f"/dags/{dag}/dagRuns?state=failed")["dag_runs"]
        return len(runs) == 2

    wait_until(red, timeout_s=RUN_S, why="two runs are red")
    mirror_commands.stop_mirror(ill.link)
    assert events_of(airflow, dag) == [(f"mirrorbook://{ill.name}/unhealthy", "watch_again", ill.name)]
    sides = (ill.pair.east, ill.pair.west)
    passwords = {side.client_config(user)["sasl.password"].encode() for side in sides for user in (CONTROL, DATA)}
    files = [path for path in (airflow.folder / "mirrorbook").rglob("*") if path.is_file()]
    assert [path for path in files if any(word in path.read_bytes() for word in passwords)] == []


def events_of(airflow: Airflow, dag: str) -> list[tuple[str, str, str]]:
    """URI, task and mirror of the asset events that a DAG has emitted."""
    events = airflow.call("GET", f"/assets/events?source_dag_id={dag}")["asset_events"]
    return sorted((event["uri"], event["source_task_id"], event["extra"]["mirror"]) for event in events)


def approved_by_two(airflow: Airflow, dag: str) -> str:
    """A run of the set, with both answers; its id."""
    run = airflow.trigger(dag, {"set": "shop"})
    airflow.await_question(dag, run, "approve", RUN_S)
    with airflow.signed_in("other"):
        airflow.answer(dag, run, "approve", "Approve")
    airflow.await_question(dag, run, "approve_second", RUN_S)
    airflow.answer(dag, run, "approve_second", "Approve")
    return run


def ended(airflow: Airflow, dag: str, run: str, state: str) -> None:
    over = ("success", "failed")
    wait_until(lambda: airflow.run_state(dag, run) in over, timeout_s=RUN_S, why=f"run {run} has ended")
    assert airflow.run_state(dag, run) == state, airflow.tasks(dag, run)
