"""Two clusters of their own, for tests that the shared ones are too small for, or too dear."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mirror_core.sandbox.sandbox import Sandbox
from tests.brokers import Pair


@contextmanager
def two_clusters(folder: Path, *, nodes: int = 1, extra: Mapping[str, str] | None = None) -> Iterator[Pair]:
    """Of so many nodes each, with these broker properties more, in this folder; gone afterwards."""
    sandbox = Sandbox(folder / "sandbox")
    try:
        sandbox.up(nodes=nodes, extra=extra)
        config = folder / "mirrorbook.yaml"
        config.write_text(sandbox.mirrorbook_yaml(), encoding="utf-8")
        yield Pair(sandbox=sandbox, east=sandbox.cluster("east"), west=sandbox.cluster("west"), config_path=config)
    finally:
        sandbox.down(delete=True)
