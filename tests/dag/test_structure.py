"""The shape of the DAGs, where a mistake would only show on the night of the disaster."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from mirror_core.decide.steps import list_standstill_steps, list_step_names
from mirror_core.model.errors import BadRequest
from mirror_core.model.run import RunKind, RunMode
from mirror_core.page.routes import ROUTES
from tests.dag import test_page
from tests.dag.conftest import DAGS
from tests.support.cluster_names import LINK
from tests.support.dag_params import APPROVED

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk import DAG

pytestmark = [pytest.mark.dag, pytest.mark.filterwarnings("ignore")]  # warnings of Airflow are not ours to mend

EXPECTED = {
    "mirror_check",
    "mirror_control",
    "mirror_create",
    "mirror_drill",
    "mirror_replicate",
    "mirror_sync",
    "mirror_watch",
    "mirror_parity",
    "mirror_receipts",
    "mirror_failover",
    "mirror_failover_set",
    "mirror_failover_set_unplanned",
    "mirror_failover_unplanned",
    "mirror_failback",
    "mirror_failback_set",
}
AFTER = ("cut_over", "switch", "canary", "report")
PLANNED, UNPLANNED = ("prove", "go_ahead", *AFTER), AFTER
RUNBOOKS = [
    ("mirror_failover", "", RunMode.PLANNED, PLANNED),
    ("mirror_failback", "home.", RunMode.PLANNED, PLANNED),
    ("mirror_failover_unplanned", "", RunMode.UNPLANNED, UNPLANNED),
]
"""The DAG, the task group of its failover, that one's mode, and its tasks behind the approval."""


def dag_of(bag: DagBag, name: str) -> DAG:
    dag: DAG = bag.dags[name]
    return dag


def upstream(dag: DAG, task: str) -> set[str]:
    return {found.task_id for found in dag.get_task(task).get_flat_relatives(upstream=True)}


def test_every_dag_imports(dag_bag: DagBag) -> None:
    assert dag_bag.import_errors == {}
    assert set(dag_bag.dags) == EXPECTED


def test_the_docs_name_every_parameter_of_every_dag(dag_bag: DagBag) -> None:
    page = (DAGS.parent / "docs" / "operate" / "airflow-dags.md").read_text(encoding="utf-8")
    told = {line.split("`")[1]: line.split(" | ")[2] for line in page.splitlines() if line.startswith("| `mirror_")}
    missing = {
        name: [param for param in dag_of(dag_bag, name).params if f"`{param}`" not in told[name]] for name in EXPECTED
    }
    assert {name: params for name, params in missing.items() if params} == {}


@pytest.mark.parametrize(("name", "group", "mode", "tasks"), RUNBOOKS)
def test_steps_follow_each_other_as_the_engine_demands(
    dag_bag: DagBag, name: str, group: str, mode: RunMode, tasks: tuple[str, ...]
) -> None:
    dag = dag_of(dag_bag, name)

    taken = [step for task in tasks for step in vars(dag.get_task(f"{group}{task}")).get("steps", ())]
    assert tuple(dict.fromkeys(taken)) == list_step_names(RunKind.FAILOVER, mode)
    for earlier, later in pairwise(["plan", "approve", "begin", *tasks]):
        assert f"{group}{earlier}" in dag.get_task(f"{group}{later}").upstream_task_ids


@pytest.mark.parametrize(("name", "group", "mode", "tasks"), RUNBOOKS)
def test_no_task_begins_before_applications_are_told_where_they_can_write(
    dag_bag: DagBag, name: str, group: str, mode: RunMode, tasks: tuple[str, ...]
) -> None:
    taken = vars(dag_of(dag_bag, name).get_task(f"{group}cut_over"))["steps"]
    assert taken == (*list_standstill_steps(RunKind.FAILOVER, mode), "switch")
    assert taken[-2] == "promote"


def test_a_failback_copies_home_before_the_switch_and_protects_again_after_it(dag_bag: DagBag) -> None:
    order = [
        *("plan", "approve", "begin", "salvage", "align", "demote", "create_reverse", "replicate_reverse"),
        *("await_copy", "catch_up"),
        *("home.plan", "home.approve", "home.begin", "home.cut_over", "home.report", "reprotect", "replicate", "done"),
    ]
    dag = dag_of(dag_bag, "mirror_failback")

    assert set(list_step_names(RunKind.FAILBACK)) <= set(order)
    for earlier, later in pairwise(order):
        assert earlier in upstream(dag, later)


