"""The public building blocks, as a team's DAG file uses them; read by another process, as Airflow does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "operate" / "airflow-own-dags.md"
LOADED_S = 300.0
LOOK = """
import json, sys
from pathlib import Path
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization

def describe(dag):
    DagSerialization.to_dict(dag)
    task = lambda t: dict(
        up=sorted(t.upstream_task_ids), queue=t.queue, pool=t.pool, owner=t.owner, executor=t.executor,
        config=sorted(t.executor_config), rule=t.trigger_rule.value, retries=t.retries, params=t.params.dump(),
        timeout=t.execution_timeout.total_seconds() if t.execution_timeout else None, weight=t.priority_weight,
        approvers=getattr(t, "approvers", None) or (getattr(t, "go_ahead", None) or [None])[-1],
        users=[u["id"] for u in getattr(t, "assigned_users", None) or ()],
        triggers=t.partial_kwargs.get("replicate_dag") if t.is_mapped else getattr(t, "trigger_dag_id", None),
        mode=str(getattr(t, "mode", "")), mirror=getattr(t, "mirror", ""),
        own=getattr(t, "own_mirrors", None),
    )
    return dict(
        tasks={t.task_id: task(t) for t in dag.tasks}, params={n: dag.params.get_param(n).schema for n in dag.params},
        tags=sorted(dag.tags), shown=dag.dag_display_name, most=dag.max_active_runs, paused=dag.is_paused_upon_creation,
        schedule=str(dag.schedule), called=[getattr(c, "__name__", "") or type(c).__name__ for c in
        dag.on_failure_callback or []], text=dag.description, doc=dag.doc_md[:20] if dag.doc_md else "",
    )

bag = DagBag(sys.argv[1], bundle_path=Path(sys.argv[1]))
errors = {Path(file).name: text for file, text in bag.import_errors.items()}
heavy = sorted({name.partition(".")[0] for name in sys.modules} & {"pyspark", "kio", "confluent_kafka", "pandas"})
print(json.dumps([errors, {name: describe(dag) for name, dag in bag.dags.items()}, heavy], default=list))
"""
HEAD = "from datetime import timedelta\nfrom airflow.sdk import DAG, Param\nfrom mirrorbook_airflow import *\n"
WRONG = {
    "is for all mirrors": 'mirrorbook_dags("create", mirrors=["orders"])',
    "no action 'failforward'": 'mirrorbook_dags("failforward")',
    "trigger_rule: the steps state these": 'mirrorbook_dags("failover", default_args={"trigger_rule": "all_done"})',
    "retries: the steps state these": 'mirrorbook_dags("failover", default_args={"retries": 0})',
    "`schedule` is for": 'mirrorbook_dags("failover", schedule="@daily")',
    "`max_active_runs` is for": 'mirrorbook_dags("sync", max_active_runs=5)',
    "has no task cutover": 'mirrorbook_dags("failover", time_limits={"cutover": timedelta(hours=1)})',
    "has no parameter paus": 'mirrorbook_dags("failover", params={"paus": False})',
    "approvers cleo are not in": 'mirrorbook_dags("failover", approvers=["ann", "cleo"])',
    "it must be a list of ids": 'mirrorbook_dags("failover", approvers="ann")',
    "action 'control' is not for a task group": 'with DAG("d"): MirrorRunbook(mirror="m", action="control")',
    "parameter 'pause' of DAG d": 'with DAG("d", params={"pause": "no"}): MirrorRunbook(mirror="m")',
}


def read(folder: Path, files: dict[str, str]) -> tuple[dict[str, str], dict[str, Any], list[str]]:
    """Errors by file, DAGs by id, and what was imported that should not be."""
    dags = folder / "dags"
    dags.mkdir()
    for name, text in files.items():
        (dags / f"{name}.py").write_text(text, encoding="utf-8")
    env = {**os.environ, "AIRFLOW_HOME": str(folder / "airflow"), "AIRFLOW__MIRRORBOOK__APPROVERS": "ann ben"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOOK, str(dags)],
        env={**env, "AIRFLOW__CORE__EXECUTOR": "LocalExecutor,airflow.providers.edge3.executors.EdgeExecutor"},
        capture_output=True,
        text=True,
        timeout=LOADED_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    errors, found, heavy = json.loads(done.stdout.splitlines()[-1])
    return errors, found, heavy


def test_the_examples_on_the_page_are_dags(tmp_path: Path) -> None:
    """Providers that are not installed here are stood in for."""
    texts = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    stood_in = (
        "import sys; from types import ModuleType; from unittest.mock import MagicMock\n"
        "class Pod(dict):\n    def __init__(self, **kwargs): super().__init__(kwargs)\n"
        "for name in ('kubernetes', 'kubernetes.client', 'kubernetes.client.models'):\n"
        "    sys.modules.setdefault(name, ModuleType(name))\n"
        "models = sys.modules['kubernetes.client.models']; sys.modules['kubernetes.client'].models = models\n"
        "for name in ('V1Pod', 'V1PodSpec', 'V1Container', 'V1EnvFromSource', 'V1SecretEnvSource',\n"
        "             'V1ResourceRequirements'):\n    setattr(models, name, Pod)\n"
        "slack = 'airflow.providers.slack.notifications.slack_webhook'\n"
        "sys.modules[slack.rpartition('.')[0]] = ModuleType('notifications')\n"
        "sys.modules['airflow.providers.slack'] = ModuleType('slack'); sys.modules[slack] = ModuleType('webhook')\n"
        "sys.modules[slack].send_slack_webhook_notification = lambda **kwargs: print\n"
    )
    files = {f"example_{number}": stood_in + text for number, text in enumerate(texts)}
    errors, dags, _ = read(tmp_path, files)
    assert errors == {}
    assert {
        f"mirror_{action}.{mirror}" for action in ("failover", "failback", "control") for mirror in ("orders", "clicks")
    } <= set(dags)
    assert {"move_shop", "move_any"} <= set(dags)
    clicks = dags["mirror_failover.clicks"]
    assert (clicks["shown"], clicks["tags"], clicks["called"]) == (
        "clicks: failover",
        ["mirrorbook", "runbook", "web"],
        ["print"],
    )
    assert {task["owner"] for task in clicks["tasks"].values()} == {"web"}
    move = dags["move_shop"]["tasks"]
    assert move["start_batch_jobs"]["up"] == ["orders.done"]
    assert move["orders.plan"]["up"] == ["stop_batch_jobs"]
    assert move["orders.approve"]["users"] == move["orders.begin"]["approvers"] == ["ann", "ben"]


OURS = (
    HEAD
    + """
