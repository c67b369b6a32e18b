"""What keeps a mirror from being deleted after a failover, and that something always leads on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_core.decide.fence_state import FenceState, find_fence_state
from mirror_core.kafka.acl_requests import AuthorizerOff
from mirror_core.model.config_sections import AuthorizerConfig, AuthorizerKind
from mirror_core.model.hooks import Hook, HookCommand
from mirror_core.model.names import Offset, PartitionOffsets
from mirror_core.model.pending_fence import FenceAction, PendingFence
from tests.support.deleted_mirrors import EAST, PARTITION, East
from tests.support.mirror_views import MIRROR

TO_COME = PendingFence(mirror=MIRROR.name, cluster=EAST, action=FenceAction.APPLY, run="r", since_ms=1)
WATCHED = replace(TO_COME, log_ends=PartitionOffsets.from_mapping({PARTITION: Offset(7)}))
STANDS = replace(WATCHED, applied_at_ms=2)
OFF = AuthorizerOff("east")
CALLED = Hook(name="fence_command", call=HookCommand(("/bin/close",)))
COMMAND = AuthorizerConfig(authorizer=AuthorizerKind.FOREIGN, fence_command=CALLED, unfence_command=CALLED)


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
