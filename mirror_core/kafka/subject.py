"""A certificate's subject as Java formats it, and so as brokers name the client.

X500Principal.getName(): RFC 2253, last attribute first; attributes without a keyword as object identifier and
hexadecimal DER. RFC 4514 (`cryptography`) differs: Java escapes each `=`, `#` and outer space. Nothing is verified
here.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

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
    """Of the first certificate, which a client sends as its own."""
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
