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

from mirror_core.copy.driver_messages import ClaimBoard, CurrentCopies
from mirror_core.copy.task_datagrams import (
    MAX_DATAGRAM_BYTES,
    Datagram,
    DatagramKind,
    bind_socket,
    derive_token,
    open_datagram,
    seal_datagram,
)
from mirror_core.dataplane.progress import ProgressTracker, ReportedEnds
from mirror_core.model.errors import BadRequest
from mirror_core.model.logs import get_logger
from mirror_core.model.task_messages import DriverAddress, ListenAddress
from mirror_core.model.text import format_address
from mirror_core.model.timing import SteadyClock

_ACCEPTED_EPOCHS: Final = 3
"""Two overlap, and datagrams of the one before may be late."""
_SOCKET_BUFFER_BYTES: Final = 4 << 20
_CLOSE_TIMEOUT_S: Final = 1.0
_WAKE_S: Final = 0.1
DatagramHandler = Callable[[Datagram], bytes]

_log = get_logger(__name__)


def build_handlers(
    board: ClaimBoard,
    progress: ProgressTracker | None,
    reported_ends: ReportedEnds | None = None,
    copies: CurrentCopies | None = None,
) -> Mapping[int, DatagramHandler]:
    def handle_progress(datagram: Datagram) -> bytes:
        if reported_ends is not None:
            reported_ends.handle(datagram)
        return progress.handle(datagram, copies) if progress else b""

    return {DatagramKind.CLAIMS: board.handle, DatagramKind.PROGRESS: handle_progress}


class DatagramReceiver:
    """Receives in its own thread while entered.

    Anyone may send to the port. No datagram ends the thread: without it lags are unknown and gaps wait.
    """

    def __init__(self, listening: ListenAddress, handlers: Mapping[int, DatagramHandler]) -> None:
        try:
            self.socket = bind_socket(listening.bind, listening.port)
        except (OSError, OverflowError) as error:
            raise BadRequest(
                f"the driver cannot listen for its tasks on {listening.bind}, UDP port {listening.port}: {error}; give "
                "another port, or an address of this machine"
            ) from None
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)
        self.foreign_count = 0
        self._host = listening.host
        self._address = self.socket.getsockname()
        self._handlers = handlers
        self._key = secrets.token_bytes(32)
        self._newest_epoch = 0
        self._clocks: dict[int, SteadyClock] = {}
        """Each epoch's times are by the wall clock as it was when it was submitted."""
        self._last_numbers: dict[tuple[int, bytes], int] = {}
        self._is_stopping = self._is_closing = False
        self._thread = threading.Thread(target=self._listen, name="channel", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closing = True
        with socket.socket(self.socket.family, socket.SOCK_DGRAM) as wakeup_socket:
            while self._thread.is_alive():
                wakeup_socket.sendto(b"", self._address)  # a flood may swallow it
                self._thread.join(_WAKE_S)
        self.socket.close()
        if self.foreign_count:
            _log.info("%d datagrams of strangers were ignored", self.foreign_count)

    def address_for(self, epoch: int, submitted_ms: int | None = None) -> DriverAddress:
        """`submitted_ms`: now, by the clock that the epoch's times are of."""
        self._newest_epoch = max(self._newest_epoch, epoch)
        self._clocks = {known: clock for known, clock in self._clocks.items() if self._find_token(known)}
        self._clocks[epoch] = SteadyClock(submitted_ms)
        return DriverAddress(host=self._host, port=self._address[1], token=derive_token(self._key, epoch))

    def stop_tasks(self) -> bool:
        """Asks each task that reports from now on, as each does every second, to end. False: none ever reported."""
        self._is_stopping = True
        return bool(self._last_numbers)

    def handle(self, packet: bytes) -> bytes | None:
        """Returns b"" without a response, None when the datagram is not ours."""
        datagram = open_datagram(packet, self._find_token)
        if datagram is None:
            return None
        sender = datagram.epoch, datagram.sender
        handler = self._handlers.get(datagram.kind)
        if handler is None or datagram.number <= self._last_numbers.get(sender, 0):
            return None
        if sender not in self._last_numbers:
            self._last_numbers = {
                known_sender: number
                for known_sender, number in self._last_numbers.items()
                if self._find_token(known_sender[0])
            }
        self._last_numbers[sender] = datagram.number
        try:
            body = handler(datagram)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        if self._is_stopping and datagram.kind == DatagramKind.PROGRESS:
            response = datagram._replace(kind=DatagramKind.STOP, body=b"")
        elif body:
            response = datagram._replace(kind=DatagramKind.RESPONSE, body=body)
        elif datagram.kind == DatagramKind.PROGRESS and (clock := self._clocks.get(datagram.epoch)) is not None:
            response = datagram._replace(kind=DatagramKind.TIME, body=clock.now_ms().to_bytes(8))
        else:
            return b""
        return seal_datagram(self._find_token(datagram.epoch) or "", response)

    def _find_token(self, epoch: int) -> str | None:
        return (
            derive_token(self._key, epoch)
            if self._newest_epoch - _ACCEPTED_EPOCHS < epoch <= self._newest_epoch
            else None
        )

    def _listen(self) -> None:
        ends_at = math.inf
        while True:
            try:
                packet, sender = self.socket.recvfrom(MAX_DATAGRAM_BYTES + 1)
                if self._is_closing and not packet:  # the wakeup: everything before it is processed
                    return
                response = self.handle(packet)
                if response:
                    self.socket.sendto(response, sender)
            except OSError as error:  # not sent: the task asks again
                _log.info("no answer sent: %s", error)
                continue
            if response is None:
                if not self._is_repetition(packet):
                    self._count_foreign(sender)
                if self._is_closing and time.monotonic() > ends_at:
                    return  # a flood of foreign datagrams may delay the wakeup
                if self._is_closing:
                    ends_at = min(ends_at, time.monotonic() + _CLOSE_TIMEOUT_S)

    def _is_repetition(self, packet: bytes) -> bool:
        datagram = open_datagram(packet, self._find_token)
        return datagram is not None and (datagram.epoch, datagram.sender) in self._last_numbers

    def _count_foreign(self, sender: Any) -> None:
        self.foreign_count += 1
        if self.foreign_count == 1:
            first_address = format_address(*sender[:2])
            _log.warning("datagrams without this epoch's token are ignored; the first came from %s", first_address)
