"""A cluster of one broker that listens as companies have it: TLS, certificates, PLAIN, SCRAM-SHA-256; and anybody."""

from __future__ import annotations

import datetime
import ipaddress
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from mirrorbook_tools.sandbox import storage_format
from mirrorbook_tools.sandbox.broker import Broker
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from mirrorbook_tools.sandbox.credentials import ADMIN, create_passwords, load_passwords
from mirrorbook_tools.sandbox.jars import ensure_jars, jars_dir
from mirrorbook_tools.sandbox.ports import HOST, choose_ports
from mirrorbook_tools.sandbox.properties import PLAIN_LOGIN, SCRAM_LOGIN
from mirrorbook_tools.sandbox.state import ClusterState, NodePorts, SandboxState

NAME = "secure"
PASSWORD = "a-password-for-plain"
KEY_PASSWORD = "a-password-for-the-key"
CLIENT_CN = "mirror"
SESSION_MS = 3_000
"""A session of SASL ends after so long, unless the client signs in again (KIP-368)."""
HARD_TO_WRITE = x509.Name(
    [
        x509.RelativeDistinguishedName([x509.NameAttribute(NameOID.COUNTRY_NAME, "DE")]),
        x509.RelativeDistinguishedName([x509.NameAttribute(NameOID.STATE_OR_PROVINCE_NAME, "Köln")]),
        x509.RelativeDistinguishedName([x509.NameAttribute(NameOID.ORGANIZATION_NAME, 'Acme, "Inc" + <Söhne>')]),
        x509.RelativeDistinguishedName([x509.NameAttribute(NameOID.DOMAIN_COMPONENT, "example")]),
        x509.RelativeDistinguishedName([x509.NameAttribute(NameOID.SERIAL_NUMBER, "0815")]),
        x509.RelativeDistinguishedName(
            [
                x509.NameAttribute(NameOID.USER_ID, "7"),
                x509.NameAttribute(NameOID.EMAIL_ADDRESS, "mirror@example.com"),
                x509.NameAttribute(NameOID.COMMON_NAME, " #mirror\\; a=b "),
            ]
        ),
    ]
)


