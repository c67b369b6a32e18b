"""DAGs about a mirror, run to their end in this process against real brokers."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from mirror_core.decide.drills import is_drill_mirror, to_drill_name
from mirror_core.kafka.config import load_config
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.mirror_commands import pause_mirror, start_mirror
from mirror_core.model.errors import LostOwnership, Refused
from mirror_core.model.mirror import DesiredState, Mirror, PartitionState, TopicAccess
from mirror_core.model.names import MirrorName
from mirror_core.model.run import RunMode, RunState
from mirror_core.model.timing import now_ms
from mirror_core.runbook.drill import list_past_drills
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.runbook.planned_steps import PlannedSteps
from mirror_core.runbook.run_services import local_services
from mirror_core.state.mirror_link import find_mirror_link
from mirror_core.state.state_topic import read_state
from mirror_core.state.writer import StateWriter, make_control_id
from tests.dag.airflow_home import add_connection, connection_of, run_dag
from tests.dag.answering import answered_by
from tests.support.kafka_clients import Pair, admin_client, new_topic, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror, replicate
from tests.support.parity_topics import content, send

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag

Both = tuple[Mirrored, Callable[[], object]]

pytestmark = [pytest.mark.dag, pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def mirror(pair: Pair, airflow_database: None) -> MirrorName:
    """A name never used before, in an Airflow that knows both clusters."""
    add_connection("east", connection_of(pair.east))
    add_connection("west", connection_of(pair.west))
    return MirrorName("m-" + secrets.token_hex(4))


def offered() -> list[str]:
    """Mirrors that forms offer from now on."""
    from airflow.models.variable import Variable

    return list(json.loads(Variable.get("mirrorbook_names"))["mirrors"]["west"])


def events_of(mirror: MirrorName, state: str) -> list[dict[str, Any]]:
    """Extras of the events of one of its assets."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as database:
        query = select(AssetEvent.extra).join(AssetModel, AssetModel.id == AssetEvent.asset_id)
        return [dict(row) for row in database.scalars(query.where(AssetModel.uri == f"mirrorbook://{mirror}/{state}"))]


def test_create_records_starts_and_syncs_and_may_be_repeated(dag_bag: DagBag, pair: Pair, mirror: MirrorName) -> None:
    topic = new_topic(pair.east, partitions=2)
    params = {"mirror": mirror, "source": "east", "destination": "west", "topics": [topic]}
    params |= {"exclude_rights": ["READ TOPIC .*"], "exclude_settings": ["retention.*"], "replication_factor": "1"}

    for _ in range(2):
        run = run_dag(dag_bag.dags["mirror_create"], params)

        assert run.state == "success"
    recorded = read_state(load_config(pair.config_path).cluster("west")).mirrors[mirror]
    assert recorded.desired is DesiredState.STARTED
    assert recorded.topics == (topic,)
    assert (recorded.exclude_rights, recorded.exclude_settings) == (("READ TOPIC .*",), ("retention.*",))
    assert recorded.replication_factor == "1"
    assert mirror in offered()
    assert len(admin_client(pair.west).list_topics(topic).topics[topic].partitions) == 2


def test_create_of_another_mirror_with_the_same_name_is_red(dag_bag: DagBag, pair: Pair, mirror: MirrorName) -> None:
    params = {"mirror": mirror, "source": "east", "destination": "west", "topics": [new_topic(pair.east)]}
    assert run_dag(dag_bag.dags["mirror_create"], params).state == "success"

    run = run_dag(dag_bag.dags["mirror_create"], {**params, "topics": [new_topic(pair.east)]})

    assert run.state == "failed"


def test_sync_takes_up_every_started_mirror(dag_bag: DagBag, pair: Pair, mirror: MirrorName) -> None:
    from airflow.models.variable import Variable

    prefix = f"s-{secrets.token_hex(4)}-"
    first = new_topic(pair.east, prefix=prefix)
    params = {"mirror": mirror, "source": "east", "destination": "west", "topics": [f"{prefix}.*"]}
    assert run_dag(dag_bag.dags["mirror_create"], params).state == "success"
    second = new_topic(pair.east, prefix=prefix)
    Variable.set("mirrorbook_names", '{"mirrors": {"west": ["deleted-since"]}}')

    # Whether the run is red is up to mirrors of this file's earlier tests.
    run = run_dag(dag_bag.dags["mirror_sync"], {"mirrors": []})

    synced = {task.rendered_map_index: task.state for task in run.get_task_instances() if task.task_id == "sync"}
    mirrors = read_state(load_config(pair.config_path).cluster("west")).mirrors.values()
    assert {m.name for m in mirrors if m.desired is DesiredState.STARTED} <= set(synced)
    assert synced[mirror] == "success"
    assert {first, second} <= set(admin_client(pair.west).list_topics().topics)
    known = {m.name for m in mirrors if m.destination == "west" and not is_drill_mirror(m)}
    assert set(offered()) == known, "also those that are stopped"


