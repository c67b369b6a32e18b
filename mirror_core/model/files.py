from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from mirror_core.model.errors import MirrorError

_URL_WITH_PASSWORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?!\[)[^/?#:]*:(?!\d+[/,?#]).*@")
"""Keys of object stores may hold slashes. A number before the first slash is a port, a bracket begins a host."""
PASSWORD_ADVICE: Final = (
    "holds a password, which logs and reports would tell: give that to the file system itself, by "
    "spark-defaults.conf or a credential provider, or to Airflow's connection, and the URL without it"
)
MIN_FREE_BYTES: Final = 32 * 1024 * 1024
"""More than a parity report of 50,000 partitions."""


def has_password(url: str) -> bool:
    return _URL_WITH_PASSWORD.match(url) is not None


class Unwritable(MirrorError):
    exit_code = 2


@contextmanager
def report_write_errors(subject: str, path: Path, advice: str) -> Iterator[None]:
    """Turns an OSError into Unwritable."""
    try:
        yield
    except OSError as error:
        raise _make_unwritable(subject, path, error.strerror or type(error).__name__, advice) from None


def check_writable(subject: str, folder: Path, advice: str) -> None:
    """Raises Unwritable. Creates nothing."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise _make_unwritable(subject, folder, f"{existing} is not a folder", advice)
    if not os.access(existing, os.W_OK | os.X_OK):
        raise _make_unwritable(subject, folder, f"no right to write in {existing}", advice)


def check_free_space(subject: str, folder: Path, advice: str) -> None:
    """Raises Unwritable. Leaves nothing."""
    with report_write_errors(subject, folder, advice), TemporaryFile(dir=folder) as probe:
        probe.write(bytes(MIN_FREE_BYTES))
        probe.flush()
        os.fsync(probe.fileno())


def sync_tree(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        sync_path(path)


def sync_path(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _make_unwritable(subject: str, path: Path, reason: str, advice: str) -> Unwritable:
    return Unwritable(f"{subject}: {path} cannot be written: {reason}: {advice}")
