"""The subject of a certificate as Java writes it, which is what brokers call a client with that certificate.

Kafka's default principal builder takes X500Principal.getName(): RFC 2253, the last attribute first, attributes without
a keyword there as an object identifier with its value's DER in hexadecimal. Only the subject is looked at, nothing is
verified: the handshake does that.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_VERSION: Final = 0xA0
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
_TEXT: Final = frozenset({0x0C, 0x13, 0x16})
"""UTF8String, PrintableString, IA5String."""
_ESCAPED: Final = frozenset(',=+<>#;"\\')


class NoSubject(ValueError):
    """These bytes are no certificate, or its subject holds what Java writes in a way that we do not know."""


def subject_of(pem: bytes) -> str:
    """The subject of the first certificate in a PEM file: a client sends that one as its own."""
    found = _PEM.search(pem)
    if found is None:
        raise NoSubject("there is no certificate in it")
    try:
        der = base64.b64decode(found[1], validate=False)
        [(_, certificate)] = _elements(der)
        tbs = next(_elements(certificate))[1]
        fields = [(tag, content) for tag, content in _elements(tbs) if tag != _VERSION]
        subject = fields[4][1]  # after serial number, algorithm, issuer and validity
        names = [_relative(content) for _, content in _elements(subject)]
    except (binascii.Error, IndexError, StopIteration, UnicodeDecodeError, ValueError) as error:
        raise NoSubject(f"its subject cannot be read: {error or type(error).__name__}") from None
    if not names:
        raise NoSubject("its subject is empty")
    return ",".join(reversed(names))


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each element that stands here."""
    at = 0
    while at < len(der):
        tag, length = der[at], der[at + 1]
        at += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(der[at : at + size], "big")
            at += size
        if at + length > len(der):
            raise ValueError("it is cut off")
        yield tag, der[at : at + length]
        at += length


def _relative(der: bytes) -> str:
    """One relative name: an attribute and its value, or several of equal rank."""
    return "+".join(_attribute(content) for _, content in _elements(der))


def _attribute(der: bytes) -> str:
    (_, oid), (tag, value) = _elements(der)
    dotted = _dotted(oid)
    if tag not in _TEXT:
        raise ValueError(f"{dotted} has a value of ASN.1 type {tag}")
    if dotted not in _KEYWORDS:
        return f"{dotted}=#{_encoded(tag, value).hex()}"
    return f"{_KEYWORDS[dotted]}={_escaped(value.decode())}"


def _encoded(tag: int, value: bytes) -> bytes:
    if len(value) < 0x80:
        return bytes([tag, len(value)]) + value
    size = len(value).to_bytes((len(value).bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(size)]) + size + value


def _dotted(oid: bytes) -> str:
    numbers, number = list[int](), 0
    for byte in oid:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _escaped(text: str) -> str:
    body = "".join(rf"\{c}" if c in _ESCAPED else r"\00" if c == "\0" else c for c in text)
    inner = body.lstrip(" ")
    lead = len(body) - len(inner)
    trail = len(inner) - len(inner.rstrip(" "))
    return r"\ " * lead + inner[: len(inner) - trail] + r"\ " * trail
