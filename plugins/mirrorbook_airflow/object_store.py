"""Object stores by Airflow's `ObjectStoragePath`: receipts without Spark, and salvaged records."""

from __future__ import annotations

import os
import posixpath
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mirror_core.model.errors import BadRequest
from mirror_core.model.files import Unwritable
from mirrorbook_airflow.params import read_salvage_location

if TYPE_CHECKING:
    from mirror_core.model.names import ClusterIdentity, Partition
    from mirror_core.model.parity_verdict import ParityRange, SalvagedPartition
    from mirror_core.runbook.run_services import TailSalvage

SALVAGE_ADVICE: Final = "nothing was deleted: mend it, then clear the task"
_HIDDEN: Final = ("_", ".")
"""Names that readers of a folder skip: see `evidence.file_store`."""


class ObjectFolder:
    """An `evidence.file_store.Folder`. Files appear whole; the bucket's policy says who may read them."""

    def __init__(self, url: str) -> None:
        """BadRequest where no provider of this Airflow knows such a file system."""
        from airflow.sdk import ObjectStoragePath  # brings fsspec, and is wanted by few tasks

        self.where = url.rstrip("/")
        try:
            root = ObjectStoragePath(self.where)
            self._files, self._root = root.fs, root.path.rstrip("/")
        except (ValueError, ImportError) as error:
            raise BadRequest(
                f"{url}: this Airflow knows no such file system: {error}; install the provider that brings it, such as "
                "apache-airflow-providers-amazon[s3fs] or apache-airflow-providers-google"
            ) from None

    def check(self, what: str, advice: str) -> None:
        """Writes and removes a file: whether one may, only the store can tell."""
        self.write(what, "_mirrorbook", b"", advice)
        self.remove(what, "_mirrorbook", advice)

    def write(self, what: str, name: str, content: bytes, advice: str) -> None:
        with self._translate_write_errors(what, name, advice):
            self._files.pipe_file(self._make_path(name), content)

    def read(self, name: str) -> bytes:
        with self._translate_read_errors(name):
            return bytes(self._files.cat_file(f"{self._root}/{name}"))

    def beginning(self, name: str, size: int) -> bytes:
        with self._translate_read_errors(name), self._files.open(f"{self._root}/{name}", "rb") as file:
            return bytes(file.read(size))

    def remove(self, what: str, name: str, advice: str) -> None:
        with self._translate_write_errors(what, name, advice):
            if self._files.exists(f"{self._root}/{name}"):
                self._files.rm_file(f"{self._root}/{name}")

    def names(self, under: str = "") -> list[str]:
        return [name for name in self.every(under) if not posixpath.basename(name).startswith(_HIDDEN)]

    def every(self, under: str = "") -> list[str]:
        """Also hidden files."""
        with self._translate_read_errors(under):
            self._files.invalidate_cache()
            paths = self._files.find(f"{self._root}/{under}".rstrip("/"))
            return sorted(posixpath.relpath(path.lstrip("/"), self._root.lstrip("/")) for path in paths)

    def upload(self, what: str, file: Path, name: str) -> None:
        with self._translate_write_errors(what, name, SALVAGE_ADVICE):
            self._files.put_file(str(file), self._make_path(name))

    def download(self, name: str, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._translate_read_errors(name):
            self._files.get_file(f"{self._root}/{name}", str(file))

    def _make_path(self, name: str) -> str:
        """Creates folders on a local file system only."""
        path = f"{self._root}/{name}"
        if "file" in self._files.protocol:
            self._files.makedirs(posixpath.dirname(path), exist_ok=True)
        return path

    @contextmanager
    def _translate_write_errors(self, what: str, name: str, advice: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - each provider has errors of its own, with texts of its own
            where = f"{self.where}/{name}".rstrip("/")
            raise Unwritable(f"{what}: {where} cannot be written: {_format_error(error)}: {advice}") from None

    @contextmanager
    def _translate_read_errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.where}/{name}: there is no such file") from None
        except Exception as error:  # noqa: BLE001 - as above
            raise OSError(f"{self.where}/{name} cannot be read: {_format_error(error)}") from None


@contextmanager
def copy_to_object_store(folder: Path) -> Iterator[None]:
    """Copies the folder to the object store on success: only then may records be deleted.

    A salvage that another worker finished is downloaded first.
    """
    from mirror_core.evidence.file_store import refuse_password
    from mirror_core.parity.salvage import MANIFEST

    place = read_salvage_location()
    if not place:
        yield
        return
    refuse_password(place)
    what, under = "salvaged records", f"{folder.parent.name}/{folder.name}"
    store = ObjectFolder(place)
    manifest = f"{under}/{MANIFEST}"
    try:
        stored_names = store.every(under)
        finished = manifest in stored_names  # it is the last file to be written
        if finished and not folder.exists():
            _download_folder(store, under, stored_names, folder)
    except OSError as error:
        raise Unwritable(f"{what}: {error}: {SALVAGE_ADVICE}") from None
    yield
    if finished:
        return
    for name in stored_names:  # of an attempt that was killed: its files may have had other names
        store.remove(what, name, SALVAGE_ADVICE)
    local_names = [f"{under}/{path.relative_to(folder).as_posix()}" for path in folder.rglob("*") if path.is_file()]
    for name in sorted(local_names, key=manifest.__eq__):
        store.upload(what, folder / posixpath.relpath(name, under), name)


def _download_folder(store: ObjectFolder, under: str, names: Sequence[str], folder: Path) -> None:
    """Atomic: a killed worker leaves no partial folder."""
    incomplete = folder.with_name(f"_{folder.name}.fetched")
    shutil.rmtree(incomplete, ignore_errors=True)
    for name in names:
        store.download(name, incomplete / posixpath.relpath(name, under))
    os.replace(incomplete, folder)


def wrap_salvage(salvage: TailSalvage) -> TailSalvage:
    """Returns only when the records are in the object store."""

    def salvage_and_copy(
        cluster: ClusterIdentity, ranges: Sequence[ParityRange], output: Path, against: ClusterIdentity | None = None
    ) -> dict[Partition, SalvagedPartition]:
        with copy_to_object_store(output):
            return salvage(cluster, ranges, output, against)

    return salvage_and_copy


def _format_error(error: Exception) -> str:
    """Without the provider's text, which may hold secrets."""
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
