"""What a comparison that proves nothing has found to differ is known all the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from mirror_core.cli import parity
from mirror_core.decide.parity_result import LEVEL_ENDS
from mirror_core.decide.verification import CertifiedRead, note_differences
from mirror_core.evidence.certificates import Coverage
from mirror_core.mirrors import incremental_verification
from mirror_core.mirrors.incremental_verification import record_differences
from mirror_core.model.errors import HeldByRun
from mirror_core.model.mirror import PartitionState, PartitionStatus
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import (
    ALTERED_KIND,
    KnownDifference,
    MirrorVerification,
    ParityFinding,
    ParityRange,
    ParityResult,
    ParityVerdict,
    VerifiedEnd,
    format_unreadable_kind,
)
from mirror_core.model.task_messages import ReceiptPiece
from mirror_core.parity import certificate_check
from mirror_core.parity.certificate_check import CertificateScope
from mirror_core.state.state_records import PartitionRecord, State
from tests.support.cluster_names import LINK
from tests.support.mirror_views import MIRROR

NAME, P, ID = LINK.mirror.name, Partition("orders", 0), "3" * 32
EQUAL = ParityResult(verdict=ParityVerdict.PASSED, records=9, chunks=1, verified_ends={P: Offset(1_000)})
READ = (ParityRange(partition=P, start=Offset(0), end=Offset(1_000)),)


def place(offset: int, kind: str = "value", at_ms: int = 7) -> KnownDifference:
    return KnownDifference(topic=P.topic, index=0, id=ID, offset=Offset(offset), kind=kind, at_ms=at_ms)


def found(offset: int, kind: str) -> ParityResult:
    finding = ParityFinding(partition=P, offset=Offset(offset), kind=kind, detail="")
    return replace(EQUAL, verdict=ParityVerdict.FAILED, findings=(finding,), verified_ends={P: Offset(offset)})


def proved(end: int, *differs: KnownDifference, records: int | None = None) -> MirrorVerification:
    return MirrorVerification.from_partitions(
        NAME, {P: VerifiedEnd(end, 5, 1, end if records is None else records)}, {P.topic: ID}, differs
    )


@pytest.fixture
def stored() -> State:
    state = State()
    state.put(MIRROR)
    status = PartitionStatus(partition=P, state=PartitionState.MIRRORING, source_topic_id="s", destination_topic_id=ID)
    state.put(PartitionRecord(NAME, status))
    state.put(proved(1_000))
    return state


@pytest.fixture
def doors(stored: State, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How often the mirror was taken over."""
    opened = list[str]()
    monkeypatch.setattr(incremental_verification, "now_ms", lambda: 9)

    @contextmanager
    def door(link: object, verb: str, more: object) -> Iterator[Any]:
        opened.append(verb)
        yield SimpleNamespace(state=stored, put=stored.put, now_ms=lambda: 9)

    monkeypatch.setattr(incremental_verification, "take_control", door)
    return opened


def test_where_the_logs_do_not_begin_and_end_alike_is_known(stored: State, doors: list[str]) -> None:
    worse = found(800, "log end")
    assert parity._compare(LINK, stored, READ, LEVEL_ENDS, False, lambda *_: worse, Path()) == worse
    assert stored.verifications[NAME] == proved(800, place(800, "log end", 9), records=0), (
        "it is read again from there on"
    )
    assert parity._compare(LINK, stored, READ, LEVEL_ENDS, False, lambda *_: EQUAL, Path()) == EQUAL
    assert stored.verifications[NAME].differences, "it has read no record"
    assert len(doors) == 1, "and nobody is disturbed for nothing"


