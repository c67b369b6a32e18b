"""TLS contexts from librdkafka's PEM properties: one for all connections that are configured alike.

Reading a system's file of authorities takes tens of milliseconds of CPU time, and a task has many connections.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from mirror_core.model.errors import BadRequest

_FILES: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.crl.location")
_KEPT: Final = 32


class _File(NamedTuple):
    """A file as it was when it was opened: certificates are renewed under a running data plane."""

    path: str
    inode: int
    changed_ns: int
    size: int


def tls_context(cluster: str, properties: Mapping[str, str]) -> ssl.SSLContext:
    """The context for a cluster's properties. Files that have changed are read anew. BadRequest when they cannot be
    used."""
    files = {key: _seen(cluster, key, properties[key]) for key in _FILES if key in properties}
    authorities, own, key, revoked = (files.get(name) for name in _FILES)
    checks_names = properties.get("ssl.endpoint.identification.algorithm", "https").lower() != "none"
    # Without a password OpenSSL would ask for one on the terminal, in the middle of a failover.
    password = properties.get("ssl.key.password", "")
    named = properties.get("ssl.ca.pem", "")
    system = _system() if authorities is None and not named else None
    try:
        return _context(authorities, named, own, key, password, revoked, checks_names, system)
    except (OSError, ssl.SSLError) as error:
        used = ", ".join(
            ["ssl.ca.location", *(name for name in ("ssl.ca.pem", "ssl.crl.location") if name in properties)]
        )
        if own is not None:
            used = f"{used}, ssl.certificate.location, ssl.key.location and ssl.key.password"
        raise BadRequest(
            f"cluster {cluster}: TLS files cannot be used: {error.strerror or error.args[-1]}; check {used}"
        ) from None


@lru_cache(maxsize=_KEPT)
def _context(
    authorities: _File | None,
    named: str,
    own: _File | None,
    key: _File | None,
    password: str,
    revoked: _File | None,
    checks_names: bool,
    system: _File | None,  # known by it alone: what it names is found by OpenSSL
) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authorities and authorities.path, cadata=named or None)
    if revoked is not None:
        context.load_verify_locations(revoked.path)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF  # as librdkafka does
    context.check_hostname = checks_names
    if own is not None:
        context.load_cert_chain(own.path, key and key.path, password)
    return context


def _seen(cluster: str, key: str, path: str) -> _File:
    try:
        return _stat(path)
    except OSError as error:
        raise BadRequest(f"cluster {cluster}: {key}: {path} cannot be read: {error.strerror}") from None


def _stat(path: str) -> _File:
    with Path(path).open("rb") as file:
        found = os.fstat(file.fileno())
    return _File(path, found.st_ino, found.st_mtime_ns, found.st_size)


def _system() -> _File | None:
    """The system's file of authorities; None: it has none, or another way to keep them."""
    path = ssl.get_default_verify_paths().cafile
    try:
        return None if path is None else _stat(path)
    except OSError:
        return None
