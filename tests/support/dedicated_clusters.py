"""Two clusters of their own, for tests that the shared ones are too small for, or too dear."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from mirrorbook_tools.sandbox.cluster import SandboxCluster
from mirrorbook_tools.sandbox.sandbox import Sandbox
from mirrorbook_tools.sandbox.sandbox_folder import claim
from mirrorbook_tools.sandbox.state import save_state
from tests.support.kafka_clients import Pair

QUICK_SESSIONS: Final = {
    "broker.session.timeout.ms": "5000",
    "broker.heartbeat.interval.ms": "500",
    # An idle controller writes twice a second that it is idle: a third of what an idle broker costs.
    "metadata.max.idle.interval.ms": "10000",
}
"""A broker that was killed cannot register again before its old session ends. Not for several nodes: one that a busy
machine holds up for so long would lose its leaders to others. Not shorter: with 3 s a lone broker was fenced while it
started on a machine that ran eighteen processes, and a marker that its coordinator had for a topic without a leader was
dropped (KAFKA-20734), so that the transaction hung for good."""


@contextmanager
def two_clusters(
    folder: Path, *, nodes: int = 1, lone_west: bool = False, extra: Mapping[str, str] | None = None
) -> Iterator[Pair]:
    """Of so many nodes each, with these broker properties more, in this folder; gone afterwards.

    `lone_west`: that one has a single node all the same.
    """
    sandbox = Sandbox(folder / "sandbox")
    if nodes == 1:
        extra = {**QUICK_SESSIONS, **(extra or {})}
    try:
        if lone_west:
            _take_nodes_away(sandbox, nodes, extra)
        sandbox.up(nodes=nodes, extra=extra)
        config = folder / "mirrorbook.yaml"
        config.write_text(sandbox.mirrorbook_yaml(), encoding="utf-8")
        yield Pair(sandbox=sandbox, east=sandbox.cluster("east"), west=sandbox.cluster("west"), config_path=config)
    finally:
        sandbox.down(delete=True)


@contextmanager
def third_cluster(pair: Pair, folder: Path) -> Iterator[tuple[SandboxCluster, Path]]:
    """South, beside the pair, and the configuration of all three."""
    with two_clusters(folder / "more") as more:
        more.east.terminate()  # a sandbox has two; one is wanted
        section = re.search(r"^  west:\n(?:    .*\n)+", more.config_path.read_text(encoding="utf-8"), re.MULTILINE)
        assert section is not None
        config = folder / "three.yaml"
        two = pair.config_path.read_text(encoding="utf-8")
        config.write_text(two + section[0].replace("  west:", "  south:"), encoding="utf-8")
        yield more.west, config


def _take_nodes_away(sandbox: Sandbox, nodes: int, extra: Mapping[str, str] | None) -> None:
    """Before any of them exists: users have two clusters of the same size, or make their own."""
    claim(sandbox.dir)
    state = sandbox._state_for(nodes, extra)
    west = state.clusters["west"]
    save_state(sandbox.dir, replace(state, clusters={**state.clusters, "west": replace(west, nodes=west.nodes[:1])}))
