"""`mirrorbook mirror check` on a real mirror, and what a user's file adds to it and to `parity`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import Result

from mirror_core.model.errors import BadRequest
from tests.support.cli_process import invoked
from tests.support.kafka_clients import Pair, new_topic, produce

pytestmark = pytest.mark.cluster


def run(config: Path, *arguments: str) -> Result:
    return invoked(*arguments, "--config", str(config))


def asked(result: Result) -> dict[str, Any]:
    document = json.loads(result.stdout)
    unmet = {
        (suite["suite"], one["by"]): (one["held"], one["where"])
        for suite in document["suites"]
        for one in suite["expectations"]
        if one["held"] is not True
    }
    return {**document, "unmet": unmet, "rows": {suite["suite"]: suite["rows"] for suite in document["suites"]}}


def test_a_mirror_is_checked_by_our_rules_and_by_what_its_owner_expects(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east, partitions=2)
    for partition in (0, 1):
        produce(pair.east, topic, 30, partition=partition)
    name, config = f"m-{topic}", tmp_path / "mirrorbook.yaml"

    def expecting(**section: object) -> None:
        clusters = yaml.safe_load(pair.config_path.read_text(encoding="utf-8"))["clusters"]
        config.write_text(yaml.safe_dump({"clusters": clusters, "expectations": section}), encoding="utf-8")

    expecting()
    create = ["mirror", "create", name, "--source", "east", "--destination", "west", "--topics", topic, "--yes"]
    assert run(config, *create, "--groups", f"{topic}-none").exit_code == 0
    assert run(config, "mirror", "start", name).exit_code == 0
    nothing = run(config, "mirror", "check", name, "--json")
    found = asked(nothing)
    assert (nothing.exit_code, found["verdict"], found["rows"]["readiness"]) == (4, "indeterminate", 0)
    replicate = ["replicate", name, "--runner", "local", "--until-caught-up", "--receipts", str(tmp_path / "receipts")]
    assert run(config, *replicate).exit_code == 0
    assert run(config, "sync", name, "--yes").exit_code == 0

    well = run(config, "mirror", "check", name, "--json", "--output", str(tmp_path / "out"))
    found = asked(well)
    assert (well.exit_code, found["verdict"], found["unmet"], found["trouble"]) == (0, "passed", {}, []), well.output
    assert found["rows"]["readiness"] >= 2
    assert found["rows"]["sync"] >= 1, "a topic of which nothing differs was looked at all the same"
    assert Path(found["report"]).is_file()
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"data-docs", "readiness.parquet", "result.json", "sync.parquet"}

    tier = {"name": "mine", "topics": [topic], "max_lag": 0, "max_sync_age_s": 3600, "drift": "none"}
    expecting(tiers=[tier])
    assert run(config, "mirror", "check", name).exit_code == 0
    expecting(tiers=[{**tier, "max_drill_age_s": 3600}])
    undrilled = run(config, "mirror", "check", name, "--json")
    places = f"{topic}-0: never; {topic}-1: never"
    assert asked(undrilled)["unmet"] == {("readiness", "tier mine: max_drill_age_s 3600"): (False, places)}
    assert undrilled.exit_code == 1
    words = run(config, "mirror", "check", name)
    assert "tiers: mine" in words.stdout
    assert "readiness: failed" in words.stdout
    assert "sync: passed" in words.stdout
    assert "Not as expected" in words.stdout

    own = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "compared", "max_value": 7}}
    expecting(parity=[own])
    parity = ["parity", name, "--runner", "local", "--json", "--output", str(tmp_path / "parity")]
    more = run(config, *parity)
    assert (more.exit_code, json.loads(more.stdout)["verdict"]) == (1, "failed")
    assert json.loads(more.stdout)["findings"] == []
    assert f"{topic}-0 chunk 0" in json.loads(more.stdout)["unmet"][0]
    expecting(parity=[{**own, "kwargs": {"column": "nothing"}}])
    with pytest.raises(BadRequest, match=r"expectations: parity\[0\]"):
        run(config, "parity", "no-such-mirror", "--runner", "local")

    produce(pair.west, topic, 1, partition=0)
    expecting()
    ahead = run(config, "mirror", "check", name, "--json")
    assert ahead.exit_code == 1
    assert "1 offset ahead of what east can show" in asked(ahead)["unmet"]["readiness", ""][1]
