"""Writes receipts in background threads: a full disk or a hung store costs evidence, not copying."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from datetime import UTC, datetime
from itertools import islice
from typing import Final, Protocol

from mirror_core.evidence import receipt_files
from mirror_core.evidence.file_store import Folder
from mirror_core.evidence.receipt_files import ReceiptsFile
from mirror_core.evidence.receipt_index import add_file, mark_stored
from mirror_core.model.errors import MirrorError
from mirror_core.model.names import MirrorName
from mirror_core.model.receipt_heads import ReceiptFileEntry, ReceiptsHead
from mirror_core.model.task_messages import Receipt
from mirror_core.model.text import format_count
from mirror_core.state.state_records import State

MAX_WAITING_EPOCHS: Final = 500
"""Four hours; then the oldest are dropped, and are holes."""
MAX_WAITING_BYTES: Final = 256 << 20
"""Likewise. 50,000 partitions take 4 MB as a file, 75 MB unpacked."""
_RECEIPT_BYTES: Final = 1_500
_RETRY_S: Final = 10.0
_POLL_S: Final = 0.02


class HeadWriter(Protocol):
    @property
    def state(self) -> State: ...

    def put(self, *records: ReceiptsHead) -> None: ...


class _EpochReceipts:
    def __init__(self, generation: int, number: int, epoch_receipts: Sequence[Receipt]) -> None:
        # The hour (UTC) in which the first receipt started.
        self.part = datetime.fromtimestamp(
            min(receipt.started_ms for receipt in epoch_receipts) / 1000, UTC
        ).isoformat()[:13]
        self._name = generation, number
        self._receipts = epoch_receipts
        self._file: ReceiptsFile | None = None
        self._pack_lock = threading.Lock()

    @property
    def is_unpacked(self) -> bool:
        return self._file is None

    @property
    def memory_bytes(self) -> int:
        file = self._file
        return _RECEIPT_BYTES * len(self._receipts) if file is None else len(file.content)

    def pack(self) -> ReceiptsFile:
        with self._pack_lock:
            if self._file is None:
                self._file, self._receipts = receipt_files.pack_receipts(*self._name, self._receipts), ()
            return self._file


class ReceiptWriter:
    def __init__(
        self,
        mirror: MirrorName,
        report_line: Callable[[str], None],
        on_failure: Callable[[], None],
        *,
        retry_s: float = _RETRY_S,
    ) -> None:
        self._mirror = mirror
        self._report_line = report_line
        self._on_failure = on_failure
        self._retry_s = retry_s
        self._folder: Folder | None = None
        self._waiting: deque[_EpochReceipts] = deque()
        self._changed = threading.Condition()
        self._is_closing = self._no_more_heads = False
        self._head_request: tuple[str, ReceiptsFile] | None = None
        self._file_in_head: ReceiptsFile | None = None
        self._stored_files: set[tuple[str, str]] = set()
        self._last_error = ""
        self._dropped_epochs = 0
        self._thread = threading.Thread(target=copy_context().run, args=(self._run,), name="receipts", daemon=True)

    def start(self, folder: Folder) -> None:
        self._folder = folder
        self._thread.start()
        threading.Thread(
            target=copy_context().run, args=(self._pack_waiting,), name="receipts-pack", daemon=True
        ).start()

    def _pack_waiting(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing or self._find_unpacked() is not None)
                waiting = self._find_unpacked()
            if self._is_closing or waiting is None:
                return
            waiting.pack()

    def _find_unpacked(self) -> _EpochReceipts | None:
        return next((waiting for waiting in islice(self._waiting, 1, None) if waiting.is_unpacked), None)

    def add(self, generation: int, epoch: int, epoch_receipts: Sequence[Receipt]) -> None:
        if self._folder is None or not epoch_receipts:
            return
        with self._changed:
            self._waiting.append(_EpochReceipts(generation, epoch, epoch_receipts))
            while len(self._waiting) > 1 and self._is_over_limit():
                self._waiting.popleft()
                self._dropped_epochs += 1
            self._changed.notify_all()

    def _is_over_limit(self) -> bool:
        return (
            len(self._waiting) > MAX_WAITING_EPOCHS
            or sum(waiting.memory_bytes for waiting in self._waiting) > MAX_WAITING_BYTES
        )

    def write_heads(self, lease: HeadWriter, *, is_last: bool = False) -> None:
        """Once per file; a head also says that earlier files are stored."""
        with self._changed:
            part, file = self._head_request or ("", None)
            stored = set(self._stored_files)
            if file is self._file_in_head:
                file = None
        if file is None and not (is_last and stored):
            return
        heads = dict(lease.state.receipts.get(self._mirror, {}))
        changed = {head.part: head for head in mark_stored(heads, stored)}
        if file is not None:
            assert self._folder is not None
            kept_file = ReceiptFileEntry(file.name, file.sha256, file.pieces, stored=False)
            changed[part] = add_file(self._mirror, heads | changed, part, kept_file, location=self._folder.where)
        if changed:
            lease.put(*changed.values())
        with self._changed:
            self._file_in_head = file or self._file_in_head
            self._stored_files -= stored
            self._changed.notify_all()

    def close(self, lease: HeadWriter | None, limit_s: float) -> None:
        """Stores what waits, at most `limit_s`, and reports the rest. Without a lease no head can be written, so no
        file.
        """
        if self._folder is None:
            return
        deadline = time.monotonic() + limit_s
        with self._changed:
            self._is_closing, self._no_more_heads = True, lease is None
            self._changed.notify_all()
        try:
            while lease is not None and self._thread.is_alive() and time.monotonic() < deadline:
                self.write_heads(lease)
                self._thread.join(_POLL_S)
            if lease is not None:
                self.write_heads(lease, is_last=True)
        except MirrorError as error:
            self._last_error = self._last_error or str(error)
        with self._changed:
            self._no_more_heads = True
            self._changed.notify_all()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        with self._changed:
            lost_count = len(self._waiting) + self._dropped_epochs
        if lost_count:
            default_reason = (
                "another process has the mirror now" if lease is None else f"{self._folder.where} does not answer"
            )
            reason = self._last_error or default_reason
            self._report_line(
                f"receipts of {format_count(lost_count, 'epoch')} were not stored, and are holes for who reads them:"
                f" {reason}"
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closing)
                if not self._waiting:
                    return
                first = self._waiting[0]
            file = first.pack()
            if not self._wait_for_head(first.part, file):
                return
            is_stored = self._store(file)
            with self._changed:
                if is_stored:
                    self._stored_files.add((first.part, file.name))
                if is_stored and self._waiting and self._waiting[0] is first:
                    self._waiting.popleft()
                elif is_stored:  # dropped while being stored
                    self._dropped_epochs -= 1
                elif not is_stored and self._is_closing:
                    return
                elif not is_stored:
                    self._changed.wait_for(lambda: self._is_closing, self._retry_s)

    def _wait_for_head(self, part: str, file: ReceiptsFile) -> bool:
        with self._changed:
            self._head_request = (part, file)
            self._changed.wait_for(lambda: self._file_in_head is file or self._no_more_heads)
            return self._file_in_head is file

    def _store(self, file: ReceiptsFile) -> bool:
        assert self._folder is not None
        try:
            receipt_files.write_receipts(self._folder, self._mirror, file)
        except Exception as error:  # noqa: BLE001 - a thread that dies of it would keep nothing more, without a word
            message = str(error) if isinstance(error, MirrorError) else f"receipts: {type(error).__name__}: {error}"
            self._on_failure()
            if message != self._last_error:
                self._report_line(f"copying goes on, and this is tried again: {message}")
            self._last_error = message
            return False
        if self._last_error:
            self._report_line("receipts are stored again")
        self._last_error = ""
        return True
