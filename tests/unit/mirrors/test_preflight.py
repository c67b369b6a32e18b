"""`cluster check` of a cluster on which a failover's denials stand."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from mirror_core.kafka.acl_requests import BrokerAcls
from mirror_core.kafka.authorization_probe import PrincipalRights
from mirror_core.kafka.config import ClusterConfig
from mirror_core.mirrors.preflight import RightCheck, RightStatus, check_right
from mirror_core.model.acl import Acl, Operation, Pattern, Resource
from mirror_core.model.findings import Finding
from mirror_core.model.names import ClusterName
from mirror_core.rights.acl_rules import build_denial
from mirror_core.rights.required_acls import REQUIRED_ACLS, ClusterRole

DATA = "User:mirror-data"
TOPICS = ("audit", "orders")
WRITE, READ = Operation.WRITE, Operation.READ


def check(
    acls: Iterable[Acl], operation: Operation = WRITE, rights: dict[str, set[Operation]] | None = None
) -> RightCheck:
    properties = {
        "bootstrap.servers": "east:9092",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.username": "mirror-data",
    }
    config = ClusterConfig(ClusterName("east"), properties, properties)
    need = next(
        a
        for a in REQUIRED_ACLS
        if (a.role, a.principal, a.resource, a.operation, a.permission)
        == (ClusterRole.DESTINATION, "data", Resource.TOPIC, operation, "ALLOW")
    )
    probed = {topic: frozenset((rights or {}).get(topic, set())) for topic in TOPICS}
    return check_right(
        config,
        need,
        PrincipalRights(probed, frozenset(), frozenset()),
        BrokerAcls(frozenset(acls)),
        can_mark=True,
    )


def allow(operation: Operation, topic: str = "*") -> Acl:
    return Acl(resource=Resource.TOPIC, name=topic, pattern=Pattern.LITERAL, principal=DATA, operation=operation)


@pytest.mark.parametrize("principal", ["User:*", DATA])
def test_a_right_that_only_denials_of_runs_take_away_is_not_to_be_granted(principal: str) -> None:
    found = check([allow(WRITE), *(build_denial(topic, principal) for topic in TOPICS)])
    assert (found.verdict, found.command) == (RightStatus.OK, "")
    assert found.detail == str(Finding("denied_by_runs", topics=TOPICS))


def test_what_is_not_granted_is_missing_behind_a_fence_too() -> None:
    found = check(map(build_denial, TOPICS))
    assert found.verdict is RightStatus.MISSING
    assert "--operation Write" in found.command


def test_a_topic_without_a_grant_is_told_beside_the_fenced_ones() -> None:
    found = check([allow(WRITE, "orders"), *map(build_denial, TOPICS)])
    assert found.verdict is RightStatus.PARTLY
    assert found.detail.startswith("not on 1 of 2 topics: audit")
    assert found.detail.endswith(str(Finding("denied_by_runs", topics=["orders"])))


def test_a_denial_that_no_run_makes_is_missing_as_before() -> None:
    other = [build_denial(topic, DATA, operation=READ) for topic in TOPICS]
    assert check([allow(READ), *other], READ).verdict is RightStatus.MISSING
    prefixed = build_denial("", DATA, pattern=Pattern.PREFIXED)
    assert check([allow(WRITE), prefixed, *map(build_denial, TOPICS)]).verdict is RightStatus.MISSING