@pytest.mark.parametrize("name", APPROVED)
def test_a_plain_leaf_makes_a_rejected_or_failed_run_red(dag_bag: DagBag, name: str) -> None:
    dag = dag_of(dag_bag, name)

    leaves = [task for task in dag.tasks if not task.downstream_task_ids and not task.is_teardown]

    assert [leaf.task_id for leaf in leaves] == ["done"]
    assert leaves[0].trigger_rule == "none_failed", "skipped with a question that somebody marks so, it would be green"
    everything_else = {task.task_id for task in dag.tasks if not task.is_teardown} - {"done"}
    assert upstream(dag, "done") >= everything_else


def test_a_verb_whose_question_is_marked_as_skipped_is_asked_for_its_approval(dag_bag: DagBag) -> None:
    assert dag_of(dag_bag, "mirror_control").get_task("control").trigger_rule == "none_failed"


@pytest.mark.parametrize(("name", "group", "mode", "tasks"), RUNBOOKS)
def test_a_failure_is_undone_and_a_cleared_task_never_runs_unfenced(
    dag_bag: DagBag, name: str, group: str, mode: RunMode, tasks: tuple[str, ...]
) -> None:
    dag = dag_of(dag_bag, name)

    assert vars(dag.get_task(f"{group}plan"))["mode"] is mode

    abort = dag.get_task(f"{group}abort")

    assert abort.is_teardown
    assert abort.on_failure_fail_dagrun
    setups = {task.task_id for task in dag.tasks if task.is_setup}
    assert setups == {f"{group}{task}" for task in ("begin", *(["prove"] if "prove" in tasks else []))}
    assert setups <= set(abort.upstream_task_ids)


@pytest.mark.parametrize("name", [name for name in APPROVED if "_set" in name or "failback" in name])
def test_the_last_words_come_after_everything_and_whatever_became_of_it(dag_bag: DagBag, name: str) -> None:
    """A set-up task before them would keep them from being said where a plan was rejected: it has not succeeded."""
    dag = dag_of(dag_bag, name)
    said = dag.get_task("last_words")
    assert said.is_teardown
    assert not said.on_failure_fail_dagrun
    assert not said.downstream_task_ids
    assert not [task for task in said.upstream_task_ids if dag.get_task(task).is_setup]
    assert upstream(dag, "last_words") == {task.task_id for task in dag.tasks} - {"last_words", "done"}
    direct = {
        "mirror_failback": {"replicate", "home.abort"},
        "mirror_failback_set": {"replicate_reverse", "replicate", "home.abort"},
    }
    assert said.upstream_task_ids == direct.get(name, {"abort"})


@pytest.mark.parametrize(
    ("name", "judging", "alone"),
    [
        ("mirror_parity", {"parity"}, {"clusters"}),
        ("mirror_receipts", {"receipts"}, set()),
        ("mirror_check", {"check"}, {"clusters", "watchers", "approvers"}),
    ],
)
def test_no_finding_of_the_hourly_dags_is_hidden_by_another_task(
    dag_bag: DagBag, name: str, judging: set[str], alone: set[str]
) -> None:
    """A run is as red as its last tasks are: whatever finds something is one of them."""
    dag = dag_of(dag_bag, name)
    assert {task.task_id for task in dag.tasks if not task.downstream_task_ids} == alone | judging
    assert all(upstream(dag, task) == {"mirrors"} for task in judging)
    assert not any(upstream(dag, task) for task in alone)


def test_approvals_default_to_reject_and_fail_the_run(dag_bag: DagBag) -> None:
    from airflow.providers.standard.operators.hitl import ApprovalOperator

    found = [task for dag in dag_bag.dags.values() for task in dag.tasks if isinstance(task, ApprovalOperator)]

    assert {(task.dag_id, task.task_id) for task in found} == {
        ("mirror_failover", "approve"),
        ("mirror_failover", "go_ahead"),
        ("mirror_failover_set", "approve"),
        ("mirror_failover_set", "go_ahead"),
        ("mirror_failover_set_unplanned", "approve"),
        ("mirror_control", "approve"),
        ("mirror_failover_unplanned", "approve"),
        ("mirror_failback", "approve"),
        ("mirror_failback", "home.approve"),
        ("mirror_failback", "home.go_ahead"),
        ("mirror_failback_set", "approve"),
        ("mirror_failback_set", "home.approve"),
        ("mirror_failback_set", "home.go_ahead"),
    }
    for task in found:
        assert task.defaults == ["Reject"]
        assert task.fail_on_reject
        assert task.response_timeout is not None


