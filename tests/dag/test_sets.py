"""A set of mirrors moved by Airflow's tasks, with the answers of two people, against real brokers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from mirror_core.model.config_sections import MirrorSet
from mirror_core.model.errors import MirrorError
from mirror_core.model.names import MirrorName
from mirror_core.model.run import RunKind, RunState
from mirror_core.runbook.failback_conductor import Failback
from mirror_core.runbook.failback_steps import FailbackSteps
from mirror_core.runbook.fence_recheck import PromotionProbe
from mirror_core.runbook.planned_steps import PlannedSteps
from tests.dag.answering import answer_question
from tests.support.failover_runs import denied
from tests.support.kafka_clients import Pair
from tests.support.mirror_sets import at_home, mirrored, moved, runs_of, topic_of
from tests.support.mirrored_topics import Mirrored

pytestmark = [pytest.mark.dag, pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]  # Airflow's own warnings


@dataclass(slots=True)
class DagRun:
    """Its tasks are executed one by one in this process."""

    dag: Any
    events: Any
    config_path: Path
    set_name: str = "shop"
    left: dict[tuple[str, str], Any] = field(default_factory=dict)

    def context(self, task: str) -> Any:
        return {
            "ti": SimpleNamespace(
                xcom_pull=lambda task_ids, key="return_value": self.left.get((task_ids, key)),
                xcom_push=lambda key, value: self.left.update({(task, key): value}),
            ),
            "dag_run": SimpleNamespace(dag_id=self.dag.dag_id, run_id="r1", triggering_user_name="ann"),
            "params": {**self.dag.params.dump(), "master": "local[*]", "set": self.set_name},
            "outlet_events": self.events,
        }

    def task(self, name: str) -> Any:
        operator = self.dag.get_task(name)
        operator.set_name, operator.strategies = self.set_name, ""  # as Airflow renders them
        return operator

    def write_set(self, *members: Mirrored, **others: str) -> None:
        """Into `mirrors.yaml`."""
        document = yaml.safe_load(self.config_path.read_text(encoding="utf-8"))
        document["sets"] = {"shop": {"mirrors": [str(one.name) for one in members], **others}}
        self.config_path.write_text(yaml.safe_dump(document), encoding="utf-8")

    def execute(self, *tasks: str) -> Any:
        for task in tasks:
            self.left[task, "return_value"] = self.task(task).execute(self.context(task))
        return self.left[task, "return_value"]

    def answered(self, task: str, person: str) -> None:
        """The task asks, and somebody says yes."""
        self.left[task, "return_value"] = answer_question(self.task(task), self.context(task), person)

    def fail_over(self) -> None:
        self.execute("plan")
        self.answered("approve", "ann")
        self.execute("begin", "prove")
        self.answered("go_ahead", "ann")
        self.execute("cut_over")


@pytest.fixture
def way_home(dag_run: DagRun, dag_bag: Any) -> DagRun:
    """A failback of the set, which has been failed over."""
    dag_run.fail_over()
    return replace(dag_run, dag=dag_bag.dags["mirror_failback_set"], left={})


@pytest.fixture
def both(pair: Pair, tmp_path: Path) -> tuple[Mirrored, Mirrored]:
    return mirrored(pair, tmp_path), mirrored(pair, tmp_path)


@pytest.fixture
def dag_run(
    both: tuple[Mirrored, Mirrored],
    tmp_path: Path,
    airflow_database: None,
    dag_bag: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> DagRun:
    from airflow.sdk.execution_time.context import OutletEventAccessors
    from mirrorbook_airflow import mirror_lookup, runbook

    path = tmp_path / "mirrorbook.yaml"
    path.write_text(both[0].pair.config_path.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(mirror_lookup, "require_clusters", lambda: ())
    monkeypatch.setattr(mirror_lookup, "provide_config", lambda name, clusters: path)
    monkeypatch.setattr(runbook, "make_services", lambda link, steps, master: both[0].services)
    made = DagRun(dag_bag.dags["mirror_failover_set"], OutletEventAccessors(), path)
    made.write_set(*both)
    return made


def test_a_set_is_moved_by_its_tasks(dag_run: DagRun, both: tuple[Mirrored, Mirrored]) -> None:
    from airflow.sdk.exceptions import AirflowFailException
    from mirrorbook_airflow.asset_events import ACTIVE_ALIAS

    plan = dag_run.execute("plan")
    for one in both:
        assert f"**Fail over mirror `{one.name}`**" in plan["body"]
        assert f"| {topic_of(one)}-0 | state: MIRRORING; lag: 0 offsets |" in plan["body"]
    assert f"**{plan['hash'][:12]}**" in plan["body"]
    with pytest.raises(AirflowFailException, match="1 person has to approve it, and so far nobody did"):
        dag_run.execute("begin")  # its question was marked as answered
    dag_run.answered("approve", "ann")
    attempt = dag_run.execute("begin")
    assert dag_run.execute("begin") == attempt, "begun again, it begins other runs"
    said = dag_run.execute("prove")["said"]
    with pytest.raises(AirflowFailException, match="1 person has to approve it, and so far nobody did"):
        dag_run.execute("cut_over")
    for one in both:
        assert f"**Mirror `{one.name}`**, compared while applications write: **passed**" in said
    dag_run.answered("go_ahead", "ben")
    with pytest.raises(AirflowFailException, match=r"it is RUNNING: not done: .*, report"):
        dag_run.execute("done")
    done = dag_run.execute("cut_over")
    assert Path(done["report"]).is_file()
    assert dag_run.execute("cut_over") == done, "begun again, it does something"
    assert dag_run.execute("switched") == [one.name for one in both]
    emitted = [(e.dest_asset_key.uri, e.extra["mirror"]) for e in dag_run.events[ACTIVE_ALIAS].asset_alias_events]
    assert emitted == [(f"mirrorbook://{one.name}/active", one.name) for one in both]
    assert dag_run.execute("abort") == "nothing to abort: all runs have ended"
    dag_run.execute("done")
    for one in both:
        moved(one)
        [run] = runs_of(one)
        assert (run.approved_by, run.set_run) == ("ann", attempt)
        told = both[0].state.audit_lines(run.id)
        assert ['"by":"ben"' in line for line in told if '"kind":"stop_confirmed"' in line] == [True]


def test_the_set_that_was_approved_is_moved_whatever_is_in_it_by_now(
    dag_run: DagRun, both: tuple[Mirrored, Mirrored], tmp_path: Path
) -> None:
    """One taken out would stay held by its run, and the DAG run be green; one put in has no run."""
    dag_run.execute("plan")
    dag_run.write_set(both[0])
    dag_run.answered("approve", "ann")
    dag_run.execute("begin", "prove")
    dag_run.write_set(*reversed(both), mirrored(both[0].pair, tmp_path), order="in_order")
    dag_run.answered("go_ahead", "ann")
    dag_run.execute("cut_over")
    assert dag_run.execute("switched") == [one.name for one in both]
    for one in both:
        moved(one)


@pytest.mark.drill
def test_all_from_a_cluster_are_those_that_were_approved(
    dag_run: DagRun, both: tuple[Mirrored, Mirrored], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody creates another mirror meanwhile."""
    from mirrorbook_airflow import mirror_lookup, runbook

    name = f"all-from-{both[0].link.source.name}"
    members = {one.name for one in both}
    found = mirror_lookup.find_set

    def find_of_this_test(set_name: str, kind: RunKind) -> MirrorSet:  # mirrors of other tests are from there, too
        all_found = found(set_name, kind)
        return replace(all_found, mirrors=tuple(mirror for mirror in all_found.mirrors if mirror in members))

    for module in (mirror_lookup, runbook):
        monkeypatch.setattr(module, "find_set", find_of_this_test)
    dag_run.set_name = name
    dag_run.execute("plan")
    dag_run.answered("approve", "ann")
    attempt = dag_run.execute("begin")
    third = mirrored(both[0].pair, tmp_path)
    members.add(third.name)
    dag_run.execute("prove")
    dag_run.answered("go_ahead", "ann")
    dag_run.execute("cut_over")
    assert dag_run.execute("switched") == sorted(one.name for one in both), "only the third one is left to be moved"
    assert dag_run.execute("begin") == attempt
    for one in both:
        moved(one)
    at_home(third)


