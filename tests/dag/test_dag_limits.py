"""What bounds runs and tasks: how many at a time, for how long, and what Airflow's database takes."""

from __future__ import annotations

import importlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from mirror_core.decide.steps import list_standstill_steps
from mirror_core.model.names import MirrorName
from mirror_core.model.run import RunKind, RunMode
from tests.dag.airflow_home import alarm_kept
from tests.support.kafka_clients import Pair, new_topic, produce, read_all
from tests.support.mirrored_topics import new_mirror
from tests.support.unfenceable_writer import never_still

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag

pytestmark = [pytest.mark.dag, pytest.mark.filterwarnings("ignore")]

ONE_AT_A_TIME = {
    "mirror_check",
    "mirror_create",
    "mirror_drill",
    "mirror_parity",
    "mirror_receipts",
    "mirror_sync",
}
ON_REQUEST = {
    *("mirror_control", "mirror_create", "mirror_failback", "mirror_failover", "mirror_failover_set"),
    *(
        "mirror_failback_set",
        "mirror_failover_set_unplanned",
        "mirror_failover_unplanned",
        "mirror_replicate",
        "mirror_sync",
    ),
}
DAY = timedelta(days=1)
LONG = {
    ("mirror_control", "control"): 7 * DAY,
    ("mirror_parity", "parity"): 7 * DAY,
    ("mirror_failover", "prove"): 7 * DAY,
    ("mirror_failover", "cut_over"): DAY,
    ("mirror_failover_unplanned", "cut_over"): DAY,
    ("mirror_failover_set", "prove"): 7 * DAY,
    ("mirror_failover_set", "cut_over"): DAY,
    ("mirror_failover_set_unplanned", "cut_over"): DAY,
    ("mirror_failback", "salvage"): 7 * DAY,
    ("mirror_failback", "align"): 7 * DAY,
    ("mirror_failback", "catch_up"): 7 * DAY,
    ("mirror_failback", "home.prove"): 7 * DAY,
    ("mirror_failback", "home.cut_over"): DAY,
    ("mirror_failback_set", "copy_back"): 7 * DAY,
    ("mirror_failback_set", "home.prove"): 7 * DAY,
    ("mirror_failback_set", "home.cut_over"): DAY,
}
"""Tasks that read or copy whole logs, and those while applications stand still; all others take hours at most."""
PLACE = 250
"""Characters that PostgreSQL and MySQL keep of a mapped task's name; SQLite keeps any number."""


def test_a_run_of_a_mirror_waits_for_no_other_mirror_and_a_schedule_runs_once_at_a_time(dag_bag: DagBag) -> None:
    runs = {name: dag.max_active_runs for name, dag in dag_bag.dags.items()}
    assert {name for name, most in runs.items() if most == 1} == ONE_AT_A_TIME
    assert runs.pop("mirror_watch") == 2, "the hour's watch, and a look that a person asked for"
    assert {most for name, most in runs.items() if name not in ONE_AT_A_TIME} == {10_000}


def test_dags_on_request_and_the_one_that_fences_are_not_paused_when_they_are_created(dag_bag: DagBag) -> None:
    ready = {name for name, dag in dag_bag.dags.items() if dag.is_paused_upon_creation is False}
    assert ready == {*ON_REQUEST, "mirror_watch"}
    assert {name for name, dag in dag_bag.dags.items() if dag.schedule is None} == ON_REQUEST


def test_every_task_has_an_execution_timeout_that_fits_it(dag_bag: DagBag) -> None:
    limits = {
        (name, task.task_id): task.execution_timeout
        for name, dag in dag_bag.dags.items()
        for task in dag.tasks
        if task.task_id != "done"  # which no process executes
    }
    assert [task for task, limit in limits.items() if limit is None] == []
    assert {task: limit for task, limit in limits.items() if limit and limit >= DAY} == LONG
    assert max(limit for task, limit in limits.items() if limit and task not in LONG) == timedelta(hours=6)
    assert limits["mirror_watch", "watch"] == timedelta(minutes=30)


@pytest.mark.cluster
def test_a_conductor_that_is_timed_out_in_the_middle_of_a_cut_over_goes_on_at_its_next_try(
    pair: Pair, tmp_path: Path
) -> None:
    """As Airflow does it: by an alarm, wherever the process is. Step `fence` waits for somebody whom no fence stops."""
    from airflow.sdk.exceptions import AirflowTaskTimeout
    from airflow.sdk.execution_time.timeout import timeout

    topic = new_topic(pair.east)
    produce(pair.east, topic, 50)
    mirror = new_mirror(pair, tmp_path, topic)
    mirror.copy()
    failover = mirror.failover
    run = failover.begin(failover.plan(RunMode.PLANNED).hash)
    failover.run_steps(run.id, ("prove",))
    cut_over = (*list_standstill_steps(RunKind.FAILOVER), "switch")
    with never_still(pair, topic) as still, alarm_kept():
        with pytest.raises(AirflowTaskTimeout), timeout(5):
            failover.run_steps(run.id, cut_over)
        still.set()
    records = mirror.failover.run_steps(run.id, cut_over)
    assert [record.step for record in records] == [*cut_over]
    assert max(record.attempt for record in records) == 2
    assert read_all(pair.west, topic) == read_all(pair.east, topic)
    produce(pair.west, topic, 5)


