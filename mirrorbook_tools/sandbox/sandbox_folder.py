"""The sandbox's folder: claimed only when it is ours, used by one at a time, and cleared of nothing but our own."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mirror_core.model.errors import BadRequest
from mirrorbook_tools.sandbox.credentials import SECRETS_FILE
from mirrorbook_tools.sandbox.errors import SandboxFailed
from mirrorbook_tools.sandbox.state import STATE_FILE
from mirrorbook_tools.sandbox.wan_process import LOG_FILE, TAKEN_UP_FILE, WEATHER_FILE

NAMES: Final = ("east", "west")
LOCK_FILE: Final = "lock"
_REPLACED: Final = (STATE_FILE, SECRETS_FILE, WEATHER_FILE, TAKEN_UP_FILE)
FILES: Final = (*_REPLACED, *(name + ".new" for name in _REPLACED), LOCK_FILE, LOG_FILE)


def claim(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise BadRequest(f"{folder} is not a folder: choose another --dir")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    refuse_foreign(folder)


def refuse_foreign(folder: Path) -> None:
    """`down --delete` must never meet a folder that holds somebody's own files and no sandbox."""
    if (folder / STATE_FILE).exists():
        return
    if foreign := sorted(set(os.listdir(folder)) - {*NAMES, *FILES}):
        raise BadRequest(f"{folder} is not a sandbox and not empty (it holds {foreign[0]}): choose another --dir")


def clear(folder: Path) -> None:
    """Remove what we made; the folder itself only when nothing else is in it."""
    for name in NAMES:
        if (folder / name).exists():
            shutil.rmtree(folder / name)
    for file in FILES:
        (folder / file).unlink(missing_ok=True)
    if not os.listdir(folder):
        folder.rmdir()


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """One `up` or `down` at a time; the kernel gives the lock back when its holder dies."""
    path = folder / LOCK_FILE
    with open(path, "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A `down --delete` that held it may have removed the file: then this lock protects nothing.
            current = os.path.exists(path) and os.path.samestat(os.fstat(lock.fileno()), os.stat(path))
        except BlockingIOError:
            current = False
        if not current:
            raise SandboxFailed(
                f"another `mirrorbook sandbox up` or `down` is at work in {folder}: wait for it, then try again"
            )
        yield
