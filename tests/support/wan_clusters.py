"""Two clusters that a mirror reaches by way of a wide-area link; what a test itself does there takes no time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mirrorbook_tools.sandbox.cluster import SandboxCluster
from mirrorbook_tools.sandbox.ports import HOST, choose_ports
from mirrorbook_tools.sandbox.properties import SCRAM_LOGIN, to_text
from tests.support.dedicated_clusters import two_clusters
from tests.support.kafka_clients import Pair
from tests.support.wan_relay import Relay, Weather, relay


@dataclass(frozen=True, slots=True)
class Distant:
    """`pair`: its configuration leads through the link, its clusters' own addresses don't."""

    pair: Pair
    relay: Relay
    ports: Mapping[str, tuple[int, ...]]
    """That stand for the brokers of a cluster, by its name."""

    def becomes(self, cluster: SandboxCluster, weather: Weather) -> None:
        self.relay.becomes(self.ports[cluster.name], weather)

    def cut(self, cluster: SandboxCluster) -> None:
        self.relay.cut(self.ports[cluster.name])

    @contextmanager
    def is_far(self, cluster: SandboxCluster, round_trip_ms: float) -> Iterator[None]:
        self.becomes(cluster, Weather(delay_ms=round_trip_ms / 2))
        try:
            yield
        finally:
            self.becomes(cluster, Weather())


@contextmanager
def distant_clusters(folder: Path, *, nodes: int = 1, extra: Mapping[str, str] | None = None) -> Iterator[Distant]:
    """As `two_clusters`; brokers have one more listener, and say that its address is the link's."""
    with two_clusters(folder, nodes=nodes, extra=extra) as pair:
        clusters = (pair.east, pair.west)
        ports, routes = listen_far(clusters)
        config = folder / "distant.yaml"
        config.write_text(leading_far(pair.config_path.read_text(encoding="utf-8"), clusters, ports), encoding="utf-8")
        with relay(routes) as link:
            far = Pair(sandbox=pair.sandbox, east=pair.east, west=pair.west, config_path=config)
            yield Distant(far, link, ports)


def listen_far(clusters: Sequence[SandboxCluster]) -> tuple[dict[str, tuple[int, ...]], dict[int, int]]:
    """Restart them with a listener more each, whose address is the link's: ports that stand for the brokers of each
    cluster, and where each of them leads."""
    chosen = iter(choose_ports(2 * sum(len(cluster.brokers) for cluster in clusters)))
    routes, ports = dict[int, int](), dict[str, tuple[int, ...]]()
    for cluster in clusters:
        mine = {next(chosen): next(chosen) for _ in cluster.brokers}
        ports[cluster.name] = tuple(mine)
        routes |= mine
        for node, (stands_for, own) in enumerate(mine.items(), start=1):
            cluster.kill(node)  # politely a node of several would wait for a majority that is gone
            listen(cluster, node, own, stands_for)
    for cluster in clusters:
        spawned = {broker.node: broker.spawn() for broker in cluster.brokers}
        cluster.wait_ready(spawned, whole_cluster=True)
    return ports, routes


def leading_far(text: str, clusters: Sequence[SandboxCluster], ports: Mapping[str, tuple[int, ...]]) -> str:
    """The same configuration by way of the link."""
    for cluster in clusters:
        text = text.replace(cluster.bootstrap, ",".join(f"{HOST}:{port}" for port in ports[cluster.name]))
    return text


def listen(cluster: SandboxCluster, node: int, own: int, stands_for: int, host: str = HOST) -> None:
    """Give a stopped broker one more listener, and the port that it is to name for it."""
    broker = cluster.brokers[node - 1]
    known = dict(line.split("=", 1) for line in broker.properties_path.read_text(encoding="utf-8").splitlines())
    known["listeners"] += f",FAR://{host}:{own}"
    known["advertised.listeners"] += f",FAR://{host}:{stands_for}"
    known["listener.security.protocol.map"] += ",FAR:SASL_PLAINTEXT"
    known["listener.name.far.scram-sha-512.sasl.jaas.config"] = f"{SCRAM_LOGIN} required;"
    broker.properties_path.write_text(to_text(known), encoding="utf-8")
