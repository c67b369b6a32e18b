"""What the authorizer would say, by the entries."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.model.acl import Acl, Operation, Pattern, Permission, Resource
from mirror_core.model.names import HEARTBEATS
from mirror_core.model.run import Strategy
from mirror_core.rights.acls import denial
from mirror_core.rights.needed import NEEDS, Role, allows, lacking_for, others_who_change
from mirror_core.sandbox.credentials import APP, CONTROL, DATA
from mirror_core.sandbox.grants import baseline

ME = "User:me"


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
    assert allows(entries, ME, Resource.TOPIC, "t", operation) is expected


def test_an_entry_for_another_kind_of_resource_says_nothing() -> None:
    group = replace(acl(Operation.READ), resource=Resource.GROUP)
    assert not allows([group], ME, Resource.TOPIC, "t", Operation.READ)
    denied = replace(group, permission=Permission.DENY)
    assert allows([denied, acl(Operation.READ)], ME, Resource.TOPIC, "t", Operation.READ)


def test_the_grants_it_proposes_are_named_as_kafka_names_them() -> None:
    named = {(need.resource, need.acl(ME).name, need.acl(ME).pattern) for need in NEEDS}
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
    denied = [need for need in NEEDS if need.permission is Permission.DENY]
    assert [(need.principal, need.operation) for need in denied] == [("data", "WRITE"), ("data", "DELETE")]
    prefixed = [need for need in NEEDS if need.acl(ME).pattern is Pattern.PREFIXED and need not in denied]
    prefixed = [need for need in prefixed if not need.prefix]
    assert [(need.principal, need.operation) for need in prefixed] == [("control", Operation.WRITE)], (
        "the state's writer"
    )
    assert {need.principal for need in NEEDS} == {"control", "data"}


def test_each_need_is_met_by_the_grant_it_proposes() -> None:
    for need in NEEDS:
        entry = need.acl(ME)
        everything = replace(entry, permission=Permission.ALLOW)
        denied = need.permission is Permission.DENY
        assert (
            allows([entry, everything] if denied else [entry], ME, entry.resource, entry.name, need.operation) != denied
        )


def test_the_source_needs_no_right_to_change_topics_but_to_make_heartbeats() -> None:
    changing = {Operation.WRITE, Operation.DELETE, Operation.CREATE, Operation.ALTER_CONFIGS}
    assert not [n for n in NEEDS if n.role is Role.SOURCE and n.operation in changing and not n.prefix]
    heartbeats = {(n.principal, n.operation) for n in NEEDS if n.prefix == HEARTBEATS}
    assert heartbeats == {("control", "CREATE"), ("control", "WRITE")}


def test_the_sandbox_grants_what_is_needed_and_nothing_more() -> None:
    """So whatever runs there runs with the least rights."""
    users = {"control": CONTROL, "data": DATA}
    needed = {need.acl(f"User:{users[need.principal]}") for need in NEEDS}
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
        (Strategy.NONE, set(), set(), ""),
        (Strategy.RECREATE, set(), {"CREATE"}, "strategy recreate needs DELETE on topic t"),
        (Strategy.RECREATE, {"CREATE"}, {"DELETE"}, ""),
        (Strategy.OFFLINE, {"DESCRIBE"}, set(), "strategy offline needs ALTER on the cluster"),
        (
            Strategy.REPLICA,
            {"DESCRIBE", "ALTER"},
            {"ALTER_CONFIGS"},
            "strategy replica needs ALTER_CONFIGS and DESCRIBE_CONFIGS on the cluster",
        ),
        (Strategy.REPLICA, None, {"READ"}, "strategy replica needs ALTER_CONFIGS on topic t"),
    ],
)
def test_a_strategy_names_the_rights_that_it_lacks(
    strategy: Strategy, cluster: set[str] | None, topic: set[str], missing: str
) -> None:
    on_cluster = None if cluster is None else {Operation(name) for name in cluster}
    found = lacking_for({"t": strategy}, on_cluster, {"t": {Operation(name) for name in topic}})
    assert "; ".join(found) == missing


def test_others_who_may_change_a_topic_are_those_whom_nothing_denies_it() -> None:
    wide = Acl(resource=Resource.TOPIC, name="*", principal="User:etl", operation=Operation.WRITE)
    ours = replace(wide, principal="User:control")
    assert others_who_change([wide, ours], "__state", {"User:control"}) == ("User:etl",)
    deny = denial("__", "User:etl", pattern=Pattern.PREFIXED)
    assert others_who_change([wide, ours, deny], "__state", {"User:control"}) == ()
    everything = replace(wide, operation=Operation.ALL)
    assert others_who_change([everything, deny], "__state", ()) == ("User:etl",), "it may still delete it"
    assert others_who_change([replace(wide, operation=Operation.READ)], "__state", ()) == ()
