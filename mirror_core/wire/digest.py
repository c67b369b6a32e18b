"""Digest of a batch's content, equal as sent and as read back.

Digests add up modulo 2**128 to those of ranges; each includes its offset. XXH3 detects accidents, not an attacker
who chooses both records; log comparisons use `parity.keyed_digest` (ADR 0014).
"""

from __future__ import annotations

import struct
from typing import Final

import xxhash

_HEAD: Final = struct.Struct(">qB")
_ATTRIBUTES: Final = 22
_KEPT: Final = 0x0F
"""Codec and timestamp type. All other attributes differ between logs."""
MODULUS: Final = 1 << 128


def content(base_offset: int, batch: memoryview) -> int:
    """Covers offset, codec, timestamp type, times, record count and records (magic 2)."""
    number = xxhash.xxh3_128(_HEAD.pack(base_offset, batch[_ATTRIBUTES] & _KEPT))
    number.update(batch[27:43])
    number.update(batch[57:])
    return number.intdigest()
