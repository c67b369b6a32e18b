"""Client quotas that the destination lacks are named before a failover."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from kio.schema.alter_client_quotas.v1.request import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from kio.schema.alter_client_quotas.v1.response import AlterClientQuotasResponse
from kio.schema.errors import ErrorCode
from kio.static.primitive import f64

from mirror_core.model.run import RunMode
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.cluster_admin import as_admin
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def alter_quota(cluster: SandboxCluster, entity: dict[str, str | None], rate: float | None) -> None:
    """`producer_byte_rate` of users, client ids, or (None) their default. Without a rate it is removed."""
    entry = EntryData(
        entity=tuple(EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()),
        ops=(OpData(key="producer_byte_rate", value=f64(rate or 0.0), remove=rate is None),),
    )
    with as_admin(cluster) as client:
        request = AlterClientQuotasRequest(entries=(entry,), validate_only=False)
        (answered,) = client.call_controller(request, AlterClientQuotasResponse).entries
        assert answered.error_code is ErrorCode.none, answered


def named(mirrored: Mirrored) -> list[str]:
    plan = mirrored.failover.plan(RunMode.PLANNED)
    found = [finding.values["quotas"] for finding in plan.warnings if finding.code == "client_quotas_differ"]
    return [quota for quotas in found for quota in quotas]  # type: ignore[union-attr]


def test_quotas_of_users_client_ids_and_defaults_are_named_until_the_destination_has_them(
    pair: Pair, tmp_path: Path
) -> None:
    topic, user = new_topic(pair.east), "u-" + secrets.token_hex(4)
    mirrored = new_mirror(pair, tmp_path, topic)
    entities: tuple[dict[str, str | None], ...] = (
        {"user": user},
        {"client-id": user},
        {"user": user, "client-id": None},
    )
    try:
        for entity in entities:
            alter_quota(pair.east, entity, 1e6)
        alter_quota(pair.west, entities[0], 5e5)
        expected = [
            f"client-id {user}: producer_byte_rate=1000000",
            f"user {user}: producer_byte_rate=1000000 (there 500000)",
            f"user {user}, client-id <default>: producer_byte_rate=1000000",
        ]
        wait_until(lambda: named(mirrored) == expected, timeout_s=30, why="the plan names all three")
        for entity in entities:
            alter_quota(pair.west, entity, 1e6)
        wait_until(lambda: named(mirrored) == [], timeout_s=TIMEOUT_S, why="the destination has them")
    finally:
        for cluster in (pair.east, pair.west):
            for entity in entities:
                alter_quota(cluster, entity, None)
