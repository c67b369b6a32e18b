"""Record values as bytes: a versioned envelope, split when long. Pure.

`{"v": 2, "data": ...}`. Above `PIECE_BYTES` the bytes go under `piece/<key>/0`, `piece/<key>/1`..., and the key holds
their number and digest. One transaction, pieces first: who has read the head has the pieces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

SCHEMA_VERSION: Final = 2
PIECE_BYTES: Final = 256 << 10
"""A quarter of the default max.message.bytes."""
PIECE: Final = "piece"


class Unreadable(Exception):
    """The text follows the key."""


class Head(msgspec.Struct, frozen=True):
    pieces: int
    sha256: str


class _Envelope(msgspec.Struct):
    v: int
    data: msgspec.Raw = msgspec.Raw()
    head: Head | None = None


_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)


def cut(key: str, value: bytes, pieces_before: int) -> Iterator[tuple[str, bytes | None]]:
    """Pieces, value or head, and tombstones for leftover pieces."""
    starts = range(0, len(value), PIECE_BYTES) if len(value) > PIECE_BYTES else ()
    pieces = [value[start : start + PIECE_BYTES] for start in starts]
    for number, piece in enumerate(pieces):
        yield piece_key(key, number), piece
    yield from uncut(key, len(pieces), pieces_before)
    if pieces:
        head = Head(pieces=len(pieces), sha256=hashlib.sha256(value).hexdigest())
        yield key, msgspec.json.encode({"v": SCHEMA_VERSION, "head": head})
    else:
        yield key, value


def uncut(key: str, first: int, pieces_before: int) -> Iterator[tuple[str, None]]:
    yield from ((piece_key(key, number), None) for number in range(first, pieces_before))


def piece_key(key: str, number: int) -> str:
    return f"{PIECE}/{key}/{number}"


def piece_of(rest: str) -> tuple[str, int]:
    """Without its kind."""
    key, _, number = rest.rpartition("/")
    if not key or not is_number(number):
        raise Unreadable("it is no piece of a record")
    return key, int(number)


def lasting(rows: Sequence[tuple[str, bytes | None]]) -> Iterable[tuple[str, bytes | None]]:
    """Keeps all if there are pieces: a head takes those before it."""
    if any(key.startswith(f"{PIECE}/") for key, _ in rows):
        return rows
    last: dict[str, bytes | None] = {}
    for key, value in rows:
        last.pop(key, None)
        last[key] = value
    return last.items()


def is_number(text: str) -> bool:
    """int() accepts other digits."""
    return text.isdecimal() and text.isascii() and len(text) <= 10


def joined(head: Head, pieces: dict[int, bytes]) -> bytes | None:
    """None while incomplete."""
    if not 0 < head.pieces <= len(pieces) or any(number not in pieces for number in range(head.pieces)):
        return None
    value = b"".join(pieces[number] for number in range(head.pieces))
    return value if hashlib.sha256(value).hexdigest() == head.sha256 else None


def enveloped(data: object) -> bytes:
    return msgspec.json.encode({"v": SCHEMA_VERSION, "data": data})


def opened(value: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    """RecordUnreadable if damaged or of another schema."""
    try:
        envelope = _ENVELOPE.decode(value)
        if envelope.v != SCHEMA_VERSION:
            raise Unreadable(_other_schema(envelope.v))
        return envelope.head if envelope.head is not None else decoder.decode(envelope.data)
    # RecursionError: deeply nested JSON.
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError):
        raise Unreadable("it is not readable: somebody else wrote it?") from None


def _other_schema(version: int) -> str:
    if version < SCHEMA_VERSION:
        return (
            f"schema version {version} is older than this Mirrorbook's ({SCHEMA_VERSION}), which does not read it: end "
            "the mirror with the version that wrote it, delete the topic, and create the mirror anew"
        )
    return (
        f"schema version {version} is not known to this Mirrorbook (it writes {SCHEMA_VERSION}): use the version that "
        "wrote it, or a newer one"
    )
