"""Reading and writing the primitive types of Kafka's non-flexible protocol versions, with bounds checked."""

from __future__ import annotations

import struct
from typing import Final

_HEADER: Final = struct.Struct(">hhi")


class MalformedAnswer(Exception):
    """The bytes of an answer contradict themselves."""


def string(value: str) -> bytes:
    """A nullable string that is not null."""
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def request_header(api_key: int, version: int, correlation: int, client_id: str) -> bytes:
    """Request header version 1."""
    return _HEADER.pack(api_key, version, correlation) + string(client_id)


class Reader:
    """A cursor over an answer. Never reads past its end, never trusts a length."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: memoryview, position: int = 0) -> None:
        self.data = data
        self.position = position
        self.end = len(data)

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        start = self.position
        if start + layout.size > self.end:
            raise MalformedAnswer(f"{layout.size} bytes due at {start}, {self.end - start} left")
        self.position = start + layout.size
        return layout.unpack_from(self.data, start)

    def view(self, size: int) -> memoryview:
        """The next bytes, not copied; none for a null (-1)."""
        if size < -1 or self.position + max(size, 0) > self.end:
            raise MalformedAnswer(f"length {size} at {self.position}, {self.end - self.position} left")
        start = self.position
        self.position = start + max(size, 0)
        return self.data[start : self.position]

    def string(self) -> str:
        (size,) = self.unpack(_INT16)
        try:
            return str(self.view(size), "utf-8")
        except UnicodeDecodeError:
            raise MalformedAnswer(f"string at {self.position - size} is not UTF-8") from None

    def count(self, smallest: int) -> int:
        """The length of an array whose items take at least `smallest` bytes; 0 for a null array."""
        (size,) = self.unpack(_INT32)
        if size < -1 or max(size, 0) * smallest > self.end - self.position:
            raise MalformedAnswer(f"array of {size} at {self.position}, {self.end - self.position} bytes left")
        return max(size, 0)


_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