def test_the_name_of_a_mapped_task_fits_into_the_database(dag_bag: DagBag) -> None:
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    tasks = [task for dag in dag_bag.dags.values() for task in dag.tasks if isinstance(task, MappedOperator)]
    assert len(tasks) == 8
    many = SimpleNamespace(mirror="m" * 400)
    for task in tasks:
        template = task.get_template_env().from_string(str(task.map_index_template))
        assert len(template.render(task=many)) == PLACE, task.task_id


def test_a_form_that_changes_a_mirror_has_no_action_chosen_beforehand(airflow_database: None) -> None:
    """Read anew: a DAG that was run in this process remembers its parameters."""
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk.exceptions import ParamValidationError

    action = (
        DagBag(str(Path(__file__).parents[2] / "dags" / "mirror_control.py"))
        .dags["mirror_control"]
        .params.get_param("action")
    )
    with pytest.raises(ParamValidationError):
        action.resolve()
    assert action.resolve("resume") == "resume"


@pytest.mark.parametrize(
    ("base_url", "href"),
    [
        ("http://airflow.example:8080", "/mirrorbook/"),
        ("https://data.example/team/airflow/", "/team/airflow/mirrorbook/"),
    ],
)
def test_the_menu_leads_to_the_page_also_below_another_path(
    base_url: str, href: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mirrorbook_airflow.page import plugin

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base_url)
    try:
        [view] = importlib.reload(plugin).MirrorbookPlugin.external_views
        assert view["href"] == href
    finally:
        monkeypatch.undo()
        importlib.reload(plugin)


@pytest.mark.parametrize(
    ("dag", "task", "event", "said"),
    [
        ("mirror_failover", "approve", {"timedout": True}, r"nobody answered by \d\d:\d\d UTC: nothing was done"),
        ("mirror_failover", "approve", {"responded_by_user": {"id": "7", "name": "ann"}}, "rejected by ann: nothing"),
        (
            "mirror_control",
            "approve",
            {"responded_by_user": {"id": "7", "name": ""}},
            "rejected by 7: nothing was done",
        ),
        ("mirror_failover", "go_ahead", {"timedout": True}, r"UTC: applications were not moved; what was done before"),
        ("mirror_failover_set", "go_ahead", {"timedout": True}, r"UTC: applications were not moved; what was done"),
        ("mirror_failback", "home.approve", {"timedout": True}, r"UTC: applications were not moved; what was done"),
        ("mirror_failback", "home.go_ahead", {"timedout": True}, r"UTC: applications were not moved; what was done"),
    ],
)
def test_a_question_without_an_answer_is_not_called_rejected_and_nobody_says_nothing_was_done_where_something_was(
    dag_bag: DagBag, dag: str, task: str, event: dict[str, Any], said: str
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    asked: Any = dag_bag.dags[dag].get_task(task)
    given = {"chosen_options": ["Reject"], "params_input": {}, "responded_at": datetime.now(UTC), **event}
    with pytest.raises(AirflowFailException, match=said):
        asked.execute_complete({}, {"responded_by_user": None, **given})


class Trigger:
    """Task `replicate` of a failback, and the runs of mirror_replicate that Airflow knows."""

    def __init__(self, *, paused: bool = False) -> None:
        self.paused = paused
        self.runs: dict[str, str] = {}
        self.dag_id = ""

    def execute(self, run: str = "r", mirror: str = "orders", replicate_dag: str = "mirror_replicate") -> str:
        """The id that Airflow was asked for; empty: none was."""
        from airflow.providers.common.compat.sdk import DagRunTriggerException
        from mirrorbook_airflow.replicate_tasks import ReplicateMirror

        ti = SimpleNamespace(
            get_dr_count=lambda dag_id, run_ids, states: sum(self.runs.get(one) in states for one in run_ids),
            get_dag=lambda dag_id: SimpleNamespace(is_paused=self.paused),
        )
        dag_run = SimpleNamespace(dag_id="mirror_failback", run_id=run, conf={})
        context: Any = {"ti": ti, "dag_run": dag_run, "params": {"patience_s": 90}}
        try:
            task = ReplicateMirror(task_id="replicate", mirror=MirrorName(mirror), replicate_dag=replicate_dag)
            task.execute(context)
        except DagRunTriggerException as asked:
            self.dag_id = asked.trigger_dag_id
            if self.runs.get(asked.dag_run_id) and not asked.reset_dag_run:
                raise  # Airflow fails the task: a run of this id has ended
            self.runs[asked.dag_run_id] = "running"
            return asked.dag_run_id
        return ""


def test_a_trigger_that_is_tried_again_or_cleared_starts_no_second_watcher(airflow_database: None) -> None:
    trigger = Trigger()
    first = trigger.execute()
    assert first.startswith("orders-")
    assert trigger.execute() == "", "its run goes on"
    trigger.runs[first] = "success"
    assert trigger.execute() == first
    assert trigger.execute(run="another") not in ("", first)
    assert len(trigger.execute(mirror="m" * 249)) <= PLACE


def test_a_trigger_for_a_mirror_of_a_set_starts_the_mirrors_own_dag(airflow_database: None) -> None:
    trigger = Trigger()
    trigger.execute(mirror="orders-back", replicate_dag="mirror_replicate.{mirror}")
    assert trigger.dag_id == "mirror_replicate.orders"
    trigger.execute()
    assert trigger.dag_id == "mirror_replicate"


def test_a_trigger_of_a_paused_dag_fails_and_says_what_to_do(airflow_database: None) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(AirflowFailException, match=r"DAG mirror_replicate is paused.*unpause it, then clear this task"):
        Trigger(paused=True).execute()
