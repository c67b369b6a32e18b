"""A cluster of two brokers of which clients can use one only: the other's certificate, or login, is not in order."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml

from mirror_core.kafka.topics import NewTopic, create_topics
from mirrorbook_tools.sandbox import storage_format
from mirrorbook_tools.sandbox.broker import Broker
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from mirrorbook_tools.sandbox.credentials import ADMIN, load_passwords
from mirrorbook_tools.sandbox.jars import ensure_jars
from mirrorbook_tools.sandbox.ports import HOST, choose_ports
from mirrorbook_tools.sandbox.properties import PLAIN_LOGIN
from mirrorbook_tools.sandbox.state import ClusterState, NodePorts, SandboxState
from tests.cluster.secure import CLIENT_CN, Authority, named
from tests.support.cluster_admin import as_admin
from tests.support.kafka_clients import Pair

BAD: Final = 2
"""The broker that is there, leads partitions, and lets nobody in."""
DATA: Final = "data"
_PASSWORD: Final = "a-password"


@contextmanager
def half_trusted(pair: Pair, name: str, folder: Path) -> Iterator[SandboxCluster]:
    """A cluster to stand in as `name` (east or west). See `by_certificate` and `by_login`."""
    passwords = load_passwords(pair.sandbox.dir)
    authority = Authority("authority")
    authority.write(folder / "ca.pem")
    authority.issue(named("broker"), folder / "broker.pem", folder / "broker.key", HOST)
    authority.issue(named(CLIENT_CN), folder / "client.pem", folder / "client.key")
    (folder / "keystore.pem").write_bytes((folder / "broker.key").read_bytes() + (folder / "broker.pem").read_bytes())
    ports = choose_ports(8)
    nodes = tuple(NodePorts(client=ports[n], controller=ports[n + 2]) for n in range(2))
    clusters = {name: ClusterState(cluster_id="halfAAAAAAAAAAAAAAAAAA", nodes=nodes)}
    jars = ensure_jars()
    brokers = tuple(
        Broker(cluster=name, node=n, folder=folder / name / str(n), ports=nodes[n - 1], jars=jars) for n in (1, 2)
    )
    for broker in brokers:
        tls, plain = ports[broker.node + 3], ports[broker.node + 5]
        extra = _extra(broker, tls, plain, folder)
        storage_format.prepare([broker], SandboxState(clusters=clusters, extra=extra), passwords, lambda line: None)
    cluster = SandboxCluster(name=name, brokers=brokers, passwords=passwords)
    try:
        cluster.wait_ready({broker.node: broker.spawn() for broker in brokers}, whole_cluster=True)
        (folder / "ports").write_text(" ".join(map(str, ports[4:])), encoding="utf-8")
        yield cluster
    finally:
        for broker in brokers:
            broker.stop(signal.SIGKILL)  # an orderly end wants a majority of the two


def by_certificate(pair: Pair, cluster: SandboxCluster, folder: Path) -> Pair:
    """By TLS. The broker that is no good says that its name is localhost, which its certificate does not hold."""
    files = {"ssl.certificate.location": "client.pem", "ssl.key.location": "client.key", "ssl.ca.location": "ca.pem"}
    properties = {"security.protocol": "SSL", **{key: str(folder / file) for key, file in files.items()}}
    return _with(pair, cluster, folder, 0, properties)


def by_login(pair: Pair, cluster: SandboxCluster, folder: Path) -> Pair:
    """By PLAIN. The broker that is no good knows another password of the data principal."""
    login = {"sasl.username": ADMIN, "sasl.password": _PASSWORD}
    properties: dict[str, Any] = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", **login}
    return _with(pair, cluster, folder, 2, {**properties, "data": {"sasl.username": DATA, "sasl.password": _PASSWORD}})


def spread_topic(cluster: SandboxCluster, name: str) -> str:
    """With partition 0 on the good broker, and 1 on the other one."""
    with as_admin(cluster) as client:
        create_topics(client, [NewTopic(name=name, partitions=2, replication_factor=1, assignments=((1,), (BAD,)))])
    return name


def _with(pair: Pair, cluster: SandboxCluster, folder: Path, first: int, properties: Mapping[str, Any]) -> Pair:
    ports = (folder / "ports").read_text(encoding="utf-8").split()[first : first + 2]
    document = yaml.safe_load(pair.config_path.read_text(encoding="utf-8"))
    document["clusters"][cluster.name] = {"bootstrap.servers": ",".join(f"{HOST}:{p}" for p in ports), **properties}
    path = folder / f"mirrorbook-{first}.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    east, west = (cluster if cluster.name == side else getattr(pair, side) for side in ("east", "west"))
    return replace(pair, config_path=path, east=east, west=west)


def _extra(broker: Broker, tls: int, plain: int, folder: Path) -> dict[str, str]:
    bad = broker.node == BAD
    client = f"CLIENT://{HOST}:{broker.ports.client}"
    users = {ADMIN: _PASSWORD, DATA: "another-password" if bad else _PASSWORD}
    known = " ".join(f'user_{user}="{password}"' for user, password in users.items())
    return {
        "listeners": f"{client},CONTROLLER://{HOST}:{broker.ports.controller},TLS://{HOST}:{tls},PLAIN://{HOST}:{plain}",
        "advertised.listeners": f"{client},TLS://{'localhost' if bad else HOST}:{tls},PLAIN://{HOST}:{plain}",
        "listener.security.protocol.map": (
            "CLIENT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT,TLS:SSL,PLAIN:SASL_PLAINTEXT"
        ),
        "super.users": f"User:{ADMIN};User:{DATA};User:CN={CLIENT_CN}",
        "listener.name.plain.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.plain.plain.sasl.jaas.config": f"{PLAIN_LOGIN} required {known};",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "keystore.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "listener.name.tls.ssl.client.auth": "required",
    }
