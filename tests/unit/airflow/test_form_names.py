"""Names that Airflow's forms offer: who notes them, and that no parse of a DAG file depends on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Variable
from airflow.sdk.definitions.context import _AIRFLOW_PARSING_CONTEXT_DAG_ID as PARSED_FOR
from airflow.sdk.definitions.param import Param
from mirrorbook_airflow import airflow_variables, mirror_lookup, params
from mirrorbook_airflow.airflow_variables import FORM_NAMES_VARIABLE, FormNames

from mirror_core.decide.drills import list_drill_expressions, to_drill_name
from mirror_core.kafka.config import Config
from mirror_core.model.config_sections import MirrorSet
from mirror_core.model.errors import Unreachable
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.state import mirror_link
from mirror_core.state.state_records import State
from tests.support.cluster_names import LINK

WEST, SOUTH = LINK.mirror.destination, ClusterName("south")
ORDERS = replace(LINK.mirror, name=MirrorName("orders"))
LEFT = replace(ORDERS, name=to_drill_name("orders"), topics=tuple(list_drill_expressions("orders")))


class Stored:
    """Airflow's Variables, with what was asked of them."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {"mirrorbook_clusters": "east, west"}
        self.read = list[str]()
        self.written = list[str]()
        self.trouble: Exception | None = None

    def get(self, name: str, default: Any = None) -> Any:
        self.read.append(name)
        if self.trouble:
            raise self.trouble
        return self.values.get(name, default)

    def set(self, name: str, value: str, description: str) -> None:
        if self.trouble:
            raise self.trouble
        self.written.append(value)
        self.values[name] = value

    @property
    def names(self) -> Any:
        return json.loads(self.values[FORM_NAMES_VARIABLE])


