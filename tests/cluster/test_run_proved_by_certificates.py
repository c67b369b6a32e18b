"""A run without its source proves by itself, from certificates, what of the promoted copy is as it was copied."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mirror_core.evidence.signed_bundle import verify_bundle
from mirror_core.mirrors import mirror_commands
from mirror_core.model.run import RunState, StepEvidence
from tests.cluster.copied import Copied, copied
from tests.support.broker_faults import suspended
from tests.support.cli_process import invoked, mirrorbook
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client
from tests.support.parity_topics import content, send
from tests.support.sentences import format_sentence
from tests.support.unplanned_runs import begin

pytestmark = pytest.mark.cluster

COVERAGE = ("certificates_verdict", "certified_offsets", "certifiable_offsets")


def with_a_hole(pair: Pair, folder: Path) -> Copied:
    """Of both partitions the first 100 records and the last 20 have certificates; the 30 between have none."""
    made = copied(pair, folder, content(100), partitions=2)
    for records, receipts in ((content(30), None), (content(20), str(made.receipts.path))):
        for partition in (0, 1):
            send(pair.east, made.topic, records, partition)
        made.mirrored.copy(receipts)
    mirror_commands.run_sync(made.mirrored.link)
    return made


def report_of(made: Copied, run: str) -> StepEvidence:
    return made.mirrored.state.steps[run, "report"].evidence


def test_with_the_source_deleted_and_dead_a_run_names_what_is_proved_and_what_is_not(
    pair: Pair, tmp_path: Path
) -> None:
    made = with_a_hole(pair, tmp_path)
    admin = admin_client(pair.east)
    admin.delete_topics([made.topic])[made.topic].result(TIMEOUT_S)
    with suspended(pair.east):
        run = begin(made.mirrored.failover)
        made.mirrored.failover.run_step(run.id, "settle")
        for name in ("stand", "final_offsets", "record_lmo", "promote", "switch", "canary"):
            made.mirrored.failover.run_step(run.id, name)
        send(pair.west, made.topic, content(7))  # an application's own
        assert made.mirrored.failover.drive(run.id).state is RunState.DONE
        seen = report_of(made, run.id)
        assert tuple(map(seen.get, COVERAGE)) == ("indeterminate", 240, 300)
        assert seen["not_as_copied"] == ()
        ranges = [f"{made.topic}-{index}: 30 of 150 offsets, [100, 130)" for index in (0, 1)]
        assert seen["not_proved"] == tuple(ranges)
        assert "no receipt vouches for it" in str(seen["not_proved_because"])
        assert "to_prove_more" not in seen, "all that has certificates was compared"
        resumed = invoked(
            "failover", "resume", made.mirrored.name, "--config", str(pair.config_path),
            "--evidence", str(tmp_path),
        )  # fmt: skip
        assert resumed.exit_code == 0, resumed.output
        assert format_sentence("certificates_cover_offsets", "west", 240, 300) in resumed.output
    folder = tmp_path / f"run-{run.id}"
    page = (folder / "report.html").read_text()
    assert "240 of 300 offsets are as they were copied, " in page
    read = json.loads((folder / "certificates" / "read.json").read_text())
    assert (read["read_from"], len(read["files"])) == (str(made.receipts.path), 2)
    verified = verify_bundle(folder, None)
    assert verified.flaws == ()
    assert "; certificates: 240 of 300 offsets are as they were copied" in verified.reason
    (folder / "certificates" / "read.json").write_text("{}")
    assert [flaw.where for flaw in verify_bundle(folder, None).flaws] == ["certificates/read.json"]


@pytest.mark.slow
def test_once_the_source_answers_the_command_that_a_run_names_proves_the_rest(pair: Pair, tmp_path: Path) -> None:
    made = with_a_hole(pair, tmp_path)
    with suspended(pair.east):
        run = begin(made.mirrored.failover)
        assert made.mirrored.failover.drive(run.id).state is RunState.DONE
    command = str(report_of(made, run.id)["to_prove_more_from_source"]).split()
    more = ["--runner", "local", "--config", str(pair.config_path), "--json"]
    rebuilt = invoked(*command[1:], *more)
    assert (rebuilt.exit_code, json.loads(rebuilt.stdout)["records"]) == (0, 60), rebuilt.output
    parity = ["parity", made.mirrored.name, "--against", "certificates", "--receipts", str(made.receipts.path)]
    again = invoked(*parity, *more, "--output", str(tmp_path / "out"))
    assert (again.exit_code, json.loads(again.stdout)["records"]) == (0, 300), again.output


@pytest.mark.slow
def test_a_copy_or_a_certificate_that_was_changed_is_found_and_the_command_does_not_end_well(
    pair: Pair, tmp_path: Path
) -> None:
    made = copied(pair, tmp_path, content(100), content(30))
    altered, _ = made.receipts.names()
    path = made.receipts.path / altered
    path.write_bytes(path.read_bytes().replace(b"PAR1", b"PAR2"))
    mirror_commands.run_sync(made.mirrored.link)
    with suspended(pair.east):
        command = ["failover", "run", made.mirrored.name, "--mode", "unplanned", "--yes"]
        said = mirrorbook(*command, "--config", str(pair.config_path), "--evidence", str(tmp_path))
    assert said.returncode == 1, said.stderr
    [run] = [run for run in made.mirrored.state.runs.values() if run.plan.mirror == made.mirrored.name]
    assert run.state is RunState.DONE, "applications write: nobody is stranded by it"
    seen = report_of(made, run.id)
    assert tuple(map(seen.get, COVERAGE)) == ("failed", 30, 130)
    name = altered.partition("/")[2]
    assert seen["not_as_copied"] == (f"certificate {name} is not as it was written",)
    assert f"NOT AS IT WAS COPIED: certificate {name}" in said.stdout
    assert f"error: run {run.id}: certificate {name} is not as it was written" in said.stderr


@pytest.mark.slow
def test_certificates_that_are_not_reached_from_here_are_said_and_make_no_run_red(pair: Pair, tmp_path: Path) -> None:
    made = copied(pair, tmp_path, content(100))
    shutil.rmtree(made.receipts.path)
    mirror_commands.run_sync(made.mirrored.link)
    with suspended(pair.east):
        run = begin(made.mirrored.failover)
        assert made.mirrored.failover.drive(run.id).state is RunState.DONE
    seen = report_of(made, run.id)
    assert tuple(map(seen.get, COVERAGE)) == ("indeterminate", 0, 100)
    assert str(made.receipts.path) in str(seen["certificates_read_from"])
    assert "is this the folder that `replicate` was given?" in str(seen["not_proved_because"])
