"""Two different values for which XXH3 gives one digest: what somebody who knows its secret, or its seed, can write."""

from __future__ import annotations

import struct
from typing import Final

_SECRET: Final = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb"
)
"""The beginning of XXH3's published default secret."""
_STRIPE: Final = 64
_HIGHEST_BIT: Final = 1 << 63
_STRIPES: Final = (6, 8)
_MASKED: Final = 0x1234_5678
SIZE: Final = 700
LIKELY_XOR: Final = 1_225_531_524
"""(first secret + s) XOR (second secret + s), lower halves: the value that is most frequent among all s."""


def colliding_values(before: int, lower_halves_differ_by: int | None = None) -> tuple[bytes, bytes]:
    """Two values of SIZE bytes that give one XXH3 digest when `before` bytes were digested in front of them.

    XXH3 adds to an accumulator, for each word of 8 bytes: the word, and the product of both halves of (word XOR
    secret). Turning the highest bit of a word changes the sum by 2**63, and the product by its lower half times 2**31,
    up or down. Two words of one accumulator with equal lower halves and opposite signs cancel each other.
    """
    first, second = (struct.unpack_from("<Q", _SECRET, 8 * stripe)[0] for stripe in _STRIPES)
    words = [_MASKED ^ first, _MASKED ^ _HIGHEST_BIT ^ second]
    if lower_halves_differ_by is not None:
        words[1] = (words[0] ^ lower_halves_differ_by) & 0xFFFF_FFFF | words[1] & ~0xFFFF_FFFF
    one, other = bytearray(SIZE), bytearray(SIZE)
    for stripe, word in zip(_STRIPES, words, strict=True):
        at = _STRIPE * stripe - before
        struct.pack_into("<Q", one, at, word)
        struct.pack_into("<Q", other, at, word ^ _HIGHEST_BIT)
    return bytes(one), bytes(other)


def values_that_often_collide() -> tuple[bytes, bytes]:
    """The same without knowing the seed: for one seed in some hundred both give one digest."""
    return colliding_values(0, LIKELY_XOR)
