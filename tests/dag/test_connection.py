"""The connection type, and what becomes of a connection in the core."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, Principal, load_config
from mirror_core.model.errors import BadRequest
from mirror_core.model.names import ClusterName, MirrorName
from mirrorbook_tools.sandbox.credentials import CONTROL, DATA
from tests.dag.airflow_home import add_connection, connection_of
from tests.support.kafka_clients import Pair

pytestmark = [pytest.mark.dag, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def east(pair: Pair, airflow_database: None, monkeypatch: pytest.MonkeyPatch) -> str:
    # As in Airflow's own processes: connections are looked up in the database, not asked for from a task's supervisor.
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    add_connection("east", connection_of(pair.east))
    return "east"


def test_airflow_offers_the_connection_type_with_its_form(airflow_database: None) -> None:
    from airflow.providers_manager import ProvidersManager

    hook = ProvidersManager().hooks["kafka_cluster"]

    assert hook is not None
    assert hook.hook_name == "Kafka cluster (Mirrorbook)"
    assert hook.hook_class_name == "mirrorbook_airflow.hooks.KafkaClusterHook"


@pytest.mark.cluster
def test_a_connection_connects_as_both_principals(east: str) -> None:
    from mirrorbook_airflow.hooks import KafkaClusterHook

    hook = KafkaClusterHook(east)

    well, message = hook.test_connection()
    assert well, message
    assert "1 broker" in message
    control = hook.make_cluster_entry()
    data = control.pop("data")
    config = ClusterConfig(ClusterName(east), control, {**control, **data})
    assert [config.user(principal) for principal in Principal] == ["mirror-control", "mirror-data"]
    for principal in Principal:
        with ClusterClient(config, principal, timeout_s=10) as client:
            assert client.metadata(()).cluster_id


@pytest.mark.cluster
def test_a_connection_of_airflows_own_type_is_a_cluster_too(pair: Pair, east: str) -> None:
    from mirrorbook_airflow.hooks import provide_config

    properties = {**pair.west.client_config(CONTROL), "group.id": "theirs", "enable.auto.commit": False}
    data = pair.west.client_config(DATA)
    ours = {"mirrorbook.data.username": data["sasl.username"], "mirrorbook.data.password": data["sasl.password"]}
    add_connection("west-theirs", {"conn_type": "kafka", "extra": json.dumps({**properties, **ours})})

    config = load_config(provide_config("m2", ["west-theirs"])).cluster("west-theirs")

    assert [config.user(principal) for principal in Principal] == ["mirror-control", "mirror-data"]
    assert "group.id" not in config.control
    for principal in Principal:
        with ClusterClient(config, principal, timeout_s=10) as client:
            assert client.metadata(()).cluster_id


@pytest.mark.cluster
def test_a_wrong_password_is_told_without_the_password(pair: Pair, east: str) -> None:
    from mirrorbook_airflow.hooks import KafkaClusterHook

    add_connection("east-wrong", {**connection_of(pair.east), "password": "not-the-password"})

    well, message = KafkaClusterHook("east-wrong").test_connection()

    assert not well
    assert "mirror-control" in message
    assert "not-the-password" not in message


@pytest.mark.cluster
def test_the_configuration_in_memory_works(pair: Pair, east: str) -> None:
    from mirrorbook_airflow.hooks import provide_config

    add_connection("west", connection_of(pair.west))

    path = provide_config("m1", ["west", east, east])

    assert not path.exists()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    config = load_config(path)
    assert set(config.clusters) == {"east", "west"}
    with ClusterClient(config.cluster("west"), Principal.DATA, timeout_s=10) as client:
        assert client.metadata(()).cluster_id


def test_hooks_and_expectations_come_from_a_file_on_the_worker(
    airflow_database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mirrorbook_airflow.hooks import get_home_folder, provide_config

    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    hooks = get_home_folder("config").parent / "mirrors.yaml"
    add_connection("ruled", {"conn_type": "kafka_cluster", "host": "b:1"})
    section = {"mirrors": {"m1": {"switch": [{"name": "dns", "command": ["point-dns"]}]}}}
    try:
        hooks.write_text(yaml.safe_dump(section), encoding="utf-8")
        [hook] = load_config(provide_config("m1", ["ruled"])).mirrors.switch_hooks[MirrorName("m1")]
        assert hook.name == "dns"
        hooks.write_text("m1: {}", encoding="utf-8")
        known = "clusters, evidence, expectations, mirrors, sets"
        with pytest.raises(BadRequest, match=f"mirrors.yaml: must have no other keys than {known}"):
            provide_config("m1", [])
        hooks.write_text("clusters: {east: {sasl.password: x}}", encoding="utf-8")
        with pytest.raises(BadRequest, match=r"clusters.east.sasl.password: is not known here; known are authorizer"):
            provide_config("m1", [])
        hooks.write_text("clusters: {ruled: {authorizer: foreign}, rueld: {authorizer: none}}", encoding="utf-8")
        with pytest.raises(BadRequest, match=r"clusters.rueld: there is no such connection; is ruled meant\?"):
            provide_config("m5", ["ruled"])
        add_connection("elsewhere", {"conn_type": "kafka_cluster", "host": "b:1"})
        hooks.write_text("clusters: {ruled: {authorizer: foreign}, elsewhere: {authorizer: none}}", encoding="utf-8")
        config = load_config(provide_config("m5", ["ruled"]))
        assert config.clusters.keys() == {"ruled"}
        assert config.cluster("ruled").ruling.is_foreign
        hooks.write_text("expectations: more.yaml", encoding="utf-8")
        assert load_config(provide_config("m1", ["ruled"])).expectations == hooks.parent / "more.yaml"
    finally:
        hooks.unlink()
    assert not load_config(provide_config("m1", ["ruled"])).mirrors.switch_hooks


@pytest.mark.parametrize("name", ["../m1", "", ".m1", "a/b", "m\n1"])
def test_a_name_cannot_lead_out_of_the_folder(name: str, airflow_database: None) -> None:
    from mirrorbook_airflow.hooks import provide_config

    with pytest.raises(BadRequest, match="cannot be a mirror's name"):
        provide_config(name, [])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"conn_type": "http"}, r"is of type http, not kafka_cluster \(nor kafka\)"),
        ({"conn_type": "kafka", "extra": "{}"}, "bootstrap servers are missing"),
        ({"conn_type": "kafka", "extra": '{"ssl.key.pem": "x", "group.id": "g"}'}, "its extra has ssl.key.pem, which"),
        ({"conn_type": "kafka", "extra": '{"mirrorbook.data.user": "x"}'}, "its extra has mirrorbook.data.user, which"),
        ({"conn_type": "kafka", "extra": '{"bootstrap.servers": "b:1", "sasl.username": "${env:X}"}'}, "must not hold"),
        ({"host": ""}, "bootstrap servers are missing"),
        ({"login": "${env:HOME}"}, "must not hold"),
        ({"password": "x${file:/etc/passwd:root}"}, "must not hold"),
    ],
)
def test_a_connection_that_cannot_be_a_cluster_is_refused_by_name(
    change: dict[str, Any], said: str, east: str, pair: Pair, tmp_path: Path
) -> None:
    from mirrorbook_airflow.hooks import KafkaClusterHook

    add_connection("broken", {**connection_of(pair.east), **change})

    with pytest.raises(BadRequest, match=said) as caught:
        KafkaClusterHook("broken").make_cluster_entry()

    assert "connection broken" in str(caught.value)


def test_an_extra_that_nobody_reads_is_refused(airflow_database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from mirrorbook_airflow.hooks import KafkaClusterHook

    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    extra = {"security_protocol": "SSL", "ssl_ca_locaton": "/hush"}
    add_connection("east-typo", {"conn_type": "kafka_cluster", "host": "east:9092", "extra": json.dumps(extra)})
    with pytest.raises(BadRequest, match=r"has ssl_ca_locaton, which is not known; is ssl_ca_location meant\?"):
        KafkaClusterHook("east-typo").make_cluster_entry()
