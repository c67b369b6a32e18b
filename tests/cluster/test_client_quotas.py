"""Client quotas: staged and set by a mirror, or named before a failover; SCRAM users: named."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclOperation,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kio.schema.alter_client_quotas.v1.request import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from kio.schema.alter_client_quotas.v1.response import AlterClientQuotasResponse
from kio.schema.errors import ErrorCode
from kio.static.primitive import f64

from mirror_core.decide.truncation import AllowedStrategies
from mirror_core.kafka.acl_requests import create_acls, delete_acls, wait_until_acls_absent, wait_until_acls_present
from mirror_core.kafka.cluster_info import fetch_client_quotas
from mirror_core.mirrors import mirror_commands
from mirror_core.model.acl import Operation, Resource
from mirror_core.model.run import RunMode
from mirror_core.model.sync_state import QuotaPurpose, SyncAction, SyncCategory
from mirror_core.rights.required_acls import REQUIRED_ACLS
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from mirrorbook_tools.sandbox.credentials import CONTROL
from tests.support.cluster_admin import as_admin
from tests.support.failback_runs import failback_of, go_home
from tests.support.failover_runs import app_topic, begin, denied
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client, grant, new_topic, produce
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def alter_quota(
    cluster: SandboxCluster, entity: dict[str, str | None], rate: float | None, key: str = "producer_byte_rate"
) -> None:
    """Of users, client ids, or (None) their default. Without a rate it is removed."""
    entry = EntryData(
        entity=tuple(EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()),
        ops=(OpData(key=key, value=f64(rate or 0.0), remove=rate is None),),
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
        wait_until(lambda: named(mirrored) == sorted(expected), timeout_s=30, why="the plan names all three")
        for entity in entities:
            alter_quota(pair.west, entity, 1e6)
        wait_until(lambda: named(mirrored) == [], timeout_s=TIMEOUT_S, why="the destination has them")
    finally:
        for cluster in (pair.east, pair.west):
            for entity in entities:
                alter_quota(cluster, entity, None)


@pytest.fixture
def app(pair: Pair) -> Iterator[tuple[str, dict[str, dict[str, str | None]]]]:
    """A user of both clusters, and entities that nobody else limits; no quota of them is left."""
    user = "u-" + secrets.token_hex(4)
    entities: dict[str, dict[str, str | None]] = {
        "user": {"user": user},
        "both": {"user": user, "client-id": None},
        "theirs": {"user": user, "client-id": f"{user}-c"},
        "client": {"client-id": user},
        "gone": {"client-id": f"{user}-gone"},
        "default": {"client-id": None},
        "stranger": {"user": f"{user}-stranger"},
    }
    yield user, entities
    for cluster in (pair.east, pair.west):
        for entity in entities.values():
            alter_quota(cluster, entity, None)
        alter_quota(cluster, entities["user"], None, "request_percentage")


def rates(
    cluster: SandboxCluster, entities: dict[str, dict[str, str | None]], key: str = "producer_byte_rate"
) -> dict[str, float]:
    """By the names of the entities."""
    with as_admin(cluster) as client:
        found = fetch_client_quotas(client)
    assert found is not None
    names = {(e.get("user", ...), e.get("client-id", ...)): name for name, e in entities.items()}
    shown = {
        tuple(... if name is None else name or None for name in (quota.user, quota.client_id)): value
        for quota, value in found.items()
        if quota.key == key
    }
    return {names[entity]: value for entity, value in shown.items() if entity in names}


def drift(mirrored: Mirrored, entities: dict[str, dict[str, str | None]]) -> dict[str, tuple[str, bool]]:
    """What a sync does about each entity's quota."""
    report = mirror_commands.run_sync(mirrored.link, only=frozenset({SyncCategory.QUOTAS}))
    subjects = {
        ", ".join(f"{kind} {name or '<default>'}" for kind, name in e.items()) + ": producer_byte_rate": label
        for label, e in entities.items()
    }
    return {subjects[row.subject]: (str(row.action), row.done) for row in report.rows if row.subject in subjects}


