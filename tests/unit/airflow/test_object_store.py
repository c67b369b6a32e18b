"""Folders of an object store, and salvaged records that outlive the worker that saved them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from airflow.sdk.io import attach
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]
from mirrorbook_airflow import control_tasks, object_store
from mirrorbook_airflow.object_store import ObjectFolder, copy_to_object_store, wrap_salvage
from mirrorbook_airflow.worker_services import make_services

from mirror_core.decide.failure_remedies import RecoveryAction
from mirror_core.evidence.file_store import Folder
from mirror_core.mirrors import partition_recovery
from mirror_core.model.errors import BadRequest
from mirror_core.model.files import Unwritable
from mirror_core.model.names import ClusterIdentity, ClusterName, Offset, Partition
from mirror_core.model.parity_verdict import ParityRange, SalvagedPartition
from mirror_core.parity.salvage import MANIFEST
from tests.support.task_context import CONTEXT

URL = "memory://bucket/mirrorbook"
EAST = ClusterIdentity(ClusterName("east"), "id-of-east")
RANGE = ParityRange(partition=Partition("t", 0), start=Offset(3), end=Offset(5))
SAVED = {RANGE.partition: SalvagedPartition(requested_range=RANGE, log_start=Offset(0), records=2)}


class Killed(BaseException):
    """The process ends here."""


class Store(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """An object store in memory, which may fail or be cut off at each file that it is given."""

    store: dict[str, Any] = {}  # noqa: RUF012 - of this class alone
    pseudo_dirs = [""]  # noqa: RUF012
    fails: BaseException | None = None
    left = 1_000_000

    def put_file(self, lpath: str, rpath: str, *args: Any, **kwargs: Any) -> None:
        if self.left == 0:
            raise self.fails or Killed
        Store.left -= 1
        self.pipe_file(rpath, Path(lpath).read_bytes())


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("AIRFLOW__MIRRORBOOK__SALVAGE", URL)
    monkeypatch.setattr(Store, "store", {})
    monkeypatch.setattr(Store, "left", 1_000_000)
    monkeypatch.setattr(Store, "fails", None)
    made = Store(skip_instance_cache=True)
    attach("memory", fs=made)
    return made


def test_a_folder_of_an_object_store_is_a_folder(store: Store) -> None:
    folder: Folder = ObjectFolder(f"{URL}/")
    assert folder.names() == []
    folder.check("evidence", "mend it")
    assert folder.names() == []
    folder.write("evidence", "run-1/a.json", b"1", "mend it")
    folder.write("evidence", "run-1/a.json", b"2", "mend it")
    folder.write("evidence", "run-1/_half", b"x", "mend it")
    folder.write("evidence", "run-10/b.json", b"", "mend it")
    assert (folder.names(), folder.names("run-1")) == (["run-1/a.json", "run-10/b.json"], ["run-1/a.json"])
    assert folder.read("run-1/a.json") == b"2"
    assert folder.where == URL
    for _ in range(2):
        folder.remove("evidence", "run-1/a.json", "mend it")
    with pytest.raises(FileNotFoundError, match=f"{URL}/run-1/a.json"):
        folder.read("run-1/a.json")


def test_what_a_store_refuses_is_said_without_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise RuntimeError("key AKIA-secret is not allowed")

    folder = ObjectFolder(URL)
    monkeypatch.setattr(Store, "pipe_file", refuse)
    monkeypatch.setattr(Store, "cat_file", refuse)
    with pytest.raises(Unwritable, match=rf"^evidence: {URL}/a cannot be written: RuntimeError: mend it$"):
        folder.write("evidence", "a", b"", "mend it")
    with pytest.raises(OSError, match=rf"^{URL}/a cannot be read: RuntimeError$"):
        folder.read("a")


def test_a_file_system_that_nobody_knows_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"what://x/y: this Airflow knows no such file system: .*install the provider"):
        ObjectFolder("what://x/y")


class Salvaging:
    """Workers that salvage the same tail, each with a disk of its own. Records can be deleted once one has told."""

    def __init__(self) -> None:
        self.attempts = 0
        self.deleted = False

    def __call__(
        self,
        cluster: ClusterIdentity,
        ranges: Sequence[ParityRange],
        output: Path,
        against: ClusterIdentity | None = None,
    ) -> dict[Partition, SalvagedPartition]:
        """As `parity.salvage` does: found done, it is told again. Files have other names each time, as Spark's have."""
        if not output.exists():
            assert not self.deleted, "salvaged once more, of a log that was cut"
            self.attempts += 1
            (output / "part").mkdir(parents=True)
            for number in range(3):
                (output / "part" / f"{self.attempts}-{number}.parquet").write_text(f"{number}", encoding="utf-8")
            (output / "_SUCCESS").touch()
            (output / MANIFEST).write_text("all", encoding="utf-8")
        return SAVED


def whole(folder: Path) -> bool:
    """What somebody who fetches the folder finds: each record once, and the manifest."""
    records = sorted(path.read_text(encoding="utf-8") for path in folder.rglob("*.parquet"))
    return records == ["0", "1", "2"] and (folder / MANIFEST).exists()


def fetched(folder: Path) -> Path:
    store = ObjectFolder(URL)
    for name in store.every():
        store.download(name, folder / name)
    return folder


