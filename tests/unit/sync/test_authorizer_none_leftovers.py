"""mirrorbook.yaml says `authorizer: none` of a cluster on which denials stand that were made when it said `kafka`."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, Final

import pytest

from mirror_core.kafka.acl_requests import AuthorizerOff
from mirror_core.model.acl import AclPurpose, LedgerEntry
from mirror_core.model.config_sections import AuthorizerConfig, AuthorizerKind
from mirror_core.model.errors import MirrorError
from mirror_core.model.findings import Finding
from mirror_core.model.names import ClusterName
from mirror_core.model.pending_fence import FenceAction, PendingFence
from mirror_core.rights.acl_rules import build_denial
from mirror_core.state.state_records import State
from mirror_core.sync import acl_sync
from mirror_core.sync.acl_sync import list_promotion_warnings
from tests.support.deleted_mirrors import EAST, East
from tests.support.mirror_views import MIRROR

NONE: Final = AuthorizerConfig(authorizer=AuthorizerKind.NONE)


def entry(cluster: ClusterName, who: str, purpose: AclPurpose) -> LedgerEntry:
    return LedgerEntry(mirror=MIRROR.name, cluster=cluster, acl=build_denial("orders", who), purpose=purpose)


def test_a_mirror_whose_fence_may_stand_is_not_deleted_with_all_that_is_known_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = {"k": entry(EAST, "User:*", AclPurpose.FENCE)}
    monkeypatch.setattr("tests.support.deleted_mirrors.State", lambda **known: State(**known, ledger=dict(ledger)))
    east = East(acls=AuthorizerOff(EAST, AuthorizerKind.NONE), ruling=NONE)
    assert any("may stand there" in reason for reason in east.reasons(monkeypatch, None))


@pytest.mark.parametrize(("said", "warned"), [(AuthorizerKind.NONE, True), (AuthorizerKind.KAFKA, False)])
def test_a_plan_says_which_denials_stay_at_promotion(said: AuthorizerKind, warned: bool) -> None:
    west = SimpleNamespace(name=MIRROR.destination)
    link: Any = SimpleNamespace(mirror=MIRROR, destination=west, source=SimpleNamespace(name=EAST))
    state = State(ledger={"k": entry(MIRROR.destination, "User:app", AclPurpose.DEMOTED)})
    remarks = list_promotion_warnings(link, state, AuthorizerOff(MIRROR.destination, said), ["orders"])
    denial = next(iter(state.ledger.values())).acl
    expected = Finding("denials_unlifted", MIRROR.destination, count=1, denial=denial, authorizer=said)
    assert remarks == ((expected,) if warned else ())


def test_a_failback_forgets_no_debt_while_its_fence_may_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    client = SimpleNamespace(name=EAST, config=SimpleNamespace(ruling=NONE))
    monkeypatch.setattr(acl_sync, "ClusterClient", lambda config: nullcontext(client))
    monkeypatch.setattr(acl_sync, "describe_acls", lambda asked: AuthorizerOff(EAST, AuthorizerKind.NONE))
    put = list[object]()
    debt = PendingFence(mirror=MIRROR.name, cluster=EAST, action=FenceAction.APPLY, run="r", since_ms=1)
    state = State(ledger={"k": entry(EAST, "User:*", AclPurpose.FENCE)}, pending_fences={MIRROR.name: debt})
    log: Any = SimpleNamespace(state=state, put=lambda *records: put.extend(records), refresh=lambda: state)
    link: Any = SimpleNamespace(mirror=MIRROR, source=client, destination=SimpleNamespace(name=MIRROR.destination))
    with pytest.raises(MirrorError, match="authorizer"):
        acl_sync.demote_topics(link, log, ["orders"], EAST)
    assert not put
