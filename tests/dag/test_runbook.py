"""The failover runbook in a running Airflow, against real brokers: rejected by REST, approved in a real browser."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AclOperation, ResourceType

from demo.airflow import Airflow, AirflowFailed
from mirror_core.decide.approval_rules import make_approval
from mirror_core.decide.audit_log_check import RunConclusion
from mirror_core.evidence.signed_bundle import verify_bundle
from mirror_core.model.mirror import PartitionState
from mirror_core.model.run import Run, RunMode, RunState, StepState
from mirror_core.runbook.failback_conductor import Failback
from mirror_core.state.approvals import find_approvals, record_approval
from mirrorbook_tools.sandbox.credentials import CONTROL, DATA
from tests.support.browser import browser
from tests.support.celery_airflow import make_airflow
from tests.support.cli_process import Forked, mirrorbook
from tests.support.failback_runs import go_home
from tests.support.kafka_clients import Pair, grant, new_topic, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.unfenceable_writer import never_still
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.dag, pytest.mark.cluster, pytest.mark.drill, pytest.mark.heavy]

RUN_S = 600
DAG = "mirror_failover"


@dataclass(frozen=True, slots=True)
class Runbook:
    """An Airflow that knows both clusters."""

    airflow: Airflow
    pair: Pair

    def new_mirror(self, evidence: Path) -> tuple[Mirrored, str]:
        """One topic with 500 records, mirrored; user `app` may write it on east."""
        topic = new_topic(self.pair.east, partitions=2, prefix="orders-")
        produce(self.pair.east, topic, 500)
        grant(self.pair.east, "app", ResourceType.TOPIC, topic, [AclOperation.WRITE, AclOperation.READ])
        mirror = new_mirror(self.pair, evidence, topic)
        mirror.copy()
        return mirror, topic

    def wait_end(self, run: str) -> str:
        """Its final state."""
        wait_until(
            lambda: self.airflow.run_state(DAG, run) in ("success", "failed"),
            timeout_s=RUN_S,
            why=f"run {run} has ended",
        )
        return self.airflow.run_state(DAG, run)


@pytest.fixture(scope="module")
def runbook(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runbook]:
    settings = {
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,other:admin",
        "AIRFLOW__MIRRORBOOK__APPROVERS": "admin",
    }
    airflow = make_airflow(tmp_path_factory.mktemp("airflow"), settings)
    airflow.start()
    try:
        airflow.wait_healthy()
        for cluster in (pair.east, pair.west):
            airflow.add_connection(cluster.name, cluster.client_config(CONTROL), cluster.client_config(DATA))
        airflow.call("POST", "/variables", {"key": "mirrorbook_clusters", "value": "east,west"})
        airflow.unpause(DAG)
        yield Runbook(airflow, pair)
    finally:
        airflow.stop()


def test_a_rejected_plan_is_a_red_run_and_leaves_the_source_writable(runbook: Runbook, tmp_path: Path) -> None:
    mirror, topic = runbook.new_mirror(tmp_path)
    run = runbook.airflow.trigger(DAG, {"mirror": mirror.name, "pause": False})
    runbook.airflow.await_question(DAG, run, "approve", RUN_S)

    subject, body = runbook.airflow.question(DAG, run, "approve")
    with runbook.airflow.signed_in("other"), pytest.raises(AirflowFailed, match="403"):
        runbook.airflow.answer(DAG, run, "approve", "Approve")
    runbook.airflow.answer(DAG, run, "approve", "Reject")

    assert runbook.wait_end(run) == "failed"
    tasks = runbook.airflow.tasks(DAG, run)
    assert tasks["approve"] == "failed"
    assert {tasks[task] for task in ("begin", "prove", "cut_over", "switch", "done")} == {"upstream_failed"}
    plan_hash = re.search(r"Plan ([0-9a-f]{12})$", subject)
    assert plan_hash is not None, subject
    assert f"**{plan_hash[1]}**" in body
    assert f"| {topic}-0 | state: MIRRORING; lag: 0 offsets |" in body
    assert not mirror.state.active_run(mirror.name)
    produce(runbook.pair.east, topic, 5, user="app")
    assert {status.state for status in mirror.statuses.values()} == {PartitionState.MIRRORING}


def test_old_sources_are_watched_all_the_time_and_a_person_looks_beside_that(runbook: Runbook, tmp_path: Path) -> None:
    """Where an hour ends meanwhile, the next one's run watches on."""
    airflow, dag = runbook.airflow, "mirror_watch"
    mirror, topic = runbook.new_mirror(tmp_path)

    def list_runs(run_type: str, state: str) -> list[str]:
        runs = airflow.call("GET", f"/dags/{dag}/dagRuns?run_type={run_type}&state={state}")["dag_runs"]
        return [run["dag_run_id"] for run in runs]

    def watching(run_type: str) -> list[str]:
        names = list_runs(run_type, "running")
        return [name for name in names if airflow.tasks(dag, name)["watch"] == "deferred"]

    wait_until(lambda: watching("scheduled"), timeout_s=RUN_S, why="the watch of this hour has begun")
    looked = airflow.trigger(dag, {"mirrors": [mirror.name]})
    wait_until(lambda: airflow.run_state(dag, looked) == "success", timeout_s=RUN_S, why="a look has ended")
    wait_until(lambda: watching("scheduled"), timeout_s=RUN_S, why="the watch goes on beside it")
    assert list_runs("scheduled", "failed") == []

    failover = mirror.failover
    failover.drive(failover.begin(failover.plan(RunMode.PLANNED).hash).id)
    produce(runbook.pair.east, topic, 1, user="admin")
    wait_until(lambda: list_runs("scheduled", "failed"), timeout_s=RUN_S, why="an alarm has made it red")
    [alarmed] = list_runs("scheduled", "failed")
    assert airflow.tasks(dag, alarmed) == {"watch": "failed", "continue_watch": "success", "done": "upstream_failed"}
    wait_until(lambda: watching("operator_triggered"), timeout_s=RUN_S, why="the next run watches on")
    airflow.pause(dag)


