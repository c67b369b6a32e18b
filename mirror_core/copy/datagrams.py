"""What tasks tell their driver by datagram (UDP): on its own machine, and nothing that may not get lost."""

from __future__ import annotations

import secrets
import socket
import threading
from types import TracebackType
from typing import Final, Self, TypeVar

import msgspec

from mirror_core.model.copying import DatagramsAt
from mirror_core.model.logs import logger

LARGEST: Final = 65_535
"""Bytes; a datagram holds a little less."""
Address = tuple[str, int]

_log = logger(__name__)


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What every datagram of ours holds."""

    token: str


M = TypeVar("M", bound=Message)


def read(decoder: msgspec.json.Decoder[M], datagram: bytes, token: str) -> M | None:
    """The message, if whoever wrote it knows the token; None for anything else, whatever bytes it is made of."""
    try:
        message = decoder.decode(datagram)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    # As bytes: of text it compares ASCII only, and raises for anything else.
    known = secrets.compare_digest(message.token.encode("utf-8", "surrogatepass"), token.encode())
    return message if known else None


class Datagrams:
    """Receives on a port of its own, in a thread of its own, while entered.

    Anyone on this machine can send there. No datagram ends the thread: without it lags are unknown and gaps wait.
    """

    def __init__(self, name: str, host: str = "127.0.0.1") -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.socket.bind((host, 0))
        self.host: str
        self.port: int
        self.host, self.port = self.socket.getsockname()
        self.at = DatagramsAt(host=self.host, port=self.port, token=secrets.token_hex(16))
        self.foreign = 0
        """Datagrams that were ignored: not a task's of this process."""
        self._name = name
        self._ended = False
        self._thread = threading.Thread(target=self._listen, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as waker:
            waker.sendto(b"", (self.host, self.port))
        self._thread.join()
        self.socket.close()
        if self.foreign:
            _log.info("%s: %d datagrams of strangers were ignored", self._name, self.foreign)

    def received(self, datagram: bytes, sender: Address) -> bool:
        """One has come. False when it is not one of ours."""
        raise NotImplementedError

    def _listen(self) -> None:
        while not self._ended:
            try:
                datagram, sender = self.socket.recvfrom(LARGEST)
                known = self._ended or self.received(datagram, sender)
            except OSError as error:  # an answer that could not be sent: whoever asked asks again
                _log.info("%s: no answer sent: %s", self._name, error)
                continue
            if not known:
                self.foreign += 1
                if self.foreign == 1:
                    _log.warning(
                        "%s: datagrams of a stranger are ignored; the first is from %s:%d", self._name, *sender
                    )
