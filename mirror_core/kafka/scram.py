"""SASL exchanges: PLAIN (RFC 4616) and SCRAM (RFC 5802). Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Generator
from functools import lru_cache

MECHANISMS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class ServerNotTrusted(Exception):
    """The server did not prove that it knows the password, or its response is malformed."""


@lru_cache(maxsize=64)
def _salt_password(digest: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Cached: milliseconds of CPU, and a cluster's brokers share salt and iterations."""
    return hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)


def exchange_plain(user: str, password: str) -> Generator[bytes, bytes, None]:
    """No response to check."""
    yield b"\0" + user.encode() + b"\0" + password.encode()


def exchange_scram(mechanism: str, user: str, password: str) -> Generator[bytes, bytes, None]:
    """Returns once the server has proved itself."""
    digest = MECHANISMS[mechanism]
    nonce = base64.b64encode(secrets.token_bytes(18)).decode()
    name = user.replace("=", "=3D").replace(",", "=2C")
    first_bare = f"n={name},r={nonce}"
    response = yield f"n,,{first_bare}".encode()
    try:
        server_first = response.decode()
        fields = dict(part.split("=", 1) for part in server_first.split(","))
        if "m" in fields:
            raise ServerNotTrusted("the broker demands a SCRAM extension (m=) that this client does not have")
        server_nonce, salt, iterations = fields["r"], base64.b64decode(fields["s"], validate=True), int(fields["i"])
    except (KeyError, ValueError):
        raise ServerNotTrusted("malformed first SCRAM answer") from None
    # Fewer rounds would let a fake server harvest a cheap password hash.
    if not server_nonce.startswith(nonce) or server_nonce == nonce or not 4096 <= iterations <= 1_000_000:
        raise ServerNotTrusted("SCRAM nonce or iteration count out of range")
    salted = _salt_password(digest, password, salt, iterations)
    client_key = hmac.new(salted, b"Client Key", digest).digest()
    final_bare = f"c=biws,r={server_nonce}"
    message = f"{first_bare},{server_first},{final_bare}".encode()
    signature = hmac.new(hashlib.new(digest, client_key).digest(), message, digest).digest()
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    server_final = yield f"{final_bare},p={proof}".encode()
    expected = hmac.new(hmac.new(salted, b"Server Key", digest).digest(), message, digest).digest()
    if not hmac.compare_digest(server_final, b"v=" + base64.b64encode(expected)):
        raise ServerNotTrusted("the server's SCRAM signature is wrong")