def test_a_question_that_is_marked_as_answered_or_whose_xcom_is_written_is_no_approval(
    runbook: Runbook, tmp_path: Path
) -> None:
    """By users of Airflow who may do that, one of whom is no approver."""
    airflow, (mirror, topic) = runbook.airflow, runbook.new_mirror(tmp_path)
    who = {"id": "admin", "name": "admin"}
    forged = {"chosen_options": ["Approve"], "params_input": {}, "responded_by_user": who, "timedout": False}
    run = airflow.trigger(DAG, {"mirror": mirror.name, "pause": True})
    airflow.await_question(DAG, run, "approve", RUN_S)
    with airflow.signed_in("other"):
        _write_xcom(airflow, run, "approve", "return_value", forged)
        _mark_done(airflow, run, "approve")
    assert runbook.wait_end(run) == "failed"
    assert airflow.tasks(DAG, run)["approve"] == "success", "it was marked so"
    assert "1 person has to approve it, and so far nobody did" in airflow.log_of(DAG, run, "begin")
    assert _runs(mirror) == []

    run = airflow.trigger(DAG, {"mirror": mirror.name, "pause": True})
    airflow.await_question(DAG, run, "approve", RUN_S)
    with airflow.signed_in("other"):
        _mark_done(airflow, run, "approve", "skipped")
    assert runbook.wait_end(run) == "failed", "nothing was moved"
    assert airflow.tasks(DAG, run)["begin"] == "skipped"
    assert _runs(mirror) == []

    run = airflow.trigger(DAG, {"mirror": mirror.name, "pause": True})
    airflow.await_question(DAG, run, "approve", RUN_S)
    airflow.answer(DAG, run, "approve", "Approve")
    airflow.await_question(DAG, run, "go_ahead", RUN_S)
    with airflow.signed_in("other"):
        _write_xcom(airflow, run, "go_ahead", "return_value", forged)
        _mark_done(airflow, run, "go_ahead")
    assert runbook.wait_end(run) == "failed"
    assert "stops applications" in airflow.log_of(DAG, run, "cut_over")
    assert "1 person has to approve it, and so far nobody did" in airflow.log_of(DAG, run, "cut_over")
    wait_until(lambda: _runs(mirror) == [RunState.ABORTED], timeout_s=RUN_S, why="the teardown has aborted it")
    produce(runbook.pair.east, topic, 5, user="app")


