"""Receipts are stored in the background: whatever becomes of the place for them, copying does not wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_core.dataplane import receipt_writer
from mirror_core.dataplane.receipt_writer import ReceiptWriter
from mirror_core.evidence.file_store import LocalFolder
from mirror_core.evidence.receipt_index import CheckedReceipts
from mirror_core.model.errors import LostOwnership
from mirror_core.model.files import Unwritable
from mirror_core.model.receipt_heads import ReceiptsHead
from mirror_core.state.state_records import State
from tests.support.receipt_files import holes, rows
from tests.support.sample_receipts import MIRROR, read_receipts, receipt
from tests.support.sentences import format_sentence
from tests.support.waiting import patience, wait_until

LIMIT_S = patience(10.0)


class Moody(LocalFolder):
    """Writes only while it may; or hangs."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.full = self.broken = False
        self.awake = threading.Event()
        self.awake.set()

    def write(self, what: str, name: str, content: bytes, advice: str) -> None:
        self.awake.wait(LIMIT_S)
        if self.broken:
            raise ZeroDivisionError("a defect")
        if self.full:
            raise Unwritable(f"{what}: no space left")
        super().write(what, name, content, advice)


class Book:
    """What the driver's lease writes."""

    def __init__(self) -> None:
        self.state = State()
        self.written = list[tuple[ReceiptsHead, ...]]()
        self.lost = False

    def put(self, *records: ReceiptsHead) -> None:
        if self.lost:
            raise LostOwnership("another process copies")
        self.written.append(records)
        for record in records:
            self.state.put(record)

    @property
    def heads(self) -> dict[str, ReceiptsHead]:
        return self.state.receipts.get(MIRROR, {})


class Desk:
    def __init__(self, path: Path) -> None:
        self.folder = Moody(path)
        self.book = Book()
        self.said: list[str] = []
        self.failures = 0
        self.keeper = ReceiptWriter(MIRROR, self.said.append, self._failed, retry_s=0.01)

    def _failed(self) -> None:
        self.failures += 1

    def take(self, *epochs: int) -> None:
        for epoch in epochs:
            self.keeper.add(1, epoch, [receipt(10 * epoch, 10 * epoch + 10, epoch=epoch)])

    def until(self, done: Callable[[], bool], why: str) -> None:
        """As the driver goes on."""

        def going() -> bool:
            self.keeper.write_heads(self.book)
            return done()

        wait_until(going, timeout_s=LIMIT_S, why=why)

    def close(self, limit_s: float = LIMIT_S) -> None:
        self.keeper.close(self.book, limit_s)

    def checked(self) -> CheckedReceipts:
        return read_receipts(self.folder, MIRROR, lambda: self.book.heads)[0]

    def holes(self) -> list[tuple[int, int]]:
        return [(first, end) for _, first, end in holes(rows(self.folder, MIRROR))]


