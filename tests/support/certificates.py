"""Certificates, shared by tests."""

from __future__ import annotations

import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

KEY = ec.generate_private_key(ec.SECP256R1())

Named = x509.NameAttribute


def certificate(*names: x509.NameAttribute[str] | x509.RelativeDistinguishedName) -> bytes:
    relative = [
        n if isinstance(n, x509.RelativeDistinguishedName) else x509.RelativeDistinguishedName([n]) for n in names
    ]
    now = datetime.datetime.now(datetime.UTC)
    issuer = x509.Name([Named(NameOID.COMMON_NAME, "authority")])
    builder = x509.CertificateBuilder().subject_name(x509.Name(relative)).issuer_name(issuer).serial_number(1)
    signed = (
        builder.public_key(KEY.public_key()).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    ).sign(KEY, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM)
