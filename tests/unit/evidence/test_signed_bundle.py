"""A bundle in which anything was altered, taken out, moved, emptied or replayed does not verify, and says where."""

from __future__ import annotations

import os
import shutil
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, x25519

from mirror_core.decide.audit_log_check import AuditFlaw, RunConclusion
from mirror_core.decide.drills import MAX_KEPT_RUNS, to_drill_name
from mirror_core.evidence.signed_bundle import (
    ENTRIES_FILE,
    HEAD_FILE,
    PLAN_FILE,
    BundleHead,
    PublicKey,
    Signer,
    verify_bundle,
    write_bundle,
)
from mirror_core.model.audit_log import AuditEntry, AuditEntryKind, build_next_line, get_head_hash, to_canonical_json
from mirror_core.model.errors import BadRequest, RemoteFault
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import DesiredState
from mirror_core.model.run import Plan, Run, RunKind, RunMode, RunState, StepEvidence
from mirror_core.state.state_records import State
from tests.support.evidence_desk import SEEN, Desk, Keys, keys, plan, where
from tests.support.random_seeds import EXPLORE

LOST: Mapping[str, StepEvidence] = {"record_lmo": {"compared_before_offsets": 90, "mirrored_offsets": 100}}
VOUCHED: Mapping[str, StepEvidence] = {
    "report": {
        "certificates_verdict": "passed",
        "certified_offsets": 9,
        "certifiable_offsets": 9,
        "not_as_copied": (),
        "not_proved_because": (),
    }
}


@pytest.fixture
def ours(tmp_path: Path) -> Keys:
    return keys(tmp_path, "ours")


@pytest.fixture
def desk(tmp_path: Path, ours: Keys) -> Desk:
    made = Desk(tmp_path, "orders-failover-20261122T090000-a1b2", plan(), ours.signer).take().end()
    made.write()
    return made


def lines_of(folder: Path) -> list[str]:
    return (folder / ENTRIES_FILE).read_text().splitlines()


def entries_of(folder: Path) -> list[AuditEntry]:
    return [msgspec.json.decode(line, type=AuditEntry) for line in lines_of(folder)]


def chained(entries: Sequence[AuditEntry]) -> list[str]:
    """These entries as a chain that holds, whatever they say."""
    lines = list[str]()
    for entry in entries:
        given: dict[str, Any] = {"run": entry.run, "at_ms": entry.at_ms, "by": entry.by, "kind": entry.kind}
        lines.append(build_next_line(lines, **given, body=entry.body).line)
    return lines


def rewrite(folder: Path, entries: Sequence[AuditEntry], signer: Signer | None = None) -> None:
    """As somebody does who may edit the folder, and knows how a chain is made. `signer`: even one who may sign."""
    lines = chained(entries)
    (folder / ENTRIES_FILE).write_text("".join(f"{line}\n" for line in lines))
    head = replace(
        msgspec.json.decode((folder / HEAD_FILE).read_bytes(), type=BundleHead),
        entries=len(lines),
        hash=get_head_hash(lines),
    )
    if signer:
        head = replace(head, key=signer.id)
        head = replace(head, signature=signer.sign(head.content))
    (folder / HEAD_FILE).write_text(to_canonical_json(head))


def test_what_was_written_verifies_and_says_what_it_came_to(desk: Desk, ours: Keys) -> None:
    found = verify_bundle(desk.folder, ours.public, desk.run.id)
    assert (found.verdict, found.flaws, found.key) == (RunConclusion.VERIFIED, (), ours.public.id)
    assert (found.entries, found.files, found.approved_by) == (2 * 10 + 3, 1, "ann@host")
    assert {path.stat().st_mode & 0o777 for path in desk.folder.iterdir()} == {0o600}
    assert desk.folder.stat().st_mode & 0o777 == 0o700
    assert desk.write().hash == get_head_hash(lines_of(desk.folder)), "written again it is the same"
    assert verify_bundle(desk.folder, ours.public) == found


