"""TLS contexts from PEM properties, cached.

Loading the system's CA file takes tens of milliseconds of CPU.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from mirror_core.model.errors import BadRequest
from mirror_core.model.logs import logger

_log = logger(__name__)

_FILES: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.crl.location")
_KEPT: Final = 32
_REPLACING_S: Final = 60.0
"""For files being replaced."""


class _File(NamedTuple):
    """Certificates are renewed while a data plane runs."""

    path: str
    inode: int
    changed_ns: int
    size: int


@dataclass(slots=True)
class _LastGood:
    context: ssl.SSLContext
    unusable_since: float | None = None


_LAST_GOOD: Final[dict[Hashable, _LastGood]] = {}


def tls_context(cluster: str, properties: Mapping[str, str]) -> ssl.SSLContext:
    """Reloads changed files. BadRequest when they are unusable, after a minute's grace."""
    names = (
        cluster,
        *sorted(
            (key, value) for key, value in properties.items() if key.startswith("ssl.") and key != "ssl.key.password"
        ),
    )
    known = _LAST_GOOD.get(names)
    try:
        context = _read(cluster, properties)
    except BadRequest as error:
        if known is None:
            raise
        now = time.monotonic()
        if known.unusable_since is None:
            known.unusable_since = now
            _log.warning("connects as before for up to %.0f s: %s", _REPLACING_S, error, cluster=cluster)
        if now - known.unusable_since > _REPLACING_S:
            raise
        return known.context
    if known is None or known.context is not context or known.unusable_since is not None:
        _LAST_GOOD[names] = _LastGood(context)
    return context


def file_versions(properties: Mapping[str, str]) -> Hashable:
    """Changes with a file; unreadable ones count as missing."""
    return tuple(_stat_or_none(properties[key]) for key in _FILES if key in properties)


def _read(cluster: str, properties: Mapping[str, str]) -> ssl.SSLContext:
    files = {key: _seen(cluster, key, properties[key]) for key in _FILES if key in properties}
    authorities, own, key, revoked = (files.get(name) for name in _FILES)
    checks_names = properties.get("ssl.endpoint.identification.algorithm", "https").lower() != "none"
    # Without a password OpenSSL would prompt on the terminal.
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
    system: _File | None,  # cache key only: OpenSSL finds the file
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
    path = ssl.get_default_verify_paths().cafile
    return None if path is None else _stat_or_none(path)


def _stat_or_none(path: str) -> _File | None:
    try:
        return _stat(path)
    except OSError:
        return None
