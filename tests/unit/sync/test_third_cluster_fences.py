"""A fence that a mirror to a third cluster has put up on the source is none of the source's own rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mirror_core.kafka.config import ClusterConfig
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Operation, Permission
from mirror_core.model.errors import MirrorError, Unreachable
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.sync_state import SyncAction
from mirror_core.state import mirror_link as links
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import State
from mirror_core.sync.acl_sync import SiblingDenials, find_sibling_denials
from mirror_core.sync.fence_acls import build_denials
from tests.support.cluster_names import EAST, LINK, WEST

(FENCE,) = build_denials(["orders"])
RULE = replace(FENCE, name="frozen")
GRANT = replace(FENCE, permission=Permission.ALLOW, operation=Operation.WRITE)
NORTH, SOUTH = (ClusterConfig(ClusterName(name), {}, {}) for name in ("north", "south"))
Answers = Callable[..., None]


@pytest.fixture
def link() -> MirrorLink:
    return replace(LINK, config=replace(LINK.config, clusters={c.name: c for c in (EAST, WEST, NORTH, SOUTH)}))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Answers:
    def answer(north: State | MirrorError, south: State | MirrorError) -> None:
        monkeypatch.setattr(
            links, "read_states", lambda config: iter(zip(config.clusters, (north, south), strict=True))
        )

    return answer


def ledger(acl: Acl, purpose: AclPurpose = AclPurpose.FENCE, cluster: ClusterName = EAST.name) -> State:
    entry = LedgerEntry(mirror=MirrorName("other"), cluster=cluster, acl=acl, purpose=purpose)
    return State(ledger={"e": entry})


def test_what_a_third_cluster_has_in_its_ledger_is_its_mirrors(link: MirrorLink, told: Answers) -> None:
    told(ledger(FENCE), State())
    assert find_sibling_denials(link, {FENCE, RULE, GRANT}) == SiblingDenials(own=frozenset({FENCE}))


@pytest.mark.parametrize(
    "other", [ledger(FENCE, AclPurpose.COPIED), ledger(FENCE, cluster=NORTH.name), ledger(RULE), State()]
)
def test_what_nobody_has_put_up_there_is_the_sources_rule(link: MirrorLink, told: Answers, other: State) -> None:
    told(other, State())
    assert find_sibling_denials(link, {FENCE}) == SiblingDenials()


def test_while_one_is_silent_nothing_new_is_believed_to_be_a_rule(link: MirrorLink, told: Answers) -> None:
    told(ledger(FENCE), Unreachable("it does not answer"))
    found = find_sibling_denials(link, {FENCE, RULE, GRANT})
    assert found == SiblingDenials(frozenset({FENCE}), frozenset({RULE}), (SOUTH.name,))
    (row,) = found.rows()
    assert (row.action, row.subject) == (SyncAction.SKIP, str(RULE))
    assert "south: no answer" in row.reason


def test_nobody_is_asked_where_no_denial_is_new(link: MirrorLink, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(links, "read_states", None)
        assert find_sibling_denials(link, {GRANT}) == SiblingDenials()
    assert find_sibling_denials(LINK, {FENCE}) == SiblingDenials(), "there is no third cluster"
