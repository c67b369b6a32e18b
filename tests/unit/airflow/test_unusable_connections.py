"""A connection that can be no cluster counts as a silent cluster: only mirrors that need it are held up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import BaseHook, Connection, Variable
from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException
from mirrorbook_airflow import hooks, mirror_lookup, operators

from mirror_core.kafka.config import load_config
from mirror_core.mirrors.mirror_creation import CopyPreview
from mirror_core.model.errors import BadRequest, Refused
from mirror_core.model.names import MirrorName
from mirror_core.state import mirror_link
from mirror_core.state.state_records import State
from tests.support.cluster_names import LINK
from tests.support.sentences import format_sentence

VARIABLE = "mirrorbook_clusters"


class Connections:
    """Those of an Airflow; what is raised in place of one that cannot be read."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failures: dict[str, Exception] = {}
        self.password = "first"
        self.variable = "east,lab,west"
        monkeypatch.setattr("airflow.configuration.AIRFLOW_HOME", str(home))
        monkeypatch.setattr(BaseHook, "get_connection", self._connection)
        monkeypatch.setattr(Variable, "get", lambda key, default="": self.variable if key == VARIABLE else default)
        monkeypatch.setattr(Variable, "set", self._set)

    def _connection(self, name: str) -> Connection:
        if name in self.failures:
            raise self.failures[name]
        return Connection(
            conn_id=name, conn_type="kafka_cluster", host=f"{name}:1", login="c", password=f"{self.password}-{name}"
        )

    def _set(self, key: str, value: str, **rest: object) -> None:
        if key == VARIABLE:
            self.variable = value


@pytest.fixture
def connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Connections:
    return Connections(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (AirflowNotFoundException("no"), "connection lab: there is no such connection"),
        (BadRequest("connection lab: its extra has x"), "connection lab: its extra has x"),
        (RuntimeError("https://vault/?token=secret"), "connection lab cannot be read: RuntimeError"),
    ],
)
def test_one_that_cannot_be_read_hides_no_other(connections: Connections, failure: Exception, reason: str) -> None:
    connections.failures["lab"] = failure
    path = hooks.provide_config("orders", ["east", "lab", "west"])
    assert load_config(path).clusters.keys() == {"east", "west"}
    assert hooks.list_unusable_connections(path) == {"lab": reason}
    assert mirror_lookup.provide_mirror_config("orders") == path
    connections.failures.clear()
    assert load_config(hooks.provide_config("orders", ["east", "lab"])).clusters.keys() == {"east", "lab"}
    assert hooks.list_unusable_connections(path) == {}


def test_where_none_can_be_read_all_reasons_are_told(connections: Connections) -> None:
    connections.failures = dict.fromkeys(("east", "west"), AirflowNotFoundException("no"))
    with pytest.raises(BadRequest, match=format_sentence("connections_absent_pattern")):
        hooks.provide_config("orders", ["east", "west"])


def test_commands_of_a_cluster_that_cannot_be_used_now_are_no_typing_mistake(
    connections: Connections, tmp_path: Path
) -> None:
    file = hooks.get_home_folder("config").parent / "mirrors.yaml"
    file.write_text("clusters: {lab: {authorizer: none}}", encoding="utf-8")
    connections.failures["lab"] = AirflowNotFoundException("no")
    assert load_config(hooks.provide_config("orders", ["east", "lab"])).clusters.keys() == {"east"}
    with pytest.raises(BadRequest, match=r"clusters\.lab: there is no such connection"):
        hooks.provide_config("orders", ["east"])


def test_a_mirror_that_is_not_found_may_be_on_one_that_cannot_be_read(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections.failures["lab"] = AirflowNotFoundException("no")
    monkeypatch.setattr(mirror_link, "read_states", lambda config: iter([]))
    with pytest.raises(BadRequest, match=r"(?s)unknown mirror 'orders'.*connection lab: there is no such connection"):
        mirror_lookup.find_mirror("orders")
    assert mirror_lookup.list_silent_clusters() == {"lab": "connection lab: there is no such connection"}


def _create(**ends: str) -> None:
    params = {**ends, **dict.fromkeys(operators.FILTER_TEXTS, ()), "topics": ["t"], "replication_factor": "source"}
    context: Any = {"params": params, "ti": SimpleNamespace()}
    operators.CreateMirror(task_id="create", mirror="orders").execute(context)


def test_a_cluster_becomes_known_when_a_mirror_of_it_was_made_and_not_before(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(config: object, name: str) -> None:
        raise BadRequest("unknown mirror")

    def create(config: Any, name: str, *, source: str, destination: str, **rest: object) -> Any:
        config.cluster(source), config.cluster(destination)
        if source == "south":
            raise Refused("create", ["clusters differ"], "cluster_replaced")
        return SimpleNamespace(name=name, source=source, destination=destination, gaps=None)

    monkeypatch.setattr(mirror_link, "find_mirror_link", unknown)
    monkeypatch.setattr("mirror_core.mirrors.mirror_creation.create_mirror", create)
    monkeypatch.setattr("mirror_core.mirrors.mirror_creation.preview_creation", lambda *_: CopyPreview((), 1))
    connections.failures["est"] = AirflowNotFoundException("no")
    for source, refused in (("est", "connection est: there is no such connection"), ("south", "clusters differ")):
        with pytest.raises(AirflowFailException, match=refused):
            _create(source=source, destination="west")
        assert connections.variable == "east,lab,west"
    _create(source="north", destination="west")
    assert connections.variable == "east,lab,north,west"


def test_clusters_of_a_mirror_that_exists_become_known_only_where_it_is_the_one_that_is_asked_for(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    existing = replace(LINK.mirror, name=MirrorName("orders"), topics=("t",), groups=(), principals=())
    monkeypatch.setattr(mirror_link, "find_mirror_link", lambda config, name: (replace(LINK, mirror=existing), None))
    connections.variable = "lab"
    with pytest.raises(AirflowFailException, match="with other source"):
        _create(source="north", destination=existing.destination)
    assert connections.variable == "lab"
    _create(source=existing.source, destination=existing.destination)
    assert connections.variable == "east,lab,west"


def test_a_connection_that_cannot_be_read_holds_up_no_other_mirror(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a mirror that needs it is told which one it is."""
    monkeypatch.setattr(mirror_link, "find_mirror_link", lambda config, name: (str(config.cluster(name).name), State()))
    connections.failures["lab"] = RuntimeError("down")
    link: object = mirror_lookup.find_mirror("west")[0]
    assert link == "west"
    with pytest.raises(BadRequest, match=r"(?s)lab.*connection lab cannot be read: RuntimeError"):
        mirror_lookup.find_mirror("lab")
