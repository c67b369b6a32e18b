"""Airflow watches data planes and starts none: passwords reach no disk, and no folder has to be shared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import BaseHook, BaseOperator, Connection, Variable
from airflow.sdk.exceptions import AirflowException
from mirrorbook_airflow import (
    control_tasks,
    drill_tasks,
    fence_watch,
    hooks,
    operators,
    params,
    replicate_tasks,
    runbook,
)
from mirrorbook_airflow.data_plane_trigger import DataPlaneTrigger
from mirrorbook_airflow.worker_services import make_parity_check, make_services, open_receipts_folder

from mirror_core.evidence.expectation_suites import PARITY, TableExpectations
from mirror_core.kafka.config import Config, Principal, load_config
from mirror_core.model.errors import BadRequest, MirrorError, Unreachable
from mirror_core.model.run import RunKind
from mirror_core.parity.check import LocalParity
from mirror_core.runbook.run_services import Services
from mirror_core.state import mirror_link
from mirror_core.state.state_records import State
from tests.support.task_context import CONTEXT

CONTROL, DATA, KEY = "pw-of-control", "pw-of-data", "pw-of-the-key"
DEMANDS = TableExpectations(suite=PARITY)
SETTING = "AIRFLOW__MIRRORBOOK__{}"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An Airflow that watches, with two connections and a file about hooks; no cluster answers."""
    extra = {"sasl_mechanism": "PLAIN", "data_username": "d", "data_password": DATA, "ssl_key_password": KEY}
    connections = {
        name: Connection(
            conn_id=name,
            conn_type="kafka_cluster",
            host=f"{name}:9092",
            login="c",
            password=CONTROL,
            extra=json.dumps({"security_protocol": "SASL_SSL", **extra}),
        )
        for name in ("east", "west")
    }
    monkeypatch.setattr("airflow.configuration.AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setattr(BaseHook, "get_connection", connections.__getitem__)
    monkeypatch.setattr(Variable, "get", lambda name, default=None: "east,west")
    monkeypatch.setattr(mirror_link, "read_states", lambda config: iter(()))
    (tmp_path / "mirrorbook").mkdir()
    hooked = "{switch: [{name: tell, command: [./tell.sh]}]}"
    text = f"mirrors: {{orders: {hooked}}}\nsets: {{all: {{mirrors: [orders]}}}}\nexpectations: more.yaml\n"
    (tmp_path / "mirrorbook" / "mirrors.yaml").write_text(text, encoding="utf-8")
    return tmp_path


def found_on_disk(folder: Path) -> set[str]:
    """Which passwords somebody who sees this folder can read."""
    text = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.is_file())
    return {word for word in (CONTROL, DATA, KEY) if word in text}


def every(kind: type[BaseOperator]) -> Iterator[type[BaseOperator]]:
    for one in kind.__subclasses__():
        yield one
        yield from every(one)


BEFORE: Any = SimpleNamespace(task_id="begin")
SHOW: Any = SimpleNamespace(task_id="show")
OF_RUN: dict[str, Any] = {"task_id": "t", "mirror": "orders", "kind": RunKind.FAILOVER}
OF_SET: dict[str, Any] = {"task_id": "t", "set_name": "all"}
TASKS: dict[type[BaseOperator], dict[str, Any]] = {
    **{
        kind: {"task_id": "t", "mirror": "orders"}
        for kind in (
            control_tasks.ShowChange,
            drill_tasks.DrillMirror,
            drill_tasks.CleanDrill,
            operators.CreateMirror,
            operators.StartMirror,
            operators.SyncMirror,
            operators.CheckParity,
            operators.CheckMirror,
            operators.CompactReceipts,
            replicate_tasks.WatchDataPlane,
        )
    },
    operators.PlanParity: {"task_id": "t", "mirror": "orders", "folder": "plans"},
    operators.JudgeParity: {"task_id": "t", "mirror": "orders", "plan": "plans/p", "table": "rows"},
    operators.ListMirrors: {"task_id": "t"},
    operators.CheckClusters: {"task_id": "t"},
    fence_watch.CheckWatchers: {"task_id": "t"},
    control_tasks.ControlMirror: {"task_id": "t", "mirror": "orders", "show": SHOW, "approvals": ()},
    runbook.PlanRun: OF_RUN,
    runbook.BeginRun: {**OF_RUN, "plan": BEFORE, "approvals": ()},
    runbook.RunSteps: {**OF_RUN, "steps": ["prove"], "begin": BEFORE},
    runbook.AnnounceStep: {**OF_RUN, "step": "switch", "begin": BEFORE},
    runbook.CopySetBack: {**OF_SET, "steps": ["salvage"], "begin": BEFORE},
    runbook.AbortRun: {**OF_RUN, "begin": BEFORE, "steps": ()},
    runbook.CheckEnded: {**OF_RUN, "begin": BEFORE},
    runbook.LogStatus: {**OF_RUN, "begin": BEFORE},
}
BASES = {operators.MirrorOperator, runbook.RunOperator, runbook.BegunRunOperator}
ASKING = {
    "ApprovePlan",
    "ApproveSecond",
    "AwaitCatchUp",
    "GoAhead",
    "CheckApprovers",
    "ReplicateMirror",
    "WatchAgain",
    "WatchFences",
    "ContinueFenceWatch",
}
"""Tasks that ask people, start DAG runs, look at no cluster, or whose trigger looks."""


