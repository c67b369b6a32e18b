"""Clusters that refuse Mirrorbook ACL requests, and programs that close and open them to an application."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka.admin import AclOperation, ResourceType

from tests.support.kafka_clients import Pair, forget_user, grant, new_user

_O = AclOperation
_RIGHTS = (
    (ResourceType.TOPIC, (_O.READ, _O.WRITE, _O.CREATE, _O.ALTER, _O.DELETE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS)),
    (ResourceType.GROUP, (_O.READ, _O.DESCRIBE, _O.DELETE)),
    (ResourceType.TRANSACTIONAL_ID, (_O.WRITE, _O.DESCRIBE)),
)
"""Of the control principal: nothing on the cluster, so nothing of its ACLs."""

_PROGRAM = """
import json, os, sys
from confluent_kafka.admin import (
    AclBinding, AclBindingFilter, AclOperation, AclPermissionType, AdminClient, ResourcePatternType, ResourceType,
)
admin = AdminClient(json.loads(open(sys.argv[1]).read()))
topics = open(os.environ["MIRRORBOOK_TOPICS_FILE"]).read().split()
action = os.environ["MIRRORBOOK_ACTION"]
print(action, file=open(os.environ["MIRRORBOOK_CLUSTER"] + ".called", "a"))
def acl(kind, topic, permission):
    return kind(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:app", "*", AclOperation.WRITE, permission
    )
deny, allow = AclPermissionType.DENY, AclPermissionType.ALLOW
if action == "fence":
    answers = [admin.create_acls([acl(AclBinding, topic, deny) for topic in topics])]
else:
    answers = [
        admin.delete_acls([acl(AclBindingFilter, topic, deny) for topic in topics]),
        admin.create_acls([acl(AclBinding, topic, allow) for topic in topics]),
    ]
for one in answers:
    for answer in one.values():
        answer.result(30)
"""


@contextmanager
def foreign(pair: Pair, folder: Path, *, commands: bool = True) -> Iterator[Pair]:
    """The same two clusters, and a mirrorbook.yaml whose control principals may neither read nor change an ACL.

    `commands`: with programs that stand for the other authorizer.
    """
    east, west = pair.sandbox.cluster("east"), pair.sandbox.cluster("west")
    user, password = new_user(east, west)
    try:
        document = yaml.safe_load(pair.config_path.read_text(encoding="utf-8"))
        (folder / "gate.py").write_text(_PROGRAM, encoding="utf-8")
        for cluster in (east, west):
            for kind, operations in _RIGHTS:
                grant(cluster, user, kind, "*", operations)
            side: dict[str, Any] = document["clusters"][cluster.name]
            side.update({"sasl.username": user, "sasl.password": password, "authorizer": "foreign"})
            admin = folder / f"{cluster.name}.json"
            admin.write_text(json.dumps({**cluster.client_config("admin")}), encoding="utf-8")
            program = {"command": [sys.executable, "gate.py", str(admin)], "timeout_s": 60}
            if commands:
                side.update({"fence_command": program, "unfence_command": program})
        path = folder / "foreign.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        yield replace(pair, config_path=path)
    finally:
        forget_user(east, user)
        forget_user(west, user)


def called(pair: Pair, cluster: str) -> list[str]:
    """What the programs of one cluster were called for, in order."""
    path = pair.config_path.parent / f"{cluster}.called"
    return path.read_text(encoding="utf-8").split() if path.exists() else []
