"""TLS contexts, cached; and certificate subjects as Java, and so each broker, formats them.

X500Principal.getName(): RFC 2253, last attribute first; attributes without a keyword as object identifier and
hexadecimal DER. RFC 4514 (`cryptography`) differs: Java escapes each `=`, `#` and outer space.
"""

from __future__ import annotations

import os
import ssl
import time
import warnings
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from mirror_core.model.errors import BadRequest
from mirror_core.model.logs import get_logger

if TYPE_CHECKING:
    from cryptography.x509 import NameAttribute


_KEYWORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "2.5.4.3": "CN",
        "2.5.4.6": "C",
        "2.5.4.7": "L",
        "2.5.4.8": "ST",
        "2.5.4.9": "STREET",
        "2.5.4.10": "O",
        "2.5.4.11": "OU",
        "0.9.2342.19200300.100.1.25": "DC",
        "0.9.2342.19200300.100.1.1": "UID",
    }
)


_TEXT_TAGS: Final = (0x0C, 0x13, 0x16)
"""Java formats other types differently."""
_ESCAPED_CHARACTERS: Final = frozenset(',=+<>#;"\\')
_OUTER_ESCAPED: Final = " \r"
"""At both ends of a value."""


class SubjectUnreadable(ValueError):
    """No certificate, or a subject with values whose Java format is unknown."""


def parse_subject(pem: bytes) -> str:
    """For the first certificate, which a client sends as its own."""
    from cryptography import x509  # only for client certificates

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Java accepts overlong names, too
            subject = x509.load_pem_x509_certificate(pem).subject
    except (ValueError, TypeError, x509.InvalidVersion):
        raise SubjectUnreadable("it holds no certificate whose subject can be read") from None
    names = ["+".join(map(_format_attribute, relative)) for relative in subject.rdns]
    if not names:
        raise SubjectUnreadable("its subject is empty")
    return ",".join(reversed(names))


def _format_attribute(attribute: NameAttribute[str | bytes]) -> str:
    dotted, value = attribute.oid.dotted_string, attribute.value
    encoded = None if isinstance(value, bytes) else _encode_value(attribute, value.encode())
    if isinstance(value, bytes) or encoded is None:
        raise SubjectUnreadable(f"{dotted} in its subject is not UTF8String, PrintableString or IA5String")
    return f"{_KEYWORDS[dotted]}={_escape_value(value)}" if dotted in _KEYWORDS else f"{dotted}=#{encoded.hex()}"


def _encode_value(attribute: NameAttribute[str | bytes], text: bytes) -> bytes | None:
    """DER, cut from a one-attribute name. None: not a text type."""
    from cryptography.x509 import Name

    size = len(text).to_bytes((len(text).bit_length() + 7) // 8, "big")
    length = bytes([len(text)]) if len(text) < 0x80 else bytes([0x80 | len(size)]) + size
    der = Name([attribute]).public_bytes()
    return next((value for tag in _TEXT_TAGS if der.endswith(value := bytes([tag]) + length + text)), None)


def _escape_value(text: str) -> str:
    body = "".join(rf"\{c}" if c in _ESCAPED_CHARACTERS else r"\00" if c == "\0" else c for c in text)
    lead = len(body) - len(body.lstrip(_OUTER_ESCAPED))
    trail = len(body[lead:]) - len(body[lead:].rstrip(_OUTER_ESCAPED))
    inner = body[lead : len(body) - trail]
    return "".join(rf"\{c}" for c in body[:lead]) + inner + "".join(rf"\{c}" for c in body[len(body) - trail :])


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
