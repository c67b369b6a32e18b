"""docker-compose.yml: what cannot come up, or holds more than it needs, is found without a Docker."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from mirror_core.decide.task_assignment import parse_bytes_per_s
from mirror_core.supervisor.supervisor import STOP_TIMEOUT_S
from mirrorbook_tools.sandbox.credentials import ADMIN, CONTROL, DATA, USERS, read_passwords
from tests.support.deploy_files import DOCKERFILE, ROOT, parsed

TEXT: Final = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
COMPOSE: Final = yaml.safe_load(TEXT)
SERVICES: Final[dict[str, dict[str, Any]]] = COMPOSE["services"]
LOADED_S: Final = 300.0


def mounted(service: dict[str, Any]) -> Iterator[str]:
    """Where a container sees what is not in its image: configurations, secrets, volumes."""
    yield from (config["target"] for config in service.get("configs", []))
    for secret in service.get("secrets", []):
        named = secret if isinstance(secret, str) else secret.get("target", secret["source"])
        yield f"/run/secrets/{named}"
    yield from (volume.split(":")[1] for volume in service.get("volumes", []))


def told(value: object) -> Iterator[str]:
    """Absolute paths in a command or an environment."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from told(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from told(inner)
    else:
        yield from re.findall(r"(?<![\w:/.])/[\w./-]+", str(value))


def faults(services: dict[str, dict[str, Any]]) -> list[str]:
    """What could not work, whatever Docker does."""
    in_images = {
        word for line in re.findall(r"install -d (.*?)\n(?:ENV|USER)", DOCKERFILE, re.DOTALL) for word in told(line)
    }
    in_images |= {"/tmp/work"}  # made by Spark's worker
    found = []
    for name, service in services.items():
        probe = service.get("healthcheck", {}).get("test", [])
        if probe[:1] == ["CMD-SHELL"] and "/dev/tcp" in probe[1]:
            found.append(f"{name}: /dev/tcp is bash's, and CMD-SHELL asks /bin/sh")
        there = {*mounted(service), *in_images}
        said = (*told(service.get("command")), *told(service.get("entrypoint")), *told(service.get("environment")))
        found += [f"{name}: is told of {path}, and has no such file" for path in said if path not in there]
        read = {"/etc/mirrorbook/mirrorbook.yaml": (CONTROL, DATA), "/etc/mirrorbook/kafka-node.sh": ("passwords",)}
        holds = set(mounted(service))
        for config, secrets in read.items():
            if config in holds and not any(f"/run/secrets/{secret}" in holds for secret in secrets):
                found.append(f"{name}: {config} reads a secret that it does not have")
    return found


def test_nothing_in_it_cannot_work() -> None:
    assert faults(SERVICES) == []


@pytest.mark.parametrize(
    ("service", "change", "fault"),
    [
        ("east", {"healthcheck": {"test": ["CMD-SHELL", "exec 3<>/dev/tcp/127.0.0.1/9092"]}}, "/dev/tcp is bash's"),
        ("airflow", {"secrets": ["mirror-data"]}, "told of /run/secrets/connections.yaml"),
        ("grants", {"secrets": []}, "told of /run/secrets/admin"),
        ("spark-worker", {"secrets": []}, "reads a secret"),
        ("west", {"configs": []}, "told of /etc/mirrorbook/kafka-node.sh"),
        (
            "data-plane",
            {"volumes": [], "command": ["mirrorbook", "--receipts", "/srv/receipts"]},
            "told of /srv/receipts",
        ),
    ],
)
def test_what_cannot_work_is_found(service: str, change: dict[str, Any], fault: str) -> None:
    (found,) = faults({**SERVICES, service: {**SERVICES[service], **change}})
    assert fault in found


def test_services_are_built_as_stages_that_there_are() -> None:
    stages = set(re.findall(r"^FROM .* AS (\S+)$", DOCKERFILE, re.MULTILINE))
    targets = {service["build"]["target"] for service in SERVICES.values() if "build" in service}
    assert targets == {"data-plane", "airflow"} < stages


def test_no_container_holds_a_password_that_it_does_not_need() -> None:
    assert {name: service.get("secrets", []) for name, service in SERVICES.items()} == {
        "east": ["passwords"],
        "west": ["passwords"],
        "grants": ["admin"],
        "data-plane": ["mirror-control", "mirror-data"],
        "airflow": [{"source": "connections", "target": "connections.yaml"}, "mirror-data"],
        "readiness": ["mirror-control"],
        "spark-master": [],
        "spark-worker": ["mirror-data"],
    }
    files = {name: Path(secret["file"]).stem for name, secret in COMPOSE["secrets"].items()}
    assert files == {name: name for name in ("passwords", "connections", ADMIN, CONTROL, DATA)}


