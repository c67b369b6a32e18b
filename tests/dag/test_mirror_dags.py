"""DAGs about a mirror, run to their end in this process against real brokers."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mirror_core.kafka.config import load_config
from mirror_core.model.mirror import Desired
from mirror_core.model.names import MirrorName
from mirror_core.model.run import Mode
from mirror_core.runbook.failover import Failover
from mirror_core.runbook.services import local_services
from mirror_core.state.link import find
from mirror_core.state.topic import read_state
from mirror_core.state.writer import StateWriter, control_id
from tests.brokers import Pair, admin_client, new_topic
from tests.dag.airflow_home import add_connection, connection_of, run_dag
from tests.mirroring import replicate

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag

pytestmark = [pytest.mark.dag, pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def mirror(pair: Pair, airflow_database: None) -> MirrorName:
    """A name never used before, in an Airflow that knows both clusters."""
    add_connection("east", connection_of(pair.east))
    add_connection("west", connection_of(pair.west))
    return MirrorName("m-" + secrets.token_hex(4))


def test_create_records_starts_and_syncs_and_may_be_repeated(dag_bag: DagBag, pair: Pair, mirror: MirrorName) -> None:
    topic = new_topic(pair.east, partitions=2)
    params = {"mirror": mirror, "source": "east", "destination": "west", "topics": [topic]}

    for _ in range(2):
        run = run_dag(dag_bag.dags["mirror_create"], params)

        assert run.state == "success"
    recorded = read_state(load_config(pair.config_path).cluster("west")).mirrors[mirror]
    assert recorded.desired is Desired.STARTED
    assert recorded.topics == (topic,)
    assert len(admin_client(pair.west).list_topics(topic).topics[topic].partitions) == 2


def test_create_of_another_mirror_with_the_same_name_is_red(dag_bag: DagBag, pair: Pair, mirror: MirrorName) -> None:
    params = {"mirror": mirror, "source": "east", "destination": "west", "topics": [new_topic(pair.east)]}
    assert run_dag(dag_bag.dags["mirror_create"], params).state == "success"

    run = run_dag(dag_bag.dags["mirror_create"], {**params, "topics": [new_topic(pair.east)]})

    assert run.state == "failed"


def test_sync_takes_up_every_started_mirror(dag_bag: DagBag, pair: Pair, mirror: MirrorName) -> None:
    prefix = f"s-{secrets.token_hex(4)}-"
    first = new_topic(pair.east, prefix=prefix)
    params = {"mirror": mirror, "source": "east", "destination": "west", "topics": [f"{prefix}.*"]}
    assert run_dag(dag_bag.dags["mirror_create"], params).state == "success"
    second = new_topic(pair.east, prefix=prefix)

    # Whether the run is red is up to mirrors that other tests have left on these clusters.
    run = run_dag(dag_bag.dags["mirror_sync"], {"mirrors": []})

    synced = {task.rendered_map_index: task.state for task in run.get_task_instances() if task.task_id == "sync"}
    mirrors = read_state(load_config(pair.config_path).cluster("west")).mirrors.values()
    assert {m.name for m in mirrors if m.desired is Desired.STARTED} <= set(synced)
    assert synced[mirror] == "success"
    assert {first, second} <= set(admin_client(pair.west).list_topics().topics)


def test_sync_of_one_mirror_is_green(dag_bag: DagBag, pair: Pair, mirror: MirrorName) -> None:
    params = {"mirror": mirror, "source": "east", "destination": "west", "topics": [new_topic(pair.east)]}
    assert run_dag(dag_bag.dags["mirror_create"], params).state == "success"

    assert run_dag(dag_bag.dags["mirror_sync"], {"mirrors": [mirror]}).state == "success"


def test_a_sync_beside_a_run_is_skipped_and_the_runs_conductor_is_not_disturbed(
    dag_bag: DagBag, pair: Pair, mirror: MirrorName, tmp_path: Path
) -> None:
    params = {"mirror": mirror, "source": "east", "destination": "west", "topics": [new_topic(pair.east)]}
    assert run_dag(dag_bag.dags["mirror_create"], params).state == "success"
    config = load_config(pair.config_path)
    link, _ = find(config, mirror)
    replicate(link)
    failover = Failover(link, local_services(config.path, evidence_dir=tmp_path), started_by="test")
    failover.begin(failover.plan(Mode.PLANNED).hash)

    with StateWriter(link.destination, control_id(mirror)) as conductor:
        run = run_dag(dag_bag.dags["mirror_sync"], {"mirrors": [mirror]})

        assert {task.task_id: task.state for task in run.get_task_instances()} == {
            "mirrors": "success",
            "sync": "skipped",
        }
        conductor.put(link.mirror)  # LostOwnership, had the sync taken the mirror over


def test_sync_of_an_unknown_mirror_is_red(dag_bag: DagBag, mirror: MirrorName) -> None:
    assert run_dag(dag_bag.dags["mirror_sync"], {"mirrors": [mirror]}).state == "failed"
