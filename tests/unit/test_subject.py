"""What brokers call a client by its certificate, and what mirrorbook.yaml says instead."""

from __future__ import annotations

import contextlib
import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.kafka.config import ClusterConfig, Principal, load_config
from mirror_core.kafka.subject import NoSubject, subject_of
from mirror_core.model.errors import BadRequest

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


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([Named(NameOID.COMMON_NAME, "mirror")], "CN=mirror"),
        (
            [
                Named(NameOID.COUNTRY_NAME, "DE"),
                Named(NameOID.STATE_OR_PROVINCE_NAME, "Köln"),
                Named(NameOID.ORGANIZATION_NAME, 'Acme, "Inc"'),
                Named(NameOID.DOMAIN_COMPONENT, "example", _type=_ASN1Type.IA5String),
                Named(NameOID.COMMON_NAME, " a b#c "),
            ],
            r"CN=\ a b\#c\ ,DC=example,O=Acme\, \"Inc\",ST=Köln,C=DE",
        ),
        (
            [
                Named(NameOID.EMAIL_ADDRESS, "a@b.c", _type=_ASN1Type.IA5String),
                x509.RelativeDistinguishedName([Named(NameOID.COMMON_NAME, "one"), Named(NameOID.USER_ID, "two")]),
            ],
            "CN=one+UID=two,1.2.840.113549.1.9.1=#16056140622e63",
        ),
    ],
)
def test_a_subject_is_written_as_java_writes_it(
    names: list[x509.NameAttribute[str] | x509.RelativeDistinguishedName], expected: str
) -> None:
    assert subject_of(b"# of somebody\n" + certificate(*names)) == expected


def test_what_is_no_certificate_has_no_subject() -> None:
    der = certificate(Named(NameOID.COMMON_NAME, "mirror"))
    key = KEY.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    in_utf16 = certificate(Named(NameOID.COMMON_NAME, "mirror", _type=_ASN1Type.BMPString))
    for pem in (b"", key, der.replace(b"\n", b"\nA", 2), certificate(), in_utf16):
        with pytest.raises(NoSubject):
            subject_of(pem)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_subject_or_none(noise: bytes) -> None:
    pem = certificate(Named(NameOID.COMMON_NAME, "mirror"))
    for changed in (noise, pem[:60] + noise + pem[80:]):
        with contextlib.suppress(NoSubject):
            assert subject_of(changed)


def cluster(tmp_path: Path, *lines: str) -> ClusterConfig:
    path = tmp_path / "mirrorbook.yaml"
    path.write_text("\n".join(["clusters:", "  east:", '    bootstrap.servers: "b:1"', *lines]), encoding="utf-8")
    return load_config(path).cluster("east")


def users(config: ClusterConfig) -> list[tuple[str | None, bool]]:
    return [(config.user(principal), config.certain(principal)) for principal in Principal]


def test_who_says_neither_name_nor_certificate_is_anonymous(tmp_path: Path) -> None:
    assert users(cluster(tmp_path)) == [("ANONYMOUS", True)] * 2
    assert users(cluster(tmp_path, "    security.protocol: SSL")) == [("ANONYMOUS", True)] * 2


def test_with_mutual_tls_the_certificate_says_it_and_not_for_sure(tmp_path: Path) -> None:
    (tmp_path / "client.pem").write_bytes(certificate(Named(NameOID.COMMON_NAME, "mirror")))
    tls = ["    security.protocol: SSL", f"    ssl.certificate.location: {tmp_path / 'client.pem'}"]
    assert users(cluster(tmp_path, *tls)) == [("CN=mirror", False)] * 2
    other = ["    data:", f"      ssl.certificate.location: {tmp_path / 'none.pem'}"]
    assert users(cluster(tmp_path, *tls, *other)) == [("CN=mirror", False), (None, False)]
    said = ['    principal: "User:mirror"']
    assert users(cluster(tmp_path, *tls, *said)) == [("mirror", True)] * 2
    assert users(cluster(tmp_path, *tls, *said, *other)) == [("mirror", True), (None, False)], "it logs in otherwise"
    assert users(cluster(tmp_path, *tls, *other, '      principal: "User:CN=data"'))[1] == ("CN=data", True)
    assert "principal" not in cluster(tmp_path, *tls, *said).properties(), "it is no client property"


@pytest.mark.parametrize("name", ["mirror", "User:", "Group:mirror"])
def test_a_principal_that_kafka_would_not_know_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadRequest, match="is not as Kafka names principals: User:NAME"):
        cluster(tmp_path, f'    principal: "{name}"')
