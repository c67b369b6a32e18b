"""Heads against files: what was lost, altered or is not ours is named; nothing else is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.evidence import receipt_files
from mirror_core.evidence.file_store import LocalFolder
from mirror_core.evidence.receipt_index import (
    CheckedReceipts,
    ReceiptHeads,
    add_file,
    check_receipts,
    find_newest_location,
    format_receipts,
    list_receipt_files,
    mark_stored,
    replace_day,
    supersede_files,
)
from mirror_core.evidence.receipt_index import apply_receipt_faults as judged
from mirror_core.model.parity_verdict import ParityResult, ParityVerdict
from mirror_core.model.receipt_heads import ReceiptFileEntry, ReceiptsHead
from tests.support.sample_receipts import MIRROR, read_receipts, receipt
from tests.support.sentences import format_sentence

SHA = "a" * 64
HOUR, NEXT, REBUILT = "2026-09-21T14", "2026-09-22T00", "2026-09-22-rebuilt"


def one(number: int, sha256: str = SHA, stored: bool = True) -> ReceiptFileEntry:
    return ReceiptFileEntry(f"epoch-00000001-{number:010d}.parquet", sha256, 1, stored)


def head(part: str, *files: ReceiptFileEntry, instead: tuple[str, ...] = ()) -> ReceiptsHead:
    return ReceiptsHead(mirror=MIRROR, part=part, files=files, abandoned_files=instead)


def heads(*made: ReceiptsHead) -> ReceiptHeads:
    return {head.part: head for head in made}


def path(day: str, number: int) -> str:
    return f"date={day}/epoch-00000001-{number:010d}.parquet"


TOLD = heads(head(HOUR, one(1), one(2)), head(NEXT, one(3), one(4, stored=False)))
THERE = {path("2026-09-21", 1): SHA, path("2026-09-21", 2): SHA, path("2026-09-22", 3): SHA}


def test_what_is_as_it_was_told_is_good_and_what_was_never_written_is_no_loss() -> None:
    found = check_receipts(TOLD, THERE)
    assert found == CheckedReceipts(readable=tuple(sorted(THERE)), unwritten=(path("2026-09-22", 4),))
    assert list(found.format_faults()) == []
    assert found.is_sound
    assert "were never written, or lost at once" in "".join(found.format_remarks())


def test_what_is_lost_altered_or_not_ours_is_named() -> None:
    lost, altered, strange = path("2026-09-21", 1), path("2026-09-21", 2), path("2026-09-21", 9)
    found = check_receipts(TOLD, {altered: "b" * 64, path("2026-09-22", 3): SHA, strange: SHA})
    assert (found.lost, found.altered, found.unknown) == ((lost,), (altered,), (strange,))
    assert found.readable == (path("2026-09-22", 3),), "nothing else is believed"
    words = list(found.format_faults())
    assert [w.partition(":")[0] for w in words] == [
        "receipts are altered",
        "receipts are lost",
        "receipts are not ours",
    ]
    assert all(name in said for name, said in zip((altered, lost, strange), words, strict=True))


def test_of_a_folder_that_is_lost_it_is_said_how_many_files_are() -> None:
    (words,) = check_receipts(TOLD, {}).format_faults()
    assert "receipts are lost: " in words
    assert format_sentence("receipt_files_not_there", 2) in words


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (CheckedReceipts(readable=()), ParityVerdict.PASSED),
        (CheckedReceipts(readable=(), unwritten=("x",), left_over=("y",)), ParityVerdict.PASSED),
        (CheckedReceipts(readable=(), lost=("x",)), ParityVerdict.INDETERMINATE),
        (CheckedReceipts(readable=(), unknown=("x",)), ParityVerdict.INDETERMINATE),
        (CheckedReceipts(readable=(), altered=("x",)), ParityVerdict.FAILED),
    ],
)
def test_what_receipts_prove_is_judged_by_what_became_of_them(found: CheckedReceipts, verdict: ParityVerdict) -> None:
    passed = ParityResult(verdict=ParityVerdict.PASSED, records=1, chunks=1)
    assert judged(passed, found).verdict is verdict
    assert judged(replace(passed, verdict=ParityVerdict.FAILED), found).verdict is ParityVerdict.FAILED
    assert judged(replace(passed, reasons=("one",)), found).reasons == (*found.format_faults(), "one")


def test_without_any_head_all_are_read_and_said_to_be_without() -> None:
    found = check_receipts({}, THERE)
    assert found == CheckedReceipts(readable=tuple(sorted(THERE)), headless=True)
    assert "3 files of receipts have no head" in "".join(found.format_remarks())
    assert check_receipts({}, {}) == CheckedReceipts(readable=())


def test_a_file_told_of_again_replaces_what_was_told_and_arrives_once() -> None:
    first = add_file(MIRROR, {}, HOUR, one(1, stored=False), location="/a")
    again = add_file(MIRROR, heads(first), HOUR, one(1, "b" * 64, stored=False), location="/b")
    assert (again.files, again.location) == ((one(1, "b" * 64, stored=False),), "/b")
    (there,) = mark_stored(heads(again), {(HOUR, one(1).name), (NEXT, one(3).name)})
    assert (there.files, there.location) == ((one(1, "b" * 64),), "/b")
    assert mark_stored(heads(there), {(HOUR, one(1).name)}) == []


def test_what_stands_in_for_others_is_asked_for_instead_of_them() -> None:
    lost, strange = path("2026-09-21", 1), path("2026-09-21", 9)
    told = heads(*TOLD.values(), supersede_files(head(REBUILT, one(7)), [lost, strange]))
    found = check_receipts(
        told, {p: s for p, s in THERE.items() if p != lost} | {strange: SHA, path("2026-09-22", 7): SHA}
    )
    assert found.is_sound
    assert lost not in list_receipt_files(told)


def test_a_day_put_together_is_told_of_by_one_head_and_the_rest_is_left_over() -> None:
    whole = head("2026-09-21", ReceiptFileEntry("day-aaaa.parquet", SHA, 2, True))
    put, gone = replace_day(TOLD, whole)
    assert (put, gone) == (whole, (TOLD[HOUR],))
    found = check_receipts(heads(whole, TOLD[NEXT]), THERE | {"date=2026-09-21/day-aaaa.parquet": SHA})
    assert found.left_over == (path("2026-09-21", 1), path("2026-09-21", 2))
    assert found.readable == ("date=2026-09-21/day-aaaa.parquet", path("2026-09-22", 3))
    assert found.is_sound


def test_a_days_file_that_no_head_tells_of_yet_is_nobodys_trouble() -> None:
    """Killed between the file and its head."""
    found = check_receipts(TOLD, THERE | {"date=2026-09-21/day-aaaa.parquet": SHA})
    assert (found.is_sound, found.left_over) == (True, ("date=2026-09-21/day-aaaa.parquet",))


def test_the_files_of_a_day_of_which_nothing_is_left_are_left_over_and_not_somebody_elses() -> None:
    told, gone = replace_day({HOUR: TOLD[HOUR]}, head("2026-09-21"))
    assert gone == (TOLD[HOUR],)
    found = check_receipts(heads(told), {path("2026-09-21", 1): SHA, path("2026-09-21", 2): SHA})
    assert (found.is_sound, found.headless, len(found.left_over)) == (True, False, 2)


def test_what_was_settled_stays_so_for_as_long_as_somebody_asks_for_it() -> None:
    of_this_day, told, strange = path("2026-09-22", 3), path("2026-09-21", 1), path("2026-09-20", 9)
    before = heads(TOLD[HOUR], TOLD[NEXT], head(REBUILT, instead=(of_this_day, told, strange)))
    put, _ = replace_day(before, head("2026-09-22", ReceiptFileEntry("day-b.parquet", SHA, 1, True)))
    assert put.abandoned_files == (strange, told)
    later = heads(head("2026-09-21", ReceiptFileEntry("day-c.parquet", SHA, 1, True)), put)
    again, _ = replace_day(later, head("2026-09-22"))
    assert again.abandoned_files == (strange,)


def test_how_much_must_be_there_is_said_without_looking() -> None:
    assert format_receipts({}) == "none were stored"
    assert format_receipts(TOLD) == "4 files with 4 pieces, the newest of 2026-09-22T00 (UTC)"


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
    told: ReceiptHeads = {}
    for number in numbers:
        part = (HOUR, NEXT)[number % 2]
        told = {**told, part: add_file(MIRROR, told, part, one(number, f"{number:064x}"), location="/r")}
    where = {number: path(("2026-09-21", "2026-09-22")[number % 2], number) for number in range(41)}
    there = {where[n]: "f" * 64 if n in changed else f"{n:064x}" for n in [*numbers, *added] if n not in removed}
    found = check_receipts(told, there)
    assert set(found.lost) == {where[n] for n in numbers if n in removed}
    assert set(found.altered) == {where[n] for n in numbers if n in changed - removed}
    assert set(found.unknown) == {where[n] for n in added - removed}
    assert set(found.readable) == {where[n] for n in numbers if n not in removed | changed}


def test_what_is_put_together_while_it_is_read_is_read_anew(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    old = receipt_files.pack_receipts(1, 1, [receipt(0, 10)])
    new = replace(old, name="day-x.parquet")
    receipt_files.write_receipts(folder, MIRROR, new)
    looks = [
        heads(head(HOUR, ReceiptFileEntry(old.name, old.sha256, 1, True))),
        *[heads(head(new.day, ReceiptFileEntry(new.name, new.sha256, 1, True)))] * 3,
    ]
    found, _ = read_receipts(folder, MIRROR, lambda: looks.pop(0))
    assert (found.is_sound, found.readable) == (True, (new.path,))


def test_what_is_stored_while_it_is_looked_for_is_neither_lost_nor_strange(tmp_path: Path) -> None:
    """Files are listed first, then heads are read: what they tell of by then may have come since."""
    file = receipt_files.pack_receipts(1, 1, [receipt(0, 10)])

    class Older(LocalFolder):
        def names(self, under: str = "") -> list[str]:
            return []

    receipt_files.write_receipts(LocalFolder(tmp_path), MIRROR, file)
    told = heads(head(HOUR, ReceiptFileEntry(file.name, file.sha256, 1, True)))
    assert read_receipts(Older(tmp_path), MIRROR, lambda: told)[0] == CheckedReceipts(readable=(file.path,))


def test_a_file_that_was_damaged_is_altered_and_not_read(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    file = receipt_files.pack_receipts(1, 1, [receipt(0, 10)])
    told = heads(head(HOUR, ReceiptFileEntry(file.name, file.sha256, 1, True)))
    where = tmp_path / receipt_files.write_receipts(folder, MIRROR, file)
    assert len(read_receipts(folder, MIRROR, lambda: told)[1]) == 1
    where.write_bytes(file.content[:-9])
    assert read_receipts(folder, MIRROR, lambda: told) == (CheckedReceipts(readable=(), altered=(file.path,)), [])


def test_certificates_are_where_the_newest_of_them_was_stored() -> None:
    old, new = replace(head(HOUR, one(1)), location="/old"), replace(head(NEXT, one(2)), location="s3a://new")
    assert find_newest_location(heads(old, new)) == "s3a://new"
    empty, silent = replace(head("2026-10-01"), location="/nothing is there"), head("2026-10-02T03", one(3))
    assert find_newest_location(heads(old, empty)) == "/old"
    assert find_newest_location(heads(old, empty, silent)) == "", "an older one has fewer of them"
    assert find_newest_location(heads(silent)) == find_newest_location({}) == ""
