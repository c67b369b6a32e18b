"""What an executor reads of mirrorbook.yaml: the data principal's secrets, and no others; and who only looks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mirror_core.kafka.config import Principal, find_config, load_config
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
    cluster = load_config(path, only=Principal.DATA).cluster("west")
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


def test_whoever_only_looks_reads_of_the_data_principal_who_it_is(tmp_path: Path) -> None:
    path = written(tmp_path)
    (tmp_path / "control.properties").write_text("west=of-control\n", encoding="utf-8")
    with pytest.raises(BadRequest, match=r"clusters.west.data.sasl.password: .*data.properties cannot be read"):
        load_config(path)
    cluster = load_config(path, only=Principal.CONTROL).cluster("west")
    assert cluster.properties()["sasl.password"] == "of-control"
    assert (cluster.user(), cluster.user(Principal.DATA)) == ("control", "data")


def test_what_both_share_is_looked_for(folder: Path) -> None:
    path = written(folder, key="${file:elsewhere.properties:key}")
    with pytest.raises(BadRequest, match=r"clusters.west.ssl.key.password: .*elsewhere.properties cannot be read"):
        load_config(path, only=Principal.DATA)


def test_the_data_principals_own_address_is_taken(folder: Path) -> None:
    path = written(folder, bootstrap='bootstrap.servers: "far:9092"\n      ')
    assert load_config(path, only=Principal.DATA).cluster("west").bootstrap == (("far", 9092),)


def test_a_volume_of_kubernetes_is_read_where_it_leads_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are links into a folder that is another one after each change, and on each machine."""
    volume = tmp_path / "volume"
    for name, secret in (("..1", "old"), ("..2", "new")):
        (volume / name).mkdir(parents=True)
        (volume / name / "data.properties").write_text(f"west={secret}\n", encoding="utf-8")
        written(volume / name)
    (volume / "..data").symlink_to("..1")
    for name in ("mirrorbook.yaml", "data.properties"):
        (volume / name).symlink_to(f"..data/{name}")
    monkeypatch.chdir(volume)
    path = find_config(Path("mirrorbook.yaml"))
    assert load_config(path, only=Principal.DATA).cluster("west").data["sasl.password"] == "old"

    (volume / ".new").symlink_to("..2")
    (volume / ".new").replace(volume / "..data")
    shutil.rmtree(volume / "..1")
    monkeypatch.chdir(tmp_path)
    assert load_config(path, only=Principal.DATA).cluster("west").data["sasl.password"] == "new"
