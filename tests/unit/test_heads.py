"""Heads against files: what was lost, altered or is not ours is named; nothing else is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.evidence import kept, receipts
from mirror_core.evidence.folders import LocalFolder
from mirror_core.evidence.heads import (
    Checked,
    Heads,
    arrived,
    checked,
    in_words,
    listed,
    place,
    promised,
    put_together,
    settled,
)
from mirror_core.evidence.heads import with_receipts as judged
from mirror_core.model.parity import ParityResult, Verdict
from mirror_core.model.receipts import Kept, ReceiptsHead
from tests.unit.test_receipts import MIRROR, receipt

SHA = "a" * 64
HOUR, NEXT, REBUILT = "2026-09-21T14", "2026-09-22T00", "2026-09-22-rebuilt"


def one(number: int, sha256: str = SHA, stored: bool = True) -> Kept:
    return Kept(f"epoch-00000001-{number:010d}.parquet", sha256, 1, stored)


def head(part: str, *files: Kept, instead: tuple[str, ...] = ()) -> ReceiptsHead:
    return ReceiptsHead(mirror=MIRROR, part=part, files=files, instead=instead)


def heads(*made: ReceiptsHead) -> Heads:
    return {head.part: head for head in made}


def path(day: str, number: int) -> str:
    return f"date={day}/epoch-00000001-{number:010d}.parquet"


TOLD = heads(head(HOUR, one(1), one(2)), head(NEXT, one(3), one(4, stored=False)))
THERE = {path("2026-09-21", 1): SHA, path("2026-09-21", 2): SHA, path("2026-09-22", 3): SHA}


def test_what_is_as_it_was_told_is_good_and_what_was_never_written_is_no_loss() -> None:
    found = checked(TOLD, THERE)
    assert found == Checked(good=tuple(sorted(THERE)), unwritten=(path("2026-09-22", 4),))
    assert list(found.words()) == []
    assert found.sound
    assert "were never written, or lost at once" in "".join(found.remarks())


def test_what_is_lost_altered_or_not_ours_is_named() -> None:
    lost, altered, strange = path("2026-09-21", 1), path("2026-09-21", 2), path("2026-09-21", 9)
    found = checked(TOLD, {altered: "b" * 64, path("2026-09-22", 3): SHA, strange: SHA})
    assert (found.lost, found.altered, found.unknown) == ((lost,), (altered,), (strange,))
    assert found.good == (path("2026-09-22", 3),), "nothing else is believed"
    words = list(found.words())
    assert [w.partition(":")[0] for w in words] == [
        "receipts are altered",
        "receipts are lost",
        "receipts are not ours",
    ]
    assert all(name in said for name, said in zip((altered, lost, strange), words, strict=True))


def test_of_a_folder_that_is_lost_it_is_said_how_many_files_are() -> None:
    (words,) = checked(TOLD, {}).words()
    assert "receipts are lost: " in words
    assert "(and 2 more such files) was written, and is not there, nor any other: is this the folder" in words


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (Checked(good=()), Verdict.PASSED),
        (Checked(good=(), unwritten=("x",), left_over=("y",)), Verdict.PASSED),
        (Checked(good=(), lost=("x",)), Verdict.INDETERMINATE),
        (Checked(good=(), unknown=("x",)), Verdict.INDETERMINATE),
        (Checked(good=(), altered=("x",)), Verdict.FAILED),
    ],
)
def test_what_receipts_prove_is_judged_by_what_became_of_them(found: Checked, verdict: Verdict) -> None:
    passed = ParityResult(verdict=Verdict.PASSED, records=1, chunks=1)
    assert judged(passed, found).verdict is verdict
    assert judged(replace(passed, verdict=Verdict.FAILED), found).verdict is Verdict.FAILED
    assert judged(replace(passed, reasons=("one",)), found).reasons == (*found.words(), "one")


def test_without_any_head_all_are_read_and_said_to_be_without() -> None:
    found = checked({}, THERE)
    assert found == Checked(good=tuple(sorted(THERE)), headless=True)
    assert "3 files of receipts have no head" in "".join(found.remarks())
    assert checked({}, {}) == Checked(good=())


def test_a_file_told_of_again_replaces_what_was_told_and_arrives_once() -> None:
    first = promised(MIRROR, {}, HOUR, one(1, stored=False), where="/a")
    again = promised(MIRROR, heads(first), HOUR, one(1, "b" * 64, stored=False), where="/b")
    assert (again.files, again.where) == ((one(1, "b" * 64, stored=False),), "/b")
    (there,) = arrived(heads(again), {(HOUR, one(1).name), (NEXT, one(3).name)})
    assert (there.files, there.where) == ((one(1, "b" * 64),), "/b")
    assert arrived(heads(there), {(HOUR, one(1).name)}) == []


def test_what_stands_in_for_others_is_asked_for_instead_of_them() -> None:
    lost, strange = path("2026-09-21", 1), path("2026-09-21", 9)
    told = heads(*TOLD.values(), settled(head(REBUILT, one(7)), [lost, strange]))
    found = checked(told, {p: s for p, s in THERE.items() if p != lost} | {strange: SHA, path("2026-09-22", 7): SHA})
    assert found.sound
    assert lost not in listed(told)


def test_a_day_put_together_is_told_of_by_one_head_and_the_rest_is_left_over() -> None:
    whole = head("2026-09-21", Kept("day-aaaa.parquet", SHA, 2, True))
    put, gone = put_together(TOLD, whole)
    assert (put, gone) == (whole, (TOLD[HOUR],))
    found = checked(heads(whole, TOLD[NEXT]), THERE | {"date=2026-09-21/day-aaaa.parquet": SHA})
    assert found.left_over == (path("2026-09-21", 1), path("2026-09-21", 2))
    assert found.good == ("date=2026-09-21/day-aaaa.parquet", path("2026-09-22", 3))
    assert found.sound


def test_a_days_file_that_no_head_tells_of_yet_is_nobodys_trouble() -> None:
    """Killed between the file and its head."""
    found = checked(TOLD, THERE | {"date=2026-09-21/day-aaaa.parquet": SHA})
    assert (found.sound, found.left_over) == (True, ("date=2026-09-21/day-aaaa.parquet",))


def test_the_files_of_a_day_of_which_nothing_is_left_are_left_over_and_not_somebody_elses() -> None:
    told, gone = put_together({HOUR: TOLD[HOUR]}, head("2026-09-21"))
    assert gone == (TOLD[HOUR],)
    found = checked(heads(told), {path("2026-09-21", 1): SHA, path("2026-09-21", 2): SHA})
    assert (found.sound, found.headless, len(found.left_over)) == (True, False, 2)


def test_what_was_settled_stays_so_for_as_long_as_somebody_asks_for_it() -> None:
    of_this_day, told, strange = path("2026-09-22", 3), path("2026-09-21", 1), path("2026-09-20", 9)
    before = heads(TOLD[HOUR], TOLD[NEXT], head(REBUILT, instead=(of_this_day, told, strange)))
    put, _ = put_together(before, head("2026-09-22", Kept("day-b.parquet", SHA, 1, True)))
    assert put.instead == (strange, told)
    later = heads(head("2026-09-21", Kept("day-c.parquet", SHA, 1, True)), put)
    again, _ = put_together(later, head("2026-09-22"))
    assert again.instead == (strange,)


def test_how_much_must_be_there_is_said_without_looking() -> None:
    assert in_words({}) == "none were stored"
    assert in_words(TOLD) == "4 files with 4 pieces, the newest of 2026-09-22T00 (UTC)"


@given(
    numbers=st.lists(st.integers(0, 30), unique=True, min_size=1),
    removed=st.sets(st.integers(0, 30)),
    changed=st.sets(st.integers(0, 30)),
    added=st.sets(st.integers(31, 40)),
)
def test_any_file_that_is_lost_altered_or_added_is_named_exactly(
    numbers: list[int], removed: set[int], changed: set[int], added: set[int]
) -> None:
    """Whatever order they were told in."""
    told: Heads = {}
    for number in numbers:
        part = (HOUR, NEXT)[number % 2]
        told = {**told, part: promised(MIRROR, told, part, one(number, f"{number:064x}"), where="/r")}
    where = {number: path(("2026-09-21", "2026-09-22")[number % 2], number) for number in range(41)}
    there = {where[n]: "f" * 64 if n in changed else f"{n:064x}" for n in [*numbers, *added] if n not in removed}
    found = checked(told, there)
    assert set(found.lost) == {where[n] for n in numbers if n in removed}
    assert set(found.altered) == {where[n] for n in numbers if n in changed - removed}
    assert set(found.unknown) == {where[n] for n in added - removed}
    assert set(found.good) == {where[n] for n in numbers if n not in removed | changed}


def test_what_is_put_together_while_it_is_read_is_read_anew(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    old = receipts.packed(1, 1, [receipt(0, 10)])
    new = replace(old, name="day-x.parquet")
    receipts.write(folder, MIRROR, new)
    looks = [
        heads(head(HOUR, Kept(old.name, old.sha256, 1, True))),
        *[heads(head(new.day, Kept(new.name, new.sha256, 1, True)))] * 3,
    ]
    found = kept.found(folder, MIRROR, lambda: looks.pop(0))
    assert (found.checked.sound, found.checked.good) == (True, (new.path,))


def test_what_is_stored_while_it_is_looked_for_is_neither_lost_nor_strange(tmp_path: Path) -> None:
    """Files are listed first, then heads are read: what they tell of by then may have come since."""
    file = receipts.packed(1, 1, [receipt(0, 10)])

    class Older(LocalFolder):
        def names(self, under: str = "") -> list[str]:
            return []

    receipts.write(LocalFolder(tmp_path), MIRROR, file)
    told = heads(head(HOUR, Kept(file.name, file.sha256, 1, True)))
    assert kept.found(Older(tmp_path), MIRROR, lambda: told).checked == Checked(good=(file.path,))


def test_a_file_that_was_damaged_is_altered_and_not_read(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    file = receipts.packed(1, 1, [receipt(0, 10)])
    told = heads(head(HOUR, Kept(file.name, file.sha256, 1, True)))
    where = tmp_path / receipts.write(folder, MIRROR, file)
    assert kept.found(folder, MIRROR, lambda: told).rows().num_rows == 1
    where.write_bytes(file.content[:-9])
    found = kept.found(folder, MIRROR, lambda: told)
    assert (found.checked.altered, found.rows().num_rows) == ((file.path,), 0)


def test_certificates_are_where_the_newest_of_them_was_stored() -> None:
    old, new = replace(head(HOUR, one(1)), where="/old"), replace(head(NEXT, one(2)), where="s3a://new")
    assert place(heads(old, new)) == "s3a://new"
    empty, silent = replace(head("2026-10-01"), where="/nothing is there"), head("2026-10-02T03", one(3))
    assert place(heads(old, empty)) == "/old"
    assert place(heads(old, empty, silent)) == "", "an older one has fewer of them"
    assert place(heads(silent)) == place({}) == ""
