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
from mirror_core.model.logs import get_logger

_log = get_logger(__name__)

_FILE_PROPERTIES: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.crl.location")
_MAX_CONTEXTS: Final = 32
_REPLACEMENT_GRACE_S: Final = 60.0
"""For files being replaced."""


class _FileVersion(NamedTuple):
    """Certificates are renewed while a data plane runs."""

    path: str
    inode: int
    changed_ns: int
    size: int


@dataclass(slots=True)
class _LastGoodContext:
    context: ssl.SSLContext
    unusable_since: float | None = None


_LAST_GOOD_CONTEXTS: Final[dict[Hashable, _LastGoodContext]] = {}


def get_tls_context(cluster: str, properties: Mapping[str, str]) -> ssl.SSLContext:
    """Reloads changed files. BadRequest when they are unusable, after a minute's grace."""
    cache_key = (
        cluster,
        *sorted(
            (key, value) for key, value in properties.items() if key.startswith("ssl.") and key != "ssl.key.password"
        ),
    )
    last_good = _LAST_GOOD_CONTEXTS.get(cache_key)
    try:
        context = _load_context(cluster, properties)
    except BadRequest as error:
        if last_good is None:
            raise
        now = time.monotonic()
        if last_good.unusable_since is None:
            last_good.unusable_since = now
            _log.warning("connects as before for up to %.0f s: %s", _REPLACEMENT_GRACE_S, error, cluster=cluster)
        if now - last_good.unusable_since > _REPLACEMENT_GRACE_S:
            raise
        return last_good.context
    if last_good is None or last_good.context is not context or last_good.unusable_since is not None:
        _LAST_GOOD_CONTEXTS[cache_key] = _LastGoodContext(context)
    return context


def file_versions(properties: Mapping[str, str]) -> Hashable:
    """Changes with a file; unreadable ones count as missing."""
    return tuple(_stat_or_none(properties[key]) for key in _FILE_PROPERTIES if key in properties)


def _load_context(cluster: str, properties: Mapping[str, str]) -> ssl.SSLContext:
    files = {key: _stat_or_refuse(cluster, key, properties[key]) for key in _FILE_PROPERTIES if key in properties}
    authorities, certificate, key, revoked = (files.get(name) for name in _FILE_PROPERTIES)
    checks_names = properties.get("ssl.endpoint.identification.algorithm", "https").lower() != "none"
    # Without a password OpenSSL would prompt on the terminal.
    password = properties.get("ssl.key.password", "")
    ca_pem = properties.get("ssl.ca.pem", "")
    system = _system_ca_file() if authorities is None and not ca_pem else None
    try:
        return _make_context(authorities, ca_pem, certificate, key, password, revoked, checks_names, system)
    except (OSError, ssl.SSLError) as error:
        properties_used = ", ".join(
            ["ssl.ca.location", *(name for name in ("ssl.ca.pem", "ssl.crl.location") if name in properties)]
        )
        if certificate is not None:
            properties_used = f"{properties_used}, ssl.certificate.location, ssl.key.location and ssl.key.password"
        raise BadRequest(
            f"cluster {cluster}: TLS files cannot be used: {error.strerror or error.args[-1]}; check {properties_used}"
        ) from None


@lru_cache(maxsize=_MAX_CONTEXTS)
def _make_context(
    authorities: _FileVersion | None,
    ca_pem: str,
    certificate: _FileVersion | None,
    key: _FileVersion | None,
    password: str,
    revoked: _FileVersion | None,
    checks_names: bool,
    system: _FileVersion | None,  # cache key only: OpenSSL finds the file
) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authorities and authorities.path, cadata=ca_pem or None)
    if revoked is not None:
        context.load_verify_locations(revoked.path)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF  # as librdkafka does
    context.check_hostname = checks_names
    if certificate is not None:
        context.load_cert_chain(certificate.path, key and key.path, password)
    return context


def _stat_or_refuse(cluster: str, key: str, path: str) -> _FileVersion:
    try:
        return _stat(path)
    except OSError as error:
        raise BadRequest(f"cluster {cluster}: {key}: {path} cannot be read: {error.strerror}") from None


def _stat(path: str) -> _FileVersion:
    with Path(path).open("rb") as file:
        status = os.fstat(file.fileno())
    return _FileVersion(path, status.st_ino, status.st_mtime_ns, status.st_size)


def _system_ca_file() -> _FileVersion | None:
    path = ssl.get_default_verify_paths().cafile
    return None if path is None else _stat_or_none(path)


def _stat_or_none(path: str) -> _FileVersion | None:
    try:
        return _stat(path)
    except OSError:
        return None
