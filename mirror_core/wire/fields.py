"""Primitive types of Kafka's protocol, with bounds checks. Compact ones: KIP-482."""

from __future__ import annotations

import struct
from typing import Final

_HEADER: Final = struct.Struct(">hhi")


class MalformedResponse(Exception):
    pass


def encode_string(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def encode_request_header(api_key: int, version: int, correlation: int, client_id: str) -> bytes:
    """Version 1."""
    return _HEADER.pack(api_key, version, correlation) + encode_string(client_id)


def encode_flexible_request_header(api_key: int, version: int, correlation: int, client_id: str) -> bytes:
    """Version 2. Its client id is not compact."""
    return encode_request_header(api_key, version, correlation, client_id) + NO_TAGS


def encode_uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_compact_count(items: int) -> bytes:
    return encode_uvarint(items + 1)


def encode_compact_string(value: str) -> bytes:
    data = value.encode()
    return encode_uvarint(len(data) + 1) + data


class ResponseReader:
    __slots__ = ("data", "end", "position")

    def __init__(self, data: memoryview, position: int = 0) -> None:
        self.data = data
        self.position = position
        self.end = len(data)

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        start = self.position
        if start + layout.size > self.end:
            raise MalformedResponse(f"{layout.size} bytes due at {start}, {self.end - start} left")
        self.position = start + layout.size
        return layout.unpack_from(self.data, start)

    def read_view(self, size: int) -> memoryview:
        """Not copied. Empty for null (-1)."""
        if size < -1 or self.position + max(size, 0) > self.end:
            raise MalformedResponse(f"length {size} at {self.position}, {self.end - self.position} left")
        start = self.position
        self.position = start + max(size, 0)
        return self.data[start : self.position]

    def read_string(self) -> str:
        (size,) = self.unpack(_INT16)
        return self._read_text(size)

    def read_compact_string(self) -> str:
        return self._read_text(self.read_uvarint() - 1)

    def _read_text(self, size: int) -> str:
        try:
            return str(self.read_view(size), "utf-8")
        except UnicodeDecodeError:
            raise MalformedResponse(f"string at {self.position - size} is not UTF-8") from None

    def read_count(self, min_item_bytes: int) -> int:
        """Checked against the bytes left. 0 for null."""
        (size,) = self.unpack(_INT32)
        return self._check_count(size, min_item_bytes)

    def read_compact_count(self, min_item_bytes: int) -> int:
        return self._check_count(self.read_uvarint() - 1, min_item_bytes)

    def read_uvarint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            (byte,) = self.unpack(_UINT8)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise MalformedResponse(f"a varint of more than 5 bytes at {self.position - 5}")

    def skip_tags(self) -> None:
        for _ in range(self._check_count(self.read_uvarint(), 2)):
            self.read_uvarint()
            self.read_view(self.read_uvarint())

    def _check_count(self, size: int, min_item_bytes: int) -> int:
        if size < -1 or max(size, 0) * min_item_bytes > self.end - self.position:
            raise MalformedResponse(f"array of {size} at {self.position}, {self.end - self.position} bytes left")
        return max(size, 0)


def strip_response_header(frame: memoryview, *, is_flexible: bool) -> memoryview:
    reader = ResponseReader(frame, _INT32.size)
    if is_flexible:
        reader.skip_tags()
    return frame[reader.position :]


NO_TAGS: Final = b"\0"
TOPIC_ID_BYTES: Final = 16
_UINT8: Final = struct.Struct(">B")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
