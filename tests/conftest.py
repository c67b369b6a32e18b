"""Fixtures that all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mirror_core.sandbox.sandbox import Sandbox
from tests.brokers import Pair


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two clusters of one real broker each, started once for the whole run. A test that kills one starts it again."""
    sandbox = Sandbox(tmp_path_factory.mktemp("pair") / "sandbox")
    sandbox.up(nodes=1)
    config_path = sandbox.dir.parent / "mirrorbook.yaml"
    config_path.write_text(sandbox.mirrorbook_yaml(), encoding="utf-8")
    try:
        yield Pair(sandbox=sandbox, east=sandbox.cluster("east"), west=sandbox.cluster("west"), config_path=config_path)
    finally:
        sandbox.down(delete=True)
