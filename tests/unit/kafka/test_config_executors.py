"""What an executor reads of mirrorbook.yaml: the data principal's secrets, and no others; and who only looks."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from mirror_core.decide.parity_result import ParityRow
from mirror_core.kafka.config import Principal, find_config, load_config, register_config_text
from mirror_core.model.errors import BadRequest
from mirror_core.model.names import ClusterIdentity, ClusterName, Offset, Partition
from mirror_core.model.parity_verdict import ParityRange
from mirror_core.parity import check, salvage
from mirror_core.parity.compare import CompareTask
from mirror_core.parity.salvage import SalvageTask

YAML = """
clusters:
  west:
    bootstrap.servers: "near:9092"
    security.protocol: SASL_SSL
    sasl.mechanism: PLAIN
    sasl.username: control
    sasl.password: "${{file:control.properties:west}}"
    ssl.key.password: "{key}"
    data:
      {bootstrap}sasl.username: data
      sasl.password: "${{file:data.properties:west}}"
"""

EMPTY = 'clusters: {west: {bootstrap.servers: "near:9092"}}'


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
    cluster = load_config(path, only_principal=Principal.DATA).cluster("west")
    assert cluster.bootstrap == (("near", 9092),)
    expected = {
        "bootstrap.servers": "near:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
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
    cluster = load_config(path, only_principal=Principal.CONTROL).cluster("west")
    assert cluster.properties()["sasl.password"] == "of-control"
    assert (cluster.user(), cluster.user(Principal.DATA)) == ("control", "data")


def test_what_both_share_is_looked_for(folder: Path) -> None:
    path = written(folder, key="${file:elsewhere.properties:key}")
    with pytest.raises(BadRequest, match=r"clusters.west.ssl.key.password: .*elsewhere.properties cannot be read"):
        load_config(path, only_principal=Principal.DATA)


def test_the_data_principals_own_address_is_taken(folder: Path) -> None:
    path = written(folder, bootstrap='bootstrap.servers: "far:9092"\n      ')
    assert load_config(path, only_principal=Principal.DATA).cluster("west").bootstrap == (("far", 9092),)


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
    assert load_config(path, only_principal=Principal.DATA).cluster("west").data["sasl.password"] == "old"

    (volume / ".new").symlink_to("..2")
    (volume / ".new").replace(volume / "..data")
    shutil.rmtree(volume / "..1")
    monkeypatch.chdir(tmp_path)
    assert load_config(path, only_principal=Principal.DATA).cluster("west").data["sasl.password"] == "new"


@pytest.mark.parametrize("other", [None, Path("/etc/mirrorbook.yaml")])
def test_tasks_that_compare_are_told_the_drivers_own_name_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: Path | None
) -> None:
    """Not what a link leads to, which is elsewhere on an executor; or the file that is theirs."""
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mirrorbook.yaml").write_text(EMPTY, encoding="utf-8")
    (tmp_path / "mirrorbook.yaml").symlink_to("target/mirrorbook.yaml")
    path, told = tmp_path / "mirrorbook.yaml", list[str]()
    wanted = ParityRange(partition=Partition("t", 0), start=Offset(0), end=Offset(5))

    def compared(tasks: Sequence[CompareTask]) -> tuple[tuple[ParityRow, ...], ...]:
        told.extend(task.config_path for task in tasks)
        return ()

    def saved(tasks: Sequence[SalvageTask], folder: Path) -> None:
        told.extend(task.config_path for task in tasks)

    monkeypatch.setattr(check, "compare_ends", lambda *asked: ([], [wanted]))
    west = ClusterIdentity(ClusterName("west"), "id")
    check.check_parity(
        path, west, west, [wanted], None, run=compared, tasks=1, level=3, chunk=10, demands=None, opened_by_tasks=other
    )
    monkeypatch.setattr(salvage, "ClusterClient", lambda cluster: nullcontext())
    monkeypatch.setattr(salvage, "list_offsets", lambda client, asked, point: dict.fromkeys(asked, Offset(0)))
    monkeypatch.setattr(salvage, "count_records", lambda task: 0)
    salvage.salvage_records(path, west, [wanted], tmp_path / "saved", write=saved, opened_by_tasks=other)
    assert told == [str(other or path)] * 2


def test_a_configuration_that_no_disk_has_is_read_as_a_file_is(folder: Path) -> None:
    path = folder / "held.yaml"
    register_config_text(path, YAML.format(key="shared", bootstrap=""))
    assert not path.exists()
    cluster = load_config(path, only_principal=Principal.DATA).cluster("west")
    assert cluster.data["sasl.password"] == "of-data", "relative to the folder that its path names"
    with pytest.raises(BadRequest, match=r"held.yaml: clusters.west.sasl.password: .*control.properties cannot be"):
        load_config(path)


def test_a_password_that_was_replaced_is_read_anew_and_one_that_is_half_written_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path)
    secrets = {name: tmp_path / f"{name}.properties" for name in ("control", "data")}
    for name, file in secrets.items():
        file.write_text(f"west=of-{name}\n", encoding="utf-8")
    cluster = load_config(path).cluster("west")

    def passwords() -> tuple[str, ...]:
        return tuple(cluster.properties(one)["sasl.password"] for one in (Principal.CONTROL, Principal.DATA))

    assert passwords() == ("of-control", "of-data")
    secrets["data"].write_text("", encoding="utf-8")
    assert passwords() == ("of-control", "of-data")
    assert "goes on with what was read before" in caplog.text
    assert "of-data" not in caplog.text
    secrets["data"].write_text("west=replaced\n", encoding="utf-8")
    assert passwords() == ("of-control", "replaced")
    secrets["control"].unlink()
    assert passwords() == ("of-control", "replaced")
