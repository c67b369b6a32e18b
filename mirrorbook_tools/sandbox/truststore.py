"""A Java trust store with the authorities that Python trusts, for networks whose proxy has a CA of its own."""

from __future__ import annotations

import os
import re
import ssl
import warnings
from pathlib import Path
from typing import Final

# Java wants a password even for public certificates; it protects nothing.
STORE_PASSWORD: Final = "changeit"
PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def ca_bundle() -> Path | None:
    """The file of authorities that Python's TLS uses, or None when there is none to copy."""
    named = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    for candidate in (named, "/etc/ssl/certs/ca-certificates.crt"):
        if candidate and Path(candidate).is_file():
            return Path(candidate)
    return None


def write_truststore(out: Path) -> bool:
    """Write a PKCS12 store to `out`. False when there is no bundle: Java's own authorities must do then."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

    bundle = ca_bundle()
    if bundle is None:
        return False
    certificates = []
    with warnings.catch_warnings():
        # Some authorities have serial numbers that the newest RFC forbids; they are the operator's choice, not ours.
        warnings.simplefilter("ignore")
        for number, pem in enumerate(PEM.findall(bundle.read_bytes())):
            try:
                certificate = x509.load_pem_x509_certificate(pem)
            except ValueError:  # one unreadable authority must not cost all the others
                continue
            certificates.append(pkcs12.PKCS12Certificate(certificate, b"ca%d" % number))
    if not certificates:
        return False
    encryption = BestAvailableEncryption(STORE_PASSWORD.encode())
    out.write_bytes(pkcs12.serialize_java_truststore(certificates, encryption))
    return True