def test_sync_of_one_mirror_is_green(dag_bag: DagBag, pair: Pair, mirror: MirrorName) -> None:
    params = {"mirror": mirror, "source": "east", "destination": "west", "topics": [new_topic(pair.east)]}
    assert run_dag(dag_bag.dags["mirror_create"], params).state == "success"

    begun_ms = now_ms()
    assert run_dag(dag_bag.dags["mirror_sync"], {"mirrors": [mirror]}).state == "success"
    created, synced = events_of(mirror, "synced")
    assert created["at_ms"] < begun_ms < synced["at_ms"] < now_ms()
    assert (synced["mirror"], {*synced}) == (mirror, {"mirror", "at_ms", "differences"})


def test_proved_equal_is_told_only_when_all_was_compared_and_equal(
    dag_bag: DagBag, pair: Pair, mirror: MirrorName
) -> None:
    topic = new_topic(pair.east)
    params = {"mirror": mirror, "source": "east", "destination": "west", "topics": [topic]}
    assert run_dag(dag_bag.dags["mirror_create"], params).state == "success"
    link, _ = find_mirror_link(load_config(pair.config_path), mirror)
    compare = {"mirrors": [mirror], "whole": True}
    for _ in range(2):  # not even begun, then empty
        run = run_dag(dag_bag.dags["mirror_parity"], compare)
        assert {task.task_id: task.state for task in run.get_task_instances()}["parity"] == "failed"
        assert events_of(mirror, "proved") == [], "nothing was compared: indeterminate"
        replicate(link)
    produce(pair.east, topic, 30)
    replicate(link)
    begun_ms = now_ms()
    assert run_dag(dag_bag.dags["mirror_parity"], compare).state == "success"
    [proved] = events_of(mirror, "proved")
    assert begun_ms < proved["at_ms"] < now_ms()
    assert (proved["mirror"], proved["partitions"]) == (mirror, 1)
    assert Path(proved["report"]).exists()


