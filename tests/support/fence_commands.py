"""Fence commands, shared by tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from mirror_core.kafka.config import load_config
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.runbook.run_services import StepContext
from mirror_core.state.journal import Journal
from mirror_core.state.mirror_link import MirrorLink, make_mirror_link
from mirror_core.state.state_records import State
from mirror_core.sync import fence_command
from tests.support.memory_state import journal_of

MIRROR = Mirror(
    name=MirrorName("m"), source=ClusterName("east"), destination=ClusterName("west"), source_id="E",
    destination_id="W", topics=("orders",), producer_id=1 << 62, desired=DesiredState.STARTED, created_ms=1,
)  # fmt: skip

TOPICS = ("orders", "a.b")


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MirrorLink:
    """Each of both clusters has a program that writes down what it was told, in a folder of its own."""
    monkeypatch.setattr(fence_command, "compute_retry_pause_s", lambda tries: 0.0)
    return linked(tmp_path)


def linked(
    folder: Path,
    mirror: Mirror = MIRROR,
    ends: str = "exit 0",
    retries: int = 2,
    environment: Mapping[str, str] | None = None,
) -> MirrorLink:
    program = folder / "gate"
    told = '"$MIRRORBOOK_ACTION $MIRRORBOOK_CLUSTER $MIRRORBOOK_CLUSTER_ID $MIRRORBOOK_MIRROR $MIRRORBOOK_RUN"'
    program.write_text(
        f'#!/bin/sh\necho {told} >> called\ncat "$MIRRORBOOK_TOPICS_FILE" > topics\necho hush-hush\n{ends}\n'
    )
    program.chmod(0o700)
    command = {"command": ["./gate"], "retries": retries, "environment": dict(environment or {})}
    side = {"authorizer": "foreign", "fence_command": command, "unfence_command": command}
    path = folder / "mirrorbook.yaml"
    clusters = {name: {"bootstrap.servers": f"{name}:1", **side} for name in ("east", "west")}
    path.write_text(yaml.safe_dump({"clusters": clusters}))
    return make_mirror_link(load_config(path), mirror)


def called(link: MirrorLink) -> list[str]:
    path = link.config.path.parent / "called"
    return [line.split(" ")[0] for line in path.read_text().splitlines()] if path.exists() else []


def acted(link: MirrorLink, folder: Path, journal: Journal | None = None) -> StepContext:
    writer = cast("Any", SimpleNamespace(state=State()))
    services = cast("Any", SimpleNamespace(evidence_dir=folder))
    return StepContext(link, services, writer, journal or journal_of("r", "fence"))
