"""The documentation's three tasks: a plan, a comparison by the platform's own Spark, a verdict without Spark."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import httpx
import msgspec
import psutil
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from mirrorbook_airflow import JudgeParity, PlanParity

from demo.airflow import Airflow
from mirror_core.model.names import Partition
from mirror_core.parity.parity_plan import encode_plan, parse_plan
from mirrorbook_tools.demo.processes import session_of
from mirrorbook_tools.sandbox.credentials import CONTROL, DATA
from tests.dag.airflow_home import connection_of, run_dag
from tests.dag.test_mirror_dags import events_of
from tests.support import celery_airflow
from tests.support.celery_airflow import make_airflow
from tests.support.cli_process import MIRRORBOOK
from tests.support.doc_pages import DOCS
from tests.support.kafka_clients import Pair, new_topic, produce
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.network_namespaces import Machine, Machines
from tests.support.spark_standalone import ROOT, Standalone, standalone
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.dag, pytest.mark.cluster, pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

RUN_S: Final = 600
RECORDS: Final = 300
SUBMIT: Final = re.compile(r"SparkSubmitOperator\(\n(.*?)\n    \)", re.DOTALL)
IMPORT: Final = "from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator"
LOCAL: Final = (
    "from airflow.providers.standard.operators.bash import BashOperator",
    'BashOperator(task_id="compare", env={"PLAN": plan.output}, append_env=True, bash_command=COMMAND)',
)
REST: Final = "from tests.support.rest_submission import SubmitByRest"


def read_example(mirror: Mirrored, folder: Path) -> str:
    """Of the documentation, for this mirror."""
    page = (DOCS / "operate" / "spark-tables.md").read_text(encoding="utf-8").partition("### In Airflow")[2]
    example = page.split("```python\n", 1)[1].split("```", 1)[0]
    return example.replace("/data/", f"{folder}/").replace("orders", str(mirror.name))


def copied(pair: Pair, folder: Path, records: int = RECORDS) -> Mirrored:
    topic = new_topic(pair.east, partitions=2)
    for partition in range(2):
        produce(pair.east, topic, records, partition=partition)
    mirror = new_mirror(pair, folder / "evidence", topic)
    mirror.copy()
    return mirror


def list_proved(mirror: Mirrored) -> dict[Partition, int]:
    proof = mirror.state.verifications.get(mirror.name)
    return {partition: proved.end for partition, _, proved in proof.iterate_partitions()} if proof else {}


# -- in this process ----------------------------------------------------------------------------------------------


def load_dag(mirror: Mirrored, folder: Path, command: str) -> DAG:
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db

    imported, operator = LOCAL
    example = SUBMIT.sub(operator, read_example(mirror, folder).replace(IMPORT, imported))
    (folder / "dags").mkdir()
    (folder / "dags" / "prove.py").write_text(f"COMMAND = {command!r}\n{example}", encoding="utf-8")
    DagBundlesManager().sync_bundles_to_db()
    bag = BundleDagBag(dag_folder=folder / "dags", bundle_path=folder / "dags", bundle_name="dags-folder")
    assert not bag.import_errors
    sync_bag_to_db(bag, "dags-folder", None)
    return bag.dags[f"prove_{mirror.name}"]


@pytest.fixture
def known(pair: Pair, airflow_database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both clusters, also where an operator is called outside of a run."""
    monkeypatch.setenv("AIRFLOW_VAR_MIRRORBOOK_CLUSTERS", "east,west")
    for cluster in (pair.east, pair.west):
        monkeypatch.setenv(f"AIRFLOW_CONN_{cluster.name.upper()}", json.dumps(connection_of(cluster)))


def test_three_tasks_prove_a_mirror(pair: Pair, known: None, tmp_path: Path) -> None:
    mirror = copied(pair, tmp_path)
    run = f'{shlex.join(MIRRORBOOK)} parity-job run "$PLAN" --table {tmp_path}/parity --runner local'
    dag_run = run_dag(load_dag(mirror, tmp_path, run), {})
    assert dag_run.state == "success"
    assert list_proved(mirror) == dict.fromkeys(mirror.statuses, RECORDS)
    (event,) = events_of(mirror.name, "proved")
    assert event["partitions"] == 2
    assert Path(event["report"]).is_file()


def test_nothing_else_proves_it(pair: Pair, known: None, tmp_path: Path) -> None:
    """No job, an altered plan, another plan in its place, or the name of a table that only Spark reaches."""
    mirror = copied(pair, tmp_path)
    plan = Path(PlanParity(task_id="plan", mirror=mirror.name, folder=str(tmp_path)).execute({}))
    context: Any = {"dag_run": SimpleNamespace(start_date=datetime.now(UTC))}

    def judge(table: str) -> None:
        JudgeParity(task_id="judge", mirror=mirror.name, plan=str(plan), table=table).execute(context)

    with pytest.raises(AirflowFailException, match="was not compared: no task reported it"):
        judge(str(tmp_path / "table"))
    with pytest.raises(AirflowFailException, match="is the name of a table"):
        judge("lake.mirrors.parity")
    content = plan.read_bytes()
    plan.write_bytes(content.replace(b'"level":3', b'"level":2'))
    with pytest.raises(AirflowFailException, match="its digest differs"):
        judge(str(tmp_path / "table"))
    plan.write_bytes(encode_plan(msgspec.structs.replace(parse_plan(content, "plan"), ranges=(), spans=())))
    with pytest.raises(AirflowFailException, match="it is another plan than"):
        judge(str(tmp_path / "table"))
    plan.unlink()
    with pytest.raises(AirflowFailException, match="No such file"):
        judge(str(tmp_path / "table"))
    assert list_proved(mirror) == {}