def test_quotas_of_applications_are_staged_set_at_promotion_and_taken_away_when_they_are_home(
    pair: Pair, tmp_path: Path, app: tuple[str, dict[str, dict[str, str | None]]]
) -> None:
    user, entities = app
    topic = app_topic(pair)
    grant(pair.east, user, ResourceType.TOPIC, topic, [AclOperation.READ])
    produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    for entity in entities.values():
        alter_quota(pair.east, entity, 1e9)
    alter_quota(pair.east, entities["user"], 50.0, "request_percentage")
    alter_quota(pair.west, entities["theirs"], 5e8)
    wait_until(lambda: len(rates(pair.east, entities)) == 7, timeout_s=TIMEOUT_S, why="east shows all")
    wait_until(lambda: len(rates(pair.west, entities)) == 1, timeout_s=TIMEOUT_S, why="west shows theirs")
    staged = dict.fromkeys(("user", "both", "client", "gone", "default"), ("stage", True))
    assert drift(mirrored, entities) == {**staged, "theirs": ("keep", False)}
    assert rates(pair.west, entities) == {"theirs": 5e8}, "nothing is limited before promotion"

    alter_quota(pair.east, entities["user"], 2e9)
    alter_quota(pair.east, entities["gone"], None)
    wait_until(lambda: len(rates(pair.east, entities)) == 6, timeout_s=TIMEOUT_S, why="east shows the removal")
    assert drift(mirrored, entities)["gone"] == ("remove", True)
    assert "gone" not in drift(mirrored, entities)
    (wide,) = [f for f in mirrored.failover.plan(RunMode.PLANNED).warnings if f.code == "quotas_beyond_mirror"]
    assert f"client-id {user}: producer_byte_rate=1000000000" in wide.values["quotas"]  # type: ignore[operator]

    mirrored.failover.drive(begin(mirrored.failover))

    set_by_us = {"user": 2e9, "both": 1e9, "client": 1e9, "default": 1e9}
    wait_until(
        lambda: rates(pair.west, entities) == {**set_by_us, "theirs": 5e8}, timeout_s=TIMEOUT_S, why="west has them"
    )
    assert rates(pair.west, entities, "request_percentage") == {"user": 50.0}
    alter_quota(pair.west, entities["both"], 3e9)  # by the operator of west, who keeps it
    failback = failback_of(mirrored)
    run = failback.begin(failback.plan(AllowedStrategies()).hash, AllowedStrategies())
    failback.drive(run.id)
    go_home(failback, run.id)
    wait_until(
        lambda: rates(pair.west, entities) == {"both": 3e9, "theirs": 5e8}, timeout_s=TIMEOUT_S, why="ours are gone"
    )
    assert rates(pair.west, entities, "request_percentage") == {}
    assert rates(pair.east, entities)["user"] == 2e9
    assert {e.purpose for e in mirrored.state.quotas[mirrored.name].values()} == {QuotaPurpose.STAGED}


def test_without_the_right_quotas_are_named_as_unknown_and_the_failover_goes_on(
    pair: Pair, tmp_path: Path, app: tuple[str, dict[str, dict[str, str | None]]]
) -> None:
    _, entities = app
    topic = app_topic(pair)
    produce(pair.east, topic, 20)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    alter_quota(pair.east, entities["client"], 1e9)
    wait_until(lambda: len(rates(pair.east, entities)) == 1, timeout_s=TIMEOUT_S, why="east shows it")
    assert drift(mirrored, entities) == {"client": ("stage", True)}
    rights = [
        required.to_acl(f"User:{CONTROL}")
        for required in REQUIRED_ACLS
        if required.resource is Resource.CLUSTER
        and required.operation in (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
    ]
    with as_admin(pair.west) as admin:
        delete_acls(admin, rights)
        try:
            wait_until_acls_absent(admin, rights)
            report = mirror_commands.run_sync(mirrored.link, only=frozenset({SyncCategory.QUOTAS}))
            assert [(row.subject, row.action) for row in report.rows] == [("cluster west", SyncAction.SKIP)]
            mirrored.failover.drive(begin(mirrored.failover))
        finally:
            create_acls(admin, rights)
            wait_until_acls_present(admin, rights)
    assert not denied(pair.west, topic)
    assert rates(pair.west, entities) == {}


def test_users_are_named_with_the_mechanisms_that_the_destination_lacks(pair: Pair, tmp_path: Path) -> None:
    topic, user = new_topic(pair.east), "u-" + secrets.token_hex(4)
    grant(pair.east, user, ResourceType.TOPIC, topic, [AclOperation.READ])
    mirrored = new_mirror(pair, tmp_path, topic)
    sha_256, sha_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
    add_credentials(pair.east, user, sha_256, sha_512)
    add_credentials(pair.west, user, sha_256)
    mirror_commands.run_sync(mirrored.link)

    def list_named() -> list[str]:
        plan = mirrored.failover.plan(RunMode.PLANNED)
        named = [f.values["users"] for f in plan.warnings if f.code == "scram_users_unknown"]
        return [shown for users in named for shown in users if shown.startswith(user)]  # type: ignore[union-attr]

    wait_until(lambda: list_named() == [f"{user} (SCRAM-SHA-512)"], timeout_s=TIMEOUT_S, why="the plan names it")
    add_credentials(pair.west, user, sha_512)
    wait_until(lambda: list_named() == [], timeout_s=TIMEOUT_S, why="the destination has both")


def add_credentials(cluster: SandboxCluster, user: str, *mechanisms: ScramMechanism) -> None:
    client = admin_client(cluster)
    for mechanism in mechanisms:  # Kafka takes one change of a user in a request
        change = UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), b"secret")
        client.alter_user_scram_credentials([change])[user].result(TIMEOUT_S)