def test_the_dag_of_one_mirror_lists_it_only_while_it_is_started(
    dag_bag: DagBag, pair: Pair, mirror: MirrorName, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mirrorbook_airflow.operators import ListMirrors

    monkeypatch.setenv("AIRFLOW_VAR_MIRRORBOOK_CLUSTERS", "east,west")
    for cluster in (pair.east, pair.west):
        monkeypatch.setenv(f"AIRFLOW_CONN_{cluster.name.upper()}", json.dumps(connection_of(cluster)))

    params = {"mirror": mirror, "source": "east", "destination": "west", "topics": [new_topic(pair.east)]}
    assert run_dag(dag_bag.dags["mirror_create"], params).state == "success"
    mirrors = ListMirrors(task_id="mirrors", own_mirrors=(mirror, f"{mirror}-back"))
    context: Any = {"params": {"mirrors": []}}
    assert mirrors.execute(context) == [mirror]
    link, _ = find_mirror_link(load_config(pair.config_path), mirror)
    pause_mirror(link)
    assert mirrors.execute(context) == []


def test_a_sync_beside_a_run_is_skipped_and_the_runs_conductor_is_not_disturbed(
    dag_bag: DagBag, pair: Pair, mirror: MirrorName, tmp_path: Path
) -> None:
    params = {"mirror": mirror, "source": "east", "destination": "west", "topics": [new_topic(pair.east)]}
    assert run_dag(dag_bag.dags["mirror_create"], params).state == "success"
    config = load_config(pair.config_path)
    link, _ = find_mirror_link(config, mirror)
    replicate(link)
    failover = Failover(link, local_services(config.path, evidence_dir=tmp_path), started_by="test")
    failover.begin(failover.plan(RunMode.PLANNED).hash)

    with StateWriter(link.destination, make_control_id(mirror)) as conductor:
        run = run_dag(dag_bag.dags["mirror_sync"], {"mirrors": [mirror]})

        assert {task.task_id: task.state for task in run.get_task_instances()} == {
            "mirrors": "success",
            "sync": "skipped",
        }
        conductor.put(link.mirror)  # LostOwnership, had the sync taken the mirror over


def test_sync_of_an_unknown_mirror_is_red(dag_bag: DagBag, mirror: MirrorName) -> None:
    assert run_dag(dag_bag.dags["mirror_sync"], {"mirrors": [mirror]}).state == "failed"


def test_receipts_of_past_days_are_put_together_and_a_lost_one_is_red(
    pair: Pair, airflow_database: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from airflow.sdk.exceptions import AirflowFailException
    from mirrorbook_airflow import operators

    mirrored = new_mirror(pair, tmp_path, topic := new_topic(pair.east, retention_ms="-1"))  # its records are old
    send(pair.east, topic, content(10))
    receipts = tmp_path / "receipts"
    monkeypatch.setenv("AIRFLOW__MIRRORBOOK__RECEIPTS", str(receipts))
    for _ in range(2):
        mirrored.copy(str(receipts))
    monkeypatch.setattr(operators, "find_mirror", lambda name: (mirrored.link, mirrored.state))
    monkeypatch.setattr("mirror_core.mirrors.receipt_maintenance.first_open_day", lambda: "9999-01-01")
    context: Any = {"params": {"master": "local[1]"}}
    task = operators.CompactReceipts(task_id="receipts", mirror=mirrored.name)
    assert task.execute(context) == 1
    [whole] = Path(receipts, f"mirror={mirrored.name}").rglob("*.parquet")
    assert whole.name.startswith("day-")
    assert task.execute(context) == 0
    whole.unlink()
    with pytest.raises(AirflowFailException, match=rf"(?s)lost, altered or are not ours.*{whole.name}"):
        task.execute(context)


@pytest.mark.drill
def test_a_comparison_is_red_where_something_else_is_expected_of_it(
    dag_bag: DagBag, pair: Pair, mirror: MirrorName
) -> None:
    """Both sides are equal; the file on the worker asks for more."""
    from mirrorbook_airflow.hooks import get_home_folder

    topic = new_topic(pair.east)
    produce(pair.east, topic, 30)
    params = {"mirror": mirror, "source": "east", "destination": "west", "topics": [topic]}
    assert run_dag(dag_bag.dags["mirror_create"], params).state == "success"
    replicate(find_mirror_link(load_config(pair.config_path), mirror)[0])
    compare = {"mirrors": [mirror], "whole": True}
    assert run_dag(dag_bag.dags["mirror_parity"], compare).state == "success"
    own = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "compared", "max_value": 7}}
    file = get_home_folder("config").parent / "mirrors.yaml"
    file.write_text(yaml.safe_dump({"expectations": {"parity": [own]}}), encoding="utf-8")
    try:
        assert run_dag(dag_bag.dags["mirror_parity"], compare).state == "failed"
    finally:
        file.unlink()
    assert len(events_of(mirror, "proved")) == 1, "the first one only"
    results = sorted((get_home_folder("evidence") / mirror).glob("parity-*/result.json"))
    (said,) = json.loads(results[-1].read_text(encoding="utf-8"))["unmet"]
    assert "expectations: parity[0]: expect_column_values_to_be_between(compared)" in said


@pytest.mark.drill
def test_the_limits_of_tiers_are_judged_every_hour(dag_bag: DagBag, pair: Pair, mirror: MirrorName) -> None:
    """Both sides are equal, and no drill was ever made."""
    from mirrorbook_airflow.hooks import get_home_folder

    topic = new_topic(pair.east)
    produce(pair.east, topic, 30)
    params = {"mirror": mirror, "source": "east", "destination": "west", "topics": [topic]}
    assert run_dag(dag_bag.dags["mirror_create"], params).state == "success"
    replicate(find_mirror_link(load_config(pair.config_path), mirror)[0])

    def states() -> dict[str, str]:
        run = run_dag(dag_bag.dags["mirror_check"], {"mirrors": [mirror]})
        return {"run": run.state, **{task.task_id: task.state for task in run.get_task_instances()}}

    well = dict.fromkeys(("run", "approvers", "clusters", "watchers", "mirrors", "check"), "success")
    assert states() == well
    (docs,) = (get_home_folder("evidence") / mirror).glob("check-*/data-docs/index.html")
    assert docs.is_file()
    tier = {"name": "mine", "topics": [topic], "max_drill_age_s": 3600}
    file = get_home_folder("config").parent / "mirrors.yaml"
    file.write_text(yaml.safe_dump({"expectations": {"tiers": [tier]}}), encoding="utf-8")
    try:
        assert states() == {**well, "check": "failed", "run": "failed"}
        assert [ready["mirror"] for ready in events_of(mirror, "ready")] == [mirror], "as long as it was"
    finally:
        file.unlink()


