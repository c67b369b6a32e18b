"""docker-compose.yml starts the same brokers as the sandbox."""

from __future__ import annotations

from pathlib import Path

import yaml

from mirror_core.kafka.config import Principal, load_config
from mirrorbook_tools.sandbox.credentials import CONTROL, DATA, USERS
from mirrorbook_tools.sandbox.properties import broker_properties
from mirrorbook_tools.sandbox.state import ClusterState, NodePorts

ROOT = Path(__file__).parents[3]


def test_brokers_in_containers_differ_only_in_where_they_listen() -> None:
    lines = (ROOT / "docker" / "server.properties").read_text(encoding="utf-8").splitlines()
    docker = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    cluster = ClusterState(cluster_id="any", nodes=(NodePorts(client=1, controller=2),))
    ours = broker_properties(cluster, 1, Path("/data"), "@PASSWORD@", {})
    different = {key for key in docker.keys() | ours.keys() if docker.get(key) != ours.get(key)}
    assert different == {
        "log.dirs",
        "listeners",
        "advertised.listeners",
        "listener.security.protocol.map",
        "controller.quorum.voters",
        "listener.name.host.scram-sha-512.sasl.jaas.config",
    }


def test_the_start_script_makes_the_users_that_we_know() -> None:
    script = (ROOT / "docker" / "kafka-node.sh").read_text(encoding="utf-8")
    assert f"for user in {' '.join(USERS)}; do" in script


def test_the_containers_config_names_the_services(tmp_path: Path) -> None:
    for user in (CONTROL, DATA):
        (tmp_path / user).write_text(f"{user}=pw-{user}\n", encoding="utf-8")
    text = (ROOT / "docker" / "mirrorbook.yaml").read_text(encoding="utf-8")
    (tmp_path / "mirrorbook.yaml").write_text(text.replace("/run/secrets", str(tmp_path)), encoding="utf-8")
    config = load_config(tmp_path / "mirrorbook.yaml")
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    assert set(config.clusters) == {"east", "west"}
    for name, cluster in config.clusters.items():
        assert name in services
        assert cluster.bootstrap == ((name, 9092),)
        assert cluster.control["sasl.password"] == "pw-mirror-control"
        assert cluster.data["sasl.password"] == "pw-mirror-data"
    (tmp_path / CONTROL).unlink()  # as on a worker of Spark
    assert (
        load_config(tmp_path / "mirrorbook.yaml", only_principal=Principal.DATA).cluster("east").data["sasl.username"]
        == DATA
    )