def test_the_container_that_looks_serves_where_its_port_is_published() -> None:
    program, *words = SERVICES["readiness"]["command"]
    assert program == "mirrorbook"
    assert parsed(words)["metrics"] == "0.0.0.0:9466"
    assert SERVICES["readiness"]["ports"] == ["127.0.0.1:9466:9466"]


def test_the_container_that_copies_is_asked_for_both_ways_and_given_time_to_end() -> None:
    service = SERVICES["data-plane"]
    program, *words = service["command"]
    assert program == "mirrorbook"
    found = parsed(words)
    assert found["names"] == ["orders", "orders-back"]
    assert (found["metrics"], service["ports"]) == ("0.0.0.0:9465", ["127.0.0.1:9465:9465"])
    assert parse_bytes_per_s(found["prove_at"]), "what was copied is compared beside the copying"
    assert f"receipts:{found['receipts']}" in service["volumes"]
    assert int(service["stop_grace_period"].removesuffix("s")) > STOP_TIMEOUT_S


def test_airflow_sees_the_receipts_of_the_data_plane() -> None:
    settings = SERVICES["airflow"]["environment"]
    for name in ("airflow", "data-plane", "spark-worker"):
        assert f"receipts:{settings['AIRFLOW__MIRRORBOOK__RECEIPTS']}" in SERVICES[name]["volumes"], name


def test_workers_of_spark_see_the_configurations_at_the_drivers_paths() -> None:
    assert SERVICES["spark-worker"]["configs"] == SERVICES["data-plane"]["configs"] == SERVICES["airflow"]["configs"]
    opened = SERVICES["airflow"]["environment"]["AIRFLOW__MIRRORBOOK__EXECUTORS_CONFIG"]
    for name in ("airflow", "spark-worker"):
        assert {opened, "/run/secrets/mirror-data"} <= {*mounted(SERVICES[name])}, name
    clusters = yaml.safe_load((ROOT / "docker" / "mirrorbook.yaml").read_text(encoding="utf-8"))["clusters"]
    assert ",".join(clusters) == SERVICES["airflow"]["environment"]["AIRFLOW_VAR_MIRRORBOOK_CLUSTERS"]


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """What the line before the first start makes."""
    lines = re.findall(r"^#   (\S.*)$", TEXT, re.MULTILINE)
    assert lines == ["sh docker/secrets.sh", "docker compose up --build --detach"]
    subprocess.run(["/bin/sh", ROOT / "docker" / "secrets.sh"], cwd=tmp_path, check=True)
    return tmp_path / ".compose"


def test_each_secret_has_its_users_only_and_keeps_them(secrets: Path) -> None:
    everybody = read_passwords(secrets / "passwords.properties")
    assert set(everybody) == set(USERS)
    for user in USERS:
        assert read_passwords(secrets / f"{user}.properties", (user,)) == {user: everybody[user]}
    assert {path.stat().st_mode & 0o777 for path in secrets.iterdir()} == {0o600}
    before = {path.name: path.read_bytes() for path in secrets.iterdir()}
    subprocess.run(["/bin/sh", ROOT / "docker" / "secrets.sh"], cwd=secrets.parent, check=True)
    assert {path.name: path.read_bytes() for path in secrets.iterdir()} == before


def test_airflow_reads_the_clusters_from_the_file_that_it_is_given(secrets: Path, tmp_path: Path) -> None:
    settings = {key: value for key, value in SERVICES["airflow"]["environment"].items() if "VAR" not in key}
    arguments = json.loads(settings["AIRFLOW__SECRETS__BACKEND_KWARGS"])
    (key,) = arguments
    settings["AIRFLOW__SECRETS__BACKEND_KWARGS"] = json.dumps({key: str(secrets / Path(arguments[key]).name)})
    program = (
        "import json; from mirrorbook_airflow.hooks import provide_config;"
        "from mirror_core.kafka.config import load_config;"
        "config = load_config(provide_config('orders', ['east', 'west']));"
        "print(json.dumps([[dict(one.control), dict(one.data)] for one in map(config.cluster, ('east', 'west'))]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **settings, "AIRFLOW_HOME": str(tmp_path / "airflow")},
        capture_output=True,
        text=True,
        timeout=LOADED_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    everybody = read_passwords(secrets / "passwords.properties")
    for name, (control, data) in zip(("east", "west"), json.loads(done.stdout.splitlines()[-1]), strict=True):
        assert control["bootstrap.servers"] == data["bootstrap.servers"] == f"{name}:9092"
        assert (control["sasl.username"], control["sasl.password"]) == (CONTROL, everybody[CONTROL])
        assert (data["sasl.username"], data["sasl.password"]) == (DATA, everybody[DATA])
        assert control["security.protocol"] == "SASL_PLAINTEXT"