def test_a_no_to_the_second_question_takes_the_yes_to_the_first_one_back(
    dag_run: DagRun, both: tuple[Mirrored, Mirrored]
) -> None:
    """The question was cleared, and is marked as success behind the no."""
    from airflow.sdk.exceptions import AirflowFailException

    dag_run.execute("plan")
    dag_run.answered("approve", "ann")
    with pytest.raises(AirflowFailException, match="rejected by ben: nothing was done"):
        answer_question(dag_run.task("approve"), dag_run.context("approve"), "ben", "Reject")
    with pytest.raises(AirflowFailException, match="1 person has to approve it, and so far nobody did"):
        dag_run.execute("begin")
    dag_run.answered("approve", "ann")
    dag_run.execute("begin", "prove")
    dag_run.answered("go_ahead", "ann")
    with pytest.raises(AirflowFailException, match="rejected by ben"):
        answer_question(dag_run.task("go_ahead"), dag_run.context("go_ahead"), "ben", "Reject")
    with pytest.raises(AirflowFailException, match="1 person has to approve it, and so far nobody did"):
        dag_run.execute("cut_over")
    dag_run.execute("abort")
    for one in both:
        at_home(one)


@pytest.mark.drill
def test_a_no_at_the_moment_takes_all_back(dag_run: DagRun, both: tuple[Mirrored, Mirrored]) -> None:
    dag_run.execute("plan")
    dag_run.answered("approve", "ann")
    dag_run.execute("begin", "prove")
    assert dag_run.execute("abort").count("given up: applications may write on the source") == 2
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(AirflowFailException, match="was begun by this approval and is ABORTED"):
        dag_run.execute("begin")
    dag_run.answered("approve", "ann")  # once more
    dag_run.execute("begin")
    assert dag_run.execute("abort").count("given up: applications may write on the source") == 2
    for one in both:
        at_home(one)


