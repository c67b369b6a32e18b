"""Stores files atomically, on this host or through Spark (`s3a://`, `hdfs://`)."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

from mirror_core.model.errors import BadRequest
from mirror_core.model.files import PASSWORD_ADVICE, check_writable, has_password, report_write_errors, sync_path

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HIDDEN: Final = ("_", ".")
"""Prefixes that Spark and pyarrow skip: half-written files are never read."""


class Folder(Protocol):
    """Names are relative, with slashes. Write errors raise Unwritable, read errors OSError."""

    where: str

    def check(self, what: str, advice: str) -> None: ...

    def write(self, what: str, name: str, content: bytes, advice: str) -> None:
        """Atomic and durable."""

    def read(self, name: str) -> bytes: ...

    def remove(self, what: str, name: str, advice: str) -> None: ...

    def names(self, under: str = "") -> list[str]: ...


def is_url(location: str) -> bool:
    """`file://` is local."""
    match = _SCHEME.match(location)
    return match is not None and match[1].lower() != "file"


def refuse_password(location: str) -> None:
    if has_password(location):
        raise BadRequest(f"the URL of a folder {PASSWORD_ADVICE}")


def open_local_folder(location: str, *, private: bool = False) -> LocalFolder:
    refuse_password(location)
    if is_url(location):
        raise BadRequest(f"{location}: only Spark reaches this file system: use --runner spark, or give a folder here")
    return LocalFolder(Path(location.removeprefix("file://")).absolute(), private=private)


def check_inside(name: str) -> str:
    """BadRequest for a path that leads out: some come from the state topic."""
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts:
        raise BadRequest(f"{name!r} is no file of this folder: it leads out of it")
    return name


class LocalFolder:
    """`private`: readable by this user only."""

    def __init__(self, path: Path, *, private: bool = False) -> None:
        self.path = path
        self.where = str(path)
        self._folders, self._files = (0o700, 0o600) if private else (0o777, 0o666)

    def check(self, what: str, advice: str) -> None:
        check_writable(what, self.path, advice)

    def write(self, what: str, name: str, content: bytes, advice: str) -> None:
        final_path = self.path / check_inside(name)
        temporary_path = final_path.with_name(f"_{final_path.name}.{os.getpid()}")
        with report_write_errors(what, final_path, advice):
            for folder in (*reversed(final_path.parent.parents), final_path.parent):
                if not folder.exists():
                    folder.mkdir(mode=self._folders, exist_ok=True)
            handle = os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, self._files)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary_path, final_path)
            sync_path(final_path.parent)

    def read(self, name: str) -> bytes:
        return (self.path / check_inside(name)).read_bytes()

    def remove(self, what: str, name: str, advice: str) -> None:
        with report_write_errors(what, self.path / name, advice):
            (self.path / check_inside(name)).unlink(missing_ok=True)

    def names(self, under: str = "") -> list[str]:
        paths = (p for p in (self.path / under).rglob("*") if p.is_file() and not p.name.startswith(_HIDDEN))
        return sorted(p.relative_to(self.path).as_posix() for p in paths)
