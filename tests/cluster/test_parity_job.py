"""`mirrorbook parity-job` on a real mirror: plan, run and judge end as `mirrorbook parity` does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mirror_core.model.errors import BadRequest, Refused
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ParityRange, ParityResult, ParityVerdict
from mirror_core.parity.check import check_parity
from mirror_core.parity.compare import compare_task
from mirror_core.parity.parity_plan import encode_plan, parse_plan
from tests.support.cli_process import invoked
from tests.support.comparisons import write_misled_configuration
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


def answered(*arguments: str, exit_code: int = 0) -> dict[str, Any]:
    result = invoked(*arguments, "--json")
    assert result.exit_code == exit_code, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def all_three(pair: Pair, name: str, folder: Path, *more: str, exit_code: int = 0) -> dict[str, Any]:
    config, table = ("--config", str(pair.config_path)), ("--table", str(folder / "table"))
    (planned,) = answered("parity-job", "plan", name, "--output", str(folder), *more, *config)["plans"]
    ran = answered("parity-job", "run", planned["file"], *table, "--runner", "local")
    assert (ran["plan"], ran["spans"], ran["compared"]) == (planned["plan"], planned["spans"], planned["spans"])
    assert answered("parity-job", "run", planned["file"], *table, "--runner", "local")["compared"] == 0
    output = ("--output", str(folder / "report"))
    return answered("parity-job", "judge", planned["file"], *table, *output, *config, exit_code=exit_code)


def test_a_mirror_that_has_caught_up_passes_and_is_proved(pair: Pair, mirror: tuple[str, str], tmp_path: Path) -> None:
    name, topic = mirror
    answer = all_three(pair, name, tmp_path)
    assert (answer["mirror"], answer["level"], answer["verdict"], answer["records"]) == (name, 3, "passed", 600)
    assert answer["proven"] == [{"topic": topic, "partition": n, "offset": 300} for n in (0, 1)]
    assert Path(answer["report"]).is_file()
    seen = answered("mirror", "describe", name, "--config", str(pair.config_path))
    assert {row["verified_end"] for row in seen["rows"]} == {300}
    produce(pair.east, topic, 10, partition=0)
    replicate = ("replicate", name, "--runner", "local", "--until-caught-up", "--receipts", str(tmp_path / "receipts"))
    assert invoked(*replicate, "--config", str(pair.config_path)).exit_code == 0
    assert all_three(pair, name, tmp_path / "later")["records"] == 10, "only what is new"
    assert all_three(pair, name, tmp_path / "whole", "--whole")["records"] == 610


def test_it_ends_as_a_comparison_does_where_something_differs(
    pair: Pair, mirror: tuple[str, str], tmp_path: Path
) -> None:
    name, topic = mirror
    produce(pair.east, topic, 3, partition=1)
    produce(pair.west, topic, 3, partition=1)
    arguments = ("--config", str(pair.config_path), "--whole")
    planned = all_three(pair, name, tmp_path, "--whole", exit_code=1)
    at_once = answered(
        "parity", name, *arguments, "--runner", "local", "--output", str(tmp_path / "other"), exit_code=1
    )
    for key in at_once.keys() - {"seconds", "report"}:
        assert planned[key] == at_once[key], key
    facts = answered("mirror", "describe", name, "--config", str(pair.config_path))["facts"]
    assert f"{topic}-1" in facts["differences"]["text"]


def test_what_was_not_run_is_indeterminate_and_another_mirrors_plan_is_refused(
    pair: Pair, mirror: tuple[str, str], tmp_path: Path
) -> None:
    name, topic = mirror
    config = ("--config", str(pair.config_path))
    (planned,) = answered("parity-job", "plan", name, "--output", str(tmp_path), *config)["plans"]
    judge = ("parity-job", "judge", planned["file"], "--table", str(tmp_path / "none"), *config)
    told = answered(*judge, "--output", str(tmp_path / "report"), exit_code=4)
    assert told["records"] == 0
    assert f"{topic}-0 [0, 300), {topic}-1 [0, 300): was not compared: no task reported it" in told["reasons"]
    earlier = parse_plan(Path(planned["file"]).read_bytes(), "plan")
    other = tmp_path / "other.json"
    other.write_bytes(encode_plan(msgspec.structs.replace(earlier, producer_id=earlier.producer_id + 1)))
    with pytest.raises(Refused, match="an earlier one of this name"):
        invoked("parity-job", "judge", str(other), "--table", str(tmp_path / "none"), *config)


def test_what_tasks_read_of_another_cluster_proves_nothing(pair: Pair, mirror: tuple[str, str], tmp_path: Path) -> None:
    name, _ = mirror
    config, table = ("--config", str(pair.config_path)), ("--table", str(tmp_path / "table"))
    (planned,) = answered("parity-job", "plan", name, "--output", str(tmp_path), *config)["plans"]
    seen_by_tasks = write_misled_configuration(pair)
    plan = parse_plan(Path(planned["file"]).read_bytes(), "plan")
    given = tmp_path / "given.json"
    given.write_bytes(encode_plan(msgspec.structs.replace(plan, config_path=str(seen_by_tasks))))
    answered("parity-job", "run", str(given), *table, "--runner", "local")
    told = answered(
        "parity-job", "judge", str(given), *table, "--output", str(tmp_path / "report"), *config, exit_code=4
    )
    assert told["records"] == 0
    assert all(plan.source.id in reason and plan.destination.id in reason for reason in told["reasons"][:1])
    rows = answered("mirror", "describe", name, *config)["rows"]
    assert {row["verified_end"] for row in rows}.isdisjoint({300})


def test_nor_does_what_executors_read_of_it_by_their_own_configuration(
    pair: Pair, mirror: tuple[str, str], tmp_path: Path
) -> None:
    _, topic = mirror
    ranges = [ParityRange(partition=Partition(topic, n), start=Offset(0), end=Offset(300)) for n in (0, 1)]

    def compared(seen_by_tasks: Path) -> ParityResult:
        """At the same path, on machines of their own."""
        return check_parity(
            pair.config_path,
            *pair.identities,
            ranges,
            None,
            run=lambda tasks: [compare_task(replace(task, config_path=str(seen_by_tasks))) for task in tasks],
            tasks=2,
            level=3,
            chunk=100,
            demands=None,
        )

    assert compared(pair.config_path).verdict is ParityVerdict.PASSED
    misled = compared(write_misled_configuration(pair))
    assert (misled.verdict, misled.records) == (ParityVerdict.INDETERMINATE, 0)
    assert all(identity.id in misled.reasons[0] for identity in pair.identities)


@pytest.mark.parametrize("level", ["1", "2", "3"])
def test_nor_does_a_comparison_whose_own_configuration_leads_to_another_cluster(
    pair: Pair, mirror: tuple[str, str], tmp_path: Path, level: str
) -> None:
    """The destination has what the destination has: each level would find both sides equal."""
    name, _ = mirror
    misled = write_misled_configuration(pair, misled="east", leads_to="west")
    compare = ("parity", name, "--runner", "local", "--level", level, "--output", str(tmp_path / "report"))
    told = answered(*compare, "--config", str(misled), exit_code=4)
    assert told["records"] == 0
    rows = answered("mirror", "describe", name, "--config", str(pair.config_path))["rows"]
    assert {row["verified_end"] for row in rows}.isdisjoint({300})


def test_tasks_need_no_secret_of_the_control_principal(pair: Pair, mirror: tuple[str, str], tmp_path: Path) -> None:
    name, _ = mirror
    (planned,) = answered("parity-job", "plan", name, "--output", str(tmp_path), "--config", str(pair.config_path))[
        "plans"
    ]
    text = Path(planned["file"]).read_text(encoding="utf-8")
    secrets = [password for cluster in (pair.east, pair.west) for password in cluster.passwords.values()]
    assert not any(secret in text for secret in secrets)
    assert Path(planned["file"]).stat().st_mode & 0o77 == 0
    with pytest.raises(BadRequest, match="not the plan of a comparison"):
        invoked("parity-job", "run", str(pair.config_path), "--table", str(tmp_path), "--runner", "local")