def test_nothing_is_changed_before_the_first_approval(dag_bag: DagBag) -> None:
    for name in APPROVED:
        assert upstream(dag_of(dag_bag, name), "approve") == {"plan"}


def test_all_mirrors_of_a_set_are_moved_by_one_task_and_told_of_also_when_one_failed(dag_bag: DagBag) -> None:
    from mirrorbook_airflow.runbook import RunOperator

    before: tuple[str, ...]
    for name, mode, before in (
        ("mirror_failover_set", RunMode.PLANNED, ("prove", "go_ahead")),
        ("mirror_failover_set_unplanned", RunMode.UNPLANNED, ()),
    ):
        dag = dag_of(dag_bag, name)
        for earlier, later in pairwise(["plan", "approve", "begin", *before, "cut_over", "switched", "abort"]):
            assert earlier in dag.get_task(later).upstream_task_ids
        assert dag.get_task("switched").trigger_rule == "all_done"
        assert dag.get_task("done").upstream_task_ids == {"cut_over", "switched"}
        assert dag.get_task("abort").is_teardown
        assert {task.task_id for task in dag.tasks if task.is_setup} == {"begin", *before[:1]}
        conducting = [vars(task)["mode"] for task in dag.tasks if isinstance(task, RunOperator)]
        assert set(conducting) == {mode}


def test_an_incident_of_the_data_plane_is_red_and_watched_again(dag_bag: DagBag) -> None:
    dag = dag_of(dag_bag, "mirror_replicate")

    assert dag.get_task("watch_again").trigger_rule == "one_failed"
    assert dag.get_task("done").trigger_rule == "all_success"
    assert dag.get_task("watch").downstream_task_ids == {"watch_again", "done"}