def test_a_watch_that_is_refused_is_not_begun_again_without_end(
    dag_bag: DagBag, pair: Pair, mirror: MirrorName
) -> None:
    params = {"mirror": mirror, "source": "east", "destination": "west", "topics": [new_topic(pair.east)]}
    assert run_dag(dag_bag.dags["mirror_create"], params).state == "success"
    with answered_by("ann"):
        assert run_dag(dag_bag.dags["mirror_control"], {"mirror": mirror, "action": "stop"}).state == "success"

    run = run_dag(dag_bag.dags["mirror_replicate"], {"mirror": mirror})

    states = {task.task_id: task.state for task in run.get_task_instances()}
    assert (run.state, states) == ("failed", {"watch": "failed", "watch_again": "skipped", "done": "upstream_failed"})


def test_a_mirror_is_controlled_without_a_shell(
    dag_bag: DagBag, pair: Pair, mirror: MirrorName, tmp_path: Path
) -> None:
    params = {"mirror": mirror, "source": "east", "destination": "west", "topics": [new_topic(pair.east)]}
    assert run_dag(dag_bag.dags["mirror_create"], params).state == "success"
    config = load_config(pair.config_path)

    def ends(action: str, **more: int) -> str:
        return str(run_dag(dag_bag.dags["mirror_control"], {"mirror": mirror, "action": action, **more}).state)

    def recorded() -> Mirror:
        return read_state(config.cluster("west")).mirrors[mirror]

    for _ in range(2):
        assert (ends("pause"), recorded().desired) == ("success", DesiredState.PAUSED)
    assert (ends("resume"), recorded().desired) == ("success", DesiredState.STARTED)
    assert (ends("throttle", bytes_per_s=5000), recorded().throttle) == ("success", 5000)
    assert (ends("throttle", bytes_per_s=0), recorded().throttle) == ("success", None)

    link, _ = find_mirror_link(config, mirror)
    replicate(link)
    failover = Failover(link, local_services(config.path, evidence_dir=tmp_path), started_by="test")
    run = failover.begin(failover.plan(RunMode.PLANNED).hash)
    assert ends("pause") == "failed", "a run holds it"
    with answered_by("ann"):
        assert ends("abort") == "success"
    assert read_state(config.cluster("west")).runs[run.id].state is RunState.ABORTED
    assert ends("abort") == "failed", "nothing is there to be given up"
    with answered_by("ann"):
        assert (ends("stop"), recorded().desired) == ("success", DesiredState.STOPPED)
    assert ends("resume") == "failed"
    for _ in range(2):
        assert (ends("start"), recorded().desired) == ("success", DesiredState.STARTED)


def test_filters_are_changed_without_a_shell(dag_bag: DagBag, pair: Pair, mirror: MirrorName) -> None:
    """As they are approved: what starts is copied, and what leaves is kept closed, then released."""
    from mirrorbook_airflow.control_tasks import KEEP_PRESENT_FILTER, LEAVING_NOT_CHOSEN

    first, second = new_topic(pair.east), new_topic(pair.east)
    created = {"mirror": mirror, "source": "east", "destination": "west", "topics": [first]}
    assert run_dag(dag_bag.dags["mirror_create"], created).state == "success"
    config = load_config(pair.config_path)
    replicate(find_mirror_link(config, mirror)[0])

    def ends(*topics: str, leaving_topics: str = LEAVING_NOT_CHOSEN) -> str:
        """All is sent: a DAG that runs again in this process keeps what was sent before."""
        sent = {"action": "change", "new_topics": [*topics] or [KEEP_PRESENT_FILTER], "leaving_topics": leaving_topics}
        return str(run_dag(dag_bag.dags["mirror_control"], {"mirror": mirror, **sent}).state)

    def access() -> tuple[TopicAccess, bool]:
        departure = read_state(config.cluster("west")).departures[mirror][first]
        return departure.access, departure.is_done

    assert ends(second) == "failed", "what becomes of the first one is not said"
    assert read_state(config.cluster("west")).mirrors[mirror].topics == (first,)
    with answered_by("ann"):
        assert ends(second, leaving_topics="keep closed") == "success"
    assert read_state(config.cluster("west")).mirrors[mirror].topics == (second,)
    assert access() == (TopicAccess.CLOSED, True)
    produce(pair.east, second, 10)
    replicate(find_mirror_link(config, mirror)[0])
    assert read_all(pair.west, second) == read_all(pair.east, second)
    with answered_by("ann"):
        assert ends(leaving_topics="release") == "success"
    assert access() == (TopicAccess.RELEASED, True)
    assert ends(leaving_topics="release") == "failed", "nothing is left to be released"


