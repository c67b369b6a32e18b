"""A copy of a bundle holds no contents of topics, verifies all the same, and hides nothing else that is missing."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from mirror_core.decide.audit_log_check import RunConclusion, has_topic_contents
from mirror_core.evidence.file_store import LocalFolder
from mirror_core.evidence.signed_bundle import (
    ENTRIES_FILE,
    HEAD_FILE,
    PLAN_FILE,
    BundleHead,
    copy_bundle,
    verify_bundle,
)
from mirror_core.kafka.config import Config, load_config
from mirror_core.model.audit_log import to_canonical_json
from mirror_core.model.config_sections import MirrorSet
from mirror_core.model.errors import BadRequest
from mirror_core.model.names import MirrorName
from mirror_core.runbook import evidence_bundle
from mirror_core.runbook.run_services import local_services
from mirror_core.runbook.set_conductor import MemberRun
from mirror_core.runbook.set_failover import SetFailover
from tests.support.evidence_desk import Desk, Keys, keys, plan, where
from tests.support.mirror_views import RUN
from tests.support.sentences import format_sentence

CONTENTS = ("salvage/orders-0.parquet", "salvage-2/part-0001.zstd.parquet", "_salvage.incomplete/orders-1.parquet")
BESIDE = ("salvage/_report.html", "salvage/_salvage.json", "prove/chunks.parquet", "run.json")


@pytest.fixture
def ours(tmp_path: Path) -> Keys:
    return keys(tmp_path, "ours")


@pytest.fixture
def desk(tmp_path: Path, ours: Keys) -> Desk:
    made = Desk(tmp_path, "run-1", plan(), ours.signer).take().end()
    for name in (*CONTENTS, *BESIDE):
        (made.folder / name).parent.mkdir(exist_ok=True)
        (made.folder / name).write_text(f"what is in {name}")
    return made


@pytest.fixture
def copied(desk: Desk, tmp_path: Path) -> Path:
    where = copy_bundle(desk.folder, desk.write(), LocalFolder(tmp_path / "far" / "away", private=True), desk.signer)
    return Path(where)


def test_a_copy_verifies_and_says_what_is_not_in_it(copied: Path, ours: Keys) -> None:
    found = verify_bundle(copied, ours.public, "run-1")
    assert (found.verdict, found.flaws, found.key) == (RunConclusion.VERIFIED, (), ours.public.id)
    assert sorted(found.left_out) == sorted(CONTENTS)
    assert {p.relative_to(copied).as_posix() for p in copied.rglob("*") if p.is_file()} == {
        PLAN_FILE, ENTRIES_FILE, HEAD_FILE, "report.html", *BESIDE,
    }  # fmt: skip


def test_nobody_else_may_read_it(copied: Path) -> None:
    modes = {path.is_dir(): set[int]() for path in copied.rglob("*")}
    for path in (copied, *copied.rglob("*")):
        modes[path.is_dir()].add(path.stat().st_mode & 0o777)
    assert modes == {True: {0o700}, False: {0o600}}


@pytest.mark.parametrize("name", ["report.html", *BESIDE])
def test_whatever_else_is_missing_from_a_copy_was_taken_away(copied: Path, ours: Keys, name: str) -> None:
    (copied / name).unlink()
    assert where(verify_bundle(copied, ours.public)) == [name]


def test_contents_that_are_put_beside_a_copy_are_looked_at_like_all_else(copied: Path, desk: Desk, ours: Keys) -> None:
    for name in CONTENTS:
        (copied / name).parent.mkdir(exist_ok=True)
        shutil.copy(desk.folder / name, copied / name)
    assert (verify_bundle(copied, ours.public).flaws, verify_bundle(copied, ours.public).left_out) == ((), ())
    (copied / CONTENTS[0]).write_text("other records")
    assert where(verify_bundle(copied, ours.public)) == [CONTENTS[0]]


def test_in_the_runs_own_folder_contents_that_are_missing_were_taken_away(desk: Desk, ours: Keys) -> None:
    desk.write()
    (desk.folder / CONTENTS[0]).unlink()
    assert where(verify_bundle(desk.folder, ours.public)) == [CONTENTS[0]]


def test_only_who_may_sign_makes_a_copy_of_it(desk: Desk, ours: Keys, copied: Path) -> None:
    (desk.folder / CONTENTS[0]).unlink()
    head = msgspec.json.decode((desk.folder / HEAD_FILE).read_bytes(), type=BundleHead)
    (desk.folder / HEAD_FILE).write_text(to_canonical_json(replace(head, copy=True)))
    assert where(verify_bundle(desk.folder, ours.public)) == [HEAD_FILE]
    shutil.copy(copied / HEAD_FILE, desk.folder / HEAD_FILE)
    assert verify_bundle(desk.folder, ours.public).left_out == (CONTENTS[0],), "it is called a copy, and says so"


def test_an_older_head_of_a_copy_does_not_fit_a_later_one(desk: Desk, ours: Keys, tmp_path: Path, copied: Path) -> None:
    (desk.folder / "more.json").write_text("{}")
    older = (copied / HEAD_FILE).read_bytes()
    copy_bundle(desk.folder, desk.write(), LocalFolder(tmp_path / "far" / "away", private=True), desk.signer)
    assert not verify_bundle(copied, ours.public).flaws
    (copied / HEAD_FILE).write_bytes(older)
    assert HEAD_FILE in where(verify_bundle(copied, ours.public))


@pytest.mark.parametrize(
    ("name", "may"),
    [
        *((name, True) for name in CONTENTS),
        ("salvage/.part-0.parquet.crc", True),
        ("salvage/topic=a/x.parquet", True),
        ("salvage/deep/_report.html", True),
        *((name, False) for name in BESIDE),
        ("salvage.parquet", False),
        ("salvages/x.parquet", False),
        ("parity/salvage/x.parquet", False),
    ],
)
def test_what_may_hold_contents_goes_by_its_folder(name: str, may: bool) -> None:
    assert has_topic_contents(name) is may


def configured(folder: Path, evidence: object) -> Config:
    path = folder / "mirrorbook.yaml"
    section = "" if evidence is None else f"evidence: {msgspec.json.encode(evidence).decode()}\n"
    path.write_text(f"clusters:\n  east: {{bootstrap.servers: '127.0.0.1:1'}}\n{section}")
    return load_config(path)


def test_where_copies_go_is_a_folder_beside_the_file_or_a_url(tmp_path: Path) -> None:
    assert configured(tmp_path, None).evidence_copy is None
    assert configured(tmp_path, {"copy_to": "there"}).evidence_copy == str(tmp_path / "there")
    assert configured(tmp_path, {"copy_to": "/there"}).evidence_copy == "/there"
    both = configured(tmp_path, {"copy_to": "s3a://bucket/evidence", "signing_key": "key.pem"})
    assert (both.evidence_copy, both.signing_key) == ("s3a://bucket/evidence", tmp_path / "key.pem")
    with pytest.raises(BadRequest, match=r"evidence\.copy_to: its URL holds a password") as refused:
        configured(tmp_path, {"copy_to": "s3a://key:hun/ter2@bucket/evidence"})
    assert "ter2" not in str(refused.value)
    for wrong in ({"copy_to": ""}, {"copy_to": ["a"]}, {"copy": "a"}, "s3a://bucket"):
        with pytest.raises(BadRequest, match="evidence"):
            configured(tmp_path, wrong)


@pytest.mark.parametrize(
    ("place", "why"), [("hdfs://name:8020/x", "only Spark reaches"), ("taken", "cannot be written")]
)
def test_a_copy_that_cannot_be_written_is_said_and_the_bundle_stands(
    desk: Desk, tmp_path: Path, place: str, why: str
) -> None:
    (tmp_path / "taken").write_text("a file")
    config = configured(tmp_path, {"copy_to": place})
    services = local_services(config.path, evidence_dir=tmp_path / "evidence")
    said: list[str] = []
    evidence_bundle.write_bundle_or_report(services, config, desk.journal.run, desk.log.state, said.append)
    assert said[0].startswith("evidence: moved, and proved equal")
    assert why in said[1]
    assert "`mirrorbook evidence write orders --run run-1`" in said[1]
    assert not verify_bundle(services.run_dir("run-1"), None).flaws


def test_a_copy_is_written_where_it_is_wanted_and_said(desk: Desk, tmp_path: Path) -> None:
    config = configured(tmp_path, {"copy_to": f"file://{tmp_path}/copies"})
    services = local_services(config.path, evidence_dir=tmp_path / "evidence")
    said: list[str] = []
    evidence_bundle.write_bundle_or_report(services, config, desk.journal.run, desk.log.state, said.append)
    assert said[1] == f"copy of the evidence: {tmp_path}/copies/run-run-1"
    assert not verify_bundle(tmp_path / "copies" / "run-run-1", None).flaws


def finished(
    monkeypatch: pytest.MonkeyPatch, config: Config, folder: Path, *ended: bool, copies: Any = None
) -> list[str]:
    """What the failover of a set says at its end, when the runs of its mirrors have ended or not."""
    services = local_services(config.path, evidence_dir=folder)
    services = replace(services, open_copy_folder=copies or services.open_copy_folder)
    one: Any = SimpleNamespace(services=services, link=SimpleNamespace(config=config))
    runs = [replace(RUN, id=f"{n}-1", ended_ms=9 if over else None) for n, over in enumerate(ended)]
    found = {MirrorName(run.id): MemberRun(run, ()) for run in runs}
    said = list[str]()
    several = SetFailover(MirrorSet("shop", tuple(found)), dict.fromkeys(found, one), print_line=said.append)
    monkeypatch.setattr(SetFailover, "_read_member_runs", lambda self, attempt: found)
    monkeypatch.setattr(SetFailover, "read_statuses", lambda self, attempt: dict.fromkeys(found, ()))
    monkeypatch.setattr(SetFailover, "_run_moves", lambda self, *moves: found)
    several.finish("shop-1")
    return said


def test_the_page_of_a_set_is_copied_beside_the_bundles_of_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "evidence" / "set-shop-1" / "index.html"
    config = configured(tmp_path, {"copy_to": "copies"})
    said = finished(monkeypatch, config, tmp_path / "evidence", True, True)
    assert said == [f"report: {page}", f"copy of the report: {tmp_path}/copies/set-shop-1/index.html"]
    assert (tmp_path / "copies" / "set-shop-1" / "index.html").read_bytes() == page.read_bytes()
    assert finished(monkeypatch, configured(tmp_path, None), tmp_path / "evidence", True) == said[:1]


def test_a_page_that_cannot_be_copied_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured(tmp_path, {"copy_to": "hdfs://name:8020/x"})
    said = finished(monkeypatch, config, tmp_path / "evidence", True)
    assert said[1].startswith(format_sentence("copy_of_the_report_could"))


def test_while_applications_may_stand_still_nobody_waits_for_the_place_of_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that hangs would hold up the task, and the teardown that lets applications write again."""
    asked = list[str]()
    config = configured(tmp_path, {"copy_to": "s3://bucket/x"})
    said = finished(monkeypatch, config, tmp_path / "evidence", True, False, copies=asked.append)
    assert (len(said), asked) == (1, [])
