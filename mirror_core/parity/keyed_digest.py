"""Digests that nobody can prepare two equal inputs for (ADR 0014)."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

_KEY_BYTES: Final = 16
_NONCE_BYTES: Final = 12
PROCESS_KEY: Final = secrets.token_bytes(16)


@dataclass(frozen=True, slots=True)
class DigestKey:
    """Drawn after both logs were written, used for both, stored nowhere."""

    key: bytes
    nonce: bytes

    @classmethod
    def generate(cls) -> DigestKey:
        return cls(secrets.token_bytes(_KEY_BYTES), secrets.token_bytes(_NONCE_BYTES))


class KeyedDigest:
    """GMAC: two different inputs of n bytes are equal for at most n/16 + 1 of 2**128 keys."""

    __slots__ = ("_gmac", "_hex", "update")

    def __init__(self, key: DigestKey) -> None:
        self._gmac = Cipher(algorithms.AES(key.key), modes.GCM(key.nonce)).encryptor()
        self.update = self._gmac.authenticate_additional_data
        self._hex = ""

    def hexdigest(self) -> str:
        """32 hexadecimal digits. Nothing can be added afterwards."""
        if not self._hex:
            self._gmac.finalize()
            self._hex = self._gmac.tag.hex()
        return self._hex


def digest_in_memory(data: bytes, key: bytes = PROCESS_KEY) -> bytes:
    """16 bytes, valid in this process only, or where the same random `key` is used."""
    return hashlib.blake2b(data, digest_size=16, key=key).digest()
