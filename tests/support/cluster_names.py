"""Cluster names, shared by tests."""

from __future__ import annotations

from pathlib import Path

from mirror_core.kafka.config import ClusterConfig, Config
from mirror_core.model.names import ClusterName
from mirror_core.model.pending_fence import FenceAction, PendingFence
from mirror_core.state.mirror_link import MirrorLink
from tests.support.mirror_views import MIRROR

EAST, WEST = (ClusterConfig(ClusterName(name), {}, {}) for name in ("east", "west"))

LINK = MirrorLink(Config(Path("mirrorbook.yaml"), {}), MIRROR, EAST, WEST)

LIFTING = PendingFence(mirror=MIRROR.name, cluster=EAST.name, action=FenceAction.LIFT, run="r", since_ms=1)