@dataclass(frozen=True, slots=True)
class Secure:
    """Where it listens, and with which files one gets in.

    `folder` has ca.pem, other-ca.pem, none.crl and broker.crl (who is revoked),
    client.pem, client.key, and locked.key: the same key behind a password; and
    named.pem, named.key: of somebody without rights whose name is hard to write.
    """

    cluster: SandboxCluster
    folder: Path
    tls: int
    mutual: int
    plain: int
    open: int
    six: tuple[int, int]
    """Its own port, and the one on ::1 that it advertises. A relay is to be there: the sandbox has IPv4 only."""

    def properties(self, listener: str) -> dict[str, str]:
        """Client properties for one listener: tls (SASL_SSL, SCRAM-SHA-256), mutual (SSL), plain (SASL PLAIN) or open;
        or six (SSL, at an IPv6 address).

        `locked` is `mutual` with a key behind a password, `named` the same with the other certificate.
        """
        ports = {
            "tls": self.tls,
            "mutual": self.mutual,
            "locked": self.mutual,
            "plain": self.plain,
            "open": self.open,
        }
        ports["named"] = self.mutual
        port = ports.get(listener, self.six[1])
        where = {"bootstrap.servers": f"{HOST}:{port}", "ssl.ca.location": str(self.folder / "ca.pem")}
        match listener:
            case "tls":
                who = {"sasl.username": ADMIN, "sasl.password": self.cluster.passwords[ADMIN]}
                return {**where, "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256", **who}
            case "mutual" | "locked":
                key = {"ssl.key.location": str(self.folder / "client.key")}
                if listener == "locked":
                    key = {"ssl.key.location": str(self.folder / "locked.key"), "ssl.key.password": KEY_PASSWORD}
                certificate = {"ssl.certificate.location": str(self.folder / "client.pem")}
                return {**where, "security.protocol": "SSL", **certificate, **key}
            case "named":
                files = {
                    f"ssl.{file}.location": str(self.folder / f"named.{end}")
                    for file, end in (("certificate", "pem"), ("key", "key"))
                }
                return {**where, "security.protocol": "SSL", **files}
            case "six":
                return {**where, "bootstrap.servers": f"[::1]:{self.six[1]}", "security.protocol": "SSL"}
            case "open":
                return {"bootstrap.servers": where["bootstrap.servers"], "security.protocol": "PLAINTEXT"}
            case _:
                who = {"sasl.username": ADMIN, "sasl.password": PASSWORD}
                return {**where, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", **who}


@contextmanager
def secure_cluster(folder: Path) -> Iterator[Secure]:
    """Start it, and stop it. Its certificate names the addresses 127.0.0.1 and ::1, and no host."""
    ensure_jars()
    folder.mkdir()
    issue_certificates(folder)
    Authority("somebody else").write(folder / "other-ca.pem")
    client, controller, tls, mutual, plain, anybody, *six = choose_ports(8)
    create_passwords(folder)
    passwords = load_passwords(folder)
    ports = NodePorts(client=client, controller=controller)
    listening = {"CLIENT": client, "TLS": tls, "MUTUAL": mutual, "PLAIN": plain, "OPEN": anybody}
    listeners = ",".join(f"{name}://{HOST}:{port}" for name, port in listening.items())
    state = SandboxState(
        clusters={NAME: ClusterState(cluster_id="secureAAAAAAAAAAAAAAAA", nodes=(ports,))},
        extra={
            "listeners": f"{listeners},SIX://{HOST}:{six[0]},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"{listeners},SIX://[::1]:{six[1]}",
            "listener.security.protocol.map": (
                "CLIENT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT,TLS:SASL_SSL,MUTUAL:SSL,PLAIN:SASL_PLAINTEXT,"
                "OPEN:PLAINTEXT,SIX:SSL"
            ),
            "super.users": f"User:{ADMIN};User:CN={CLIENT_CN};User:ANONYMOUS",
            "listener.name.tls.sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "listener.name.tls.scram-sha-256.sasl.jaas.config": f"{SCRAM_LOGIN} required;",
            "listener.name.plain.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.plain.plain.sasl.jaas.config": f'{PLAIN_LOGIN} required user_{ADMIN}="{PASSWORD}";',
            **{f"listener.name.{name}.connections.max.reauth.ms": str(SESSION_MS) for name in ("tls", "plain")},
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(folder / "keystore.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(folder / "ca.pem"),
            "listener.name.mutual.ssl.client.auth": "required",
        },
    )
    broker = Broker(cluster=NAME, node=1, folder=folder / NAME / "1", ports=ports, jars=jars_dir())
    storage_format.prepare([broker], state, passwords, lambda line: None)
    cluster = SandboxCluster(name=NAME, brokers=(broker,), passwords=passwords)
    process = broker.spawn()
    try:
        cluster.wait_ready({1: process}, whole_cluster=True)
        yield Secure(cluster, folder, tls, mutual, plain, anybody, (six[0], six[1]))
    finally:
        broker.stop(signal.SIGTERM)


def issue_certificates(folder: Path) -> None:
    """Of a new authority, which nobody trusts who has the files of before: for the broker and for all clients."""
    authority = Authority("authority")
    authority.write(folder / "ca.pem")
    authority.issue(named("broker"), folder / "broker.pem", folder / "broker.key", HOST, "::1")
    authority.issue(named(CLIENT_CN), folder / "client.pem", folder / "client.key")
    authority.issue(HARD_TO_WRITE, folder / "named.pem", folder / "named.key")
    authority.revoke(folder / "none.crl")
    authority.revoke(folder / "broker.crl", folder / "broker.pem")
    _lock(folder / "client.key", folder / "locked.key")
    (folder / "keystore.pem").write_bytes((folder / "broker.key").read_bytes() + (folder / "broker.pem").read_bytes())


def _lock(key: Path, locked: Path) -> None:
    """The same key, encrypted."""
    private = serialization.load_pem_private_key(key.read_bytes(), password=None)
    encryption = serialization.BestAvailableEncryption(KEY_PASSWORD.encode())
    locked.touch(mode=0o600)
    locked.write_bytes(private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))


class Authority:
    """Signs certificates that hold for a day."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = named(name)
        ca = x509.BasicConstraints(ca=True, path_length=None)
        self._certificate = self._sign(self._name, self._key, [ca])

    def write(self, path: Path) -> None:
        path.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: x509.Name, certificate: Path, key: Path, *addresses: str) -> None:
        private = ec.generate_private_key(ec.SECP256R1())
        alternatives = [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        names = [x509.SubjectAlternativeName(alternatives)] if alternatives else []
        signed = self._sign(name, private, names)
        certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        key.touch(mode=0o600)
        key.write_bytes(
            private.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )

    def revoke(self, path: Path, *certificates: Path) -> None:
        """Write the list of revoked certificates: these."""
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._name)
        builder = builder.last_update(now - datetime.timedelta(hours=1)).next_update(now + datetime.timedelta(days=1))
        for certificate in certificates:
            serial = x509.load_pem_x509_certificate(certificate.read_bytes()).serial_number
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
            builder = builder.add_revoked_certificate(entry)
        path.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, extensions: Sequence[x509.ExtensionType]
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(self._key, hashes.SHA256())


def named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
