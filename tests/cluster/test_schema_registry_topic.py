"""A Schema Registry's topic as a mirrored one: equal, closed until the failover, and without two schemas of one id."""

from __future__ import annotations

import json
import secrets
import struct
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer

from mirror_core.mirrors import mirror_commands
from mirror_core.model.parity_verdict import ParityVerdict
from mirror_core.model.run import RunState
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.comparisons import compare, found
from tests.support.failback_runs import failback_of, go_home
from tests.support.failover_runs import app_topic, begin
from tests.support.kafka_clients import Pair, read_all
from tests.support.mirrored_topics import new_mirror
from tests.support.parity_topics import whole

pytestmark = pytest.mark.cluster


def send(cluster: SandboxCluster, topic: str, rows: list[tuple[bytes | None, bytes | None]]) -> set[int]:
    """Codes of the errors."""
    errors = set[int]()
    producer = Producer({**cluster.client_config("app"), "log_level": 0})
    for key, value in rows:
        producer.produce(topic, value, key, 0, lambda error, _: errors.add(error.code()) if error else None)
    assert producer.flush(60) == 0
    return errors


def make_row(subject: str, schema_id: int) -> tuple[bytes, bytes]:
    """As registries write it."""
    key = {"keytype": "SCHEMA", "subject": subject, "version": 1, "magic": 1}
    schema = json.dumps({"type": "record", "name": f"R{schema_id}", "fields": [{"name": "id", "type": "long"}]})
    value = {"subject": subject, "version": 1, "id": schema_id, "schema": schema, "deleted": False}
    return json.dumps(key).encode(), json.dumps(value).encode()


def read_schemas(cluster: SandboxCluster, topic: str) -> dict[int, str]:
    """By id, as a registry reads them when it starts. Two schemas of one id are an error."""
    schemas = dict[int, str]()
    for record in read_all(cluster, topic):
        row = json.loads(record.value) if record.value and record.key else {}
        if "schema" in row:
            assert schemas.setdefault(row["id"], row["schema"]) == row["schema"]
    return schemas


def register(cluster: SandboxCluster, topic: str, subject: str) -> int:
    schema_id = max(read_schemas(cluster, topic)) + 1
    assert not send(cluster, topic, [make_row(subject, schema_id)])
    return schema_id


def test_schemas_of_the_source_decode_after_a_failover_and_new_ids_do_not_collide(pair: Pair, tmp_path: Path) -> None:
    schemas = app_topic(pair, prefix=f"_schemas-{secrets.token_hex(4)}-", cleanup_policy="compact")
    orders = app_topic(pair)
    compatibility = (b'{"keytype":"CONFIG","subject":null,"magic":0}', b'{"compatibilityLevel":"FULL"}')
    first, gone, third = (make_row(subject, number) for number, subject in enumerate(("a", "b", "c"), 1))
    assert not send(pair.east, schemas, [first, compatibility, gone, third, compatibility, (gone[0], None)])
    assert not send(pair.east, orders, [(None, struct.pack(">bI", 0, schema_id) + b"\x02") for schema_id in (1, 3, 1)])
    mirrored = new_mirror(pair, tmp_path, schemas, orders)
    mirrored.copy()
    mirror_commands.run_sync(mirrored.link)
    result = compare(pair, whole(schemas, 6))
    assert (result.verdict, found(result)) == (ParityVerdict.PASSED, [])
    refused = send(pair.west, schemas, [make_row("d", 4)])
    assert refused == {KafkaError.TOPIC_AUTHORIZATION_FAILED}, "a registry that believes itself the primary"

    assert mirrored.failover.drive(begin(mirrored.failover)).state is RunState.DONE

    known = read_schemas(pair.west, schemas)
    used = {struct.unpack(">bI", (record.value or b"")[:5])[1] for record in read_all(pair.west, orders)}
    assert used <= known.keys()
    assert register(pair.west, schemas, "d") == 4
    failback = failback_of(mirrored)
    home = failback.begin(failback.plan().hash)
    failback.drive(home.id)
    go_home(failback, home.id)
    assert register(pair.east, schemas, "e") == 5
    mirrored.copy()
    assert read_all(pair.west, schemas) == read_all(pair.east, schemas)
    assert read_schemas(pair.west, schemas).keys() == {1, 2, 3, 4, 5}
