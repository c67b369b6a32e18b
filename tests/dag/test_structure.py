"""The shape of the DAGs, where a mistake would only show on the night of the disaster."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from mirror_core.decide.steps import names
from mirror_core.model.run import Mode, RunKind

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk import DAG

pytestmark = [pytest.mark.dag, pytest.mark.filterwarnings("ignore")]  # warnings of Airflow are not ours to mend

EXPECTED = {
    "mirror_create",
    "mirror_replicate",
    "mirror_sync",
    "mirror_watch",
    "mirror_parity",
    "mirror_failover",
    "mirror_failover_unplanned",
    "mirror_failback",
}
PROVED, SETTLED = ("prove", "fence"), ("settle", "stand")
RUNBOOKS = [
    ("mirror_failover", "", Mode.PLANNED, PROVED),
    ("mirror_failback", "home.", Mode.PLANNED, PROVED),
    ("mirror_failover_unplanned", "", Mode.UNPLANNED, SETTLED),
]
"""The DAG, the task group of its failover, that one's mode, and steps that run again when a later one is cleared."""


def dag_of(bag: DagBag, name: str) -> DAG:
    dag: DAG = bag.dags[name]
    return dag


def upstream(dag: DAG, task: str) -> set[str]:
    return {found.task_id for found in dag.get_task(task).get_flat_relatives(upstream=True)}


def test_every_dag_imports(dag_bag: DagBag) -> None:
    assert dag_bag.import_errors == {}
    assert set(dag_bag.dags) == EXPECTED


@pytest.mark.parametrize(("name", "group", "mode", "before"), RUNBOOKS)
def test_steps_follow_each_other_as_the_engine_demands(
    dag_bag: DagBag, name: str, group: str, mode: Mode, before: tuple[str, ...]
) -> None:
    dag = dag_of(dag_bag, name)

    assert {f"{group}{step}" for step in before} <= set(dag.task_ids)
    for earlier, later in pairwise(["plan", "approve", "begin", *names(RunKind.FAILOVER, mode)]):
        assert f"{group}{earlier}" in dag.get_task(f"{group}{later}").upstream_task_ids


def test_a_failback_copies_home_before_the_switch_and_protects_again_after_it(dag_bag: DagBag) -> None:
    order = [
        *("plan", "approve", "begin", "salvage", "align", "demote", "create_reverse", "replicate_reverse", "catch_up"),
        *("home.plan", "home.approve", "home.begin", "home.promote", "home.report", "reprotect", "replicate", "done"),
    ]
    dag = dag_of(dag_bag, "mirror_failback")

    assert set(names(RunKind.FAILBACK)) <= set(order)
    for earlier, later in pairwise(order):
        assert earlier in upstream(dag, later)


@pytest.mark.parametrize("name", ["mirror_failover", "mirror_failover_unplanned", "mirror_failback"])
def test_a_plain_leaf_makes_a_rejected_or_failed_run_red(dag_bag: DagBag, name: str) -> None:
    dag = dag_of(dag_bag, name)

    leaves = [task for task in dag.tasks if not task.downstream_task_ids and not task.is_teardown]

    assert [leaf.task_id for leaf in leaves] == ["done"]
    assert leaves[0].trigger_rule == "all_success"
    everything_else = {task.task_id for task in dag.tasks if not task.is_teardown} - {"done"}
    assert upstream(dag, "done") >= everything_else


@pytest.mark.parametrize(("name", "group", "mode", "before"), RUNBOOKS)
def test_a_failure_is_undone_and_a_cleared_task_never_runs_unfenced(
    dag_bag: DagBag, name: str, group: str, mode: Mode, before: tuple[str, ...]
) -> None:
    dag = dag_of(dag_bag, name)

    assert vars(dag.get_task(f"{group}plan"))["mode"] is mode

    abort = dag.get_task(f"{group}abort")

    assert abort.is_teardown
    assert abort.on_failure_fail_dagrun
    setups = {task.task_id for task in dag.tasks if task.is_setup}
    assert setups == {f"{group}{step}" for step in ("begin", *before)}
    assert setups <= set(abort.upstream_task_ids)


def test_approvals_default_to_reject_and_fail_the_run(dag_bag: DagBag) -> None:
    from airflow.providers.standard.operators.hitl import ApprovalOperator

    found = [task for dag in dag_bag.dags.values() for task in dag.tasks if isinstance(task, ApprovalOperator)]

    assert {(task.dag_id, task.task_id) for task in found} == {
        ("mirror_failover", "approve"),
        ("mirror_failover_unplanned", "approve"),
        ("mirror_failback", "approve"),
        ("mirror_failback", "home.approve"),
    }
    for task in found:
        assert task.defaults == ["Reject"]
        assert task.fail_on_reject
        assert task.response_timeout is not None


def test_nothing_is_changed_before_the_first_approval(dag_bag: DagBag) -> None:
    for name in ("mirror_failover", "mirror_failover_unplanned", "mirror_failback"):
        assert upstream(dag_of(dag_bag, name), "approve") == {"plan"}


def test_an_incident_of_the_data_plane_is_red_and_watched_again(dag_bag: DagBag) -> None:
    dag = dag_of(dag_bag, "mirror_replicate")

    assert dag.get_task("watch_again").trigger_rule == "one_failed"
    assert dag.get_task("done").trigger_rule == "all_success"
    assert dag.get_task("watch").downstream_task_ids == {"watch_again", "done"}


@pytest.mark.parametrize("name", ["mirror_replicate", "mirror_failback"])
def test_a_data_planes_parameters_become_options_of_replicate(dag_bag: DagBag, name: str) -> None:
    from mirrorbook_airflow.operators import PASSED_ON, replicate_options

    params = dag_of(dag_bag, name).params.dump()

    assert set(PASSED_ON) <= set(params)
    assert "--metrics" not in replicate_options(params)
    told = replicate_options({**params, "runner": "local", "metrics": "9465"})
    assert told[:2] == ["--runner", "local"]
    assert told[-2:] == ["--metrics", "9465"]


def test_spark_masters_are_those_that_airflows_settings_name(dag_bag: DagBag, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.exceptions import ParamValidationError
    from mirrorbook_airflow.params import spark_master

    param = dag_of(dag_bag, "mirror_failover").params.get_param("master")
    assert param.resolve() == "local[*]"
    with pytest.raises(ParamValidationError):
        param.resolve("spark://elsewhere:7077")
    monkeypatch.setenv("AIRFLOW__MIRRORBOOK__SPARK_MASTERS", "spark://ours:7077 local[2]")
    assert spark_master().resolve() == "spark://ours:7077"
    assert spark_master().resolve("local[2]") == "local[2]"
    with pytest.raises(ParamValidationError):
        spark_master().resolve("local[*]")


def test_approvers_are_those_that_airflows_settings_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from mirrorbook_airflow.params import approvers

    assert approvers() is None
    monkeypatch.setenv("AIRFLOW__MIRRORBOOK__APPROVERS", "ada grace")
    assert approvers() == [{"id": "ada", "name": "ada"}, {"id": "grace", "name": "grace"}]


@pytest.mark.parametrize("metrics", ["nine", "host:", "9465/metrics"])
def test_what_is_no_address_for_metrics_is_refused_before_the_run(dag_bag: DagBag, metrics: str) -> None:
    from airflow.sdk.exceptions import ParamValidationError

    param = dag_of(dag_bag, "mirror_replicate").params.get_param("metrics")
    assert param.resolve("0.0.0.0:9465") == "0.0.0.0:9465"
    with pytest.raises(ParamValidationError):
        param.resolve(metrics)
