"""Saved records go to no mirror topic, no fenced side and no other cluster; then they go where applications write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from mirror_core.model.errors import Refused
from mirror_core.parity.salvage import LocalSalvage
from tests.support.cli_process import invoked
from tests.support.kafka_clients import Pair, new_topic, produce, read_all
from tests.support.parity_topics import whole
from tests.support.saved_tails import replay_login

pytestmark = pytest.mark.cluster


def codes(refusal: pytest.ExceptionInfo[Refused]) -> set[str]:
    return {reason.code for reason in refusal.value.findings}  # type: ignore[attr-defined]


def test_saved_records_go_only_where_applications_write(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    topic, free = new_topic(pair.east), new_topic(pair.west)
    produce(pair.east, topic, 30)
    name, config = f"m-{topic}", str(pair.config_path)
    folder = tmp_path / "salvage"
    LocalSalvage(pair.config_path)(pair.identities[0], [whole(topic, 30, start=20)], folder)

    def run(*command: str) -> None:
        result = invoked(*command, "--config", config)
        assert result.exit_code == 0, (command, result.output)

    run("mirror", "create", name, "--source", "east", "--destination", "west", "--topics", topic, "--yes")
    run("mirror", "start", name)
    run("replicate", name, "--runner", "local", "--until-caught-up", "--receipts", str(tmp_path / "receipts"))
    with replay_login(pair, tmp_path / "replay.yaml") as login:

        def replay(cluster: str, target: str, file: Path = login) -> None:
            chosen = [str(folder), "--cluster", cluster, "--to", f"{topic}={target}", "--config", str(file)]
            command = ("salvage", "replay", *chosen, "--json")
            planned = json.loads(invoked(*command).stdout)["plan_hash"]
            assert invoked(*command, "--plan-hash", planned).exit_code == 0

        with pytest.raises(Refused) as refusal:
            replay("west", topic)
        assert codes(refusal) == {"replay_mirror_topic"}
        assert len(read_all(pair.west, topic)) == 30
        replay("west", free)
        assert len(read_all(pair.west, free)) == 10
        misled = tmp_path / "misled.yaml"
        text = login.read_text(encoding="utf-8")
        misled.write_text(text.replace(pair.west.bootstrap, pair.east.bootstrap), encoding="utf-8")
        with pytest.raises(Refused) as refusal:
            replay("west", topic, misled)
        assert codes(refusal) == {"replay_one_cluster"}
        without_east = yaml.safe_load(text)
        without_east["clusters"]["east"] = without_east["clusters"].pop("west")
        misled.write_text(yaml.safe_dump(without_east), encoding="utf-8")
        with pytest.raises(Refused) as refusal:
            replay("east", free, misled)
        assert codes(refusal) == {"replay_other_cluster"}
        assert len(read_all(pair.east, topic)) == 30
        run("failover", "run", name, "--runner", "local", "--yes")
        with pytest.raises(Refused) as refusal:
            replay("east", topic)
        assert codes(refusal) == {"replay_fenced"}
        assert len(read_all(pair.east, topic)) == 30
        replay("west", topic)
        assert len(read_all(pair.west, topic)) == 40
