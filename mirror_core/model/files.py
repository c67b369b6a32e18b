"""Folders that the user named, into which we write: what the system says about them becomes a word to the user."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from mirror_core.model.errors import MirrorError

_WITH_PASSWORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?!\[)[^/?#:]*:(?!\d+[/,?#]).*@")
"""Slashes are common in keys of object stores; a number before the first slash is a port, and
what begins with a bracket a host."""
PASSWORD_APART: Final = (
    "holds a password, which logs and reports would tell: give that to the file system itself, by "
    "spark-defaults.conf or a credential provider, or to Airflow's connection, and the URL without it"
)
ROOM: Final = 32 * 1024 * 1024
"""More than the report of a comparison of 50,000 partitions."""


def holds_password(place: str) -> bool:
    """Whether it is a URL whose user has one."""
    return _WITH_PASSWORD.match(place) is not None


class Unwritable(MirrorError):
    """A file or folder that we were told to write cannot be written."""

    exit_code = 2


@contextmanager
def writing(what: str, path: Path, advice: str) -> Iterator[None]:
    """Unwritable for what the system refuses meanwhile. `advice`: what the user can do, such as another option."""
    try:
        yield
    except OSError as error:
        raise _unwritable(what, path, error.strerror or type(error).__name__, advice) from None


def check_writable(what: str, folder: Path, advice: str) -> None:
    """Unwritable when this folder cannot be written to, or cannot be made. Makes nothing: it is asked before work."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise _unwritable(what, folder, f"{there} is not a folder", advice)
    if not os.access(there, os.W_OK | os.X_OK):
        raise _unwritable(what, folder, f"no right to write in {there}", advice)


def check_room(what: str, folder: Path, advice: str) -> None:
    """Unwritable when this folder, which is there, does not take ROOM bytes now. Leaves nothing behind."""
    with writing(what, folder, advice), TemporaryFile(dir=folder) as probe:
        probe.write(bytes(ROOM))
        probe.flush()
        os.fsync(probe.fileno())


def sync_all(folder: Path) -> None:
    """Wait until a folder and all that is in it survives a power cut."""
    for path in (*folder.rglob("*"), folder):
        sync(path)


def sync(path: Path) -> None:
    """The same for a file's content alone, or for the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unwritable(what: str, path: Path, why: str, advice: str) -> Unwritable:
    return Unwritable(f"{what}: {path} cannot be written: {why}: {advice}")
