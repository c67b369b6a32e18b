"""`mirrorbook parity` on a real mirror."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mirror_core.kafka.topics import delete_topics
from mirror_core.model.errors import BadRequest
from tests.support.cli_process import invoked
from tests.support.cluster_admin import as_admin
from tests.support.kafka_clients import Pair, new_topic, produce

pytestmark = pytest.mark.cluster


@pytest.fixture
def mirror(pair: Pair, tmp_path: Path) -> tuple[str, str]:
    """A mirror of one topic, caught up: its name and the topic's."""
    topic = new_topic(pair.east, partitions=2)
    for partition in (0, 1):
        produce(pair.east, topic, 300, partition=partition)
    name, config = f"m-{topic}", str(pair.config_path)
    create = ["mirror", "create", name, "--source", "east", "--destination", "west", "--topics", topic]
    replicate = ["replicate", name, "--runner", "local", "--until-caught-up", "--receipts", str(tmp_path / "receipts")]
    for command in ([*create, "--yes"], ["mirror", "start", name], replicate):
        result = invoked(*command, "--config", config)
        assert result.exit_code == 0, (command, result.output)
    return name, topic


def test_a_mirror_that_has_caught_up_passes(pair: Pair, mirror: tuple[str, str], tmp_path: Path) -> None:
    name, topic = mirror
    arguments = (name, "--runner", "local", "--config", str(pair.config_path), "--output", str(tmp_path / "out"))
    result = invoked("parity", *arguments, "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert (answer["verdict"], answer["records"], answer["left_out"]) == ("passed", 600, [])
    assert answer["proven"] == [{"topic": topic, "partition": n, "offset": 300} for n in (0, 1)]
    assert Path(answer["report"]).is_file()
    words = invoked("parity", *arguments)
    assert "verdict: passed" in words.stdout
    at_digests = invoked("parity", *arguments, "--level", "2")
    assert at_digests.exit_code == 0, "the copy is not byte for byte: record by record was needed"


def test_what_differs_is_shown_to_who_asks_for_it_and_to_nobody_else(
    pair: Pair, mirror: tuple[str, str], tmp_path: Path
) -> None:
    name, topic = mirror
    produce(pair.east, topic, 3, partition=1)
    theirs = produce(pair.west, topic, 3, partition=1)[0].value
    assert theirs is not None
    secret = theirs[-40:].decode()
    arguments = ["parity", name, "--runner", "local", "--config", str(pair.config_path), "--json"]
    for shows in (True, False):
        out = tmp_path / f"out-{shows}"
        told = invoked(*arguments, "--whole", "--output", str(out), *(["--show-values"] if shows else []))
        assert told.exit_code == 1, told.output
        assert (secret in told.stdout) == shows
        pages = "".join(
            page.read_text(encoding="utf-8") for page in out.rglob("*") if page.suffix in {".html", ".json"}
        )
        assert (secret in pages) == shows
        assert "value" in {found["kind"] for found in json.loads(told.stdout)["findings"]}
    with pytest.raises(BadRequest, match="--level 3"):
        invoked(*arguments, "--show-values", "--level", "2")


def test_a_write_that_is_not_the_mirrors_fails_and_is_named(
    pair: Pair, mirror: tuple[str, str], tmp_path: Path
) -> None:
    name, topic = mirror
    produce(pair.west, topic, 3, partition=1)
    result = invoked(
        "parity", name, "--runner", "local", "--config", str(pair.config_path), "--output", str(tmp_path / "out")
    )
    assert result.exit_code == 1
    assert "goes on to 303" in " ".join(result.stdout.split())


def test_a_mirror_topic_that_is_gone_is_missing_and_not_merely_unreachable(
    pair: Pair, mirror: tuple[str, str], tmp_path: Path
) -> None:
    name, topic = mirror
    arguments = ["parity", name, "--runner", "local", "--config", str(pair.config_path)]
    assert invoked(*arguments, "--output", str(tmp_path / "before")).exit_code == 0
    with as_admin(pair.west) as client:
        delete_topics(client, [topic])
    for more in ([], ["--whole"], ["--level", "1"]):
        told = invoked(*arguments, "--json", "--output", str(tmp_path / f"out{len(more)}{more[-1:]}"), *more)
        assert told.exit_code == 1, told.output
        answer = json.loads(told.stdout)
        found = {(one["partition"], one["kind"]): one["detail"] for one in answer["findings"]}
        assert found.keys() == {(0, "missing"), (1, "missing")}
        assert found[0, "missing"].startswith("missing on west")
        assert "nobody leads it" not in told.output
    seen = invoked("mirror", "describe", name, "--json", "--config", str(pair.config_path))
    trouble = json.loads(seen.stdout)["facts"]["problems"]["text"]
    assert trouble == f"missing on west: {topic}-0, {topic}-1: it has no such topic or partition"


def test_a_source_topic_that_is_gone_leaves_nothing_to_compare_with(
    pair: Pair, mirror: tuple[str, str], tmp_path: Path
) -> None:
    name, topic = mirror
    with as_admin(pair.east) as client:
        delete_topics(client, [topic])
    arguments = ["parity", name, "--runner", "local", "--config", str(pair.config_path)]
    told = invoked(*arguments, "--json", "--output", str(tmp_path / "out"))
    assert told.exit_code == 4, told.output
    assert "cluster east has no such partition" in told.output
    assert "nobody leads it" not in told.output


def test_an_unknown_mirror_is_a_bad_request(pair: Pair) -> None:
    with pytest.raises(BadRequest, match="unknown mirror"):
        invoked("parity", "nobody", "--runner", "local", "--config", str(pair.config_path))
