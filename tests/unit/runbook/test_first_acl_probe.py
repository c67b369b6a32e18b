"""Before a planned failover: as whom a source is asked whether a fence would shut readers out, and what refuses it."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.kafka.acl_requests import BrokerAcls
from mirror_core.kafka.client import ClusterClient, ClusterMetadata, Leader, TopicMetadata
from mirror_core.kafka.config import ClusterConfig, Principal, load_config
from mirror_core.kafka.log_offsets import OffsetsResult
from mirror_core.mirrors import broker_checks
from mirror_core.model.names import DRILL_PREFIX, ClusterName, MirrorName
from mirror_core.rights.first_acl import FirstAclAssessment, FirstAclEffect
from mirror_core.runbook import snapshot_reader
from mirror_core.runbook.snapshot_reader import ObservedGroups
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import State
from tests.support.steps_mirror import MIRROR

OPEN = BrokerAcls(frozenset(), ())
FILE = """
clusters:
  east:
    bootstrap.servers: localhost:1
    security.protocol: SASL_PLAINTEXT
    sasl.mechanism: SCRAM-SHA-256
    sasl.username: control
    sasl.password: of-control
    data: {sasl.username: copier, sasl.password: "${env:NOT_HERE}"}
"""


@pytest.mark.parametrize("only", [None, Principal.CONTROL])
def test_nobody_signs_in_as_the_data_principal_with_another_ones_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only: Principal | None
) -> None:
    """Such as `readiness --metrics`, every half a minute: somebody may lock the user out for that."""
    if only is None:
        monkeypatch.setenv("NOT_HERE", "of-copier")
    (path := tmp_path / "mirrorbook.yaml").write_text(FILE)
    east, logins = load_config(path, only_principal=only).cluster("east"), list[tuple[str, str]]()

    def asked(client: ClusterClient, *_: object) -> dict[int, Any]:
        used = client.config.properties(client.principal)
        logins.append((used["sasl.username"], used["sasl.password"]))
        return {}

    monkeypatch.setattr(broker_checks, "probe_brokers", asked)
    with ClusterClient(east) as control, ClusterClient(east, Principal.DATA) as data:
        broker_checks.check_first_acl(control, data, OPEN)
    assert set(logins) <= {("control", "of-control"), ("copier", "of-copier")}
    assert ("control", "of-control") in logins


@pytest.mark.parametrize(
    ("name", "answer", "refused"),
    [
        ("m", FirstAclEffect.LIKELY, True),
        ("m", FirstAclEffect.YES, True),
        (f"{DRILL_PREFIX}m", FirstAclEffect.YES, True),
        (f"{DRILL_PREFIX}m", FirstAclEffect.LIKELY, False),
        (f"{DRILL_PREFIX}m", FirstAclEffect.UNKNOWN, False),
    ],
)
def test_a_drill_of_a_mirror_that_is_there_goes_on_where_that_is_only_likely(
    monkeypatch: pytest.MonkeyPatch, name: str, answer: FirstAclEffect, refused: bool
) -> None:
    """As when it is created: what it fences is its own topic, which nobody has an ACL on, nor needs one."""
    topic = f"topic.of.{name}"
    mirror = replace(MIRROR, name=MirrorName(name), topics=(topic.replace(".", r"\."),))
    view = ClusterMetadata(
        mirror.source_id, 1, {}, {topic: TopicMetadata(topic, "a", False, {0: Leader(1, 0)}, 1, 1)}, frozenset()
    )
    monkeypatch.setattr(ClusterClient, "metadata", lambda *_: view)
    monkeypatch.setattr(snapshot_reader, "describe_acls", lambda _: OPEN)
    monkeypatch.setattr(snapshot_reader, "list_open_transactions", lambda *_: ())
    monkeypatch.setattr(snapshot_reader, "observe_groups", lambda *_, **__: ObservedGroups())
    monkeypatch.setattr(
        snapshot_reader, "list_offsets_confirmed", lambda *_, **__: OffsetsResult(offsets={}, offline=frozenset())
    )
    monkeypatch.setattr(broker_checks, "check_first_acl", lambda *_: FirstAclAssessment(answer, "because"))
    ends = (ClusterConfig(ClusterName(one), {}, {}) for one in ("east", "west"))
    link = MirrorLink(cast("Any", None), mirror, *ends)
    there = cast("Any", SimpleNamespace(await_event=lambda *_: None))
    seen = snapshot_reader._snapshot_source(link, State(), (), threading.Event(), there, offsets=True, fences=True)
    assert bool(seen.fence_side_effects) is refused
