"""Runs on real brokers leave bundles that verify, whoever took their steps; and what was altered does not."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import yaml

from mirror_core.cli.command_options import find_operator
from mirror_core.decide.audit_log_check import RunConclusion
from mirror_core.evidence.signed_bundle import (
    ENTRIES_FILE,
    HEAD_FILE,
    NOTES_FILE,
    NOTES_PAGE,
    BundleVerification,
    PublicKey,
    verify_bundle,
)
from mirror_core.kafka.config import load_config
from mirror_core.model.audit_log import AuditEntry
from mirror_core.model.errors import BadRequest
from mirror_core.model.run import RunMode, RunState
from mirror_core.runbook.failover_conductor import Failover
from tests.support.cli_process import mirrorbook
from tests.support.kafka_clients import Pair, new_topic, produce
from tests.support.mirrored_topics import Mirrored, new_mirror

pytestmark = pytest.mark.cluster

PRIVATE, PUBLIC = "signing-key.pem", "public-key.pem"


def make_keys(folder: Path) -> None:
    """As the page tells people to."""
    for command in (
        ["openssl", "genpkey", "-algorithm", "ed25519", "-out", PRIVATE],
        ["openssl", "pkey", "-in", PRIVATE, "-pubout", "-out", PUBLIC],
    ):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (folder / PRIVATE).chmod(0o600)


@pytest.fixture
def mirrored(pair: Pair, tmp_path: Path) -> Mirrored:
    """One whose evidence is signed."""
    topic = new_topic(pair.east, 2)
    produce(pair.east, topic, 20)
    made = new_mirror(pair, tmp_path / "evidence", topic)
    made.copy()
    make_keys(tmp_path)
    document = yaml.safe_load(made.config.path.read_text())
    path = tmp_path / "mirrorbook.yaml"
    path.write_text(yaml.safe_dump({**document, "evidence": {"signing_key": PRIVATE, "copy_to": "copies"}}))
    return replace(made, config=load_config(path))


def bundle(mirrored: Mirrored, run: str) -> Path:
    return mirrored.evidence / f"run-{run}"


def verified(mirrored: Mirrored, run: str) -> BundleVerification:
    key = PublicKey(mirrored.config.path.parent / PUBLIC)
    return verify_bundle(bundle(mirrored, run), key, run, mirrored.state.audit_entries)


def by(mirrored: Mirrored, who: str) -> Failover:
    return Failover(mirrored.link, mirrored.services, started_by=who)


def begun(mirrored: Mirrored) -> str:
    ann = by(mirrored, "ann")
    return ann.begin(ann.plan(RunMode.PLANNED).hash, RunMode.PLANNED, approved_by="ann@desk").id


def test_a_failover_that_two_people_drove_proves_itself(mirrored: Mirrored) -> None:
    run = begun(mirrored)
    by(mirrored, "ann").run_steps(run, ("prove", "fence"))
    by(mirrored, "bob").drive(run)
    found = verified(mirrored, run)
    assert (found.verdict, found.flaws, found.approved_by) == (RunConclusion.VERIFIED, (), "ann@desk")
    lines = (bundle(mirrored, run) / ENTRIES_FILE).read_bytes().splitlines()
    entries = [msgspec.json.decode(line, type=AuditEntry) for line in lines]
    assert list(dict.fromkeys(e.by for e in entries)) == ["ann", "bob"]
    names = {e.body["name"] for e in entries if e.kind == "file"}
    assert {"run.json", "report.html"} <= names
    assert any(name.startswith("parity/") for name in names)

    copied = mirrored.config.path.parent / "copies" / f"run-{run}"
    there = verify_bundle(copied, PublicKey(mirrored.config.path.parent / PUBLIC), run, mirrored.state.audit_entries)
    assert (there.verdict, there.flaws, there.files) == (RunConclusion.VERIFIED, (), found.files)

    folder, config = bundle(mirrored, run), str(mirrored.config.path)
    public = str(mirrored.config.path.parent / PUBLIC)
    genuine = mirrorbook("evidence", "verify", str(folder), "--public-key", public, "--json")
    assert (genuine.returncode, json.loads(genuine.stdout)["verdict"]) == (0, "moved, and proved equal")
    assert mirrorbook("evidence", "verify", str(folder)).returncode == 4
    before = (folder / HEAD_FILE).read_bytes()
    again = mirrorbook(
        *("evidence", "write", mirrored.name, "--run", run),
        *("--config", config, "--evidence", str(mirrored.evidence), "--json"),
    )
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["copy"].endswith(f"copies/run-{run}")
    assert (folder / HEAD_FILE).read_bytes() == before
    page = (folder / "report.html").read_bytes()
    (folder / "report.html").write_bytes(page.replace(b"20", b"21"))
    altered = mirrorbook("evidence", "verify", str(folder), "--public-key", public)
    assert altered.returncode == 1
    assert "report.html: it was altered" in " ".join(altered.stderr.split())


def test_a_note_on_a_run_that_has_ended_is_signed_apart_and_changes_no_evidence(mirrored: Mirrored) -> None:
    run, config = begun(mirrored), str(mirrored.config.path)
    add_note = ("runs", "note", run, "shop was well at 09:04", "--config", config, "--evidence", str(mirrored.evidence))
    assert mirrorbook(*add_note).returncode == 3, "it has not ended"
    by(mirrored, "ann").drive(run)
    head = (bundle(mirrored, run) / HEAD_FILE).read_bytes()

    noted = mirrorbook(*add_note, "--json")
    assert noted.returncode == 0, noted.stderr
    note = json.loads(noted.stdout)
    assert (note["run"], note["text"], note["by"]) == (run, "shop was well at 09:04", find_operator())
    shown = json.loads(mirrorbook("runs", "show", run, "--config", config, "--json").stdout)
    assert shown["notes"] == [note]
    public = PublicKey(mirrored.config.path.parent / PUBLIC)
    for folder in (bundle(mirrored, run), mirrored.config.path.parent / "copies" / f"run-{run}"):
        assert "shop was well at 09:04" in (folder / NOTES_PAGE).read_text(encoding="utf-8")
        found = verify_bundle(folder, public, run, mirrored.state.audit_entries)
        assert (found.verdict, found.flaws) == (RunConclusion.VERIFIED, ())
        assert [(n.text, n.signed) for n in found.notes] == [("shop was well at 09:04", True)]
    assert (bundle(mirrored, run) / HEAD_FILE).read_bytes() == head

    notes = bundle(mirrored, run) / NOTES_FILE
    notes.write_bytes(notes.read_bytes().replace(b"09:04", b"09:01"))
    altered = verified(mirrored, run)
    assert (altered.verdict, altered.flaws) == (RunConclusion.VERIFIED, ())
    assert [n.signed for n in altered.notes] == [False]


@pytest.mark.slow
def test_an_older_bundle_in_place_of_the_last_one_is_found_while_the_state_topic_lives(mirrored: Mirrored) -> None:
    run = begun(mirrored)
    by(mirrored, "ann").run_steps(run, ("prove",))
    options = ("--run", run, "--config", str(mirrored.config.path), "--evidence", str(mirrored.evidence))
    assert mirrorbook("evidence", "write", mirrored.name, *options).returncode == 0
    assert verified(mirrored, run).flaws == ()
    older = {path.name: path.read_bytes() for path in bundle(mirrored, run).iterdir() if path.is_file()}
    ended = by(mirrored, "ann").abort(run)
    assert ended.state is RunState.ABORTED
    assert (verified(mirrored, run).verdict, verified(mirrored, run).flaws) == (RunConclusion.ABORTED, ())
    for name, content in older.items():
        (bundle(mirrored, run) / name).write_bytes(content)
    assert [flaw.where for flaw in verified(mirrored, run).flaws] == [ENTRIES_FILE]


@pytest.mark.slow
def test_a_key_that_cannot_be_used_is_said_before_a_run_begins(mirrored: Mirrored) -> None:
    key = mirrored.config.path.parent / PRIVATE
    key.chmod(0o644)
    with pytest.raises(BadRequest, match="others may read or write it"):
        begun(mirrored)
    assert mirrored.state.active_run(mirrored.name) is None
    key.chmod(0o600)
    run = begun(mirrored)
    key.unlink()
    said: list[str] = []
    failover = Failover(mirrored.link, mirrored.services, started_by="ann", print_line=said.append)
    assert failover.drive(run).state is RunState.DONE
    assert "the evidence could not be written" in said[-1]
    assert f"`mirrorbook evidence write {mirrored.name} --run {run}`" in said[-1]
