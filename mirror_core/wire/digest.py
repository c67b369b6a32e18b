"""Digest of a batch's content, equal as sent and as read back.

Digests add up modulo 2**128 to those of ranges; each includes its offset. XXH3 detects accidents, not an attacker
who chooses both records; log comparisons use `parity.keyed_digest` (ADR 0014).
"""

from __future__ import annotations

import struct
from typing import Final

import xxhash

_DIGEST_HEAD: Final = struct.Struct(">qB")
_ATTRIBUTES_LOW_BYTE: Final = 22
_DIGESTED_BITS: Final = 0x0F
"""Codec and timestamp type. All other attributes differ between logs."""
DIGEST_MODULUS: Final = 1 << 128


def compute_batch_digest(base_offset: int, batch: memoryview) -> int:
    """Covers offset, codec, timestamp type, times, record count and records (magic 2)."""
    digest = xxhash.xxh3_128(_DIGEST_HEAD.pack(base_offset, batch[_ATTRIBUTES_LOW_BYTE] & _DIGESTED_BITS))
    digest.update(batch[27:43])
    digest.update(batch[57:])
    return digest.intdigest()
