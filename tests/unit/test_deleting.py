"""What keeps a mirror from being deleted after a failover, and that something always leads on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.decide.command_rules import MirrorCommand
from mirror_core.decide.fence_state import FenceState, find_fence_state
from mirror_core.kafka.acl_requests import AuthorizerOff, BrokerAcls
from mirror_core.kafka.config import ClusterConfig, Config
from mirror_core.mirrors import mirror_commands
from mirror_core.model.config_sections import KAFKA_AUTHORIZER, AuthorizerConfig, AuthorizerKind
from mirror_core.model.errors import Unreachable
from mirror_core.model.hooks import Hook, HookCommand
from mirror_core.model.mirror import PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, Offset, Partition, PartitionOffsets
from mirror_core.model.pending_fence import FenceAction, PendingFence
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import State
from tests.unit.test_decide_verbs import MIRROR

EAST = ClusterName("east")
PARTITION = Partition("orders", 0)
TO_COME = PendingFence(mirror=MIRROR.name, cluster=EAST, action=FenceAction.APPLY, run="r", since_ms=1)
WATCHED = replace(TO_COME, log_ends=PartitionOffsets.from_mapping({PARTITION: Offset(7)}))
STANDS = replace(WATCHED, applied_at_ms=2)
ACLS: Any = BrokerAcls(frozenset())
OFF = AuthorizerOff("east")
CALLED = Hook(name="fence_command", call=HookCommand(("/bin/close",)))
COMMAND = AuthorizerConfig(authorizer=AuthorizerKind.FOREIGN, fence_command=CALLED, unfence_command=CALLED)


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
        return list(
            mirror_commands._build_extra_checks(link, MirrorCommand.DELETE, ClusterName(gone) if gone else None)(state)
        )

    def __enter__(self) -> East:
        if self.silent:
            raise Unreachable("cluster east: no answer")
        return self

    def __exit__(self, *error: object) -> None: ...

    def metadata(self, topics: object) -> Any:
        return SimpleNamespace(cluster_id=self.cluster_id)


@pytest.mark.parametrize(
    ("east", "words"),
    [
        (East(), "`mirrorbook mirror watch m --once` fences it"),
        (East(acls=OFF, ruling=COMMAND), "`mirrorbook mirror watch m --once` fences it"),
        (East(silent=True), "--gone east"),
        (East(cluster_id="of another"), "--gone east"),
    ],
)
def test_a_mirror_that_alone_knows_of_a_fence_to_come_is_not_deleted(
    east: East, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its old source would take writes beside the new primary as soon as it is back."""
    assert find_fence_state(TO_COME) is FenceState.PENDING
    [reason] = east.reasons(monkeypatch, TO_COME)
    assert words in reason


@pytest.mark.parametrize("east", [East(silent=True), East(cluster_id="of another")])
@pytest.mark.parametrize("debt", [TO_COME, WATCHED, STANDS])
def test_a_source_that_is_gone_for_good_keeps_no_mirror(
    east: East, debt: PendingFence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another cluster was built at its address, or a name leads to the new primary."""
    assert not east.reasons(monkeypatch, debt, gone="east")


def test_a_source_that_answers_as_itself_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cluster east answers: it is not gone" in East().reasons(monkeypatch, TO_COME, gone="east")


@pytest.mark.parametrize(
    ("east", "debt"),
    [
        (East(), STANDS),
        (East(), WATCHED),
        (East(), None),
        (East(acls=OFF), TO_COME),
        (East(acls=OFF, ruling=AuthorizerConfig(authorizer=AuthorizerKind.NONE)), TO_COME),
        (East(acls=OFF, ruling=AuthorizerConfig(authorizer=AuthorizerKind.FOREIGN)), TO_COME),
    ],
)
def test_nothing_is_waited_for_that_nothing_could_put_up(
    east: East, debt: PendingFence | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not east.reasons(monkeypatch, debt)