def test_a_control_that_is_cleared_later_stops_no_mirror_again_by_the_old_approval(
    dag_bag: DagBag, pair: Pair, mirror: MirrorName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By anybody who may clear a task; an approval holds for an hour, and within it the mirror was started again."""
    from airflow.sdk.exceptions import AirflowFailException
    from mirrorbook_airflow import control_tasks

    params = {"mirror": mirror, "source": "east", "destination": "west", "topics": [new_topic(pair.east)]}
    assert run_dag(dag_bag.dags["mirror_create"], params).state == "success"
    config, run_control = load_config(pair.config_path), control_tasks.ControlMirror.execute

    def execute(task: control_tasks.ControlMirror, context: Any) -> str:
        said = run_control(task, context)
        assert run_control(task, context), "an attempt that is repeated has nothing left to do"
        start_mirror(find_mirror_link(config, mirror)[0])
        with pytest.raises(AirflowFailException, match="1 person has to approve it, and so far nobody did"):
            run_control(task, context)
        return said

    monkeypatch.setattr(control_tasks.ControlMirror, "execute", execute)
    with answered_by("ann"):
        assert run_dag(dag_bag.dags["mirror_control"], {"mirror": mirror, "action": "stop"}).state == "success"
    assert read_state(config.cluster("west")).mirrors[mirror].desired is DesiredState.STARTED


@pytest.mark.parametrize("started_again", [False, True])
def test_a_stop_whose_process_was_killed_is_finished_and_stops_no_mirror_that_was_started_again(
    dag_bag: DagBag, pair: Pair, mirror: MirrorName, monkeypatch: pytest.MonkeyPatch, *, started_again: bool
) -> None:
    from airflow.sdk.exceptions import AirflowFailException
    from mirrorbook_airflow import control_tasks

    params = {"mirror": mirror, "source": "east", "destination": "west", "topics": [new_topic(pair.east)]}
    assert run_dag(dag_bag.dags["mirror_create"], params).state == "success"
    config, run_control = load_config(pair.config_path), control_tasks.ControlMirror.execute
    replicate(find_mirror_link(config, mirror)[0])

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    def execute(task: control_tasks.ControlMirror, context: Any) -> str:
        with monkeypatch.context() as patched:
            patched.setattr(mirror_commands, "take_over_lease", kill)
            with pytest.raises(KeyboardInterrupt):
                run_control(task, context)
        if started_again:
            start_mirror(find_mirror_link(config, mirror)[0])
            with pytest.raises(AirflowFailException, match="1 person has to approve it, and so far nobody did"):
                run_control(task, context)
            return "red"
        return run_control(task, context)

    monkeypatch.setattr(control_tasks.ControlMirror, "execute", execute)
    with answered_by("ann"):
        assert run_dag(dag_bag.dags["mirror_control"], {"mirror": mirror, "action": "stop"}).state == "success"
    state = read_state(config.cluster("west"))
    assert state.mirrors[mirror].desired is (DesiredState.STARTED if started_again else DesiredState.STOPPED)
    assert {status.state for status in state.partitions[mirror].values()} == {
        PartitionState.MIRRORING if started_again else PartitionState.STOPPED
    }


def test_a_second_run_for_the_same_mirror_is_red_and_does_not_disturb_the_first(
    dag_bag: DagBag, pair: Pair, mirror: MirrorName, tmp_path: Path
) -> None:
    params = {"mirror": mirror, "source": "east", "destination": "west", "topics": [new_topic(pair.east)]}
    assert run_dag(dag_bag.dags["mirror_create"], params).state == "success"
    config = load_config(pair.config_path)
    link, _ = find_mirror_link(config, mirror)
    replicate(link)
    failover = Failover(link, local_services(config.path, evidence_dir=tmp_path), started_by="first")
    first = failover.begin(failover.plan(RunMode.PLANNED).hash)

    with StateWriter(link.destination, make_control_id(mirror)) as conductor:
        second = run_dag(dag_bag.dags["mirror_failover"], {"mirror": mirror})

        states = {task.task_id: task.state for task in second.get_task_instances()}
        assert (second.state, states["plan"], states["approve"]) == ("failed", "failed", "upstream_failed")
        conductor.put(link.mirror)  # LostOwnership, had the second run taken anything over
    state = read_state(config.cluster("west"))
    assert [(run.id, run.state) for run in state.runs.values() if run.plan.mirror == mirror] == [
        (first.id, RunState.RUNNING)
    ]


@pytest.mark.parametrize(
    ("asked", "newest_first"),
    [
        ({}, [RunMode.UNPLANNED, RunMode.PLANNED]),  # as by the schedule
        pytest.param({"mode": "planned"}, [RunMode.PLANNED], marks=pytest.mark.slow),
        pytest.param({"mode": "unplanned"}, [RunMode.UNPLANNED], marks=pytest.mark.slow),
    ],
)
def test_a_drill_is_run_and_cleaned_away(
    dag_bag: DagBag, pair: Pair, mirror: MirrorName, asked: dict[str, str], newest_first: list[RunMode]
) -> None:
    params = {"mirror": mirror, "source": "east", "destination": "west", "topics": [new_topic(pair.east)]}
    assert run_dag(dag_bag.dags["mirror_create"], params).state == "success"
    ended = run_dag(dag_bag.dags["mirror_drill"], {"mirrors": [mirror], **asked})
    assert ended.state == "success"
    state = read_state(load_config(pair.config_path).cluster("west"))
    assert [(one.mode, one.state) for one in list_past_drills(state, mirror)] == [
        (mode, RunState.DONE) for mode in newest_first
    ]
    assert to_drill_name(mirror) not in state.mirrors
    [drilled] = events_of(mirror, "drilled")
    assert [*drilled["modes"]] == [str(mode) for mode in reversed(newest_first)]


@pytest.fixture
def both(pair: Pair, airflow_database: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Both:
    """Drills in both modes of a mirror of its own, as the task does them."""
    from mirrorbook_airflow import drill_tasks

    mirrored = new_mirror(pair, tmp_path, new_topic(pair.east))
    monkeypatch.setattr(drill_tasks, "find_mirror", lambda name: (mirrored.link, mirrored.state))
    monkeypatch.setattr(drill_tasks, "make_services", lambda *given: mirrored.services)
    monkeypatch.setattr(drill_tasks, "format_conductor", lambda context: "airflow")
    context: Any = {"params": {"mode": drill_tasks.BOTH_MODES}}
    return mirrored, lambda: drill_tasks.DrillMirror(task_id="drill", mirror=mirrored.name).execute(context)


@pytest.mark.slow
def test_an_unplanned_drill_is_done_also_when_the_planned_one_failed(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    def drain(steps: PlannedSteps) -> None:
        raise Refused("drain", ["the source takes writes"], "written_behind_fence")

    mirrored, execute = both
    monkeypatch.setattr(PlannedSteps, "drain", drain)  # only a planned failover has this step
    with pytest.raises(AirflowFailException) as red:
        execute()
    outcomes = r"(?s)- planned: failed: .*the source takes writes\n.*- unplanned: came through: \d.* lost 50"
    assert re.search(outcomes, str(red.value))
    drilled = [(one.mode, one.state) for one in list_past_drills(mirrored.state, mirrored.name)]
    assert drilled == [(RunMode.UNPLANNED, RunState.DONE), (RunMode.PLANNED, RunState.ABORTED)]


def test_no_second_drill_begins_while_somebody_else_drills_this_mirror(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    begun = list[RunMode]()

    def drill(config: object, mirror: str, mode: RunMode, *_: object, **__: object) -> None:
        begun.append(mode)
        raise LostOwnership("another process took over")

    monkeypatch.setattr("mirror_core.runbook.drill.run_drill", drill)
    with pytest.raises(AirflowFailException, match="LostOwnership"):
        both[1]()
    assert begun == [RunMode.PLANNED]
