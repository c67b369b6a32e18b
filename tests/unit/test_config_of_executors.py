"""What an executor reads of mirrorbook.yaml: the data principal's secrets, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_core.kafka.config import Principal, load_config
from mirror_core.model.errors import BadRequest

YAML = """
clusters:
  west:
    bootstrap.servers: "near:9092"
    security.protocol: SASL_SSL
    sasl.username: control
    sasl.password: "${{file:control.properties:west}}"
    ssl.key.password: "{key}"
    data:
      {bootstrap}sasl.username: data
      sasl.password: "${{file:data.properties:west}}"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of an executor: there is nothing of the control principal's."""
    (tmp_path / "data.properties").write_text("west=of-data\n", encoding="utf-8")
    return tmp_path


def written(folder: Path, *, key: str = "shared", bootstrap: str = "") -> Path:
    path = folder / "mirrorbook.yaml"
    path.write_text(YAML.format(key=key, bootstrap=bootstrap), encoding="utf-8")
    return path


def test_secrets_of_the_control_principal_are_not_looked_for(folder: Path) -> None:
    path = written(folder)
    with pytest.raises(BadRequest, match=r"clusters.west.sasl.password: .*control.properties cannot be read"):
        load_config(path)
    cluster = load_config(path, only_data=True).cluster("west")
    assert cluster.bootstrap == (("near", 9092),)
    expected = {
        "bootstrap.servers": "near:9092",
        "security.protocol": "SASL_SSL",
        "sasl.username": "data",
        "sasl.password": "of-data",
        "ssl.key.password": "shared",
    }
    assert cluster.properties(Principal.DATA) == expected
    assert cluster.properties(Principal.CONTROL) == expected, "nobody on an executor is anybody else"


def test_what_both_share_is_looked_for(folder: Path) -> None:
    path = written(folder, key="${file:elsewhere.properties:key}")
    with pytest.raises(BadRequest, match=r"clusters.west.ssl.key.password: .*elsewhere.properties cannot be read"):
        load_config(path, only_data=True)


def test_the_data_principals_own_address_is_taken(folder: Path) -> None:
    path = written(folder, bootstrap='bootstrap.servers: "far:9092"\n      ')
    assert load_config(path, only_data=True).cluster("west").bootstrap == (("far", 9092),)