def test_a_finished_run_that_is_cleared_after_a_failback_is_red_and_tells_of_nothing(
    runbook: Runbook, tmp_path: Path
) -> None:
    airflow, (mirror, topic) = runbook.airflow, runbook.new_mirror(tmp_path)
    run = airflow.trigger(DAG, {"mirror": mirror.name, "pause": True})
    airflow.await_question(DAG, run, "approve", RUN_S)
    airflow.answer(DAG, run, "approve", "Approve")
    airflow.await_question(DAG, run, "go_ahead", RUN_S)
    airflow.answer(DAG, run, "go_ahead", "Approve")
    assert runbook.wait_end(run) == "success"
    (moved,) = _runs_of(mirror)
    asset = f"mirrorbook://{mirror.name}/active"

    def events() -> int:
        found = airflow.call("GET", "/assets/events?limit=100")["asset_events"]
        return sum(event["uri"] == asset for event in found)

    assert events() == 1
    failback = Failback(mirror.link, mirror.services, started_by="test")
    home = failback.begin(failback.plan().hash)
    failback.drive(home.id)
    go_home(failback, home.id)

    body = {"dag_run_id": run, "dry_run": False, "include_downstream": True, "only_failed": False}
    for task in ("switch", "begin"):
        airflow.call("POST", f"/dags/{DAG}/clearTaskInstances", {**body, "task_ids": [task]})
        assert runbook.wait_end(run) == "failed", task
        assert "was begun by this approval and is DONE" in airflow.log_of(DAG, run, "begin")
        assert events() == 1
        assert [one.id for one in _runs_of(mirror)] == [moved.id, home.id]
    _write_xcom(airflow, run, "begin", "return_value", moved.id)
    for task in ("begin", "prove", "go_ahead", "cut_over"):
        _mark_done(airflow, run, task)
    wait_until(lambda: airflow.tasks(DAG, run)["switch"] != "none", timeout_s=RUN_S, why="its turn has come")
    assert runbook.wait_end(run) == "failed"
    assert events() == 1
    produce(runbook.pair.east, topic, 5, user="app")


def test_clearing_tasks_of_a_run_that_was_given_up_asks_before_it_begins_another(
    runbook: Runbook, tmp_path: Path
) -> None:
    airflow, (mirror, topic) = runbook.airflow, runbook.new_mirror(tmp_path)
    run = airflow.trigger(DAG, {"mirror": mirror.name, "pause": True})
    airflow.await_question(DAG, run, "approve", RUN_S)
    airflow.answer(DAG, run, "approve", "Approve")
    airflow.await_question(DAG, run, "go_ahead", RUN_S)
    airflow.answer(DAG, run, "go_ahead", "Reject")
    assert runbook.wait_end(run) == "failed"
    wait_until(lambda: _runs(mirror) == [RunState.ABORTED], timeout_s=RUN_S, why="the teardown has aborted it")

    body = {"dag_run_id": run, "dry_run": False, "include_downstream": True, "only_failed": False}
    airflow.call("POST", f"/dags/{DAG}/clearTaskInstances", {**body, "task_ids": ["go_ahead"]})
    wait_until(lambda: airflow.tasks(DAG, run)["begin"] == "failed", timeout_s=RUN_S, why="it runs again, too")
    assert "an approval is for one run" in airflow.log_of(DAG, run, "begin")
    assert runbook.wait_end(run) == "failed"
    assert _runs(mirror) == [RunState.ABORTED]

    _answered_earlier(mirror, f"{DAG}/{run}/plan", 7200)
    airflow.call("POST", f"/dags/{DAG}/clearTaskInstances", {**body, "task_ids": ["go_ahead"]})
    wait_until(
        lambda: "approved it 12" in airflow.log_of(DAG, run, "begin"), timeout_s=RUN_S, why="it is too long ago, too"
    )
    assert "and an approval holds for 60: plan anew" in airflow.log_of(DAG, run, "begin")
    assert runbook.wait_end(run) == "failed"
    assert _runs(mirror) == [RunState.ABORTED]

    produce(runbook.pair.east, topic, 7)  # another plan, of another lag
    airflow.call("POST", f"/dags/{DAG}/clearTaskInstances", {**body, "task_ids": ["plan"]})
    assert runbook.wait_end(run) == "failed"
    assert "Airflow still shows the question as it was first asked" in airflow.log_of(DAG, run, "approve")
    assert _runs(mirror) == [RunState.ABORTED]
    produce(runbook.pair.east, topic, 5, user="app")