def test_what_is_not_as_certificates_say_is_known(
    stored: State, doors: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    piece = ReceiptPiece(first=Offset(0), next=Offset(1_000), records=1_000, digest="")
    scope = CertificateScope("/r", {P: (Offset(0), Offset(1_000))}, {P: Coverage((piece,), None)}, frozenset(), {})
    said = [found(0, ALTERED_KIND), EQUAL]
    monkeypatch.setattr(parity, "load_configuration", lambda path: SimpleNamespace())
    monkeypatch.setattr(parity, "load_table_expectations", lambda *_: SimpleNamespace(own=()))
    monkeypatch.setattr(parity, "find_mirror_link", lambda *_: (LINK, stored))
    monkeypatch.setattr(certificate_check, "read_certificate_scope", lambda *_: scope)
    monkeypatch.setattr(certificate_check, "check_certificates", lambda *_, **__: (said.pop(0), ()))

    def compare() -> int:
        with pytest.raises(typer.Exit) as ended:
            parity.parity_command(
                NAME, 3, "certificates", str(tmp_path), False, tmp_path / "out", "local", "", None, None, as_json=True
            )
        return ended.value.exit_code

    assert compare() == 1
    assert stored.verifications[NAME].differences == (place(0, ALTERED_KIND, 9),)
    assert compare() == 0
    assert stored.verifications[NAME].differences == (), "it has read that place"
    assert len(doors) == 2


@pytest.mark.parametrize("kind", ["value", "log end"])
def test_certificates_do_not_tell_that_the_source_holds_the_same(kind: str) -> None:
    before, read = proved(500, place(500, kind)), CertifiedRead(READ)
    assert note_differences(before, EQUAL, {P.topic: ID}, 9, read).differences == (place(500, kind),)


def test_what_certificates_find_unreadable_is_known_and_read_again_by_them(stored: State, doors: list[str]) -> None:
    kind, said = format_unreadable_kind(LINK.destination.name), list[str]()
    place_there = ParityFinding(partition=P, offset=Offset(300), kind=kind, detail="")
    worse = replace(
        EQUAL, verdict=ParityVerdict.INDETERMINATE, damage_findings=(place_there,), verified_ends={P: Offset(0)}
    )
    record_differences(LINK, stored, worse, said.append, READ)
    assert stored.verifications[NAME] == proved(300, place(300, kind, 9), records=0)
    record_differences(LINK, stored, EQUAL, said.append, READ)
    assert stored.verifications[NAME].differences == ()
    stored.put(proved(300, place(300, format_unreadable_kind(LINK.source.name))))
    record_differences(LINK, stored, EQUAL, said.append, READ)
    assert said == []
    assert stored.verifications[NAME].differences, "they have read nothing of the source"


def test_a_place_that_certificates_find_does_not_take_that_of_a_difference_from_the_source() -> None:
    """Certificates would clear it, and nobody has compared the other one again."""
    kind = format_unreadable_kind(LINK.destination.name)
    damaged = replace(EQUAL, damage_findings=(ParityFinding(partition=P, offset=Offset(300), kind=kind, detail=""),))
    read = CertifiedRead(READ, (ALTERED_KIND, kind))
    first = note_differences(proved(500, place(400)), damaged, {P.topic: ID}, 9, read)
    assert first == proved(300, place(400), records=0), "it is read again from there on"
    assert note_differences(first, EQUAL, {P.topic: ID}, 9, read).differences == (place(400),)


@pytest.mark.parametrize(("offset", "first"), [(400, 400), (500, 500), (600, 500)])
def test_a_later_place_does_not_hide_an_earlier_one(offset: int, first: int) -> None:
    [one] = note_differences(proved(500, place(500)), found(offset, "log end"), {P.topic: ID}, 9).differences
    assert one.offset == first


def test_who_may_not_write_now_says_so(stored: State, monkeypatch: pytest.MonkeyPatch) -> None:
    def door(*_: object) -> Any:
        raise HeldByRun("mirror m: prove", ["run 7 holds it"])

    monkeypatch.setattr(incremental_verification, "take_control", door)
    said = list[str]()
    record_differences(LINK, stored, found(800, "log end"), said.append)
    assert "what differs is not kept: mirror m: prove" in said[0]
    assert stored.verifications[NAME] == proved(1_000)
