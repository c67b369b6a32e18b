"""Reports in the place that bundles are copied to (`evidence.copy_to`), for an API server that sees no worker's disk.

A store may hang, and so may a folder that machines share: each is asked by a thread of its own, and whoever asked waits
for some seconds only.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

from mirror_core.evidence.file_store import is_url
from mirror_core.model.errors import MirrorError
from mirror_core.model.logs import get_logger
from mirrorbook_airflow.object_store import ObjectFolder
from mirrorbook_airflow.page.report_files import report, reports, served

ANSWER_S: Final = 5.0
AT_ONCE: Final = 4
"""Threads that may wait for a store at a time, however many people ask; and as many for this machine's folder."""
HERE: Final = "this machine's folder mirrorbook/evidence"
LARGEST: Final = 32 << 20
"""Bytes of a report: it is held in memory."""
_LOGIN: Final = re.compile(r"//[^/@:]*:.*@|(?<!abfs:)(?<!abfss:)//[^/@]*@")
"""A connection's id, or a key and its secret, which may hold slashes. In Azure's URLs it is a container."""

_log = get_logger(__name__)
T = TypeVar("T")


class NoAnswer(Exception):
    """Why the place told nothing, for the page."""


class TooLarge(Exception):
    """Why a report is not shown, for the page."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Names of a folder's pages, relative to it."""

    here: Sequence[str]
    copied: Sequence[str] = ()
    """Those that only the copy has."""
    trouble: str = ""
    """Why it is not known what there is, here or in the copy; empty: it is known, or no copy is wanted."""


class Copies:
    """All questions of this process. `place`: where copies go; None: nowhere."""

    def __init__(self, answer_s: float = ANSWER_S, at_once: int = AT_ONCE) -> None:
        self._answer_s = answer_s
        self._free = {here: threading.Semaphore(at_once) for here in (True, False)}

    def listing(self, evidence: Path, place: str | None, folder: str) -> Listing:
        """What this machine has, and the copy besides."""
        try:
            here = self._ask(HERE, partial(reports, evidence, folder))
        except NoAnswer as error:
            return Listing([], trouble=str(error))
        if place is None:
            return Listing(here)
        try:
            found = self._ask(place, partial(_listed, place, folder))
        except NoAnswer as error:
            return Listing(here, trouble=str(error))
        return Listing(here, [name for name in found if name not in here])

    def report(self, evidence: Path, place: str | None, folder: str, name: str) -> Path | bytes | None:
        """One of these; None for whatever else is asked for. NoAnswer, TooLarge."""
        found = self._ask(HERE, partial(report, evidence, folder, name))
        if found is not None or place is None:
            return found
        return self._ask(place, partial(_given, place, folder, name))

    def _ask(self, place: str, question: Callable[[], T]) -> T:
        until_s, free = time.monotonic() + self._answer_s, self._free[place is HERE]
        answers: SimpleQueue[T | Exception] = SimpleQueue()

        def ask() -> None:
            try:
                answers.put(question())
            except Exception as error:  # noqa: BLE001 - handed to whoever waits, not swallowed
                answers.put(error)
            finally:
                free.release()

        if not free.acquire(timeout=self._answer_s):
            raise NoAnswer(f"{where(place)}: earlier questions still wait for its answer")
        # Not a pool: a thread that hangs must not keep the API server from ending.
        threading.Thread(target=ask, name="mirrorbook-copies", daemon=True).start()
        try:
            found = answers.get(timeout=max(0.0, until_s - time.monotonic()))
        except Empty:
            raise NoAnswer(f"{where(place)}: no answer within {self._answer_s:g} s") from None
        if isinstance(found, TooLarge):
            raise found
        if isinstance(found, Exception):
            raise NoAnswer(_words(found, place)) from None
        return found


def where(place: str) -> str:
    """For people: without whatever logs in there."""
    return _LOGIN.sub("//", place.rstrip("/"))


def _local(place: str) -> Path:
    return Path(place.removeprefix("file://"))


def _listed(place: str, folder: str) -> list[str]:
    if is_url(place):
        return _names(folder, ObjectFolder(place))
    _readable(_local(place) / folder)
    return reports(_local(place), folder)


def _given(place: str, folder: str, name: str) -> Path | bytes | None:
    if is_url(place):
        return _content(folder, name, ObjectFolder(place))
    _readable(_local(place) / folder)
    if found := report(_local(place), folder, name):
        found.open("rb").close()
    return found


def _readable(folder: Path) -> None:
    """OSError where something of it is hidden from this user: what is hidden is not what is not there."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for _ in os.walk(folder, onerror=refuse):
        pass


def _names(folder: str, store: ObjectFolder) -> list[str]:
    """Names of a store are what anybody wrote there: none that leads elsewhere is one of the folder's."""
    if "/" in folder:
        return []
    inside = f"{folder}/"
    return served(name.removeprefix(inside) for name in store.names(folder) if name.startswith(inside))


def _content(folder: str, name: str, store: ObjectFolder) -> bytes | None:
    if name not in _names(folder, store):
        return None
    try:
        found = store.beginning(f"{folder}/{name}", LARGEST + 1)
    except FileNotFoundError:
        return None
    if len(found) > LARGEST:
        raise TooLarge(f"{name} is larger than {LARGEST >> 20} MiB: fetch it from {where(store.where)}/{folder}")
    return found


def _words(error: Exception, place: str) -> str:
    if isinstance(error, MirrorError | OSError):
        return str(error).replace(place.rstrip("/"), where(place))
    _log.warning("copies of evidence could not be looked at: %s", type(error).__name__)
    return f"{where(place)}: not expected: {type(error).__name__}; see the log of Airflow's API server"