def test_clearing_tasks_of_a_run_that_failed_behind_the_promotion_goes_on_with_it_and_begins_no_other(
    runbook: Runbook, tmp_path: Path
) -> None:
    airflow, (mirror, topic) = runbook.airflow, runbook.new_mirror(tmp_path)
    run = airflow.trigger(DAG, {"mirror": mirror.name, "pause": True})
    airflow.await_question(DAG, run, "approve", RUN_S)
    airflow.answer(DAG, run, "approve", "Approve")
    airflow.await_question(DAG, run, "go_ahead", RUN_S)
    (begun,) = _runs_of(mirror)
    in_the_way = airflow.folder / "mirrorbook" / "evidence" / f"run-{begun.id}" / "report.html"
    in_the_way.mkdir(parents=True)
    airflow.answer(DAG, run, "go_ahead", "Approve")
    assert runbook.wait_end(run) == "failed"
    assert airflow.tasks(DAG, run)["report"] == "failed"
    assert "There is no abort: promote has begun." in airflow.log_of(DAG, run, "abort")
    produce(runbook.pair.west, topic, 5, user="app")
    assert mirror.state.steps[begun.id, "report"].state is StepState.FAILED
    attempts = mirror.state.steps[begun.id, "report"].attempt

    _mark_done(airflow, run, "report")
    wait_until(lambda: airflow.tasks(DAG, run)["done"] == "failed", timeout_s=RUN_S, why="it is asked whether it is so")
    assert "it is RUNNING: not done: report" in airflow.log_of(DAG, run, "done")
    assert runbook.wait_end(run) == "failed"

    body = {"dag_run_id": run, "dry_run": False, "include_downstream": True, "only_failed": False}
    airflow.call("POST", f"/dags/{DAG}/clearTaskInstances", {**body, "task_ids": ["begin"]})
    assert runbook.wait_end(run) == "failed"
    assert airflow.tasks(DAG, run)["go_ahead"] == "success", "applications were stopped: there is nothing to ask"
    assert mirror.state.steps[begun.id, "report"].attempt > attempts
    assert [(r.id, r.state) for r in _runs_of(mirror)] == [(begun.id, RunState.RUNNING)]

    in_the_way.rmdir()
    airflow.call("POST", f"/dags/{DAG}/clearTaskInstances", {**body, "task_ids": ["report"]})
    assert runbook.wait_end(run) == "success", airflow.tasks(DAG, run)
    assert [(r.id, r.state) for r in _runs_of(mirror)] == [(begun.id, RunState.DONE)]
    assert in_the_way.is_file()

    airflow.call("POST", f"/dags/{DAG}/clearTaskInstances", {**body, "task_ids": ["begin"]})  # of one that has ended
    assert runbook.wait_end(run) == "success", airflow.tasks(DAG, run)
    airflow.call("POST", f"/dags/{DAG}/clearTaskInstances", {**body, "task_ids": ["plan"]})
    assert runbook.wait_end(run) == "failed"
    assert airflow.tasks(DAG, run)["plan"] == "failed", "there is nothing left to fail over"
    assert [(r.id, r.state) for r in _runs_of(mirror)] == [(begun.id, RunState.DONE)]


def test_a_spark_master_that_nobody_has_allowed_is_refused_at_once(runbook: Runbook) -> None:
    with pytest.raises(AirflowFailed, match=re.escape("spark://elsewhere:7077")):
        runbook.airflow.trigger(DAG, {"mirror": "orders", "master": "spark://elsewhere:7077"})


def test_a_plan_that_may_not_be_run_is_red_with_its_reasons(runbook: Runbook, tmp_path: Path) -> None:
    run = runbook.airflow.trigger(DAG, {"mirror": "m-" + secrets.token_hex(4)})

    assert runbook.wait_end(run) == "failed"

    assert "unknown mirror" in runbook.airflow.log_of(DAG, run, "plan")
    assert runbook.airflow.tasks(DAG, run)["approve"] == "upstream_failed"


