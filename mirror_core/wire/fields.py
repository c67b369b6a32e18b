"""Primitive types of Kafka's protocol, with bounds checks. Compact ones: KIP-482."""

from __future__ import annotations

import struct
from typing import Final

_HEADER: Final = struct.Struct(">hhi")


class MalformedAnswer(Exception):
    pass


def string(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def request_header(api_key: int, version: int, correlation: int, client_id: str) -> bytes:
    """Version 1."""
    return _HEADER.pack(api_key, version, correlation) + string(client_id)


def flexible_request_header(api_key: int, version: int, correlation: int, client_id: str) -> bytes:
    """Version 2. Its client id is not compact."""
    return request_header(api_key, version, correlation, client_id) + NO_TAGS


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def compact_count(items: int) -> bytes:
    return uvarint(items + 1)


def compact_string(value: str) -> bytes:
    data = value.encode()
    return uvarint(len(data) + 1) + data


class Reader:
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
        """Not copied. Empty for null (-1)."""
        if size < -1 or self.position + max(size, 0) > self.end:
            raise MalformedAnswer(f"length {size} at {self.position}, {self.end - self.position} left")
        start = self.position
        self.position = start + max(size, 0)
        return self.data[start : self.position]

    def string(self) -> str:
        (size,) = self.unpack(_INT16)
        return self._text(size)

    def compact_string(self) -> str:
        return self._text(self.uvarint() - 1)

    def _text(self, size: int) -> str:
        try:
            return str(self.view(size), "utf-8")
        except UnicodeDecodeError:
            raise MalformedAnswer(f"string at {self.position - size} is not UTF-8") from None

    def count(self, smallest: int) -> int:
        """Array length, checked against the bytes left. 0 for null."""
        (size,) = self.unpack(_INT32)
        return self._plausible(size, smallest)

    def compact_count(self, smallest: int) -> int:
        return self._plausible(self.uvarint() - 1, smallest)

    def uvarint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            (byte,) = self.unpack(_UINT8)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise MalformedAnswer(f"a varint of more than 5 bytes at {self.position - 5}")

    def skip_tags(self) -> None:
        """No request version here needs them."""
        for _ in range(self._plausible(self.uvarint(), 2)):
            self.uvarint()
            self.view(self.uvarint())

    def _plausible(self, size: int, smallest: int) -> int:
        if size < -1 or max(size, 0) * smallest > self.end - self.position:
            raise MalformedAnswer(f"array of {size} at {self.position}, {self.end - self.position} bytes left")
        return max(size, 0)


NO_TAGS: Final = b"\0"
_UINT8: Final = struct.Struct(">B")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
