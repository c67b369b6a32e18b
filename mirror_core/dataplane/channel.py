"""Receives tasks' datagrams for the driver: one port, one thread, authenticated by epoch."""

from __future__ import annotations

import math
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from mirror_core.copy.datagrams import LARGEST, Letter, Sort, bound, opened, sealed, token_of
from mirror_core.copy.handover import Board
from mirror_core.dataplane.progress import Progress
from mirror_core.model.copying import DriverAt, Listening
from mirror_core.model.errors import BadRequest
from mirror_core.model.logs import logger
from mirror_core.model.text import format_address

_RECALLED: Final = 3
"""Epochs accepted: two overlap, and datagrams of the one before may be late."""
_BUFFER: Final = 4 << 20
_LAST_WORDS_S: Final = 1.0
_WAKE_S: Final = 0.1
Hear = Callable[[Letter], bytes]

_log = logger(__name__)


def ears(board: Board, progress: Progress | None) -> Mapping[int, Hear]:
    return {Sort.CLAIMS: board.take, Sort.PROGRESS: progress.hear if progress else lambda letter: b""}


class Channel:
    """Receives in its own thread while entered.

    Anyone may send to the port. No datagram ends the thread: without it lags are unknown and gaps wait.
    """

    def __init__(self, listening: Listening, hear: Mapping[int, Hear]) -> None:
        try:
            self.socket = bound(listening.bind, listening.port)
        except (OSError, OverflowError) as error:
            raise BadRequest(
                f"the driver cannot listen for its tasks on {listening.bind}, UDP port {listening.port}: {error}; give "
                "another port, or an address of this machine"
            ) from None
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        self.foreign = 0
        self._host = listening.host
        self._address = self.socket.getsockname()
        self._hear = hear
        self._key = secrets.token_bytes(32)
        self._newest = 0
        self._numbers: dict[tuple[int, bytes], int] = {}
        self._leaving = False
        self._thread = threading.Thread(target=self._listen, name="channel", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving = True
        with socket.socket(self.socket.family, socket.SOCK_DGRAM) as waker:
            while self._thread.is_alive():
                waker.sendto(b"", self._address)  # a flood may swallow it
                self._thread.join(_WAKE_S)
        self.socket.close()
        if self.foreign:
            _log.info("%d datagrams of strangers were ignored", self.foreign)

    def at(self, epoch: int) -> DriverAt:
        self._newest = max(self._newest, epoch)
        return DriverAt(host=self._host, port=self._address[1], token=token_of(self._key, epoch))

    def take(self, datagram: bytes) -> bytes | None:
        """The response, b"" without one; None when the datagram is not ours."""
        letter = opened(datagram, self._token)
        if letter is None:
            return None
        sender = letter.epoch, letter.sender
        hear = self._hear.get(letter.sort)
        if hear is None or letter.number <= self._numbers.get(sender, 0):
            return None
        if sender not in self._numbers:
            self._numbers = {known: number for known, number in self._numbers.items() if self._token(known[0])}
        self._numbers[sender] = letter.number
        try:
            body = hear(letter)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        if not body:
            return b""
        return sealed(self._token(letter.epoch) or "", letter._replace(sort=Sort.GIVEN, body=body))

    def _token(self, epoch: int) -> str | None:
        return token_of(self._key, epoch) if self._newest - _RECALLED < epoch <= self._newest else None

    def _listen(self) -> None:
        ends_at = math.inf
        while True:
            try:
                datagram, sender = self.socket.recvfrom(LARGEST + 1)
                if self._leaving and not datagram:  # the wakeup: everything before it is processed
                    return
                answer = self.take(datagram)
                if answer:
                    self.socket.sendto(answer, sender)
            except OSError as error:  # not sent: the task asks again
                _log.info("no answer sent: %s", error)
                continue
            if answer is None:
                if not self._is_repetition(datagram):
                    self._ignored(sender)
                if self._leaving and time.monotonic() > ends_at:
                    return  # a flood of foreign datagrams may delay the wakeup
                if self._leaving:
                    ends_at = min(ends_at, time.monotonic() + _LAST_WORDS_S)

    def _is_repetition(self, datagram: bytes) -> bool:
        letter = opened(datagram, self._token)
        return letter is not None and (letter.epoch, letter.sender) in self._numbers

    def _ignored(self, sender: Any) -> None:
        self.foreign += 1
        if self.foreign == 1:
            first = format_address(*sender[:2])
            _log.warning("datagrams without this epoch's token are ignored; the first came from %s", first)
