"""Names that others chose, clusters that don't answer, folders that cannot be written: said, with the exit code."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import load_config
from mirror_core.model.names import Offset, Partition
from mirror_core.state.state_records import STATE_TOPIC
from mirrorbook_tools.sandbox.ports import choose_ports
from tests.cluster.desk import Desk
from tests.support.group_commits import commit_offsets
from tests.support.kafka_clients import TIMEOUT_S, new_topic, produce
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.sentences import format_sentence

pytestmark = pytest.mark.cluster

# -- names ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def hostile() -> dict[str, str]:
    """Consumer groups as anybody may name them, and how they are shown."""
    mark = secrets.token_hex(3)
    return {
        f"{mark}a[/b]": f"{mark}a[/b]",
        f"{mark}[red]c": f"{mark}[red]c",
        f"{mark}\x1b[2Jd": f"{mark}\\x1b[2Jd",
        f"{mark}\u202ee": f"{mark}\\u202ee",
        f"{mark}\x9bf": f"{mark}\\x9bf",
    }


@pytest.fixture
def watched(desk: Desk, hostile: dict[str, str]) -> Mirrored:
    """A mirror whose groups have these names."""
    topic = new_topic(desk.pair.east)
    produce(desk.pair.east, topic, 10)
    mirrored = new_mirror(desk.pair, desk.folder, topic, groups=(".*",))
    mirrored.copy()
    with ClusterClient(load_config(desk.config).cluster("east")) as client:
        for group in hostile:
            assert commit_offsets(client, group, {Partition(topic, 0): (Offset(6), "")}) == {}
    return mirrored


@pytest.mark.parametrize("command", [("failover", "plan"), ("sync",)])
def test_names_of_groups_are_shown_whole_and_obeyed_by_no_terminal(
    desk: Desk, watched: Mirrored, hostile: dict[str, str], command: tuple[str, ...]
) -> None:
    dry = ("--dry-run",) if command == ("sync",) else ()
    said = desk.run(*command, watched.name, *dry)
    assert said.code in (0, 3)
    for shown in hostile.values():
        assert shown in said.out
    printed = said.out + said.err
    assert not [char for char in printed if not char.isprintable() and char != "\n"]


def test_no_name_looks_like_a_line_of_a_plan(desk: Desk) -> None:
    """Whoever reads a plan approves it, and pastes its lines."""
    topic = new_topic(desk.pair.east)
    produce(desk.pair.east, topic, 10)
    mirrored = new_mirror(desk.pair, desk.folder, topic)
    mirrored.copy()
    open_id = f"x-{secrets.token_hex(3)}\nhash: forged"
    producer = Producer({**desk.pair.east.client_config("admin"), "transactional.id": open_id})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    assert producer.flush(TIMEOUT_S) == 0
    said = desk.run("failover", "plan", mirrored.name)
    producer.abort_transaction(TIMEOUT_S)
    assert open_id.replace("\n", "\\n") in said.out
    assert len([line for line in said.out.splitlines() if line.startswith("hash: ")]) == 1


def test_json_holds_names_as_they_are_and_shows_none_to_a_terminal(
    desk: Desk, watched: Mirrored, hostile: dict[str, str]
) -> None:
    said = desk.run("sync", watched.name, "--dry-run", "--only", "groups", "--json")
    assert not [char for char in said.out if not char.isprintable() and char != "\n"]
    subjects = [row["subject"] for row in json.loads(said.out)["rows"]]
    assert all(any(group in subject for subject in subjects) for group in hostile)


# -- clusters ------------------------------------------------------------------------------------------------------


def test_a_list_of_which_a_cluster_is_missing_is_shown_and_is_no_success(desk: Desk) -> None:
    back = "m-" + secrets.token_hex(4)
    created = desk.create("--topics", new_topic(desk.pair.west), name=back, source="west", destination="east")
    assert (created.code, created.err) == (0, "")
    (port,) = choose_ports(1)
    desk.change("west", bootstrap_servers=f"127.0.0.1:{port}")
    for command in ("mirror", "runs"):
        said = desk.run(command, "list")
        assert said.code == 4
        assert f"there may be more {'mirrors' if command == 'mirror' else 'runs'} than were listed:\n" in said.err
        assert f"  - cluster west: no broker answers (broker 127.0.0.1:{port}: " in said.err
        assert command == "runs" or back in said.out
        told = desk.run(command, "list", "--json")
        error = json.loads(told.err)
        assert (told.code, error["code"], error["exit_code"]) == (4, "indeterminate", 4)
        assert f"error: {error['message']}\n" == said.err
    found = json.loads(desk.run("mirror", "list", "--json").out)
    assert back in [row["name"] for row in found["mirrors"]]
    assert [row["cluster"] for row in found["silent"]] == ["west"]
    desk.change("east", bootstrap_servers=f"127.0.0.1:{port}")
    assert json.loads(desk.run("mirror", "list", "--json").out)["mirrors"] == []
    assert desk.run("mirror", "list").code == 4


@pytest.fixture
def garbage(desk: Desk) -> Iterator[str]:
    """A mirror of which one record cannot be read."""
    name = "m-" + secrets.token_hex(4)
    keys = (f"mirror/{name}", "partition/m/\x1b[2J", f"partition/{'9' * 5000}/t/{'9' * 5000}")

    def write(value: bytes | None) -> None:
        producer = Producer({**desk.pair.west.client_config("admin")})
        for key in keys:
            producer.produce(STATE_TOPIC, key=key.encode(), value=value, partition=0)
        assert producer.flush(TIMEOUT_S) == 0

    desk.started(new_topic(desk.pair.east))
    write(b"garbage")
    yield name
    write(None)


def test_an_unreadable_record_is_its_mirrors_trouble_and_named(desk: Desk, garbage: str) -> None:
    other = desk.started(new_topic(desk.pair.east))
    listed = desk.run("mirror", "list")
    assert listed.code == 4
    assert other.name in listed.out
    assert f"cluster west, state topic {STATE_TOPIC}, key mirror/{garbage}: " in listed.err
    assert "key partition/m/\\x1b[2J: " in listed.err
    assert {"cluster", "key", "error"} == json.loads(desk.run("mirror", "list", "--json").out)["unreadable"][0].keys()
    assert desk.run("mirror", "describe", other.name).code == 0
    refused = desk.run("mirror", "describe", garbage)
    assert refused.code == 4
    assert f"key mirror/{garbage}: " in refused.err


# -- folders -------------------------------------------------------------------------------------------------------


@pytest.fixture
def taken(tmp_path: Path) -> Path:
    """A file where a folder is needed: not even root can write below it."""
    path = tmp_path / "taken"
    path.write_text("a file", encoding="utf-8")
    return path


def test_folders_are_looked_at_before_anything_is_done(desk: Desk, taken: Path) -> None:
    topic = new_topic(desk.pair.east)
    produce(desk.pair.east, topic, 3)
    mirrored = desk.started(topic)
    before = desk.traces()
    said = desk.run("replicate", mirrored.name, "--runner", "local", "--receipts", str(taken / "r"))
    assert (said.code, said.err) == (
        2,
        format_sentence("receipts_folder_is_a_file", taken, taken),
    )
    assert desk.traces() == before
    assert desk.run("replicate", mirrored.name, "--runner", "local", "--until-caught-up").code == 0
    before = desk.traces()
    for command in (
        ("failover", "run", mirrored.name, "--yes", "--runner", "local", "--evidence", str(taken)),
        ("parity", mirrored.name, "--runner", "local", "--output", str(taken)),
    ):
        said = desk.run(*command)
        assert (said.code, said.err.count("\n")) == (2, 1)
        assert f"{taken} cannot be written: {taken} is not a folder: " in said.err
    assert desk.traces() == before
    assert not mirrored.state.runs or all(r.plan.mirror != mirrored.name for r in mirrored.state.runs.values())
