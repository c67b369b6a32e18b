"""Where everything is measured: two clusters of one broker each in a folder of their own, and looks at them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from confluent_kafka.admin import AdminClient

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Config, load_config
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.model.errors import Unreachable
from mirror_core.model.names import Partition
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from mirrorbook_tools.sandbox.ports import HOST
from mirrorbook_tools.sandbox.sandbox import Sandbox
from tests.support.kafka_clients import Pair
from tests.support.wan_clusters import Distant, leading_far, listen_far
from tests.support.wan_relay import relay

TIMEOUT_S: Final = 60.0
SOURCE: Final = "east"
DESTINATION: Final = "west"
NEAR: Final = "near"
"""No side is far away."""
SIDES: Final = (NEAR, SOURCE, DESTINATION)
POLL_S: Final = 0.05


def pause_s(look_s: float) -> float:
    """How long to wait after a look that took so long: looks are work for the brokers that are measured."""
    return max(POLL_S, 4 * look_s)


class NotReached(Exception):
    """What was waited for has not come; the message says what has."""


class Ground:
    """Both clusters, running."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sandbox = Sandbox(folder / "sandbox")
        self.direct_path = folder / "mirrorbook.yaml"
        self.config_path = self.direct_path
        """Of the copiers; by way of the link, where there is one."""
        self.distant: Distant | None = None

    @property
    def config(self) -> Config:
        """For looks: they go directly, whatever lies between the clusters and the copiers."""
        return load_config(self.direct_path)

    @property
    def source(self) -> SandboxCluster:
        return self.sandbox.cluster(SOURCE)

    @property
    def destination(self) -> SandboxCluster:
        return self.sandbox.cluster(DESTINATION)

    def up(self) -> None:
        self.sandbox.up(nodes=1)
        self.direct_path.write_text(self.sandbox.mirrorbook_yaml(), encoding="utf-8")

    @contextmanager
    def linked(self) -> Iterator[None]:
        """Copiers go through a relay from now on."""
        clusters = (self.source, self.destination)
        ports, routes = listen_far(clusters)
        text = leading_far(self.direct_path.read_text(encoding="utf-8"), clusters, ports)
        self.config_path = self.folder / "distant.yaml"
        self.config_path.write_text(text, encoding="utf-8")
        with relay(routes) as link:
            pair = Pair(sandbox=self.sandbox, east=self.source, west=self.destination, config_path=self.config_path)
            self.distant = Distant(pair, link, ports)
            yield

    @contextmanager
    def far(self, side: str, round_trip_ms: float) -> Iterator[None]:
        """One side is far away from the copiers; `NEAR`: none is."""
        if self.distant is None or side == NEAR:
            yield
            return
        with self.distant.is_far(self.sandbox.cluster(side), round_trip_ms):
            yield

    def bootstrap(self, cluster: SandboxCluster) -> str:
        """Where copiers find a cluster."""
        if self.distant is None:
            return cluster.bootstrap
        return ",".join(f"{HOST}:{port}" for port in self.distant.ports[cluster.name])

    def brokers(self) -> Mapping[str, int]:
        """Process ids of both brokers."""
        found = {f"{cluster.name}_broker": cluster.pid() for cluster in (self.source, self.destination)}
        if dead := [name for name, pid in found.items() if pid is None]:
            raise SystemExit(f"{dead[0]} is not running")
        return {name: pid for name, pid in found.items() if pid is not None}

    def clear(self, topic: str) -> None:
        """Remove every trace of the last copier: its copy, and what MirrorMaker remembers in topics of its own."""
        for cluster in (self.source, self.destination):
            admin = AdminClient({**cluster.client_config("admin")})
            mine = {topic} if cluster.name == DESTINATION else set()
            listed = admin.list_topics(timeout=TIMEOUT_S).topics
            doomed = [t for t in listed if t in mine or t == "heartbeats" or t.startswith("mm2-") or ".internal" in t]
            futures = admin.delete_topics(doomed) if doomed else {}
            for future in futures.values():
                future.result(TIMEOUT_S)
            deadline = time.monotonic() + TIMEOUT_S
            while set(doomed) & set(admin.list_topics(timeout=TIMEOUT_S).topics):
                if time.monotonic() > deadline:
                    raise SystemExit(f"{cluster.name}: {doomed} are still there {TIMEOUT_S:g} s after their deletion")
                time.sleep(POLL_S)

    def ends(self, client: ClusterClient, topic: str) -> int:
        """Sum of the topic's log ends; 0 while it is not there, or not led.

        Brokers take their time with a thousand new partitions: until then those have a leader that knows nothing of it.
        """
        view = client.metadata([topic]).topics.get(topic)
        if view is None or any(leader.broker < 0 for leader in view.partitions.values()):
            return 0
        try:
            return sum(
                list_offsets(client, [Partition(topic, p) for p in view.partitions], OffsetPoint.LOG_END).values()
            )
        except Unreachable:
            return 0

    def reached(
        self, client: ClusterClient, topic: str, wanted: int, timeout_s: float, ended: Callable[[], bool]
    ) -> int:
        """Wait until the topic's log ends add up to `wanted`; what they are then.

        NotReached after `timeout_s`, or when the copier has ended before.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            over, looked = ended(), time.monotonic()
            count = self.ends(client, topic)
            if count >= wanted:
                return count
            if over:
                raise NotReached(f"it ended with {count} of {wanted} offsets copied")
            if time.monotonic() > deadline:
                raise NotReached(f"{count} of {wanted} offsets copied within {timeout_s:g} s")
            time.sleep(pause_s(time.monotonic() - looked))


@contextmanager
def ground(*, linked: bool = False) -> Iterator[Ground]:
    """Two fresh clusters, gone when left. `linked`: copiers reach them through a relay."""
    with TemporaryDirectory(prefix="mirrorbook-bench-") as folder:
        made = Ground(Path(folder))
        try:
            made.up()
            with made.linked() if linked else nullcontext():
                yield made
        finally:
            made.sandbox.down(delete=True)