def test_no_task_is_left_out_here() -> None:
    ours = {kind for kind in every(BaseOperator) if kind.__module__.startswith("mirrorbook_airflow.")}
    assert {kind for kind in ours if kind.__name__ not in ASKING} == TASKS.keys() | BASES


@pytest.mark.parametrize("kind", TASKS, ids=lambda kind: kind.__name__)
def test_no_task_writes_a_password(home: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseOperator]) -> None:
    monkeypatch.setenv(SETTING.format("RECEIPTS"), str(home.parent / "receipts"))
    asked = list[Config]()

    def load(path: Path) -> Config:
        asked.append(load_config(path))
        return asked[-1]

    monkeypatch.setattr(mirror_link, "load_config", load)
    with suppress(AirflowException, MirrorError):
        kind(**TASKS[kind]).execute(CONTEXT)
    assert {str(one.cluster("west").control["sasl.password"]) for one in asked} == {CONTROL}, "it went another way"
    assert found_on_disk(home) == set()
    (home / "seen").write_text(f"{CONTROL} {DATA} {KEY}")
    assert found_on_disk(home) == {CONTROL, DATA, KEY}, "the search finds them"


def test_a_configuration_in_memory_says_what_a_file_would(home: Path, tmp_path: Path) -> None:
    held = hooks.provide_config("orders", ["east", "west"])
    assert not held.exists()
    assert held.parent.is_dir(), "commands of hooks run there"
    for only in (None, *Principal):
        one = load_config(held, only_principal=only)
        assert list(one.mirrors.switch_hooks) == ["orders"]
        assert one.expectations == home / "mirrorbook" / "more.yaml"
    assert load_config(held, only_principal=Principal.DATA).cluster("east").control["sasl.password"] == DATA