def test_a_run_of_airflow_is_resumed_by_nobody_while_its_task_lives_and_who_takes_it_over_keeps_it(
    runbook: Runbook, tmp_path: Path
) -> None:
    mirror, topic = runbook.new_mirror(tmp_path)
    run = runbook.airflow.trigger(DAG, {"mirror": mirror.name, "pause": False})
    runbook.airflow.await_question(DAG, run, "approve", RUN_S)
    runbook.airflow.answer(DAG, run, "approve", "Approve")
    options = ["--config", str(mirror.config.path), "--runner", "local", "--evidence", str(tmp_path)]
    with never_still(runbook.pair, topic) as still:

        def begun() -> str:
            active = mirror.state.active_run(mirror.name)
            return active.id if active and (active.id, "fence") in mirror.state.steps else ""

        found = wait_until(begun, timeout_s=RUN_S, why="Airflow's task has begun to fence")
        refused = mirrorbook("failover", "resume", mirror.name, *options)
        assert refused.returncode == 3, refused.stderr
        assert f"conducted by airflow {DAG}/{run}" in " ".join(refused.stderr.split())
        command = Forked("failover", "resume", "--take-over", mirror.name, *options, log=tmp_path / "cli.log")
        wait_until(
            lambda: not mirror.state.runs[found].conducted_by.startswith("airflow "),
            timeout_s=60,
            why="it is taken over",
        )
        still.set()
        assert command.wait(300) == 0, (tmp_path / "cli.log").read_text(encoding="utf-8")

    assert runbook.wait_end(run) == "failed"
    assert "LostOwnership (exit code 5)" in runbook.airflow.log_of(DAG, run, "cut_over")
    assert runbook.airflow.tasks(DAG, run)["abort"] == "success"
    assert mirror.state.runs[found].state is RunState.DONE
    assert {status.state for status in mirror.statuses.values()} == {PartitionState.STOPPED}
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        produce(runbook.pair.east, topic, 1, user="app")

    body = {"dag_run_id": run, "task_ids": ["cut_over"], "dry_run": False, "include_downstream": True}
    runbook.airflow.call("POST", f"/dags/{DAG}/clearTaskInstances", {**body, "only_failed": False})

    wait_until(lambda: runbook.airflow.run_state(DAG, run) == "success", timeout_s=RUN_S, why="all is found done")
    assert [r.id for r in mirror.state.runs.values() if r.plan.mirror == mirror.name] == [found]


def test_a_person_fails_over_in_the_browser(runbook: Runbook, tmp_path: Path) -> None:
    mirror, topic = runbook.new_mirror(tmp_path)

    run = _trigger_and_approve(runbook.airflow, mirror.name, f"{topic}-0", tmp_path)
    runbook.airflow.await_question(DAG, run, "go_ahead", RUN_S)
    subject, body = runbook.airflow.question(DAG, run, "go_ahead")
    assert subject.startswith(f"Stop applications of mirror {mirror.name} now?")
    assert "compared while applications write: **passed**" in body
    _the_report_opens(runbook.airflow, run, tmp_path)
    produce(runbook.pair.east, topic, 5, user="app")
    runbook.airflow.answer(DAG, run, "go_ahead", "Approve")

    assert runbook.wait_end(run) == "success", runbook.airflow.tasks(DAG, run)
    assert {status.state for status in mirror.statuses.values()} == {PartitionState.STOPPED}
    assert read_all(runbook.pair.west, topic) == read_all(runbook.pair.east, topic)
    produce(runbook.pair.west, topic, 5, user="app")
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        produce(runbook.pair.east, topic, 1, user="app")
    reports = list((runbook.airflow.folder / "mirrorbook" / "evidence").glob(f"run-{mirror.name}-failover-*/*.html"))
    assert reports, "the run left no report"
    (done,) = [r for r in mirror.state.runs.values() if r.plan.mirror == mirror.name]
    assert done.approved_by == "admin"
    folder = runbook.airflow.folder / "mirrorbook" / "evidence" / f"run-{done.id}"
    found = verify_bundle(folder, None, done.id, mirror.state.audit_entries)
    assert (found.verdict, found.flaws, found.approved_by) == (RunConclusion.VERIFIED, (), "admin")
    agreed = [line for line in mirror.state.audit_lines(done.id) if '"kind":"stop_confirmed"' in line]
    assert ['"body":{"by":"admin"}' in line for line in agreed] == [True]