@pytest.fixture(autouse=True)
def stored(monkeypatch: pytest.MonkeyPatch) -> Stored:
    monkeypatch.delenv(PARSED_FOR, raising=False)
    made = Stored()
    monkeypatch.setattr(Variable, "get", made.get)
    monkeypatch.setattr(Variable, "set", made.set)
    return made


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets clusters answer so."""
    monkeypatch.setattr(mirror_lookup, "list_clusters", lambda: (WEST, SOUTH))
    monkeypatch.setattr(mirror_lookup, "provide_config", lambda name, clusters: None)
    sets = {"shop": MirrorSet("shop", (ORDERS.name,))}
    config = Config(Path("m.yaml"), {side.name: side for side in (LINK.source, LINK.destination)}, sets=sets)
    monkeypatch.setattr(mirror_link, "load_clusters", lambda path: config)

    def answer(**answers: State | Unreachable) -> None:
        monkeypatch.setattr(mirror_link, "read_states", lambda config: iter(answers.items()))

    return answer


def fields() -> dict[str, Param]:
    return {
        "mirror": params.mirror_param("one"),
        "mirrors": params.mirror_list_param("some"),
        "set": params.set_param("one"),
        "cluster": params.cluster_param("one"),
    }


def offered() -> dict[str, list[str] | None]:
    return {name: field.schema.get("examples") for name, field in fields().items()}


NOTHING: dict[str, list[str] | None] = dict.fromkeys(("mirror", "mirrors", "set", "cluster"))


def test_whoever_reads_all_states_notes_the_names_that_forms_offer(
    stored: Stored, answering: Callable[..., None]
) -> None:
    answering(west=State(mirrors={one.name: one for one in (ORDERS, LEFT)}), south=Unreachable("it is silent"))
    mirror_lookup.list_started_mirrors()
    assert stored.names == {"mirrors": {"south": [], "west": ["orders"]}, "sets": ["shop"]}
    assert offered() == {
        "mirror": ["orders"],
        "mirrors": ["orders"],
        "set": ["shop", "all-from-east", "all-from-west"],
        "cluster": ["east", "west"],
    }
    mirror_lookup.list_watched_links(())
    assert len(stored.written) == 1, "written only when something has changed"


def test_a_mirror_that_was_deleted_is_offered_no_more_and_one_of_a_silent_cluster_is(
    stored: Stored, answering: Callable[..., None]
) -> None:
    gone = replace(ORDERS, name=MirrorName("gone"))
    far = replace(ORDERS, name=MirrorName("far"), destination=SOUTH)
    answering(west=State(mirrors={one.name: one for one in (ORDERS, gone)}), south=State(mirrors={far.name: far}))
    mirror_lookup.list_started_mirrors()
    assert offered()["mirror"] == ["far", "gone", "orders"]
    answering(west=State(mirrors={ORDERS.name: ORDERS}), south=Unreachable("it is silent"))
    mirror_lookup.list_started_mirrors()
    assert offered()["mirror"] == ["far", "orders"]


def test_a_mirror_is_offered_when_it_was_made(stored: Stored) -> None:
    airflow_variables.add_form_mirror("orders", "west")
    airflow_variables.add_form_mirror("a", "west")
    airflow_variables.add_form_mirror("b", "east")
    assert stored.names == {"mirrors": {"east": ["b"], "west": ["a", "orders"]}, "sets": []}


def test_names_of_a_cluster_that_is_no_more_listed_go() -> None:
    known = FormNames({"west": ["a"], "old": ["b"]}, ["shop"])
    assert known.with_cluster_mirrors({"west": None}, ()) == FormNames({"west": ["a"]})


def test_no_task_fails_for_names_that_cannot_be_noted(stored: Stored, answering: Callable[..., None]) -> None:
    answering(west=State(mirrors={ORDERS.name: ORDERS}))
    stored.trouble = RuntimeError("password=secret")
    assert mirror_lookup.list_started_mirrors() == ["orders"]
    airflow_variables.add_form_mirror("orders", "west")
    assert stored.written == []


@pytest.mark.parametrize("trouble", [RuntimeError("the database is away"), PermissionError("denied")])
def test_no_trouble_with_a_variable_breaks_a_parse(
    stored: Stored, trouble: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    stored.trouble = trouble
    assert offered() == NOTHING
    assert str(trouble) not in caplog.text, "nobody has checked it for secrets"


def test_where_nothing_is_known_names_are_typed(stored: Stored) -> None:
    stored.values.clear()
    assert offered() == NOTHING


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"mirrors": ["a"]}', '{"mirrors": {"west": [1]}, "sets": 2}'])
def test_a_variable_that_a_person_has_spoilt_offers_nothing_and_is_written_anew(stored: Stored, text: str) -> None:
    stored.values[FORM_NAMES_VARIABLE] = text
    assert offered() == {**NOTHING, "set": ["all-from-east", "all-from-west"], "cluster": ["east", "west"]}
    airflow_variables.add_form_mirror("orders", "west")
    assert offered()["mirror"] == ["orders"]


def test_a_task_which_parses_its_file_again_asks_for_no_names(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would ask Airflow's API server, or a vault that counts questions, before each task of a failover."""
    monkeypatch.setenv(PARSED_FOR, "mirror_failover")
    assert offered() == NOTHING
    assert stored.read == []


def test_other_names_are_taken_too(stored: Stored) -> None:
    stored.values[FORM_NAMES_VARIABLE] = '{"mirrors": {"west": ["orders"]}, "sets": ["shop"]}'
    made = fields()
    for name in ("mirror", "set", "cluster"):
        assert made[name].resolve("new") == "new"
    assert made["mirrors"].resolve(["new"]) == ["new"]
    assert "Configuration JSON" in made["mirrors"].schema["description_md"]


def test_a_list_from_which_everything_was_removed_is_empty() -> None:
    """Airflow's form gives null for it."""
    assert fields()["mirrors"].resolve() == []
    assert fields()["mirrors"].resolve(None) is None


def test_strategies_are_offered() -> None:
    assert params.strategies_param().schema["examples"] == ["none", "recreate", "handover", "offline", "replica"]
