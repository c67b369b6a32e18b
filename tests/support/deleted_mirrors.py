"""Deleted mirrors, shared by tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.decide.command_rules import MirrorCommand
from mirror_core.kafka.acl_requests import BrokerAcls
from mirror_core.kafka.config import ClusterConfig, Config
from mirror_core.mirrors import mirror_commands
from mirror_core.model.config_sections import KAFKA_AUTHORIZER, AuthorizerConfig
from mirror_core.model.errors import Unreachable
from mirror_core.model.mirror import PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.model.pending_fence import PendingFence
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import State
from tests.support.mirror_views import MIRROR

EAST = ClusterName("east")

PARTITION = Partition("orders", 0)

ACLS: Any = BrokerAcls(frozenset())


@dataclass
class East:
    """How the old source is found."""

    cluster_id: str = MIRROR.source_id
    acls: Any = ACLS
    ruling: AuthorizerConfig = KAFKA_AUTHORIZER
    silent: bool = False

    def reasons(self, monkeypatch: pytest.MonkeyPatch, debt: PendingFence | None, gone: str | None = None) -> list[str]:
        """Why the mirror is not deleted."""
        monkeypatch.setattr(mirror_commands, "ClusterClient", lambda *asked, **more: self)
        monkeypatch.setattr(mirror_commands, "describe_acls", lambda client: self.acls)
        monkeypatch.setattr(mirror_commands, "list_failbacks", lambda link: ())
        properties = {"bootstrap.servers": "127.0.0.1:1"}
        east = ClusterConfig(EAST, properties, properties, ruling=self.ruling)
        config = Config(Path("mirrorbook.yaml"), {EAST: east})
        link = MirrorLink(config, MIRROR, east, ClusterConfig(MIRROR.destination, properties, properties))
        status = PartitionStatus(
            partition=PARTITION,
            state=PartitionState.STOPPED,
            source_topic_id="a",
            destination_topic_id="b",
            lmo=Offset(7),
        )
        state = State(pending_fences={MIRROR.name: debt} if debt else {}, partitions={MIRROR.name: {PARTITION: status}})
        check = mirror_commands._build_extra_checks(link, MirrorCommand.DELETE, ClusterName(gone) if gone else None)
        return list(map(str, check(state)))

    def __enter__(self) -> East:
        if self.silent:
            raise Unreachable("cluster east: no answer")
        return self

    def __exit__(self, *error: object) -> None: ...

    def metadata(self, topics: object) -> Any:
        return SimpleNamespace(cluster_id=self.cluster_id)
