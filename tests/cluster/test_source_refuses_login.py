"""An old source that answers and lets us not in may take writes: it is never taken for one that is silent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from mirror_core.kafka.config import load_config
from mirror_core.mirrors.fence_watcher import check_fence
from mirror_core.model.run import RunMode, RunState
from mirrorbook_tools.sandbox.ports import choose_ports
from tests.support.broker_faults import suspended
from tests.support.kafka_clients import Pair
from tests.support.scoped_failovers import copied

pytestmark = pytest.mark.cluster


def test_a_watcher_calls_somebody_also_when_another_bootstrap_server_is_dead(pair: Pair, tmp_path: Path) -> None:
    mirrored, _ = copied(pair, tmp_path)
    with suspended(pair.east):
        failover = mirrored.failover
        run = failover.begin(failover.plan(RunMode.UNPLANNED).hash, RunMode.UNPLANNED)
        assert failover.drive(run.id).state is RunState.DONE
    (dead,) = choose_ports(1)
    document = yaml.safe_load(mirrored.config.path.read_text(encoding="utf-8"))
    east = document["clusters"]["east"]
    good, east["sasl.password"] = str(east["bootstrap.servers"]), "changed"
    for servers in (good, f"{good},127.0.0.1:{dead}"):
        east["bootstrap.servers"] = servers
        path = tmp_path / "changed.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        config = load_config(path)
        link = replace(mirrored.link, config=config, source=config.cluster("east"), destination=config.cluster("west"))
        found = check_fence(link)
        assert found.alarms
        assert not found.is_silent
