"""What brokers call a client by its certificate, and what mirrorbook.yaml says instead."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from mirror_core.java import find_java_home
from mirror_core.kafka.config import ClusterConfig, Principal, load_config
from mirror_core.kafka.tls import SubjectUnreadable, parse_subject
from mirror_core.model.errors import BadRequest
from tests.support.certificates import KEY, Named, certificate

NAMES = [
    NameOID.COMMON_NAME,
    NameOID.COUNTRY_NAME,
    NameOID.LOCALITY_NAME,
    NameOID.STATE_OR_PROVINCE_NAME,
    NameOID.STREET_ADDRESS,
    NameOID.ORGANIZATION_NAME,
    NameOID.ORGANIZATIONAL_UNIT_NAME,
    NameOID.DOMAIN_COMPONENT,
    NameOID.USER_ID,
    NameOID.EMAIL_ADDRESS,  # those from here on have no keyword in RFC 2253
    NameOID.SERIAL_NUMBER,
    NameOID.TITLE,
    NameOID.GIVEN_NAME,
]
SPECIAL = st.sampled_from([*",=+<>#;\"\\/' \r\n\t\0", "ü", "\U0001f600"])
TEXTS = st.text(SPECIAL | st.characters(codec="utf-8"), min_size=1, max_size=140)


@pytest.fixture(scope="module")
def written_by_java() -> Iterator[Callable[[bytes], str]]:
    """What Java's own class, which brokers use, makes of a certificate's subject."""
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    (jar,) = (Path(spark.origin).parent / "jars").glob("py4j*.jar")
    port, token, process = launch_gateway(
        classpath=str(jar),
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
        java_path=str(find_java_home() / "bin" / "java"),
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))

    def written(pem: bytes) -> str:
        der = x509.load_pem_x509_certificate(pem).subject.public_bytes()
        return str(gateway.jvm.javax.security.auth.x500.X500Principal(der).getName())

    yield written
    gateway.shutdown()
    process.stdin.close()
    process.wait(timeout=60)


@st.composite
def attributes(draw: st.DrawFn, name: x509.ObjectIdentifier) -> x509.NameAttribute[str]:
    text = draw(TEXTS)
    if name == NameOID.COUNTRY_NAME:
        text = draw(st.text(SPECIAL, min_size=2, max_size=2).filter(lambda two: len(two.encode()) == 2))
    if name == NameOID.COMMON_NAME:
        text = text[:16]  # `cryptography` writes 64 bytes at most; the subject of a longer name has a test of its own
    plain = text.isascii() and draw(st.booleans())
    return Named(name, text, _type=_ASN1Type.IA5String if plain else _ASN1Type.UTF8String)


@st.composite
def relative_names(draw: st.DrawFn) -> x509.RelativeDistinguishedName:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    return x509.RelativeDistinguishedName([draw(attributes(name)) for name in names])


@given(st.lists(relative_names(), min_size=1, max_size=4))
def test_any_subject_is_written_as_java_writes_it(
    written_by_java: Callable[[bytes], str], names: list[x509.RelativeDistinguishedName]
) -> None:
    pem = certificate(*names)
    assert parse_subject(pem) == written_by_java(pem)


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
        ([Named(NameOID.COMMON_NAME, "\r a=b\0 \r")], "CN=\\\r\\ a\\=b\\00\\ \\\r"),
    ],
)
def test_a_subject_is_written_as_java_writes_it(
    names: list[x509.NameAttribute[str] | x509.RelativeDistinguishedName], expected: str
) -> None:
    assert parse_subject(b"# of somebody\n" + certificate(*names)) == expected


def test_a_name_longer_than_x509_allows_is_read() -> None:
    with pytest.warns(UserWarning, match="length must be"):
        name = Named(NameOID.COMMON_NAME, "m" * 70, _validate=False)
    assert parse_subject(certificate(name)) == "CN=" + "m" * 70


def test_what_is_no_certificate_has_no_subject() -> None:
    der = certificate(Named(NameOID.COMMON_NAME, "mirror"))
    key = KEY.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    others = [
        certificate(Named(NameOID.COMMON_NAME, "mirror", _type=kind))
        for kind in (_ASN1Type.BMPString, _ASN1Type.T61String, _ASN1Type.UniversalString, _ASN1Type.VisibleString)
    ]
    for pem in (b"", key, der.replace(b"\n", b"\nA", 2), certificate(), *others):
        with pytest.raises(SubjectUnreadable):
            parse_subject(pem)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_subject_or_none(noise: bytes) -> None:
    pem = certificate(Named(NameOID.COMMON_NAME, "mirror"))
    for changed in (noise, pem[:60] + noise + pem[80:]):
        with contextlib.suppress(SubjectUnreadable):
            assert parse_subject(changed)


def cluster(tmp_path: Path, *lines: str) -> ClusterConfig:
    path = tmp_path / "mirrorbook.yaml"
    path.write_text("\n".join(["clusters:", "  east:", '    bootstrap.servers: "b:1"', *lines]), encoding="utf-8")
    return load_config(path).cluster("east")


def users(config: ClusterConfig) -> list[tuple[str | None, bool]]:
    return [(config.user(principal), config.is_user_certain(principal)) for principal in Principal]


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
