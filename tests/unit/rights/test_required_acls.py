"""What the authorizer would say, by the entries."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.model.acl import Acl, Operation, Pattern, Permission, Resource
from mirror_core.model.names import HEARTBEAT_TOPIC_PREFIX
from mirror_core.model.run import FailbackStrategy
from mirror_core.rights.acl_rules import build_denial
from mirror_core.rights.required_acls import (
    FREE_REQUESTS,
    REQUESTS,
    REQUIRED_ACLS,
    ClusterRole,
    find_lacking_strategy_rights,
    find_other_writers,
    is_allowed,
)
from mirrorbook_tools.sandbox.credentials import APP, CONTROL, DATA
from mirrorbook_tools.sandbox.grants import baseline

ME = "User:me"
ROOT = Path(__file__).parents[3]


def list_sent_requests() -> set[str]:
    """By the schemas that are imported; those of the hot path have modules of their own."""
    names = {"Produce", "Fetch", "WriteTxnMarkers"}
    for module in (ROOT / "mirror_core").rglob("*.py"):
        text = module.read_text(encoding="utf-8")
        schemas = re.findall(r"^from kio\.schema\.(\w+)\.v\d+\.request ", text, re.MULTILINE)
        names |= {"".join(word.capitalize() for word in schema.split("_")) for schema in schemas}
    return names


def test_each_right_has_its_requests_and_each_request_that_is_sent_has_a_right() -> None:
    given = {(a.role, a.principal, a.resource, a.operation) for a in REQUIRED_ACLS if a.permission is Permission.ALLOW}
    assert given == REQUESTS.keys()
    assert {name for names in REQUESTS.values() for name in names} | FREE_REQUESTS == list_sent_requests()


def acl(operation: Operation, name: str = "t", permission: Permission = Permission.ALLOW, **more: str) -> Acl:
    return Acl(
        resource=Resource.TOPIC,
        name=name,
        pattern=Pattern(more.get("pattern", "LITERAL")),
        principal=more.get("principal", ME),
        host=more.get("host", "*"),
        operation=operation,
        permission=permission,
    )


@pytest.mark.parametrize(
    ("entries", "operation", "expected"),
    [
        ([], Operation.READ, False),
        ([acl(Operation.READ)], Operation.READ, True),
        ([acl(Operation.READ)], Operation.DESCRIBE, True),
        ([acl(Operation.READ)], Operation.WRITE, False),
        ([acl(Operation.ALTER_CONFIGS)], Operation.DESCRIBE_CONFIGS, True),
        ([acl(Operation.ALL)], Operation.DELETE, True),
        ([acl(Operation.READ, "*")], Operation.READ, True),
        ([acl(Operation.READ, "x")], Operation.READ, False),
        ([acl(Operation.READ, principal="User:*")], Operation.READ, True),
        ([acl(Operation.READ, principal="User:other")], Operation.READ, False),
        ([acl(Operation.READ, host="10.0.0.1")], Operation.READ, False),
        ([acl(Operation.READ), acl(Operation.READ, "*", Permission.DENY)], Operation.READ, False),
        ([acl(Operation.READ), acl(Operation.ALL, "", Permission.DENY, pattern="PREFIXED")], Operation.READ, False),
        ([acl(Operation.READ), acl(Operation.WRITE, "t", Permission.DENY)], Operation.READ, True),
        ([acl(Operation.READ, "t", Permission.DENY)], Operation.READ, False),
        ([acl(Operation.READ, "t", Permission.DENY)], Operation.DESCRIBE, False),  # implies only when it is a grant
        ([acl(Operation.ALTER_CONFIGS, "t", Permission.DENY)], Operation.DESCRIBE_CONFIGS, False),
        ([acl(Operation.READ, "t", Permission.DENY, host="10.0.0.1")], Operation.DESCRIBE, False),
        ([acl(Operation.DESCRIBE), acl(Operation.READ, "t", Permission.DENY)], Operation.DESCRIBE, True),
        ([acl(Operation.READ), acl(Operation.DESCRIBE, "t", Permission.DENY)], Operation.DESCRIBE, False),
        ([acl(Operation.ALL, host="10.0.0.1")], Operation.READ, False),
        ([acl(Operation.WRITE, host="10.0.0.1")], Operation.DESCRIBE, False),
        (
            [acl(Operation.READ, permission=Permission.DENY, host="10.0.0.1"), acl(Operation.READ)],
            Operation.READ,
            False,
        ),
        ([acl(Operation.WRITE)], Operation.DESCRIBE, True),
        ([acl(Operation.DELETE)], Operation.DESCRIBE, True),
        ([acl(Operation.ALTER)], Operation.DESCRIBE, True),
        ([acl(Operation.ALTER)], Operation.DESCRIBE_CONFIGS, False),
    ],
)
def test_entries_decide_as_kafka_does(entries: list[Acl], operation: Operation, expected: bool) -> None:
    assert is_allowed(entries, ME, Resource.TOPIC, "t", operation) is expected


def test_an_entry_for_another_kind_of_resource_says_nothing() -> None:
    group = replace(acl(Operation.READ), resource=Resource.GROUP)
    assert not is_allowed([group], ME, Resource.TOPIC, "t", Operation.READ)
    denied = replace(group, permission=Permission.DENY)
    assert is_allowed([denied, acl(Operation.READ)], ME, Resource.TOPIC, "t", Operation.READ)


def test_the_grants_it_proposes_are_named_as_kafka_names_them() -> None:
    named = {(need.resource, need.to_acl(ME).name, need.to_acl(ME).pattern) for need in REQUIRED_ACLS}
    assert named == {
        (Resource.TOPIC, "*", Pattern.LITERAL),
        (Resource.TOPIC, "__mirrorbook", Pattern.PREFIXED),
        (Resource.TOPIC, "mirrorbook.heartbeats.", Pattern.PREFIXED),
        (Resource.GROUP, "*", Pattern.LITERAL),
        (Resource.GROUP, "mirrorbook.", Pattern.PREFIXED),
        (Resource.CLUSTER, "kafka-cluster", Pattern.LITERAL),
        (Resource.TRANSACTIONAL_ID, "*", Pattern.LITERAL),
        (Resource.TRANSACTIONAL_ID, "mirrorbook.", Pattern.PREFIXED),
    }
    denied = [need for need in REQUIRED_ACLS if need.permission is Permission.DENY]
    assert [(need.principal, need.operation) for need in denied] == [("data", "WRITE"), ("data", "DELETE")]
    prefixed = [need for need in REQUIRED_ACLS if need.to_acl(ME).pattern is Pattern.PREFIXED and need not in denied]
    prefixed = [need for need in prefixed if not need.prefix]
    assert [(need.principal, need.operation) for need in prefixed] == [("control", Operation.WRITE)], (
        "the state's writer"
    )
    assert {need.principal for need in REQUIRED_ACLS} == {"control", "data"}


def test_each_need_is_met_by_the_grant_it_proposes() -> None:
    for need in REQUIRED_ACLS:
        entry = need.to_acl(ME)
        everything = replace(entry, permission=Permission.ALLOW)
        denied = need.permission is Permission.DENY
        assert (
            is_allowed([entry, everything] if denied else [entry], ME, entry.resource, entry.name, need.operation)
            != denied
        )


def test_the_source_needs_no_right_to_change_topics_but_to_make_heartbeats() -> None:
    changing = {Operation.WRITE, Operation.DELETE, Operation.CREATE, Operation.ALTER_CONFIGS}
    assert not [n for n in REQUIRED_ACLS if n.role is ClusterRole.SOURCE and n.operation in changing and not n.prefix]
    heartbeats = {(n.principal, n.operation) for n in REQUIRED_ACLS if n.prefix == HEARTBEAT_TOPIC_PREFIX}
    assert heartbeats == {("control", "CREATE"), ("control", "WRITE")}


def test_the_sandbox_grants_what_is_needed_and_nothing_more() -> None:
    """So whatever runs there runs with the least rights."""
    users = {"control": CONTROL, "data": DATA}
    needed = {need.to_acl(f"User:{users[need.principal]}") for need in REQUIRED_ACLS}
    ours = [acl for acl in baseline("west") if acl.principal != f"User:{APP}"]
    found = {
        (ResourceType(a.restype).name.replace("BROKER", "CLUSTER"), a.name, a.principal, AclOperation(a.operation).name)
        for a in ours
    }
    assert found == {(acl.resource, acl.name, acl.principal, acl.operation) for acl in needed}
    assert len(ours) == len(needed)


@pytest.mark.parametrize(
    ("strategy", "cluster", "topic", "missing"),
    [
        (FailbackStrategy.NONE, set(), set(), ""),
        (FailbackStrategy.RECREATE, set(), {"CREATE"}, "strategy recreate needs DELETE on topic t"),
        (FailbackStrategy.RECREATE, {"CREATE"}, {"DELETE"}, ""),
        (FailbackStrategy.OFFLINE, {"DESCRIBE"}, set(), "strategy offline needs ALTER on the cluster"),
        (
            FailbackStrategy.REPLICA,
            {"DESCRIBE", "ALTER"},
            {"ALTER_CONFIGS"},
            "strategy replica needs ALTER_CONFIGS and DESCRIBE_CONFIGS on the cluster",
        ),
        (FailbackStrategy.REPLICA, None, {"READ"}, "strategy replica needs ALTER_CONFIGS on topic t"),
        (
            FailbackStrategy.HANDOVER,
            {"DESCRIBE", "ALTER", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"},
            {"ALTER_CONFIGS"},
            "strategy handover needs CLUSTER_ACTION on the cluster",
        ),
    ],
)
def test_a_strategy_names_the_rights_that_it_lacks(
    strategy: FailbackStrategy, cluster: set[str] | None, topic: set[str], missing: str
) -> None:
    on_cluster = None if cluster is None else {Operation(name) for name in cluster}
    found = find_lacking_strategy_rights({"t": strategy}, on_cluster, {"t": {Operation(name) for name in topic}})
    assert "; ".join(found) == missing


def test_others_who_may_change_a_topic_are_those_whom_nothing_denies_it() -> None:
    wide = Acl(resource=Resource.TOPIC, name="*", principal="User:etl", operation=Operation.WRITE)
    ours = replace(wide, principal="User:control")
    assert find_other_writers([wide, ours], "__state", {"User:control"}) == ("User:etl",)
    deny = build_denial("__", "User:etl", pattern=Pattern.PREFIXED)
    assert find_other_writers([wide, ours, deny], "__state", {"User:control"}) == ()
    everything = replace(wide, operation=Operation.ALL)
    assert find_other_writers([everything, deny], "__state", ()) == ("User:etl",), "it may still delete it"
    assert find_other_writers([replace(wide, operation=Operation.READ)], "__state", ()) == ()