def test_every_byte_counts(desk: Desk, ours: Keys) -> None:
    """All of them at night; in the gate every seventh, and those at both ends."""
    for name in (HEAD_FILE, ENTRIES_FILE, PLAN_FILE, "report.html"):
        whole = (desk.folder / name).read_bytes()
        edge = len(whole) - 80
        for at in range(len(whole)):
            if not os.environ.get(EXPLORE) and 80 < at < edge and at % 7:
                continue
            for bit in (1, 32):
                altered = bytearray(whole)
                altered[at] ^= bit
                (desk.folder / name).write_bytes(altered)
                assert verify_bundle(desk.folder, ours.public).flaws, f"{name}, byte {at}: {whole[at : at + 1]!r}"
        ends = [whole.replace(b"\n", end) for end in (b"\r\n", b"\r") if b"\n" in whole]
        for other in (whole[:-1], whole + b"\n", whole + whole, b"", *ends):
            (desk.folder / name).write_bytes(other)
            assert verify_bundle(desk.folder, ours.public).flaws, f"{name}: {len(other)} bytes"
        (desk.folder / name).write_bytes(whole)
    assert not verify_bundle(desk.folder, ours.public).flaws


def test_a_signature_that_is_written_in_another_way_is_none(desk: Desk, ours: Keys) -> None:
    """64 bytes leave four bits of their last digit without a meaning."""
    path = desk.folder / HEAD_FILE
    whole = path.read_text(encoding="utf-8")
    signature = msgspec.json.decode(whole)["signature"]
    digits = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
    last = signature[-3]
    for digit in set(digits) - {last}:
        path.write_text(whole.replace(f"{last}==", f"{digit}=="), encoding="utf-8")
        assert verify_bundle(desk.folder, ours.public).flaws, f"{digit} in place of {last}"


@pytest.mark.parametrize("name", [HEAD_FILE, ENTRIES_FILE, PLAN_FILE])
def test_what_is_not_as_it_was_written_is_named_and_has_no_verdict(
    desk: Desk, ours: Keys, tmp_path: Path, name: str
) -> None:
    """Who reads the verdict only must not be told "proved equal" by a bundle that was altered."""
    path, elsewhere, no_plain_file = (
        desk.folder / name,
        tmp_path / "elsewhere",
        AuditFlaw(name, "it is not a plain file"),
    )
    whole, deep = path.read_bytes(), b'{"x":' * 100_000
    for garbage in (deep, b"\n".join([whole, deep, b""]), whole.replace(b"}", b',"x":"\xff"}', 1)):
        path.write_bytes(garbage)
        found = verify_bundle(desk.folder, ours.public)
        assert (found.verdict, found.key) == (None, None)
        assert found.flaws
    elsewhere.write_bytes(whole)
    path.unlink()
    path.symlink_to(elsewhere)
    found = verify_bundle(desk.folder, ours.public)
    assert (found.verdict, found.key) == (None, None), "it may lead to another file at the next look"
    assert no_plain_file in found.flaws
    path.unlink()
    if name != HEAD_FILE:
        os.mkfifo(path)
        assert no_plain_file in verify_bundle(desk.folder, ours.public).flaws


def test_files_that_are_missing_added_or_links_are_named(desk: Desk, ours: Keys, tmp_path: Path) -> None:
    report = desk.folder / "report.html"
    (desk.folder / "more").mkdir()
    (desk.folder / "more" / "added.json").write_text("{}")
    assert where(verify_bundle(desk.folder, ours.public)) == ["more/added.json"]
    shutil.rmtree(desk.folder / "more")
    elsewhere = tmp_path / "elsewhere"
    os.replace(report, elsewhere)
    assert where(verify_bundle(desk.folder, ours.public)) == ["report.html"]
    report.symlink_to(elsewhere)
    assert where(verify_bundle(desk.folder, ours.public)) == ["report.html"]
    with pytest.raises(BadRequest, match=r"report.html is no plain file"):
        write_bundle(desk.folder, desk.run, ["x"], None)


def emptied(entry: AuditEntry) -> AuditEntry:
    if entry.body.get("step") != "parity" or entry.body["state"] != "DONE":
        return entry
    return replace(entry, body={**entry.body, "evidence": {**entry.body["evidence"], "records_in_all": 0}})