def test_what_was_taken_is_stored_when_it_is_closed(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.take(0)  # nowhere to keep it yet
    desk.keeper.start(desk.folder)
    desk.take(1, 2, 3)
    desk.close()
    assert len(rows(desk.folder, MIRROR)) == 3
    assert (desk.said, desk.failures) == ([], 0)


def test_a_full_disk_is_said_once_and_what_waited_is_stored_when_there_is_room(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.folder.full = True
    desk.keeper.start(desk.folder)
    desk.take(1, 2)
    desk.until(lambda: desk.failures > 3, why="it is tried again")
    assert desk.said == [format_sentence("receipts_no_space_left", MIRROR)]
    desk.folder.full = False
    desk.until(lambda: desk.said[-1] == "receipts are stored again", why="there is room")
    desk.close()
    assert len(rows(desk.folder, MIRROR)) == 2
    assert not desk.holes()


def test_what_could_not_be_stored_in_the_end_is_said(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.folder.full = True
    desk.keeper.start(desk.folder)
    desk.take(1, 2)
    desk.close()
    assert desk.said[-1].startswith(format_sentence("receipts_of_epochs_not_stored", 2))
    assert desk.said[-1].endswith("no space left")


def test_a_place_that_hangs_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipt_writer, "MAX_WAITING_EPOCHS", 3)
    desk = Desk(tmp_path)
    desk.folder.awake.clear()
    desk.keeper.start(desk.folder)
    desk.take(*range(1, 6))
    desk.close(0.01)
    assert desk.said == [format_sentence("receipts_of_epochs_not_stored_folder_silent", 5, tmp_path)]
    desk.folder.awake.set()


def test_the_oldest_are_given_up_when_too_many_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipt_writer, "MAX_WAITING_EPOCHS", 3)
    desk = Desk(tmp_path)
    desk.take(0)
    desk.folder.full = True
    desk.keeper.start(desk.folder)
    desk.keeper.add(1, 0, [replace(receipt(0, 10), epoch=0)])
    desk.until(lambda: desk.failures > 0, why="the first one was tried")
    desk.take(*range(1, 6))
    desk.folder.full = False
    desk.close()
    stored = len(rows(desk.folder, MIRROR))
    assert stored in (3, 4), "three have waited, and the first one may just have been on its way"
    assert desk.said[-1].startswith(f"receipts of {6 - stored} epoch")


@pytest.mark.parametrize("hangs", [True, False])
def test_what_waits_takes_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: bool) -> None:
    """Of 50,000 partitions an epoch's receipts take 75 MB; as a file a twentieth of that."""
    told = [replace(receipt(n * 10, n * 10 + 10), epoch=1) for n in range(1_000)]
    monkeypatch.setattr(receipt_writer, "MAX_WAITING_BYTES", 8 * receipt_writer._RECEIPT_BYTES * len(told))
    desk = Desk(tmp_path)
    desk.folder.full = True
    desk.keeper.start(desk.folder)
    if hangs:
        desk.folder.awake.clear()
    for epoch in range(1, 21):
        desk.keeper.add(1, epoch, told)
        desk.until(lambda: desk.keeper._find_unpacked() is None, why="what waits behind the first is packed")
    waiting = list(desk.keeper._waiting)
    assert sum(one.memory_bytes for one in waiting) <= receipt_writer.MAX_WAITING_BYTES
    assert len(waiting) == 20
    desk.folder.awake.set()
    desk.close()
    assert desk.said[-1].startswith("receipts of 20 epochs were not stored")


def test_not_even_a_defect_ends_it(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.folder.broken = True
    desk.keeper.start(desk.folder)
    desk.take(1)
    desk.until(lambda: desk.failures > 1, why="it is tried again")
    assert desk.said == [format_sentence("receipts_written_by_a_defect")]
    desk.folder.broken = False
    desk.until(lambda: len(rows(desk.folder, MIRROR)) == 1, why="it is stored")
    desk.close()


def test_a_head_tells_of_each_file_before_it_is_there_and_once_a_file(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.folder.awake.clear()
    desk.keeper.start(desk.folder)
    desk.take(1, 2)
    desk.until(lambda: bool(desk.book.heads), why="the first file is told of")
    (head,) = desk.book.heads.values()
    assert ([one.stored for one in head.files], desk.folder.names()) == ([False], [])
    assert head.location == str(tmp_path), "whoever proves the copy later, without being told, looks there"
    assert desk.checked().unwritten == (head.get_file_path(head.files[0].name),), (
        "killed now, nothing is said to be lost"
    )
    desk.folder.awake.set()
    desk.close()
    assert len(desk.book.written) == 3, "one for each file, and one at the end"
    assert [one.stored for head in desk.book.heads.values() for one in head.files] == [True, True]
    assert desk.checked() == CheckedReceipts(readable=desk.checked().readable)
    assert len(desk.checked().readable) == 2


def test_a_file_that_is_there_without_being_told_to_be_is_read_and_neither_lost_nor_strange(tmp_path: Path) -> None:
    """Killed between the file and what would have said that it has arrived."""
    desk = Desk(tmp_path)
    desk.keeper.start(desk.folder)
    desk.take(1)
    desk.until(lambda: bool(desk.folder.names()), why="the file is stored")
    found = desk.checked()
    assert ([*found.format_faults()], [*found.format_remarks()], len(found.readable)) == ([], [], 1)


def test_who_has_lost_the_mirror_stores_nothing_that_no_head_tells_of(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.keeper.start(desk.folder)
    desk.take(1, 2)
    desk.book.lost = True
    desk.close()
    assert desk.folder.names() == []
    assert desk.said[-1].startswith("receipts of 2 epochs were not stored")
    assert desk.said[-1].endswith("another process copies")


def test_an_epoch_over_the_hour_is_told_of_where_it_began_and_arrives_there(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.keeper.start(desk.folder)
    desk.take(1, 121)
    desk.close()
    assert sorted(desk.book.heads) == ["2026-09-21T14", "2026-09-21T15"]
    assert desk.checked() == CheckedReceipts(readable=desk.checked().readable)
    assert len(desk.checked().readable) == 2