def test_a_form_gives_the_word_for_partitions_that_cannot_be_copied_to_a_failover_only(
    dag_bag: DagBag, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mirrorbook_airflow import runbook

    monkeypatch.setattr(runbook, "find_mirror", lambda name: (LINK, None))
    monkeypatch.setattr(runbook, "make_services", lambda *_: None)

    def word(name: str, **filled_in: object) -> bool:
        dag = dag_of(dag_bag, name)
        params = {**dag.params.dump(), "mirror": "m", **filled_in}
        task: Any = dag.get_task("plan")
        monkeypatch.setattr(task, "strategies", "")  # Airflow renders it
        context = {"params": params, "dag_run": SimpleNamespace(dag_id=name, run_id="r")}
        return bool(task.make_conductor(context)._first_conductor._leave_behind)

    assert not word("mirror_failover")
    assert word("mirror_failover", leave_behind=True)
    assert not word("mirror_failover_unplanned")
    assert word("mirror_failover_unplanned", leave_behind=True)
    assert not word("mirror_failback")


def test_spark_masters_are_those_that_airflows_settings_name(dag_bag: DagBag, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.exceptions import ParamValidationError
    from mirrorbook_airflow.params import spark_master_param

    param = dag_of(dag_bag, "mirror_failover").params.get_param("master")
    assert param.resolve() == "local[*]"
    with pytest.raises(ParamValidationError):
        param.resolve("spark://elsewhere:7077")
    monkeypatch.setenv("AIRFLOW__MIRRORBOOK__SPARK_MASTERS", "spark://ours:7077 local[2]")
    assert spark_master_param().resolve() == "spark://ours:7077"
    assert spark_master_param().resolve("local[2]") == "local[2]"
    with pytest.raises(ParamValidationError):
        spark_master_param().resolve("local[*]")


def test_sparks_settings_are_the_deployments_and_no_runs(dag_bag: DagBag, monkeypatch: pytest.MonkeyPatch) -> None:
    from mirrorbook_airflow.params import read_spark_conf

    assert read_spark_conf() == {}
    lines = "\n  spark.driver.memory=2g\n  spark.driver.extraJavaOptions=-Da=b -Dc=d\n"
    monkeypatch.setenv("AIRFLOW__MIRRORBOOK__SPARK_CONF", lines)
    assert read_spark_conf() == {"spark.driver.memory": "2g", "spark.driver.extraJavaOptions": "-Da=b -Dc=d"}
    for dag in dag_bag.dags.values():
        assert not [name for name in dag.params if "conf" in name], "who triggers a run names no code for the worker"
    monkeypatch.setenv("AIRFLOW__MIRRORBOOK__SPARK_CONF", "spark.driver.memory")
    with pytest.raises(BadRequest, match="is not KEY=VALUE"):
        read_spark_conf()


def test_approvers_are_those_that_airflows_settings_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from mirrorbook_airflow.params import read_approvers

    assert read_approvers() is None
    monkeypatch.setenv("AIRFLOW__MIRRORBOOK__APPROVERS", "ada grace")
    assert read_approvers() == [{"id": "ada", "name": "ada"}, {"id": "grace", "name": "grace"}]


def test_a_task_whose_process_was_killed_is_begun_again(dag_bag: DagBag) -> None:
    tasks = [task for dag in dag_bag.dags.values() for task in dag.tasks if task.task_id != "done"]
    assert len(tasks) > 30
    assert [(task.dag_id, task.task_id) for task in tasks if (task.retries or 0) < 2] == []


def test_a_runbook_takes_the_next_free_slot_and_no_watcher_takes_them_all(dag_bag: DagBag) -> None:
    for name in EXPECTED:
        dag = dag_of(dag_bag, name)
        urgent = "runbook" in dag.tags
        assert {task.priority_weight >= 1000 for task in dag.tasks} == {urgent}, name
    from mirrorbook_airflow.operators import MAX_PARALLEL_TASKS

    assert dag_of(dag_bag, "mirror_sync").get_task("sync").max_active_tis_per_dag == MAX_PARALLEL_TASKS


def test_no_dag_brings_what_takes_long_to_import(airflow_database: None) -> None:
    """All of them are imported again and again, by the DAG processor and by each task."""
    slow = {"pyspark", "great_expectations", "pandas", "kio", "confluent_kafka"}
    code = (
        "import sys; from airflow.dag_processing.dagbag import DagBag; print(len(DagBag(sys.argv[1]).dags), "
        f"sorted({{name.partition('.')[0] for name in sys.modules}} & {slow}))"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(DAGS)], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == f"{len(EXPECTED)} []", done.stderr


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_form_can_be_sent_with_the_fields_that_nobody_fills_in(dag_bag: DagBag, name: str) -> None:
    """Airflow's form wants something in each text whose type does not allow for none: `Trigger` stays grey."""
    for key, value in dag_of(dag_bag, name).params.dump().items():
        schema = dag_of(dag_bag, name).params.get_param(key).schema
        assert value != "" or "null" in schema["type"], key


def test_every_form_offers_names_that_exist_now_and_takes_others(
    airflow_database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.dag_processing.dagbag import DagBag

    monkeypatch.delenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", raising=False)
    monkeypatch.setenv("AIRFLOW_VAR_MIRRORBOOK_CLUSTERS", "east,west")
    monkeypatch.setenv("AIRFLOW_VAR_MIRRORBOOK_NAMES", '{"mirrors": {"west": ["orders"]}, "sets": ["shop"]}')
    names = {"mirror": ["orders"], "mirrors": ["orders"], "source": ["east", "west"]}
    names |= {"set": ["shop", "all-from-east", "all-from-west"]}
    names |= {"destination": names["source"], "strategies": ["none", "recreate", "handover", "offline", "replica"]}
    bag = DagBag(str(DAGS))
    assert bag.import_errors == {}
    offered = {
        (name, key): param.schema["examples"]
        for name, dag in bag.dags.items()
        for key, param in dag.params.items()
        if "examples" in param.schema
    }
    fields = {(name, key) for name in EXPECTED for key in dag_of(bag, name).params if key in names}
    assert offered == {(name, key): names[key] for name, key in fields - {("mirror_create", "mirror")}}
    for name, key in offered:
        assert "enum" not in dag_of(bag, name).params.get_param(key).schema, "a list may be stale"


def test_every_route_of_the_page_asks_who_is_there_and_is_tried_without_a_login(airflow_database: None) -> None:
    from fastapi.routing import APIRoute
    from mirrorbook_airflow.page.routes import app

    tried = (*test_page.PAGES, *test_page.DATA)
    assert len(ROUTES) == len(tried)
    assert all(any(re.fullmatch(pattern, path) for path in tried) for pattern in ROUTES)
    (ours,) = app.routes
    assert isinstance(ours, APIRoute)
    assert ours.endpoint.__annotations__["user"] == "GetUserDep"