@pytest.mark.drill
def test_one_that_fails_after_the_first_promotion_goes_on_when_the_task_is_cleared(
    dag_run: DagRun, both: tuple[Mirrored, Mirrored], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    well, broken = both
    check = PlannedSteps.check_before_promotion

    def checked(self: PlannedSteps) -> PromotionProbe:
        look = check(self)
        if self.link.mirror.name == broken.name:
            raise MirrorError("not now")
        return look

    monkeypatch.setattr(PlannedSteps, "check_before_promotion", checked)
    dag_run.execute("plan")
    dag_run.answered("approve", "ann")
    dag_run.execute("begin", "prove")
    dag_run.answered("go_ahead", "ann")
    with pytest.raises(AirflowFailException, match="not now"):
        dag_run.execute("cut_over")
    assert dag_run.execute("switched") == [well.name], "whose applications have moved"
    assert "kept: another mirror of the set is promoted" in dag_run.execute("abort")
    moved(well)
    assert denied(broken.pair.east, topic_of(broken))
    monkeypatch.setattr(PlannedSteps, "check_before_promotion", check)
    dag_run.execute("begin", "prove", "cut_over")
    moved(broken)
    assert {run.state for run in runs_of(*both)} == {RunState.DONE}
    assert MirrorName(dag_run.execute("switched")[1]) == broken.name


def test_a_set_comes_home_by_its_tasks(way_home: DagRun, both: tuple[Mirrored, Mirrored]) -> None:
    from airflow.sdk.exceptions import AirflowFailException
    from mirrorbook_airflow.asset_events import HOME_ALIAS

    nobody = "1 person has to approve it, and so far nobody did"
    plan = way_home.execute("plan")
    for one in both:
        assert f"**Fail back mirror `{one.name}`**" in plan["body"]
    with pytest.raises(AirflowFailException, match=nobody):
        way_home.execute("begin")
    way_home.answered("approve", "ann")
    attempt = way_home.execute("begin")
    assert way_home.execute("begin") == attempt, "begun again, it begins other runs"
    for one in both:
        moved(one)
    backs = way_home.execute("copy_back")
    assert backs == [f"{one.name}-back" for one in both]
    assert way_home.execute("copy_back") == backs, "repeated, it does something"

    home = way_home.execute("home.plan")
    for name in backs:
        assert f"**Fail over mirror `{name}`**" in home["body"]
    with pytest.raises(AirflowFailException, match=nobody):
        way_home.execute("home.begin")  # the first approval is none for the move
    way_home.answered("home.approve", "ben")
    way_home.execute("home.begin", "home.prove")
    with pytest.raises(AirflowFailException, match=nobody):
        way_home.execute("home.cut_over")
    way_home.answered("home.go_ahead", "ben")
    way_home.execute("home.cut_over")
    with pytest.raises(AirflowFailException, match="it is RUNNING: not done: reprotect"):
        way_home.execute("done")
    assert way_home.execute("home.switched") == backs
    assert way_home.execute("protect") == [one.name for one in both]
    emitted = [event.dest_asset_key.uri for event in way_home.events[HOME_ALIAS].asset_alias_events]
    assert emitted == [f"mirrorbook://{one.name}/home" for one in both]
    assert way_home.execute("home.abort") == "nothing to abort: all runs have ended"
    way_home.execute("done")
    for one in both:
        at_home(one)


@pytest.mark.drill
def test_a_member_that_a_person_gives_up_stays_and_the_others_come_home_by_their_tasks(
    way_home: DagRun, both: tuple[Mirrored, Mirrored], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    well, broken = both
    check_approval = FailbackSteps.check_approval

    def failing(self: FailbackSteps) -> None:
        if self.link.mirror.name == broken.name:
            raise MirrorError("not now")
        check_approval(self)

    monkeypatch.setattr(FailbackSteps, "check_approval", failing)
    way_home.execute("plan")
    way_home.answered("approve", "ann")
    way_home.execute("begin")
    with pytest.raises(AirflowFailException, match="not now"):
        way_home.execute("copy_back")
    run = broken.state.active_run(broken.name)
    assert run is not None
    Failback(broken.link, broken.services, started_by="test").abort(run.id)

    assert way_home.execute("copy_back") == [f"{well.name}-back"]
    way_home.execute("home.plan")
    way_home.answered("home.approve", "ann")
    way_home.execute("home.begin", "home.prove")
    way_home.answered("home.go_ahead", "ann")
    with pytest.raises(AirflowFailException, match="it is RUNNING: not done: reprotect"):
        way_home.execute("done")
    way_home.execute("home.cut_over")
    assert way_home.execute("protect") == [well.name]
    way_home.execute("done")
    at_home(well)
    moved(broken)


@pytest.mark.drill
def test_one_that_is_stranded_on_the_way_home_comes_home_when_its_task_is_cleared(
    way_home: DagRun, both: tuple[Mirrored, Mirrored], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

    well, broken = both
    check = PlannedSteps.check_before_promotion

    def checked(self: PlannedSteps) -> PromotionProbe:
        if self.link.mirror.name == f"{broken.name}-back":
            raise MirrorError("not now")
        return check(self)

    monkeypatch.setattr(PlannedSteps, "check_before_promotion", checked)
    way_home.execute("plan")
    way_home.answered("approve", "ann")
    way_home.execute("begin", "copy_back", "home.plan")
    with pytest.raises(AirflowSkipException, match=r"nothing was begun by home\.begin"):
        way_home.execute("protect")
    way_home.answered("home.approve", "ann")
    way_home.execute("home.begin", "home.prove")
    way_home.answered("home.go_ahead", "ann")
    with pytest.raises(AirflowFailException, match="not now"):
        way_home.execute("home.cut_over")
    assert way_home.execute("home.switched") == [f"{well.name}-back"]
    with pytest.raises(AirflowFailException, match=f"{broken.name}: waits for the failover home"):
        way_home.execute("protect")
    assert "kept: another mirror of the set is promoted" in way_home.execute("home.abort")
    at_home(well)
    with pytest.raises(AirflowFailException, match=f"run {broken.name}-failback-.*: not done: reprotect"):
        way_home.execute("done")

    monkeypatch.setattr(PlannedSteps, "check_before_promotion", check)
    way_home.execute("home.begin", "home.prove", "home.cut_over", "home.switched")
    assert way_home.execute("protect") == [one.name for one in both]
    way_home.execute("done")
    for one in both:
        at_home(one)
