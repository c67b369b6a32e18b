"""Whether earlier copying tasks are kept out for sure: not where nobody knows what brokers call their user."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cryptography.x509.oid import NameOID

from mirror_core.kafka.acl_requests import BrokerAcls
from mirror_core.kafka.config import ClusterConfig, load_config
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Permission
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.rights.acl_rules import build_denial
from mirror_core.sync import acl_ledger, offset_commits, promotion_acls
from mirror_core.sync.offset_commits import deny_offset_commits
from mirror_core.sync.promotion_acls import fence_old_tasks
from tests.support.certificates import Named, certificate
from tests.support.cluster_names import LINK
from tests.support.memory_state import MemoryLog

TOPIC = "orders"


def by_certificate(folder: Path, *more: str) -> ClusterConfig:
    for who in ("control", "data"):
        (folder / f"{who}.pem").write_bytes(certificate(Named(NameOID.COMMON_NAME, who)))
    lines = (
        *("clusters:", "  west:", '    bootstrap.servers: "b:1"', "    security.protocol: SSL"),
        f"    ssl.certificate.location: {folder / 'control.pem'}",
        *("    data:", f"      ssl.certificate.location: {folder / 'data.pem'}", *more),
    )
    path = folder / "mirrorbook.yaml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return load_config(path).cluster("west")


@pytest.mark.parametrize(
    ("named", "granted", "certain"),
    [
        pytest.param((), None, False, id="by the certificate's subject alone"),
        pytest.param(('      principal: "User:data"',), None, True, id="mirrorbook.yaml says it"),
        pytest.param((), "User:CN=data", True, id="somebody has granted that name a right"),
        pytest.param((), "User:CN=another", False, id="somebody has granted another name a right"),
    ],
)
def test_a_denial_of_a_name_in_doubt_is_no_certainty_however_often_it_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: tuple[str, ...], granted: str | None, certain: bool
) -> None:
    config = by_certificate(tmp_path, *named)
    held, log = set[Acl](), MemoryLog()
    if granted is not None:
        held.add(replace(build_denial("t", granted), permission=Permission.ALLOW))

    def create(client: object, acls: Collection[Acl]) -> None:
        held.update(acls)

    def nothing(*_: object) -> None: ...

    for module in (promotion_acls, offset_commits):
        monkeypatch.setattr(module, "describe_acls", lambda client: BrokerAcls(frozenset(held)))
        monkeypatch.setattr(module, "wait_until_acls_present", nothing)
    monkeypatch.setattr(acl_ledger, "create_acls", create)
    client = cast("Any", SimpleNamespace(name=config.name, config=config))
    link = replace(LINK, destination=config)
    for _ in range(2):  # our own denial, which names it, proves nothing
        silenced = fence_old_tasks(link, log, client, [TOPIC])
        assert {acl.name for acl in silenced.denials} == {TOPIC}
        assert silenced.is_certain is certain
        said = deny_offset_commits(link.mirror, log, client)
        assert ("commits for no group on cluster west any more" in said) is certain
        assert said.startswith("not certain: ") is not certain
    assert ("User:CN=data" in str(silenced.uncertainty)) is not certain
    other = LedgerEntry(
        mirror=MirrorName("other"),
        cluster=ClusterName("west"),
        acl=build_denial("t", "User:CN=data"),
        purpose=AclPurpose.FENCE,
    )
    log.put(other)
    held.add(other.acl)
    assert fence_old_tasks(link, log, client, [TOPIC]).is_certain is certain, "nor does another mirror's"
