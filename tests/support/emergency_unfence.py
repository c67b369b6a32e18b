"""Emergency unfence, shared by tests."""

from __future__ import annotations

from mirror_core.kafka.acl_requests import delete_acls, wait_until_acls_absent
from mirror_core.kafka.client import ClusterClient
from mirror_core.sync.fence_acls import build_denials
from tests.support.mirrored_topics import Mirrored


def lift_by_hand(mirrored: Mirrored, topic: str) -> None:
    with ClusterClient(mirrored.config.cluster("east")) as east:
        delete_acls(east, build_denials([topic]))
        wait_until_acls_absent(east, set(build_denials([topic])))