mirrorbook_dags(
    mirrors=["orders"], sets=["shop"], owner="pay", pool="dr", queue="west", approvers=["ann"], priority_weight=5000,
    executor_config={"KubernetesExecutor": {}}, max_active_runs=None, default_args={"email": "a@b"},
)
mirrorbook_dags("failover", mirrors=["clicks"], time_limits={"cut_over": timedelta(hours=2)}, max_active_runs=3,
    params={"pause": False}, on_failure_callback=print)
mirrorbook_dags("sync", "failback", mirrors=["bills"], time_limits={}, )
with DAG("team", schedule=None, default_args={"trigger_rule": "all_done", "retries": 0, "mode": "reschedule",
    "depends_on_past": True, "execution_timeout": timedelta(seconds=5), "go_ahead": "x"}):
    for action in ("failover", "failover_unplanned", "failback", "sync", "parity", "check", "drill"):
        MirrorRunbook(action, mirror="{{ var.value.m }}", action=action, pool="dr", params={"pause": False}
            if action in ("failover", "failback") else None)
"""
)


@pytest.fixture(scope="module")
def dags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    wrong = {f"wrong_{number}": HEAD + text for number, text in enumerate(WRONG.values())}
    errors, found, heavy = read(tmp_path_factory.mktemp("own"), {"ours": OURS, **wrong})
    assert heavy == []
    for number, said in enumerate(WRONG):
        assert said in errors.pop(f"wrong_{number}.py", "no error"), said
    assert errors == {}
    return found


def test_dags_of_one_mirror_have_fixed_ids_and_a_teams_settings(dags: dict[str, Any]) -> None:
    mirror = ("replicate", "sync", "parity", "receipts", "check", "drill", "control", "failover", "failback")
    own = {*(f"mirror_{action}.orders" for action in mirror), "mirror_failover_set.shop"}
    own |= {"mirror_failover_unplanned.orders", "mirror_failover_set_unplanned.shop", "mirror_failback_set.shop"}
    others = {"mirror_failover.clicks", "mirror_sync.bills", "mirror_failback.bills", "team"}
    assert set(dags) == own | others
    for name in own:
        for label, task in dags[name]["tasks"].items():
            assert (task["owner"], task["pool"], task["queue"], task["weight"]) == ("pay", "dr", "west", 5000), label
            assert task["config"] == ["KubernetesExecutor"]
            assert label == "done" or task["retries"] >= 2
    assert dags["mirror_failover.orders"]["most"] == 10_000
    assert {dags[name]["most"] for name in own if dags[name]["schedule"] != "None"} == {1}
    clicks = dags["mirror_failover.clicks"]
    assert (clicks["most"], clicks["tasks"]["cut_over"]["timeout"], clicks["paused"]) == (3, 7200, False)
    assert clicks["tasks"]["prove"]["timeout"] == 7 * 86_400
    assert clicks["params"]["pause"]["type"] == "boolean"
    assert (clicks["tasks"]["plan"]["params"]["pause"], clicks["called"]) == (False, ["print"])


def test_a_mirrors_own_dag_acts_on_no_other(dags: dict[str, Any]) -> None:
    for name, dag in dags.items():
        kind = {"mirror", "mirrors", "set"} & set(dag["params"])
        if not kind:
            assert name == "team"
            continue
        schema = dag["params"][kind.pop()]
        target = name.rpartition(".")[2]
        own = schema["const"] if "const" in schema else schema["enum"]
        assert own in (target, [target, f"{target}-back"], []), name
        named = {str(task["mirror"]) for task in dag["tasks"].values()} - {"", "{{ params.mirror }}"}
        assert named <= {target, f"{target}-back"}
    for name in ("mirror_sync.orders", "mirror_parity.orders", "mirror_drill.orders"):
        assert dags[name]["tasks"]["mirrors"]["own"] == ["orders", "orders-back"]
    assert dags["mirror_check.orders"]["tasks"]["watchers"]["own"] == ["orders", "orders-back"]


def test_a_failback_triggers_the_replication_of_the_same_call(dags: dict[str, Any]) -> None:
    for mirror, wanted in (("orders", "mirror_replicate.orders"), ("bills", "mirror_replicate")):
        tasks = dags[f"mirror_failback.{mirror}"]["tasks"]
        assert {tasks[task]["triggers"] for task in ("replicate_reverse", "replicate")} == {wanted}
    for task in ("replicate_reverse", "replicate"):
        assert dags["mirror_failback_set.shop"]["tasks"][task]["triggers"] == "mirror_replicate.{mirror}"
    assert dags["mirror_replicate.orders"]["tasks"]["watch_again"]["triggers"] == "mirror_replicate.orders"


def test_approvers_of_a_dag_are_those_of_every_task_that_asks_or_reads_an_answer(dags: dict[str, Any]) -> None:
    asked = {
        "mirror_failover.orders": ["approve", "go_ahead", "begin", "cut_over"],
        "mirror_failback.orders": ["approve", "begin", "home.approve", "home.go_ahead", "home.begin", "home.cut_over"],
        "mirror_failover_set.shop": ["approve", "go_ahead", "begin", "cut_over"],
        "mirror_failback_set.shop": [
            "approve",
            "begin",
            "home.approve",
            "home.go_ahead",
            "home.begin",
            "home.cut_over",
        ],
        "mirror_control.orders": ["approve", "control"],
        "mirror_check.orders": ["approvers"],
    }
    for dag, tasks in asked.items():
        for task in tasks:
            assert dags[dag]["tasks"][task]["approvers"] == ["ann"], (dag, task)


def test_what_a_teams_dag_does_to_its_own_tasks_does_not_reach_a_runbook_in_it(dags: dict[str, Any]) -> None:
    tasks = dags["team"]["tasks"]
    for label, task in tasks.items():
        group, _, name = label.partition(".")
        wanted = "unplanned" if group == "failover_unplanned" else "planned"
        assert task["mode"] in ("", wanted), label
        teardown = name in ("abort", "home.abort", "last_words", "clean")
        rule = "none_failed" if name == "done" else "all_success"
        assert task["rule"] == ("all_done_setup_success" if teardown else rule), label
        assert name == "done" or (task["retries"] >= 2 and task["timeout"] > 60), label
        assert "reschedule" not in str(task)
    assert tasks["failover.go_ahead"]["params"]["pause"] is False
    assert tasks["failover.begin"]["up"] == ["failover.approve"]
    assert tasks["failback.home.plan"]["mirror"] == "{{ var.value.m }}-back"