EDITS: dict[str, tuple[Callable[[list[AuditEntry]], list[AuditEntry]], str, str]] = {
    "a step is removed": (
        lambda found: [e for e in found if e.body.get("step") != "fence"],
        "entry 3",
        "step drain, and step fence is due",
    ),
    "a step's beginning is removed": (
        lambda found: found[:3] + found[4:],
        "entry 3",
        "step fence is DONE, and this attempt did not begin",
    ),
    "two steps change places": (
        lambda found: found[:3] + found[5:7] + found[3:5] + found[7:],
        "entry 3",
        "step drain, and step fence is due",
    ),
    "the beginning is removed": (lambda found: found[1:], "entry 0", "begins with the run's beginning"),
    "the end is removed": (
        lambda found: [e for e in found if e.kind is not AuditEntryKind.ENDED],
        HEAD_FILE,
        "the entries come to 'not finished'",
    ),
    "the last steps are removed, and it is called done": (
        lambda found: found[:15] + found[-2:],
        "entry 15",
        "the run is done, and step switch is not",
    ),
    "a sample is emptied": (
        lambda found: [emptied(e) for e in found],
        HEAD_FILE,
        "the entries come to 'moved; not proved",
    ),
    "another plan was approved": (
        lambda found: [replace(found[0], body={**found[0].body, "plan_hash": "0" * 12}), *found[1:]],
        "entry 0",
        "what was approved is plan 000000000000",
    ),
    "it was ended twice": (lambda found: [*found[:-1], *found[-2:]], "entry 22", "the run had ended before"),
    "something follows the files": (lambda found: [*found, found[1]], "entry 23", "files are told of last"),
    "a step of another run": (
        lambda found: [*found[:1], replace(found[1], body={**found[1].body, "run": "x"}), *found[2:]],
        "entry 1",
        "a step of run x",
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_what_cannot_have_happened_is_named_even_when_it_is_signed(desk: Desk, ours: Keys, edit: str) -> None:
    change, at, words = EDITS[edit]
    entries = entries_of(desk.folder)
    rewrite(desk.folder, change(entries))
    assert HEAD_FILE in where(verify_bundle(desk.folder, ours.public)), "whoever cannot sign is found by the signature"
    rewrite(desk.folder, change(entries), ours.signer)
    found = verify_bundle(desk.folder, ours.public)
    assert (at, True) in [(flaw.where, words in flaw.what) for flaw in found.flaws], found.flaws
    assert found.key is None


def test_an_approval_moved_to_another_run_is_found(desk: Desk, ours: Keys, tmp_path: Path) -> None:
    other = Desk(
        tmp_path, "orders-failover-20261122T100000-c3d4", replace(plan(), warnings=(Finding("x"),)), ours.signer
    )
    other.run = replace(other.run, approved_by="")
    other.take().end().write()
    stolen = [entries_of(desk.folder)[0], *entries_of(other.folder)[1:]]
    rewrite(other.folder, stolen, ours.signer)
    found = verify_bundle(other.folder, ours.public)
    assert ("entry 0", f"it is of run {desk.run.id}") in [(flaw.where, flaw.what) for flaw in found.flaws]
    rewrite(other.folder, [replace(stolen[0], run=other.run.id), *stolen[1:]], ours.signer)
    said = [flaw.what for flaw in verify_bundle(other.folder, ours.public).flaws]
    assert any("the plan that lies beside is another one" in words for words in said)


def test_an_older_head_and_another_runs_bundle_are_found(tmp_path: Path, ours: Keys) -> None:
    desk = Desk(tmp_path, "orders-failover-20261122T090000-a1b2", plan(), ours.signer).take(until="promote")
    assert desk.write().verdict is RunConclusion.UNFINISHED
    older = (desk.folder / HEAD_FILE).read_bytes()
    desk.take().end().write()
    assert not verify_bundle(desk.folder, ours.public).flaws
    (desk.folder / HEAD_FILE).write_bytes(older)
    found = verify_bundle(desk.folder, ours.public)
    assert found.flaws[0].where == HEAD_FILE
    assert "an older head" in found.flaws[0].what
    desk.write()
    found = verify_bundle(desk.folder, ours.public, "orders-failover-20261122T100000-c3d4")
    assert [flaw.what for flaw in found.flaws] == [f"it is of run {desk.run.id}"]


def test_only_the_verifiers_own_key_is_believed(desk: Desk, ours: Keys, tmp_path: Path) -> None:
    theirs = keys(tmp_path, "theirs")
    rewrite(desk.folder, entries_of(desk.folder), theirs.signer)
    assert not verify_bundle(desk.folder, theirs.public).flaws
    assert where(verify_bundle(desk.folder, ours.public)) == [HEAD_FILE]
    assert verify_bundle(desk.folder, None).key is None
    desk.signer = None
    desk.write()
    assert [flaw.what for flaw in verify_bundle(desk.folder, ours.public).flaws] == ["it is not signed"]
    assert not verify_bundle(desk.folder, None).flaws


@pytest.mark.parametrize(
    ("of", "state", "seen", "verdict", "why"),
    [
        (plan(), RunState.DONE, {}, RunConclusion.UNVERIFIED, "nothing of a comparison"),
        (
            plan(),
            RunState.DONE,
            {"parity": {**SEEN["parity"], "records_in_all": 0}},
            RunConclusion.UNVERIFIED,
            "is empty",
        ),
        (
            plan(),
            RunState.DONE,
            {"parity": {**SEEN["parity"], "records_in_all": True}},
            RunConclusion.UNVERIFIED,
            "empty",
        ),
        (plan(), RunState.DONE, {"parity": {**SEEN["parity"], "not_compared": ()}}, RunConclusion.VERIFIED, ""),
        (
            plan(),
            RunState.DONE,
            {"parity": {**SEEN["parity"], "heartbeats_not_compared": ("mirrorbook.heartbeats.m-0",)}},
            RunConclusion.VERIFIED,
            "not compared: Mirrorbook's own heartbeats",
        ),
        (
            plan(),
            RunState.DONE,
            {"parity": {**SEEN["parity"], "not_compared": ("t-1",)}},
            RunConclusion.UNVERIFIED,
            "promoted as they were, and not compared: t-1",
        ),
        (plan(mode=RunMode.UNPLANNED), RunState.DONE, SEEN, RunConclusion.UNVERIFIED, "the source was lost"),
        (
            plan(mode=RunMode.UNPLANNED),
            RunState.DONE,
            LOST,
            RunConclusion.UNVERIFIED,
            "; 90 of 100 offsets had been compared",
        ),
        (
            plan(mode=RunMode.UNPLANNED),
            RunState.DONE,
            VOUCHED,
            RunConclusion.UNVERIFIED,
            "; certificates: 9 of 9 offsets are",
        ),
        (plan(RunKind.FAILBACK), RunState.DONE, SEEN, RunConclusion.FAILED_BACK, ""),
        (plan(), RunState.ABORTED, SEEN, RunConclusion.ABORTED, ""),
    ],
)
def test_the_verdict_is_no_more_than_what_was_seen(
    tmp_path: Path, of: Plan, state: RunState, seen: Mapping[str, StepEvidence], verdict: RunConclusion, why: str
) -> None:
    desk = Desk(tmp_path, "orders-failover-20261122T090000-a1b2", of, None)
    desk.take("promote" if state is RunState.ABORTED else None, seen).end(state).write()
    found = verify_bundle(desk.folder, None)
    assert (found.verdict, found.flaws) == (verdict, ())
    assert why in found.reason


def test_attempts_that_failed_or_were_killed_belong_to_it(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "orders-failover-20261122T090000-a1b2", plan(), None).take(until="drain")

    def fails() -> StepEvidence:
        raise RemoteFault("broker gone")

    def killed() -> StepEvidence:
        raise KeyboardInterrupt

    for act, error in ((fails, RemoteFault), (killed, KeyboardInterrupt)):
        with pytest.raises(error):
            desk.journal.perform("drain", act)
    desk.take().end().write()
    found = verify_bundle(desk.folder, None)
    assert (found.verdict, found.flaws) == (RunConclusion.VERIFIED, ())
    drained = [e.body for e in entries_of(desk.folder) if e.body.get("step") == "drain"]
    assert [(b["attempt"], b["state"], b["error"]) for b in drained] == [
        (1, "STARTED", ""), (1, "FAILED", "broker gone"), (2, "STARTED", ""), (3, "STARTED", ""), (3, "DONE", ""),
    ]  # fmt: skip


def test_the_chronicle_is_the_same_when_it_is_read_again(desk: Desk) -> None:
    state = State()
    for number in reversed(range(30)):  # a compacted topic keeps no order among keys
        for told in [t for t in desk.log.state.audit_entries[desk.run.id].values() if t.number == number]:
            for key, value in State().to_rows(told):
                state.apply(key, value)
    assert state.audit_lines(desk.run.id) == desk.log.state.audit_lines(desk.run.id)
    assert len(state.audit_lines(desk.run.id)) == 22
    state.apply(f"audit/{desk.run.id}/5", None)
    assert len(state.audit_lines(desk.run.id)) == 5


def drills(count: int, of: Plan, since: int) -> list[Run]:
    one = Run(
        id="d", number=1, plan=of, plan_hash=of.hash, state=RunState.DONE, started_by="ann", started_ms=0,
        desired=DesiredState.STARTED, conducted_by="ann",
    )  # fmt: skip
    return [replace(one, id=f"d{number}", number=since + number) for number in range(count)]


def test_a_drill_that_the_state_topic_has_forgotten_is_not_said_to_be_forged(tmp_path: Path, ours: Keys) -> None:
    of = replace(plan(), mirror=to_drill_name("orders"))
    desk = Desk(tmp_path, "drill.orders-failover-20261122T090000-a1b2", of, ours.signer).take().end()
    desk.write()
    later = entries_of(desk.folder)[0].body["number"] + 1
    found = verify_bundle(desk.folder, ours.public, known_entries={}, runs=drills(MAX_KEPT_RUNS, of, later))
    assert (found.flaws, found.forgotten, found.key) == ((), True, ours.signer.id)
    too_few = verify_bundle(desk.folder, ours.public, known_entries={}, runs=drills(MAX_KEPT_RUNS - 1, of, later))
    assert "the state topic knows nothing of it" in [flaw.what for flaw in too_few.flaws], "it would be remembered"
    newer = verify_bundle(
        desk.folder, ours.public, known_entries={}, runs=drills(MAX_KEPT_RUNS, of, later - MAX_KEPT_RUNS)
    )
    assert newer.flaws, "it would be among the newest"
    others = verify_bundle(desk.folder, ours.public, known_entries={}, runs=drills(MAX_KEPT_RUNS, plan(), later))
    assert others.flaws, "of another mirror's drills nothing follows"
    known = verify_bundle(
        desk.folder, ours.public, known_entries=desk.log.state.audit_entries, runs=drills(MAX_KEPT_RUNS, of, later)
    )
    assert (known.flaws, known.forgotten) == ((), False)
    of_part = {desk.run.id: {0: desk.log.state.audit_entries[desk.run.id][0]}}
    assert verify_bundle(desk.folder, ours.public, known_entries=of_part, runs=drills(MAX_KEPT_RUNS, of, later)).flaws


def test_a_run_that_is_no_drills_is_never_forgotten(desk: Desk, ours: Keys) -> None:
    """Whoever holds the key and makes one up is as loudly said to have done so as before."""
    later = entries_of(desk.folder)[0].body["number"] + 1
    for of in (desk.run.plan, replace(desk.run.plan, mirror=to_drill_name("orders"))):
        found = verify_bundle(desk.folder, ours.public, known_entries={}, runs=drills(MAX_KEPT_RUNS, of, later))
        assert "the state topic knows nothing of it" in [flaw.what for flaw in found.flaws]


@pytest.mark.parametrize("case", ["missing", "open", "no key", "other kind"])
def test_a_key_that_cannot_be_used_is_refused(tmp_path: Path, case: str) -> None:
    path = tmp_path / "key.pem"
    if case != "missing":
        made = x25519.X25519PrivateKey if case == "other kind" else ed25519.Ed25519PrivateKey
        pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        path.write_bytes(made.generate().private_bytes(pem, form, serialization.NoEncryption()))
        path.chmod(0o644 if case == "open" else 0o600)
    if case == "no key":
        path.write_text("secret words")
    with pytest.raises(BadRequest, match=r"signing key .*key\.pem: ") as refused:
        Signer(path)
    assert "secret words" not in str(refused.value)


def test_what_is_no_bundle_is_said(tmp_path: Path, ours: Keys) -> None:
    with pytest.raises(BadRequest, match=r"no head\.json"):
        verify_bundle(tmp_path, ours.public)
    with pytest.raises(BadRequest, match="not a public key in PEM"):
        PublicKey(tmp_path / "ours.pem")
