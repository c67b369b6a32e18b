"""References in mirrorbook.yaml: followed, or refused. None is taken for the value itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_core.kafka.config import load_config
from mirror_core.model.errors import BadRequest


def configuration(folder: Path, password: str) -> Path:
    path = folder / "mirrorbook.yaml"
    path.write_text(
        f"clusters: {{east: {{bootstrap.servers: 'h:1', sasl.password: '{password}'}}}}\n", encoding="utf-8"
    )
    return path


def test_what_a_file_holds_is_a_value_however_it_begins(tmp_path: Path) -> None:
    (tmp_path / "secrets").write_text("east = ${vault:x}=y\n", encoding="utf-8")
    loaded = load_config(configuration(tmp_path, "${file:secrets:east}"))
    assert loaded.cluster("east").control["sasl.password"] == "${vault:x}=y"


@pytest.mark.parametrize("kind", ["vault", "ENV", "secretsmanager", "aws-secrets", "k8s.secret"])
def test_a_reference_of_another_kind_is_no_password(tmp_path: Path, kind: str) -> None:
    path = configuration(tmp_path, f"${{{kind}:secret/east}}")
    with pytest.raises(
        BadRequest, match=rf"east[.]sasl[.]password: \$\{{{kind}:[.]{{3}}\}} is no reference"
    ) as refused:
        load_config(path)
    assert "secret/east" not in str(refused.value), "it may be the secret"


@pytest.mark.parametrize("password", ["${EAST_PASSWORD}", "x${east.password}", "${}"])
def test_a_reference_without_a_kind_is_no_password(tmp_path: Path, password: str) -> None:
    with pytest.raises(BadRequest, match=r"east[.]sasl[.]password: a reference is written") as refused:
        load_config(configuration(tmp_path, password))
    assert password not in str(refused.value), "it may be the secret"


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("clusters:\n  east: {bootstrap.servers: 'h:1'}\n  east: {bootstrap.servers: 'h:2'}\n", 3, "east"),
        ("clusters:\n  east:\n    bootstrap.servers: 'h:1'\n    bootstrap.servers: 'h:2'\n", 4, "bootstrap.servers"),
    ],
)
def test_a_key_that_occurs_twice_is_refused_with_its_line(tmp_path: Path, text: str, line: int, key: str) -> None:
    path = tmp_path / "mirrorbook.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadRequest, match=rf"line {line}: key '{key}' occurs twice"):
        load_config(path)


@pytest.mark.parametrize(
    ("properties", "refusal"),
    [
        ("bootstrap.servers: east1", "bootstrap.servers: 'east1' is not host:port"),
        ("bootstrap.servers: 'h:1', security.protocol: SASL_SLL", "security.protocol: .* is SASL_SSL meant"),
        ("bootstrap.servers: 'h:1', security.protocol: SASL_SSL", "sasl.mechanism: missing: give one of PLAIN"),
        (
            "bootstrap.servers: 'h:1', security.protocol: SASL_SSL, sasl.mechanism: SCRAM-SHA-1",
            "sasl.mechanism: 'SCRAM-SHA-1' is none of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512",
        ),
        (
            "bootstrap.servers: 'h:1', data: {security.protocol: SASL_SSL, sasl.mechanism: GSSAPI}",
            "data.sasl.mechanism: 'GSSAPI' is none of",
        ),
    ],
)
def test_a_wrong_address_or_login_is_a_mistake_of_the_file(tmp_path: Path, properties: str, refusal: str) -> None:
    path = tmp_path / "mirrorbook.yaml"
    path.write_text(f"clusters: {{east: {{{properties}}}}}\n", encoding="utf-8")
    with pytest.raises(BadRequest, match=rf"clusters\.east\.{refusal}"):
        load_config(path)
