"""A user at a terminal: commands with what they say, and what they leave behind."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import load_config
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.model.names import Partition
from mirror_core.state.state_records import STATE_TOPIC
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until

PROGRESS = re.compile(r"^\d\d:\d\d:\d\d .* in all\n", re.MULTILINE)
"""A line of figures now and then, after as many seconds as a busy machine takes."""
MENDED = format_sentence("partitions_failed_recover_shows")


@dataclass(frozen=True, slots=True)
class Said:
    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Desk:
    """A folder with a mirrorbook.yaml, and a user who types commands in it."""

    pair: Pair
    folder: Path
    run: Callable[..., Said]
    new_user: Callable[[SandboxCluster], tuple[str, str]]
    """Name and password of a user without any right; it is gone after the test, and whatever was granted to it."""

    @property
    def config(self) -> Path:
        return self.folder / "mirrorbook.yaml"

    def change(self, cluster: str, data: dict[str, str] | None = None, /, **properties: str) -> None:
        """Other client properties of one cluster; `_` for `.`. Of its data principal: `data`."""
        document: dict[str, Any] = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        entry = document["clusters"].setdefault(cluster, {})
        entry.update({key.replace("_", "."): value for key, value in properties.items()})
        entry.setdefault("data", {}).update(data or {})
        self.config.write_text(yaml.safe_dump(document), encoding="utf-8")

    def create(self, *options: str, name: str = "m-never", source: str = "east", destination: str = "west") -> Said:
        ends = ("--source", source, "--destination", destination)
        return self.run("mirror", "create", name, *ends, *options, "--yes")

    def traces(self) -> dict[str, object]:
        """All that a command could have left behind."""
        found: dict[str, object] = {"files": sorted(p.name for p in self.folder.iterdir() if p.name != ".hypothesis")}
        for cluster in (self.pair.east, self.pair.west):
            topics = admin_client(cluster).list_topics(timeout=TIMEOUT_S).topics
            # A broker creates this one some time after somebody has asked for a group's coordinator.
            found[f"{cluster.name} topics"] = sorted(topics.keys() - {"__consumer_offsets"})
            with ClusterClient(load_config(self.pair.config_path).cluster(cluster.name)) as client:
                if STATE_TOPIC in client.metadata([STATE_TOPIC]).topics:
                    found[f"{cluster.name} state"] = wait_until(
                        partial(_ended, client), timeout_s=TIMEOUT_S, why="its last transaction's marker is written"
                    )
        return found

    def started(self, *topics: str) -> Mirrored:
        """A mirror of these topics from east to west that may be copied."""
        return new_mirror(self.pair, self.folder, *topics)


def _ended(client: ClusterClient) -> dict[Partition, int] | None:
    """Where the state topic ends; None while a transaction is open: a committed one's marker comes a moment later."""
    stable = list_offsets(client, [Partition(STATE_TOPIC, 0)], OffsetPoint.STABLE_END)
    ends = list_offsets(client, [Partition(STATE_TOPIC, 0)], OffsetPoint.LOG_END)
    return {**ends} if stable == ends else None
