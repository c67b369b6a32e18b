"""Run bundles: Ed25519 signatures (RFC 8032, PEM keys), writing, and offline verification.

openssl genpkey -algorithm ed25519 -out signing-key.pem

openssl pkey -in signing-key.pem -pubout -out public-key.pem
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from pathlib import Path
from typing import Final

from mirror_core.model.errors import BadRequest

_FOREIGN_RIGHTS: Final = 0o077


class Signer:
    def __init__(self, path: Path) -> None:
        """Raises BadRequest if it is no key, or others may read it."""
        # Late: only needed to sign or verify.
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        content = _read_key_file(path, "signing key")
        if path.stat().st_mode & _FOREIGN_RIGHTS:
            raise BadRequest(f"signing key {path}: others may read or write it: chmod 600")
        try:
            key = load_pem_private_key(content, None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise BadRequest(f"signing key {path}: not a private key in PEM without a passphrase") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise BadRequest(f"signing key {path}: not of type Ed25519")
        self._key = key
        self.id = compute_key_id(key.public_key().public_bytes_raw())

    def sign(self, content: str) -> str:
        return base64.b64encode(self._key.sign(content.encode())).decode()


class PublicKey:
    """The verifier's own, never taken from the bundle."""

    def __init__(self, path: Path) -> None:
        """Raises BadRequest."""
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        try:
            key = load_pem_public_key(_read_key_file(path, "public key"))
        except (ValueError, UnsupportedAlgorithm):
            raise BadRequest(f"public key {path}: not a public key in PEM") from None
        if not isinstance(key, Ed25519PublicKey):
            raise BadRequest(f"public key {path}: not of type Ed25519")
        self._key = key
        self.id = compute_key_id(key.public_bytes_raw())

    def is_signature_of(self, content: str, signature: str) -> bool:
        from cryptography.exceptions import InvalidSignature

        try:
            self._key.verify(base64.b64decode(signature, validate=True), content.encode())
        except (InvalidSignature, binascii.Error, ValueError):
            return False
        return True


def compute_key_id(raw: bytes) -> str:
    """First 16 hexadecimal digits of the public key's SHA-256."""
    return hashlib.sha256(raw).hexdigest()[:16]


def _read_key_file(path: Path, key_kind: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadRequest(f"{key_kind} {path}: cannot be read: {error.strerror}") from None