@pytest.mark.parametrize("cut", range(6))
def test_nothing_is_told_before_it_is_in_the_store_wherever_a_worker_dies(cut: int, tmp_path: Path) -> None:
    """The first worker dies at this file; the second one begins with an empty disk; the third only asks again."""
    salvaging = Salvaging()
    told = False
    Store.left = cut
    try:
        wrap_salvage(salvaging)(EAST, [RANGE], tmp_path / "one" / "run-r" / "salvage")
        told = True
    except Killed:
        pass
    assert told == (cut == 5)
    Store.left = 1_000_000
    assert wrap_salvage(salvaging)(EAST, [RANGE], tmp_path / "two" / "run-r" / "salvage") == SAVED
    salvaging.deleted = True
    assert wrap_salvage(salvaging)(EAST, [RANGE], tmp_path / "three" / "run-r" / "salvage") == SAVED
    for place in (fetched(tmp_path / "fetched") / "run-r" / "salvage", tmp_path / "three" / "run-r" / "salvage"):
        assert whole(place), place


def test_the_same_worker_goes_on_with_what_it_has_saved(tmp_path: Path) -> None:
    salvaging, output = Salvaging(), tmp_path / "run-r" / "salvage"
    Store.left, Store.fails = 2, PermissionError(13, "Permission denied")
    with pytest.raises(Unwritable, match=r"salvaged records: .*Permission denied: nothing was deleted: mend it"):
        wrap_salvage(salvaging)(EAST, [RANGE], output)
    Store.left = 1_000_000
    wrap_salvage(salvaging)(EAST, [RANGE], output)
    assert salvaging.attempts == 1
    assert whole(fetched(tmp_path / "fetched") / "run-r" / "salvage")


def test_a_store_that_does_not_answer_is_said_before_anything_is_salvaged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def silent(*arguments: object, **options: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(Store, "find", silent)
    salvaging = Salvaging()
    with pytest.raises(Unwritable, match=f"{URL}/run-r/salvage cannot be read: TimeoutError: nothing was deleted"):
        wrap_salvage(salvaging)(EAST, [RANGE], tmp_path / "run-r" / "salvage")
    assert salvaging.attempts == 0


def test_without_a_place_nothing_else_is_written(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIRFLOW__MIRRORBOOK__SALVAGE", "")
    wrap_salvage(Salvaging())(EAST, [RANGE], tmp_path / "run-r" / "salvage")
    assert store.store == {}


def test_all_who_delete_have_their_salvage_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A failback's steps with Spark and without, and a recovery."""
    monkeypatch.setattr("airflow.configuration.AIRFLOW_HOME", str(tmp_path))
    seen = list[Any]()

    def noted(salvage: Any) -> Any:
        seen.append(salvage)
        return salvage

    monkeypatch.setattr("mirrorbook_airflow.worker_services.wrap_salvage", noted)
    for master in ("none", "local[*]"):
        monkeypatch.setenv("AIRFLOW__MIRRORBOOK__EXECUTORS_CONFIG", "/etc/m.yaml")
        assert make_services(Path("m.yaml"), ["salvage"], master).salvage is seen[-1]
    assert [type(one).__name__ for one in seen] == ["LocalSalvage", "SparkSalvage"]
    order = list[str]()
    plan = cast("Any", type("Seen", (), {"proposals": (1,), "actionable": (1,), "hash": "h"})())
    monkeypatch.setattr(
        control_tasks, "_plan_recovery", lambda link, context: (plan, tmp_path / "orders" / "recover-1")
    )
    monkeypatch.setattr(partition_recovery, "check_approved_plan", lambda link, seen, shown: None)
    monkeypatch.setattr(partition_recovery, "salvage_lost_records", lambda link, seen, folder, say: _save(folder))
    monkeypatch.setattr(
        partition_recovery, "recover_partitions", lambda link, seen, say: order.extend(ObjectFolder(URL).every())
    )
    monkeypatch.setattr("mirror_core.mirrors.recovery_plan.format_done", lambda seen: ())
    assert RecoveryAction(CONTEXT["params"]["recover_action"]) is RecoveryAction.RECOPY
    link: Any = type("Link", (), {"mirror": type("M", (), {"name": "orders"})})
    control_tasks._recover(link, CONTEXT, control_tasks.ControlChange("h", ""))
    assert order == [f"orders/recover-1/{MANIFEST}"], "it was in the store before anything was deleted"


def _save(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / MANIFEST).touch()


@pytest.mark.parametrize("cut", range(6))
def test_a_fetched_salvage_is_complete_or_not_there(cut: int, tmp_path: Path) -> None:
    """The worker that fetches it dies meanwhile, and begins again with the disk that it left."""
    wrap_salvage(Salvaging())(EAST, [RANGE], tmp_path / "one" / "run-r" / "salvage")
    folder, fetched_so_far = tmp_path / "two" / "run-r" / "salvage", list[str]()

    class Mortal(ObjectFolder):
        def download(self, name: str, file: Path) -> None:
            if len(fetched_so_far) == cut:
                raise Killed
            fetched_so_far.append(name)
            super().download(name, file)

    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        patch.setattr(object_store, "ObjectFolder", Mortal)
        with copy_to_object_store(folder):
            pass
    assert folder.exists() == (cut == 5)
    with copy_to_object_store(folder):
        assert whole(folder)


def test_a_folder_of_this_machine_will_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A shared one, say."""
    monkeypatch.setenv("AIRFLOW__MIRRORBOOK__SALVAGE", f"file://{tmp_path}/shared")
    wrap_salvage(Salvaging())(EAST, [RANGE], tmp_path / "one" / "run-r" / "salvage")
    assert whole(tmp_path / "shared" / "run-r" / "salvage")
    wrap_salvage(Salvaging())(EAST, [RANGE], tmp_path / "two" / "run-r" / "salvage")
    assert whole(tmp_path / "two" / "run-r" / "salvage")