def _answered_earlier(mirror: Mirrored, question: str, seconds: int) -> None:
    """As if the answer to this question had been given so much earlier."""
    [known] = find_approvals(mirror.state, mirror.name, question)
    at_ms = (known.approval.at_ms or 0) - 1000 * seconds
    aged = make_approval(f"{question}/{at_ms}", known.approval.id, known.approval.name, at_ms)
    record_approval(mirror.link.destination, mirror.name, replace(known, approval=aged))


def _mark_done(airflow: Airflow, run: str, task: str, state: str = "success") -> None:
    """What anybody may do in Airflow who may clear tasks."""
    airflow.call("PATCH", f"/dags/{DAG}/dagRuns/{run}/taskInstances/{task}", {"new_state": state})


def _write_xcom(airflow: Airflow, run: str, task: str, key: str, value: object) -> None:
    entries = f"/dags/{DAG}/dagRuns/{run}/taskInstances/{task}/xcomEntries"
    try:
        airflow.call("POST", entries, {"key": key, "value": value})
    except AirflowFailed as error:
        if "409" not in str(error):
            raise
        airflow.call("PATCH", f"{entries}/{key}", {"value": value})


def _runs(mirror: Mirrored) -> list[RunState]:
    return [r.state for r in _runs_of(mirror)]


def _runs_of(mirror: Mirrored) -> list[Run]:
    return [r for r in mirror.state.runs.values() if r.plan.mirror == mirror.name]


def _trigger_and_approve(airflow: Airflow, mirror: str, shown: str, pictures: Path) -> str:
    """What a person does: sign in, fill in the form, read the plan, approve. The run's id."""
    from playwright.sync_api import expect

    with browser(airflow, "admin", pictures) as page:
        page.goto(f"{airflow.url}/dags/{DAG}")
        page.get_by_role("button", name=re.compile("^trigger", re.IGNORECASE)).first.click()
        form = page.get_by_role("dialog")
        form.locator('[name="element_mirror"]').fill(mirror)
        form.get_by_role("button", name=re.compile("^trigger", re.IGNORECASE)).last.click()
        expect(form).to_be_hidden()
        run = _run_of(airflow, mirror)

        airflow.await_question(DAG, run, "approve", RUN_S)
        subject, _ = airflow.question(DAG, run, "approve")
        page.goto(f"{airflow.url}/required_actions")
        page.get_by_role("link", name=subject).first.click()
        # What is approved is what is seen: hash, the step after which there is no way back, partitions.
        expect(page.get_by_text(subject.rpartition(" ")[2]).first).to_be_visible()
        expect(page.get_by_role("cell", name="no way back but a failback").first).to_be_visible()
        expect(page.get_by_role("cell", name=shown, exact=True)).to_be_visible()
        page.get_by_role("button", name="Approve", exact=True).click()
        wait_until(lambda: airflow.tasks(DAG, run).get("approve") == "success", timeout_s=RUN_S, why="it is approved")
        return run


def _the_report_opens(airflow: Airflow, run: str, pictures: Path) -> None:
    """By its link, where a person is asked whether applications may be stopped."""
    from playwright.sync_api import expect

    with browser(airflow, "admin", pictures) as page:
        page.goto(f"{airflow.url}/dags/{DAG}/runs/{run}/tasks/go_ahead/required_actions")
        page.goto(airflow.url + str(page.get_by_role("link", name="its report").get_attribute("href")))
        expect(page.get_by_text("PASSED")).to_be_visible()


def _run_of(airflow: Airflow, mirror: str) -> str:
    """The run that was started for this mirror."""

    def found() -> str:
        runs = airflow.call("GET", f"/dags/{DAG}/dagRuns?order_by=-run_after&limit=20")["dag_runs"]
        return next((str(run["dag_run_id"]) for run in runs if run["conf"].get("mirror") == mirror), "")

    return wait_until(found, timeout_s=60, why=f"a run for mirror {mirror}")
