"""A folder for evidence behaves the same on this machine and on a file system that only Spark reaches."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mirror_core.dataplane.task_runner import LocalRunner
from mirror_core.evidence import receipt_files
from mirror_core.evidence.file_store import Folder, LocalFolder, is_url, open_local_folder
from mirror_core.evidence.signed_bundle import copy_bundle, verify_bundle
from mirror_core.model.errors import BadRequest
from mirror_core.model.files import Unwritable
from mirror_core.spark.hadoop_store import HadoopFolder
from tests.support.evidence_desk import Desk, plan
from tests.support.receipt_files import rows
from tests.support.sample_receipts import MIRROR, receipt

pytestmark = pytest.mark.spark
Make = Callable[[Path], Folder]


@pytest.fixture(params=["local", "hadoop"])
def make(request: pytest.FixtureRequest, spark: SparkSession) -> Make:
    if request.param == "local":
        return LocalFolder
    return lambda path: HadoopFolder(spark.sparkContext, path.as_uri())


def test_what_was_written_is_read_whole_and_found_by_its_name(make: Make, tmp_path: Path) -> None:
    folder = make(tmp_path / "new")
    content = bytes(range(256)) * 4096
    folder.check("receipts", "advice")
    folder.write("receipts", "mirror=a%20b/date=2026-11-23/epoch-1.parquet", content, "advice")
    folder.write("receipts", "top", b"", "advice")
    assert folder.names() == ["mirror=a%20b/date=2026-11-23/epoch-1.parquet", "top"]
    assert folder.names("mirror=a%20b") == ["mirror=a%20b/date=2026-11-23/epoch-1.parquet"]
    assert folder.read("mirror=a%20b/date=2026-11-23/epoch-1.parquet") == content
    assert folder.read("top") == b""


def test_a_file_written_again_is_the_new_one(make: Make, tmp_path: Path) -> None:
    folder = make(tmp_path)
    for content in (b"first, and longer", b"second"):
        folder.write("receipts", "one", content, "advice")
    assert folder.names() == ["one"]
    assert folder.read("one") == b"second"


def test_what_is_removed_is_gone_and_may_be_removed_again(make: Make, tmp_path: Path) -> None:
    folder = make(tmp_path)
    folder.write("receipts", "day/one", b"1", "advice")
    for _ in range(2):
        folder.remove("receipts", "day/one", "advice")
        assert folder.names() == []


def test_what_is_half_written_is_nobodys(make: Make, tmp_path: Path) -> None:
    (tmp_path / "_one.1").write_bytes(b"half")
    (tmp_path / ".one.crc").write_bytes(b"sum")
    assert make(tmp_path).names() == []


def test_what_is_not_there_is_said(make: Make, tmp_path: Path) -> None:
    folder = make(tmp_path)
    assert folder.names("nowhere") == []
    with pytest.raises(FileNotFoundError):
        folder.read("nowhere")


def test_what_cannot_be_written_is_said_with_the_advice(make: Make, tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"a file")
    folder = make(tmp_path / "taken")
    with pytest.raises(Unwritable, match=r"receipts: .*/taken.* cannot be written: .*: go elsewhere"):
        folder.write("receipts", "one", b"1", "go elsewhere")
    with pytest.raises(Unwritable, match=r"receipts: .*/taken.* cannot be written: .*: go elsewhere"):
        folder.check("receipts", "go elsewhere")


def test_receipts_come_back_from_it(make: Make, tmp_path: Path) -> None:
    folder = make(tmp_path)
    for epoch in (0, 1):
        receipt_files.write_receipts(
            folder, MIRROR, receipt_files.pack_receipts(7, epoch, [receipt(10 * epoch, 10 * epoch + 10, epoch=epoch)])
        )
    assert [row["records"] for row in rows(folder, MIRROR)] == [10, 10]


@pytest.mark.parametrize("by_spark", [False, True])
def test_a_copy_of_evidence_verifies_and_is_for_this_user_only(
    spark: SparkSession, tmp_path: Path, by_spark: bool
) -> None:
    there = tmp_path / "there"
    folder: Folder = (
        HadoopFolder(spark.sparkContext, there.as_uri(), private=True) if by_spark else LocalFolder(there, private=True)
    )
    desk = Desk(tmp_path, "run-1", plan(), None).take().end()
    (desk.folder / "parity").mkdir()
    (desk.folder / "parity" / "rows.parquet").write_bytes(bytes(range(256)))
    assert copy_bundle(desk.folder, desk.write(), folder, None) == f"{folder.where}/run-1"
    for crc in there.rglob(".*.crc"):  # Hadoop's own, of a file system of this machine
        crc.unlink()
    assert verify_bundle(there / "run-1", None).flaws == ()
    modes = {path.name: path.stat().st_mode & 0o777 for path in (there / "run-1").rglob("*")}
    assert (modes["parity"], modes["rows.parquet"], modes["head.json"]) == (0o700, 0o600, 0o600)


@pytest.mark.parametrize("url", ["s3a://bucket/receipts", "nosuch://host/x"])
def test_a_file_system_without_its_jars_is_a_bad_request(spark: SparkSession, url: str) -> None:
    with pytest.raises(BadRequest, match=rf"{url}: Spark cannot use this file system: .*spark.jars.packages"):
        HadoopFolder(spark.sparkContext, url)


def test_without_spark_only_this_machine_is_reached(tmp_path: Path) -> None:
    assert is_url("hdfs://name:8020/x")
    assert not is_url("file:///x")
    assert not is_url("receipts")
    assert open_local_folder(f"file://{tmp_path}").where == str(tmp_path)
    assert open_local_folder("receipts").where == os.path.abspath("receipts")
    with pytest.raises(BadRequest, match="only Spark reaches this file system"):
        LocalRunner().folder("hdfs://name:8020/x")
