"""Writes receipts in background threads: a full disk or a hung store costs evidence, not copying.

The thread packs an epoch's receipts; the driver writes a head naming the file to the state topic; only then the thread
stores it. So lost, altered or foreign files are detected.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from datetime import UTC, datetime
from itertools import islice
from typing import Final, Protocol

from mirror_core.evidence import receipts
from mirror_core.evidence.folders import Folder
from mirror_core.evidence.heads import arrived, promised
from mirror_core.evidence.receipts import File
from mirror_core.model.copying import Receipt
from mirror_core.model.errors import MirrorError
from mirror_core.model.names import MirrorName
from mirror_core.model.receipts import Kept, ReceiptsHead
from mirror_core.state.records import State

WAITING: Final = 500
"""Four hours of epochs; then the oldest are dropped, and are holes."""
WAITING_BYTES: Final = 256 << 20
"""Likewise. 50,000 partitions take 4 MB as a file, 75 MB unpacked."""
_RECEIPT_BYTES: Final = 1_500
_AGAIN_S: Final = 10.0
_TICK_S: Final = 0.02


class Heads(Protocol):
    @property
    def state(self) -> State: ...

    def put(self, *records: ReceiptsHead) -> None: ...


class _Epoch:
    def __init__(self, generation: int, number: int, told: Sequence[Receipt]) -> None:
        # The hour (UTC) in which the first receipt started.
        self.part = datetime.fromtimestamp(min(one.started_ms for one in told) / 1000, UTC).isoformat()[:13]
        self._name = generation, number
        self._told = told
        self._file: File | None = None
        self._packing = threading.Lock()

    @property
    def loose(self) -> bool:
        return self._file is None

    @property
    def bytes(self) -> int:
        file = self._file
        return _RECEIPT_BYTES * len(self._told) if file is None else len(file.content)

    def packed(self) -> File:
        with self._packing:
            if self._file is None:
                self._file, self._told = receipts.packed(*self._name, self._told), ()
            return self._file


class Keeper:
    def __init__(
        self, mirror: MirrorName, say: Callable[[str], None], failed: Callable[[], None], *, again_s: float = _AGAIN_S
    ) -> None:
        self._mirror = mirror
        self._say = say
        self._failed = failed
        self._again_s = again_s
        self._folder: Folder | None = None
        self._waiting: deque[_Epoch] = deque()
        self._changed = threading.Condition()
        self._leaving = self._alone = False
        self._asked: tuple[str, File] | None = None
        self._told: File | None = None
        self._arrived: set[tuple[str, str]] = set()
        self._trouble = ""
        self._given_up = 0
        self._thread = threading.Thread(target=copy_context().run, args=(self._run,), name="receipts", daemon=True)

    def open(self, folder: Folder) -> None:
        self._folder = folder
        self._thread.start()
        threading.Thread(target=copy_context().run, args=(self._pack,), name="receipts-pack", daemon=True).start()

    def _pack(self) -> None:
        """Packs waiting epochs: a hung store or head may take hours."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._leaving or self._behind() is not None)
                one = self._behind()
            if self._leaving or one is None:
                return
            one.packed()

    def _behind(self) -> _Epoch | None:
        return next((one for one in islice(self._waiting, 1, None) if one.loose), None)

    def take(self, generation: int, epoch: int, told: Sequence[Receipt]) -> None:
        if self._folder is None or not told:
            return
        with self._changed:
            self._waiting.append(_Epoch(generation, epoch, told))
            while len(self._waiting) > 1 and self._too_much():
                self._waiting.popleft()
                self._given_up += 1
            self._changed.notify_all()

    def _too_much(self) -> bool:
        return len(self._waiting) > WAITING or sum(one.bytes for one in self._waiting) > WAITING_BYTES

    def tell(self, lease: Heads, *, last: bool = False) -> None:
        """Writes a head once per file, which also says that earlier files are stored."""
        with self._changed:
            part, file = self._asked or ("", None)
            there = set(self._arrived)
            if file is self._told:
                file = None
        if file is None and not (last and there):
            return
        heads = dict(lease.state.receipts.get(self._mirror, {}))
        changed = {head.part: head for head in arrived(heads, there)}
        if file is not None:
            assert self._folder is not None
            one = Kept(file.name, file.sha256, file.pieces, stored=False)
            changed[part] = promised(self._mirror, heads | changed, part, one, where=self._folder.where)
        if changed:
            lease.put(*changed.values())
        with self._changed:
            self._told = file or self._told
            self._arrived -= there
            self._changed.notify_all()

    def close(self, lease: Heads | None, limit_s: float) -> None:
        """Stores what waits, at most `limit_s`, and reports the rest. Without a lease no head can be written,
        so no file."""
        if self._folder is None:
            return
        deadline = time.monotonic() + limit_s
        with self._changed:
            self._leaving, self._alone = True, lease is None
            self._changed.notify_all()
        try:
            while lease is not None and self._thread.is_alive() and time.monotonic() < deadline:
                self.tell(lease)
                self._thread.join(_TICK_S)
            if lease is not None:
                self.tell(lease, last=True)
        except MirrorError as error:
            self._trouble = self._trouble or str(error)
        with self._changed:
            self._alone = True
            self._changed.notify_all()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        with self._changed:
            left = len(self._waiting) + self._given_up
        if left:
            nobody = "another process has the mirror now" if lease is None else f"{self._folder.where} does not answer"
            why = self._trouble or nobody
            self._say(f"receipts of {left} epoch(s) were not stored, and are holes for who reads them: {why}")

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._leaving)
                if not self._waiting:
                    return
                first = self._waiting[0]
            file = first.packed()
            if not self._told_of(first.part, file):
                return
            stored = self._stored(file)
            with self._changed:
                if stored:
                    self._arrived.add((first.part, file.name))
                if stored and self._waiting and self._waiting[0] is first:
                    self._waiting.popleft()
                elif stored:  # dropped while being stored
                    self._given_up -= 1
                elif not stored and self._leaving:
                    return
                elif not stored:
                    self._changed.wait_for(lambda: self._leaving, self._again_s)

    def _told_of(self, part: str, file: File) -> bool:
        with self._changed:
            self._asked = (part, file)
            self._changed.wait_for(lambda: self._told is file or self._alone)
            return self._told is file

    def _stored(self, file: File) -> bool:
        assert self._folder is not None
        try:
            receipts.write(self._folder, self._mirror, file)
        except Exception as error:  # noqa: BLE001 - a thread that dies of it would keep nothing more, without a word
            words = str(error) if isinstance(error, MirrorError) else f"receipts: {type(error).__name__}: {error}"
            self._failed()
            if words != self._trouble:
                self._say(f"copying goes on, and this is tried again: {words}")
            self._trouble = words
            return False
        if self._trouble:
            self._say("receipts are stored again")
        self._trouble = ""
        return True
