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
from mirror_core.decide.parity import ENDS
from mirror_core.decide.proof import CertifiedRead, noted
from mirror_core.evidence.certificates import Vouched
from mirror_core.mirrors import proving
from mirror_core.mirrors.proving import note
from mirror_core.model.copying import Piece
from mirror_core.model.errors import HeldByRun
from mirror_core.model.mirror import PartitionState, PartitionStatus
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity import ALTERED, Finding, ParityRange, ParityResult, Verdict, unreadable_on
from mirror_core.model.proof import Difference, Proof, Proved
from mirror_core.parity import certified, certified_scope
from mirror_core.parity.certified_scope import Certified
from mirror_core.state.records import PartitionRecord, State
from tests.unit.test_decide_verbs import MIRROR
from tests.unit.test_refusals import LINK

NAME, P, ID = LINK.mirror.name, Partition("orders", 0), "3" * 32
EQUAL = ParityResult(verdict=Verdict.PASSED, records=9, chunks=1, proven={P: Offset(1_000)})
READ = (ParityRange(partition=P, start=Offset(0), end=Offset(1_000)),)


def place(offset: int, kind: str = "value", at_ms: int = 7) -> Difference:
    return Difference(topic=P.topic, index=0, id=ID, offset=Offset(offset), kind=kind, at_ms=at_ms)


def found(offset: int, kind: str) -> ParityResult:
    finding = Finding(partition=P, offset=Offset(offset), kind=kind, detail="")
    return replace(EQUAL, verdict=Verdict.FAILED, findings=(finding,), proven={P: Offset(offset)})


def proved(end: int, *differs: Difference, records: int | None = None) -> Proof:
    return Proof.of(NAME, {P: Proved(end, 5, 1, end if records is None else records)}, {P.topic: ID}, differs)


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
    monkeypatch.setattr(proving, "now_ms", lambda: 9)

    @contextmanager
    def door(link: object, verb: str, more: object) -> Iterator[Any]:
        opened.append(verb)
        yield SimpleNamespace(state=stored, put=stored.put)

    monkeypatch.setattr(proving, "door", door)
    return opened


def test_where_the_logs_do_not_begin_and_end_alike_is_known(stored: State, doors: list[str]) -> None:
    worse = found(800, "log end")
    assert parity._compared(LINK, stored, READ, ENDS, False, lambda *_: worse, Path()) == worse
    assert stored.proofs[NAME] == proved(800, place(800, "log end", 9), records=0), "it is read again from there on"
    assert parity._compared(LINK, stored, READ, ENDS, False, lambda *_: EQUAL, Path()) == EQUAL
    assert stored.proofs[NAME].differs, "it has read no record"
    assert len(doors) == 1, "and nobody is disturbed for nothing"


def test_what_is_not_as_certificates_say_is_known(
    stored: State, doors: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    piece = Piece(first=Offset(0), next=Offset(1_000), records=1_000, digest="")
    scope = Certified("/r", {P: (Offset(0), Offset(1_000))}, {P: Vouched((piece,), None)}, frozenset(), {})
    said = [found(0, ALTERED), EQUAL]
    monkeypatch.setattr(parity, "configuration", lambda path: SimpleNamespace())
    monkeypatch.setattr(parity, "expected", lambda *_: SimpleNamespace(of=lambda name: SimpleNamespace(own={})))
    monkeypatch.setattr(parity, "find", lambda *_: (LINK, stored))
    monkeypatch.setattr(certified_scope, "certified", lambda *_: scope)
    monkeypatch.setattr(certified, "prove", lambda *_, **__: (said.pop(0), ()))

    def compare() -> int:
        with pytest.raises(typer.Exit) as ended:
            parity.parity_command(
                NAME, 3, "certificates", str(tmp_path), False, tmp_path / "out", "local", "", None, None, as_json=True
            )
        return ended.value.exit_code

    assert compare() == 1
    assert stored.proofs[NAME].differs == (place(0, ALTERED, 9),)
    assert compare() == 0
    assert stored.proofs[NAME].differs == (), "it has read that place"
    assert len(doors) == 2


@pytest.mark.parametrize("kind", ["value", "log end"])
def test_certificates_do_not_tell_that_the_source_holds_the_same(kind: str) -> None:
    before, read = proved(500, place(500, kind)), CertifiedRead(READ)
    assert noted(before, EQUAL, {P.topic: ID}, 9, read).differs == (place(500, kind),)


def test_what_certificates_find_unreadable_is_known_and_read_again_by_them(stored: State, doors: list[str]) -> None:
    kind, said = unreadable_on(LINK.destination.name), list[str]()
    place_there = Finding(partition=P, offset=Offset(300), kind=kind, detail="")
    worse = replace(EQUAL, verdict=Verdict.INDETERMINATE, damaged=(place_there,), proven={P: Offset(0)})
    note(LINK, stored, worse, said.append, READ)
    assert stored.proofs[NAME] == proved(300, place(300, kind, 9), records=0)
    note(LINK, stored, EQUAL, said.append, READ)
    assert stored.proofs[NAME].differs == ()
    stored.put(proved(300, place(300, unreadable_on(LINK.source.name))))
    note(LINK, stored, EQUAL, said.append, READ)
    assert said == []
    assert stored.proofs[NAME].differs, "they have read nothing of the source"


def test_a_place_that_certificates_find_does_not_take_that_of_a_difference_from_the_source() -> None:
    """Certificates would clear it, and nobody has compared the other one again."""
    kind = unreadable_on(LINK.destination.name)
    damaged = replace(EQUAL, damaged=(Finding(partition=P, offset=Offset(300), kind=kind, detail=""),))
    read = CertifiedRead(READ, (ALTERED, kind))
    first = noted(proved(500, place(400)), damaged, {P.topic: ID}, 9, read)
    assert first == proved(300, place(400), records=0), "it is read again from there on"
    assert noted(first, EQUAL, {P.topic: ID}, 9, read).differs == (place(400),)


@pytest.mark.parametrize(("offset", "first"), [(400, 400), (500, 500), (600, 500)])
def test_a_later_place_does_not_hide_an_earlier_one(offset: int, first: int) -> None:
    [one] = noted(proved(500, place(500)), found(offset, "log end"), {P.topic: ID}, 9).differs
    assert one.offset == first


def test_who_may_not_write_now_says_so(stored: State, monkeypatch: pytest.MonkeyPatch) -> None:
    def door(*_: object) -> Any:
        raise HeldByRun("mirror m: prove", ["run 7 holds it"])

    monkeypatch.setattr(proving, "door", door)
    said = list[str]()
    note(LINK, stored, found(800, "log end"), said.append)
    assert "what differs is not kept: mirror m: prove" in said[0]
    assert stored.proofs[NAME] == proved(1_000)
