"""What a batch says, as one number: the same for a batch as it was sent to a log and as that log gives it back.

Numbers of batches are added up (modulo 2**128): so what is known of two neighbouring ranges is known of both together.
Order needs no care, since a batch's own offset is in its number. XXH3 finds what happens by itself; whoever chooses
both records can make two with one number. Comparisons of both logs use `parity.keyed_digest` instead (ADR 0014).
"""

from __future__ import annotations

import struct
from typing import Final

import xxhash

_HEAD: Final = struct.Struct(">qB")
_ATTRIBUTES: Final = 22
_KEPT: Final = 0x0F
"""Codec and timestamp type. Transactional bit, delete horizon, leader epoch and producer are each log's own."""
MODULUS: Final = 1 << 128


def content(base_offset: int, batch: memoryview) -> int:
    """Of a batch of magic 2: its offset, codec, timestamp type, times, number of records, and all of its records."""
    number = xxhash.xxh3_128(_HEAD.pack(base_offset, batch[_ATTRIBUTES] & _KEPT))
    number.update(batch[27:43])
    number.update(batch[57:])
    return number.intdigest()
