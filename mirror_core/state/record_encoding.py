"""Keys and values of the state topic. A value is a versioned envelope, `{"v": 2, "data": ...}`.

Above `PIECE_BYTES` the bytes go under `piece/<key>/0`, `piece/<key>/1`..., and the key holds their number and digest.
Pieces come first: a reader of the head has them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from mirror_core.model.names import MirrorName

_RUN_ID: Final = re.compile(r"(?P<mirror>.+)-(?:failover|failback)-\d{8}T\d{6}-[0-9a-f]{4}")
_MIRROR_KINDS: Final = frozenset(
    (
        *(
            "mirror",
            "partition",
            "lease",
            "ledger",
            "settings",
            "pending_fence",
            "source_observation",
            "verification",
            "receipts",
            "writer",
            "departure",
            "quota",
        ),
        *("groups", "uncommitted", "committed"),
    )
)
_SEGMENT_PATTERN: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._:~-]{1,249}")
"""Topic names are the longest."""
SEGMENT_COUNTS: Final[Mapping[str, int]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("mirror", "lease", "pending_fence", "groups", "uncommitted", "source_observation", "verification", "run"),
            1,
        ),
        **dict.fromkeys(
            ("ledger", "lifted", "step", "audit", "settings", "receipts", "writer", "committed", "departure", "quota"),
            2,
        ),
        **dict.fromkeys(("partition", "checkpoint"), 3),
    }
)
"""After the kind. Some become parts of paths."""


def is_well_formed(key: str) -> bool:
    kind, *segments = key.split("/")
    return len(segments) == SEGMENT_COUNTS.get(kind) and all(
        _SEGMENT_PATTERN.fullmatch(segment) for segment in segments
    )


def parse_mirror_name(key: str) -> MirrorName | None:
    """Works for unreadable values, too; None: a foreign key, or one that no decision depends on."""
    kind, _, segments = key.partition("/")
    first = segments.partition("/")[0]
    match kind:
        case _ if kind in _MIRROR_KINDS:
            return MirrorName(first)
        case "run" | "step" | "checkpoint":
            match = _RUN_ID.fullmatch(first)
            return MirrorName(match["mirror"]) if match else None
        case "piece":
            return parse_mirror_name(segments)
    return None


SCHEMA_VERSION: Final = 2
PIECE_BYTES: Final = 256 << 10
"""A quarter of the default max.message.bytes."""
PIECE_KIND: Final = "piece"


class RecordUnreadable(Exception):
    """The text follows the key."""


class SplitValueHead(msgspec.Struct, frozen=True):
    pieces: int
    sha256: str


class _Envelope(msgspec.Struct):
    v: int
    data: msgspec.Raw = msgspec.Raw()
    head: SplitValueHead | None = None


_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)


def split_value(key: str, value: bytes, old_piece_count: int) -> Iterator[tuple[str, bytes | None]]:
    starts = range(0, len(value), PIECE_BYTES) if len(value) > PIECE_BYTES else ()
    pieces = [value[start : start + PIECE_BYTES] for start in starts]
    for number, piece in enumerate(pieces):
        yield format_piece_key(key, number), piece
    yield from build_piece_tombstones(key, len(pieces), old_piece_count)
    if pieces:
        head = SplitValueHead(pieces=len(pieces), sha256=hashlib.sha256(value).hexdigest())
        yield key, msgspec.json.encode({"v": SCHEMA_VERSION, "head": head})
    else:
        yield key, value


def build_piece_tombstones(key: str, first: int, old_piece_count: int) -> Iterator[tuple[str, None]]:
    yield from ((format_piece_key(key, number), None) for number in range(first, old_piece_count))


def format_piece_key(key: str, number: int) -> str:
    return f"{PIECE_KIND}/{key}/{number}"


def parse_piece_key(segments: str) -> tuple[str, int]:
    key, _, number = segments.rpartition("/")
    if not key or not is_key_number(number):
        raise RecordUnreadable("it is no piece of a record")
    return key, int(number)


def drop_replaced_rows(rows: Sequence[tuple[str, bytes | None]]) -> Iterable[tuple[str, bytes | None]]:
    """Keeps all if there are pieces: a head takes those before it."""
    if any(key.startswith(f"{PIECE_KIND}/") for key, _ in rows):
        return rows
    newest: dict[str, bytes | None] = {}
    for key, value in rows:
        newest.pop(key, None)
        newest[key] = value
    return newest.items()


def is_key_number(text: str) -> bool:
    """int() accepts other digits."""
    return text.isdecimal() and text.isascii() and len(text) <= 10


def join_pieces(head: SplitValueHead, pieces: dict[int, bytes]) -> bytes | None:
    if not 0 < head.pieces <= len(pieces) or any(number not in pieces for number in range(head.pieces)):
        return None
    value = b"".join(pieces[number] for number in range(head.pieces))
    return value if hashlib.sha256(value).hexdigest() == head.sha256 else None


def encode_envelope(data: object) -> bytes:
    return msgspec.json.encode({"v": SCHEMA_VERSION, "data": data})


def decode_envelope(value: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    """RecordUnreadable if damaged or of another schema."""
    try:
        envelope = _ENVELOPE.decode(value)
        if envelope.v != SCHEMA_VERSION:
            raise RecordUnreadable(_explain_schema(envelope.v))
        return envelope.head if envelope.head is not None else decoder.decode(envelope.data)
    # RecursionError: deeply nested JSON.
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError):
        raise RecordUnreadable("it is not readable: somebody else wrote it?") from None


def _explain_schema(version: int) -> str:
    if version < SCHEMA_VERSION:
        return (
            f"schema version {version} is older than this Mirrorbook's ({SCHEMA_VERSION}), which does not read it: end "
            "the mirror with the version that wrote it, delete the topic, and create the mirror anew"
        )
    return (
        f"schema version {version} is not known to this Mirrorbook (it writes {SCHEMA_VERSION}): use the version that "
        "wrote it, or a newer one"
    )
