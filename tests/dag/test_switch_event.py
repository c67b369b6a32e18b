"""Applications that are DAGs: the step `switch` emits an event of the mirror's asset, if its hooks ask for one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from mirror_core.decide.steps import names
from mirror_core.kafka.config import load_config
from mirror_core.model.names import MirrorName
from mirror_core.model.run import Mode, RunKind
from tests.brokers import Pair, produce
from tests.cluster.test_failover import app_topic
from tests.dag.airflow_home import run_dag
from tests.mirroring import Mirrored, new_mirror

pytestmark = [pytest.mark.dag, pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]  # Airflow's own warnings


def events(uri: str) -> list[dict[str, Any]]:
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as database:
        found = database.scalars(select(AssetEvent).join(AssetModel).where(AssetModel.uri == uri)).all()
        return [dict(event.extra) for event in found]


@pytest.mark.parametrize("asked", [True, False])
def test_the_switch_emits_an_asset_event(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, airflow_database: None, asked: bool
) -> None:
    import datetime
    from dataclasses import replace

    from airflow.providers.standard.operators.python import PythonOperator
    from airflow.sdk import DAG
    from mirrorbook_airflow import runbook
    from mirrorbook_airflow.runbook import SwitchStep

    topic = app_topic(pair)
    produce(pair.east, topic, 5)
    made = new_mirror(pair, tmp_path, topic)
    made.copy()
    document = yaml.safe_load(pair.config_path.read_text(encoding="utf-8"))
    document["mirrors"] = {made.name: {"switch": [{"name": "dags", "airflow": "asset"}] if asked else []}}
    path = tmp_path / "mirrorbook.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    mirrored = Mirrored(pair, load_config(path), MirrorName(made.name), tmp_path)
    failover = mirrored.failover
    run = failover.begin(failover.plan(Mode.PLANNED).hash).id
    order = names(RunKind.FAILOVER)
    for name in order[: order.index("switch")]:
        failover.step(run, name)
    services = replace(mirrored.services, by_airflow=True)
    monkeypatch.setattr(runbook, "find_mirror", lambda name: (mirrored.link, mirrored.state))
    monkeypatch.setattr(runbook, "services", lambda link, step, master: services)

    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    with DAG(f"switching-{asked}", schedule=None, start_date=start, params={"master": "local[*]"}) as dag:
        begun = PythonOperator(task_id="begin", python_callable=lambda: run)
        step = SwitchStep(step="switch", mirror=mirrored.name, kind=RunKind.FAILOVER, begin=begun)
        begun >> step
    assert run_dag(dag, {}).state == "success"

    wanted = {"mirror": mirrored.name, "active": "west", "run": run}
    assert events(f"mirrorbook://{mirrored.name}/active") == ([wanted] if asked else [])
    shown = mirrored.state.steps[run, "switch"].evidence
    assert shown["hooks that failed"] == "none"
