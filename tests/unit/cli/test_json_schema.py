"""Each command that has --json has a schema, made from the type that it prints; what differs from it is found."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import pytest
import typer
from jsonschema import Draft202012Validator
from msgspec import UNSET, UnsetType
from typer.main import get_command

from mirror_core.cli.command_options import JsonOption
from mirror_core.cli.confirm import CommandOutput, MirrorCommandDocument
from mirror_core.cli.json_schema import (
    build_schema,
    json_schema_command,
    list_in_group,
    list_json_commands,
    make_schema,
)
from mirror_core.cli.parity import ParityDocument
from mirror_core.cli.run_commands import SetPlansDocument, SetRunsDocument
from mirror_core.cli.runs import PlanDocument, RunDocument, to_run_document
from mirror_core.model import errors
from mirror_core.model.errors import BadRequest, MirrorError
from mirror_core.model.json_documents import (
    ErrorDocument,
    JsonDocument,
    format_json,
    get_printed_documents,
    prints_json,
)
from mirrorbook_tools.cli.sandbox import SandboxDocument
from tests.support.json_schemas import check, check_document, strict
from tests.support.mirror_views import RUN
from tests.support.sentences import format_sentence

COMMANDS: Final = dict(list_json_commands())
SHARED: Final[dict[type[JsonDocument], str]] = {
    PlanDocument: "plan",
    RunDocument: "run",
    SetPlansDocument: "failover plan-set",
    SetRunsDocument: "failover run-set",
    ParityDocument: "parity",
    MirrorCommandDocument: "mirror create",
    SandboxDocument: "sandbox status",
}
"""Documents of several commands, and by which name the page has them."""
PAGE: Final = Path(__file__).parents[3] / "docs" / "reference" / "json.md"

_BLOCK: Final = re.compile(r"^```\n(.*?)\n```$", re.MULTILINE | re.DOTALL)


class Colour(StrEnum):
    """Of a thing."""

    RED = "red"
    """As blood."""
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """It has a colour. Its weight is None at first."""

    colour: Colour
    weight_g: int | None
    """None: nobody
    has weighed it."""
    name: str = ""
    offset: int | UnsetType = UNSET

    @property
    def heavy(self) -> bool:
        return bool(self.weight_g)


class Things(JsonDocument, frozen=True, kw_only=True):
    """All of them."""

    things: tuple[Thing, ...]
    by_name: dict[str, int]


class Nothing(JsonDocument, frozen=True, kw_only=True):
    """There are none."""

    why: str


RED, BLUE = Thing(colour=Colour.RED, weight_g=None), Thing(colour=Colour.BLUE, weight_g=1)
SEEN: Final = Things(things=(RED, BLUE), by_name={})


def test_a_schema_says_what_the_type_and_its_docstrings_say() -> None:
    said = build_schema("list things", (Things,))
    assert (said["$id"], said["title"]) == ("urn:mirrorbook:json:list-things", "mirrorbook list things --json")
    assert said["$ref"] == "#/$defs/Things"
    things, thing, colour = (said["$defs"][name] for name in ("Things", "Thing", "Colour"))
    assert things["description"] == "All of them."
    assert thing["description"] == "It has a colour. Its weight is null at first."
    assert thing["properties"]["weight_g"]["description"] == "null: nobody has weighed it."
    assert (colour["description"], colour["enum"]) == ("Of a thing.\nred: As blood.", ["blue", "red"])


def test_a_key_is_required_unless_it_may_be_left_out() -> None:
    thing = build_schema("list things", (Things,))["$defs"]["Thing"]
    assert thing["required"] == ["colour", "weight_g", "name"]
    assert thing["properties"].keys() == {"colour", "weight_g", "name", "offset"}
    assert "default" not in thing["properties"]["name"], "no key has to be guessed"


def broken(**change: object) -> dict[str, Any]:
    document = json.loads(format_json(SEEN))
    document["things"][0] |= change
    return {**document, "things": [{k: v for k, v in one.items() if v != "gone"} for one in document["things"]]}


@pytest.mark.parametrize(
    ("document", "found"),
    [
        (broken(weight_g="1"), "$.things[0].weight_g: "),
        (broken(weight_g=1.5), "$.things[0].weight_g: "),
        (broken(weight_g="gone"), "'weight_g' is a required property"),
        (broken(name="gone"), "'name' is a required property"),
        (broken(colour="green"), "$.things[0].colour: 'green' is not one of"),
        (broken(heavy=True), "'heavy' was unexpected"),
        ({**broken(), "more": 1}, "'more' was unexpected"),
        ({"things": []}, "'by_name' is a required property"),
        ([broken()], "is not of type 'object'"),
    ],
)
def test_a_document_that_is_not_as_its_type_says_is_found(document: object, found: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(found)):
        check(strict(build_schema("list things", (Things,))), document)


def test_what_is_printed_is_what_the_schema_says_and_a_reader_ignores_what_is_added_later() -> None:
    check(strict(build_schema("list things", (Things,))), json.loads(format_json(SEEN)))
    Draft202012Validator(build_schema("list things", (Things,))).validate({**broken(heavy=True), "more": 1})


def test_a_command_prints_one_of_its_documents() -> None:
    either = strict(build_schema("list things", (Things, Nothing)))
    check(either, json.loads(format_json(SEEN)))
    check(either, json.loads(format_json(Nothing(why="gone"))))
    with pytest.raises(AssertionError):
        check(either, {})


def test_a_command_that_has_the_option_is_found_wherever_it_is() -> None:
    app, below = typer.Typer(), typer.Typer()
    app.add_typer(below, name="below")

    @app.command()
    def without() -> None: ...

    @app.command()
    def silent(as_json: JsonOption = False) -> None: ...

    @below.command("some")
    @prints_json(Things)
    def told(as_json: Annotated[bool, typer.Option("--json")] = False) -> None: ...

    found = dict(list_in_group("all", get_command(app)))
    assert {name: get_printed_documents(one.callback) for name, one in found.items()} == {
        "all silent": (),
        "all below some": (Things,),
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_that_has_json_has_a_schema(name: str) -> None:
    documents = get_printed_documents(COMMANDS[name].callback)
    assert documents, f"say what `mirrorbook {name}` prints with --json: @prints(...)"
    said = make_schema(name, COMMANDS[name])
    Draft202012Validator.check_schema(said)
    for document in documents:
        assert said["$defs"][document.__name__]["description"], f"{document.__name__} has no docstring"
        optional = [field.name for field in msgspec.structs.fields(document) if not field.required]
        assert not optional, "a document has all of its keys"


@pytest.mark.parametrize("verb", ["create", "start", "pause", "resume", "throttle", "stop", "recover", "delete"])
def test_each_command_that_changes_a_mirror_prints_one_document(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert get_printed_documents(COMMANDS[f"mirror {verb}"].callback) == (MirrorCommandDocument,)
    output = CommandOutput("orders", verb, as_json=True)
    output.print_line("would be done")
    output.print_line("done")
    assert capsys.readouterr().out == "", "nothing stands before the document"
    output.finish(done=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"mirror": "orders", "command": verb, "done": True, "lines": ["would be done", "done"]}


def test_people_read_lines_as_they_come_and_no_document(capsys: pytest.CaptureFixture[str]) -> None:
    output = CommandOutput("orders", "pause", as_json=False)
    output.print_line("PAUSED")
    output.finish(done=True)
    assert capsys.readouterr().out == "PAUSED\n"


def test_a_command_prints_the_schema_of_one_or_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    json_schema_command(None)
    told = json.loads(capsys.readouterr().out)
    assert told.keys() == COMMANDS.keys()
    assert len({one["$id"] for one in told.values()}) == len(told)
    for name in ("sync", "failover plan-set"):
        json_schema_command(name.split())
        assert json.loads(capsys.readouterr().out) == told[name]


@pytest.mark.parametrize(
    ("words", "listed"),
    [
        ("failover", "'failover' has --json; these have: failover plan-set, "),
        ("runs prune", "'runs prune' has --json; these have: runs list, runs show, runs note, runs forecast"),
        ("json-schema", format_sentence("json_schema_absent", "json-schema")),
        ("statsu", "'statsu' has --json; these have: failover plan-set, "),
    ],
)
def test_a_command_without_json_has_no_schema(words: str, listed: str) -> None:
    with pytest.raises(BadRequest, match=re.escape(listed)):
        json_schema_command(words.split())


def test_other_commands_do_not_load_what_makes_schemas() -> None:
    modules = "mirror_core.cli.mirror, mirror_core.cli.runs, mirrorbook_tools.cli.sandbox"
    code = (
        f"import sys, {modules}; print([m for m in ('mirror_core.cli.json_schema', 'jsonschema') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_documents_of_tests_commands_are_held_to_their_schemas() -> None:
    run = format_json(to_run_document(RUN, (), None))
    plan = format_json(to_run_document(RUN, (), None).plan)
    check_document(["--log-level", "info", "runs", "show", "r-1", "--json"], run)
    check_document(["failover", "run", "orders", "--dry-run", "--json"], plan)
    check_document(["failover", "run", "orders", "--json"], "")
    check_document(["failover", "run", "orders"], "plan: ...")
    with pytest.raises(AssertionError, match="mirrorbook failover plan --json"):
        check_document(["failover", "plan", "orders", "--json"], run)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_promises_the_keys_that_are_there(name: str) -> None:
    promised = entries(PAGE.read_text(encoding="utf-8"))
    for document in get_printed_documents(COMMANDS[name].callback):
        keys = {field.encode_name for field in msgspec.structs.fields(document)}
        assert promised[SHARED.get(document, name)] == keys
    parts = make_schema(name, COMMANDS[name])["$defs"].values()
    words = set(re.findall(r"\w+", _BLOCK.findall(PAGE.read_text(encoding="utf-8"))[-1]))
    assert {key for part in parts for key in part.get("properties", {})} <= words


def test_the_page_promises_the_keys_and_codes_of_an_error() -> None:
    page = PAGE.read_text(encoding="utf-8")
    (promised,) = re.findall(r"^error +\{(.*)\}$", page, re.MULTILINE)
    keys = [key.removesuffix("[]") for key in promised.split(", ")]
    assert keys == [field.encode_name for field in msgspec.structs.fields(ErrorDocument)]
    codes = {
        error.code for error in vars(errors).values() if isinstance(error, type) and issubclass(error, MirrorError)
    }
    listed = page.partition("Decide by `code`:")[2].partition("\n\n")[0]
    assert codes == set(re.findall(r"`(\w+)`", listed)) - {"exit_code"}


def test_keys_are_read_off_the_page() -> None:
    block = "foo bar-set {a, b[]: {c, d},\n     e: {f: x|y} or null,\n     g{}: [h, i]}\nplan {a}"
    page = f"```\nfirst 1\n```\n```\n{block}\n```"
    assert entries(page) == {"foo bar-set": {"a", "b", "e", "g"}, "plan": {"a"}}


def entries(page: str) -> dict[str, set[str]]:
    """By what stands at a line's beginning: the keys of the document, without those of what is in it."""
    found = dict[str, set[str]]()
    for entry in re.split(r"\n(?=\w)", _BLOCK.findall(page)[-1]):
        name, keys = entry.split("{", 1)
        keys = keys.removesuffix("}")
        while keys != (flat := re.sub(r"\{[^{}]*\}|\[[^][]*\]", "", keys)):
            keys = flat
        found[name.strip()] = {re.findall(r"\w+", key)[0] for key in keys.split(",")}
    return found
