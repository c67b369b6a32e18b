"""Applications that are DAGs: the step `switch` emits an event of the mirror's asset, if its hooks ask for one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from mirror_core.decide.steps import names
from mirror_core.kafka.config import load_config
from mirror_core.model.names import MirrorName
from mirror_core.model.run import Mode, RunKind
from tests.brokers import Pair, produce
from tests.cluster.test_failover import app_topic
from tests.mirroring import Mirrored, new_mirror

pytestmark = [pytest.mark.dag, pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]  # Airflow's own warnings


@pytest.mark.parametrize("asked", [True, False])
def test_the_switch_emits_an_asset_event(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    from airflow.providers.standard.operators.empty import EmptyOperator
    from airflow.sdk.execution_time.context import OutletEventAccessors
    from mirrorbook_airflow import runbook
    from mirrorbook_airflow.runbook import SWITCHED, SwitchStep

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

    step = SwitchStep(
        step="switch",
        mirror=mirrored.name,
        kind=RunKind.FAILOVER,
        begin=EmptyOperator(task_id="begin"),
    )
    outlets = OutletEventAccessors()
    context: Any = {
        "ti": SimpleNamespace(xcom_pull=lambda task_ids: run, xcom_push=lambda key, value: None),
        "dag_run": SimpleNamespace(dag_id="switching", run_id="r1"),
        "params": {"master": "local[*]"},
        "outlet_events": outlets,
    }
    step.execute(context)

    uri, wanted = f"mirrorbook://{mirrored.name}/active", {"mirror": mirrored.name, "active": "west", "run": run}
    emitted = [(event.dest_asset_key.uri, event.extra) for event in outlets[SWITCHED].asset_alias_events]
    assert emitted == ([(uri, wanted)] if asked else [])
    shown = mirrored.state.steps[run, "switch"].evidence
    assert shown["hooks that failed"] == "none"