def test_a_configuration_in_memory_follows_the_connections(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hooks.provide_config("orders", ["east"])
    assert load_config(path).clusters.keys() == {"east"}
    other = Connection(conn_id="west", conn_type="kafka_cluster", host="b:1", login="c", password=" two\nlines ")
    monkeypatch.setattr(BaseHook, "get_connection", staticmethod(lambda name: other))
    assert hooks.provide_config("orders", ["west"]) == path
    assert load_config(path).clusters.keys() == {"west"}
    assert load_config(path).cluster("west").control["sasl.password"] == " two\nlines ", "no line of a file"


@pytest.mark.parametrize("name", ["../m1", "", "a/b"])
def test_a_name_in_memory_is_a_mirrors_too(name: str, home: Path) -> None:
    with pytest.raises(BadRequest, match="cannot be a mirror's name"):
        hooks.provide_config(name, [])


class Triggerer:
    """What a trigger asks, of Airflow and of the destination; the destination's answers are given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: State | MirrorError) -> None:
        self.asked = list[str]()
        self.answers = list(answers)
        self.password = CONTROL
        monkeypatch.setattr(BaseHook, "get_connection", self._connection)
        monkeypatch.setattr(mirror_link, "read_cluster_state", self._state)
        self.trigger = DataPlaneTrigger("orders", "west", 90)

    def _connection(self, name: str) -> Connection:
        self.asked.append("airflow")
        return Connection(conn_id=name, conn_type="kafka_cluster", host="b:1", login="c", password=self.password)

    def _state(self, config: Config, cluster: str) -> State:
        self.asked.append(config.cluster(cluster).control["sasl.password"])
        answer = self.answers.pop(0)
        if isinstance(answer, MirrorError):
            raise answer
        return answer


def test_a_trigger_asks_for_connections_once_and_after_each_trouble(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Triggerer(monkeypatch, State(), State(), Unreachable("no answer"), State(), BadRequest("login"), State())
    both = ["airflow", "airflow"]
    world.trigger._read_state()
    world.trigger._read_state()
    assert world.asked == [*both, CONTROL, CONTROL]
    with pytest.raises(Unreachable):
        world.trigger._read_state()
    world.asked.clear()
    world.trigger._read_state()
    assert world.asked == [*both, CONTROL]
    world.asked.clear()
    world.password = "renewed"
    world.trigger._read_state()
    assert world.asked == [CONTROL, *both, "renewed"], "a renewed password makes no run red"
    assert found_on_disk(home) == set()


def test_a_login_that_is_refused_as_airflow_has_it_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Triggerer(monkeypatch, BadRequest("login"))
    with pytest.raises(BadRequest, match="login"):
        world.trigger._read_state()


def test_a_trigger_is_handed_no_file_of_a_worker(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.exceptions import TaskDeferred

    west: Any = SimpleNamespace(name="west")
    found: Any = SimpleNamespace(mirror=SimpleNamespace(name="orders"), destination=west)
    monkeypatch.setattr(replicate_tasks, "find_mirror", lambda name: (found, State()))
    monkeypatch.setattr(replicate_tasks, "explain_watch_end", lambda state, name: None)
    with pytest.raises(TaskDeferred) as deferred:
        replicate_tasks.WatchDataPlane(task_id="t", mirror="orders").execute(CONTEXT)
    trigger: Any = deferred.value.trigger
    assert trigger.serialize()[1] == {"mirror": "orders", "destination": "west", "patience_s": 90}


def test_without_a_file_for_its_tasks_spark_is_refused_and_what_to_do_is_said(home: Path) -> None:
    what = r"executors_config.*or choose the Spark master none"
    own = Path("orders.yaml (in memory)")
    with pytest.raises(BadRequest, match=what):
        make_services(own, ["prove"], "local[*]")
    with pytest.raises(BadRequest, match=what):
        make_parity_check(own, "spark://s:7077", DEMANDS)
    make_services(own, ["fence"], "local[*]")  # needs no Spark


def test_tasks_of_spark_open_the_file_that_the_deployment_names(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING.format("EXECUTORS_CONFIG"), "/etc/mirrorbook.yaml")
    checks: list[Any] = [make_parity_check(Path("orders.yaml"), "local[*]", DEMANDS)]
    monkeypatch.setattr("mirrorbook_airflow.worker_services.wrap_salvage", lambda salvage: salvage)
    made: Any = make_services(Path("orders.yaml"), ["prove"], "local[*]")
    for job in (*checks, made.parity, made.salvage):
        assert (job._config_path, job._opened_by_tasks) == (Path("orders.yaml"), Path("/etc/mirrorbook.yaml"))


def test_without_spark_all_is_done_in_the_tasks_own_process(home: Path, tmp_path: Path) -> None:
    made: Services = make_services(Path("orders.yaml"), ["prove", "salvage"], "none")
    assert isinstance(made.parity, LocalParity)
    assert isinstance(make_parity_check(Path("orders.yaml"), "none", DEMANDS), LocalParity)
    assert open_receipts_folder("none", str(tmp_path / "receipts")).names() == []
    drill = make_services(Path("orders.yaml"), (), "")  # its task is given no master
    asking: list[Callable[[], object]] = [
        lambda: open_receipts_folder("none", "s3a://b/r"),
        lambda: made.open_copy_folder("s3a://b/e"),
        lambda: made.open_receipts("s3a://b/r"),
        lambda: drill.open_copy_folder("s3a://b/e"),
    ]
    for ask in asking:
        with pytest.raises(BadRequest, match=r"s3a://b/.: this Airflow knows no such file system: .* scheme s3a"):
            ask()


@pytest.mark.parametrize(
    ("executors", "masters", "offered"),
    [
        ("", "", ["none"]),
        ("/etc/m.yaml", "", ["local[*]"]),
        ("", "none spark://s:7077", ["none", "spark://s:7077"]),
    ],
)
def test_which_masters_a_run_may_be_given(
    monkeypatch: pytest.MonkeyPatch, executors: str, masters: str, offered: list[str]
) -> None:
    for name, value in (("EXECUTORS_CONFIG", executors), ("SPARK_MASTERS", masters)):
        monkeypatch.setenv(SETTING.format(name), value)
    found = params.spark_master_param()
    assert (found.value, found.schema["enum"]) == (offered[0], offered)
