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
"""Keys of object stores may hold slashes. A number before the first slash is a port, a bracket begins
a host."""
PASSWORD_APART: Final = (
    "holds a password, which logs and reports would tell: give that to the file system itself, by "
    "spark-defaults.conf or a credential provider, or to Airflow's connection, and the URL without it"
)
ROOM: Final = 32 * 1024 * 1024
"""More than a parity report of 50,000 partitions."""


def holds_password(place: str) -> bool:
    return _WITH_PASSWORD.match(place) is not None


class Unwritable(MirrorError):
    exit_code = 2


@contextmanager
def writing(what: str, path: Path, advice: str) -> Iterator[None]:
    """Raises Unwritable for an OSError, with advice."""
    try:
        yield
    except OSError as error:
        raise _unwritable(what, path, error.strerror or type(error).__name__, advice) from None


def check_writable(what: str, folder: Path, advice: str) -> None:
    """Raises Unwritable. Creates nothing."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise _unwritable(what, folder, f"{there} is not a folder", advice)
    if not os.access(there, os.W_OK | os.X_OK):
        raise _unwritable(what, folder, f"no right to write in {there}", advice)


def check_room(what: str, folder: Path, advice: str) -> None:
    """Raises Unwritable without MIN_FREE_BYTES of space. Leaves nothing."""
    with writing(what, folder, advice), TemporaryFile(dir=folder) as probe:
        probe.write(bytes(ROOM))
        probe.flush()
        os.fsync(probe.fileno())


def sync_all(folder: Path) -> None:
    """Flushes a folder and its content to disk."""
    for path in (*folder.rglob("*"), folder):
        sync(path)


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unwritable(what: str, path: Path, why: str, advice: str) -> Unwritable:
    return Unwritable(f"{what}: {path} cannot be written: {why}: {advice}")