# -- in a running Airflow, on a standalone cluster ----------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """One worker: a core for the driver, two for tasks."""
    here = Machines("127.0.0.1", (Machine("127.0.0.1"),), apart=False)
    with standalone(here, tmp_path_factory.mktemp("standalone") / "spark", cores=3) as made:
        yield made


def list_applications(cluster: Standalone, *states: str) -> list[dict[str, Any]]:
    told = httpx.get(f"{cluster.page}/json/", trust_env=False, timeout=30).json()
    return [each for state in states for each in told[state]]


def list_java(airflow: Airflow) -> list[str]:
    """Of Airflow's own processes."""
    assert airflow.pid is not None
    lines = []
    for process in session_of(airflow.pid):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            lines.append(" ".join(process.cmdline()))
    assert lines
    return [line for line in lines if re.search(r"\bjava\b", line.split(" ", 1)[0])]


def use_rest(example: str, cluster: Standalone) -> str:
    def replace(found: re.Match[str]) -> str:
        arguments = found[1].replace('conn_id="spark_dr"', f"rest={cluster.rest!r}, master={cluster.master!r}")
        return f"SubmitByRest(\n{arguments}\n    )"

    return SUBMIT.sub(replace, example.replace(IMPORT, REST))


@pytest.mark.drill
@pytest.mark.timed
@pytest.mark.heavy
@pytest.mark.parametrize("submits", ["rest", "spark-submit"])
def test_a_submitted_comparison_proves_and_leaves_no_job_when_it_is_cancelled(
    pair: Pair, cluster: Standalone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, submits: str
) -> None:
    if submits == "spark-submit":
        pytest.importorskip("airflow.providers.apache.spark")
    mirror, slow = copied(pair, tmp_path), copied(pair, tmp_path / "slow", 20_000)
    (tmp_path / "dags").mkdir()
    for one, throttle in ((mirror, ""), (slow, ', throttle="1kB/s"')):
        example = read_example(one, tmp_path).replace("folder=PLANS", f"folder=PLANS{throttle}")
        example = example.replace('schedule="@daily"', "schedule=None")
        if submits == "rest":
            example = use_rest(example, cluster)
        (tmp_path / "dags" / f"{one.name}.py").write_text(example, encoding="utf-8")
    monkeypatch.setattr(celery_airflow, "REPOSITORY", tmp_path)
    airflow = make_airflow(
        tmp_path / "airflow", {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    )
    airflow.start()
    try:
        airflow.wait_healthy()
        for side in (pair.east, pair.west):
            airflow.add_connection(side.name, side.client_config(CONTROL), side.client_config(DATA))
        airflow.call("POST", "/variables", {"key": "mirrorbook_clusters", "value": "east,west"})
        connection = {"connection_id": "spark_dr", "conn_type": "spark", "host": cluster.master, "extra": "{}"}
        airflow.call("POST", "/connections", connection)
        java = prove(airflow, mirror)
        assert list_applications(cluster, "completedapps"), "executors of the cluster compared"
        assert list_proved(mirror) == {p: RECORDS for p in mirror.statuses}
        assert submits == "spark-submit" or java == set(), "no JVM beside Airflow's processes"
        cancel(airflow, slow, cluster)
        assert list_proved(slow) == {}
    finally:
        airflow.stop()


def prove(airflow: Airflow, mirror: Mirrored) -> set[str]:
    """Java processes of Airflow while the run lasts."""
    dag, java, compared = f"prove_{mirror.name}", set[str](), 0
    airflow.unpause(dag)
    run = airflow.trigger(dag, {})
    deadline = time.monotonic() + RUN_S
    while (state := airflow.run_state(dag, run)) not in ("success", "failed"):
        assert time.monotonic() < deadline, airflow.tasks(dag, run)
        compared += airflow.tasks(dag, run)["compare"] == "running"
        java |= {*list_java(airflow)}
        time.sleep(1)
    assert state == "success", "\n".join(airflow.log_of(dag, run, task) for task in ("plan", "compare", "judge"))
    assert compared, "looked at while it was compared"
    return java


def cancel(airflow: Airflow, mirror: Mirrored, cluster: Standalone) -> None:
    dag = f"prove_{mirror.name}"

    def is_comparing() -> bool:
        return any("mirror_core.spark.daemon" in command for command in cluster.list_commands())

    airflow.unpause(dag)
    run = airflow.trigger(dag, {})
    wait_until(is_comparing, timeout_s=RUN_S, why="a worker compares")
    began = time.monotonic()
    airflow.call("PATCH", f"/dags/{dag}/dagRuns/{run}/taskInstances/compare", {"new_state": "failed"})
    wait_until(
        lambda: (
            not list_applications(cluster, "activeapps", "activedrivers")
            and not is_comparing()
            and not list_java(airflow)
        ),
        timeout_s=RUN_S,
        why="no job is left",
    )
    took_s = time.monotonic() - began
    print(f"no job {took_s:.1f} s after it was cancelled")
    wait_until(lambda: airflow.run_state(dag, run) == "failed", timeout_s=RUN_S, why="the run is red")
    assert took_s <= 10
