"""Reports in `evidence.copy_to`, for an API server without the workers' disks.

A store may hang: a thread per read, and requests wait for seconds only.
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
from mirrorbook_airflow.page.report_files import find_report, list_reports, select_served

RESPONSE_TIMEOUT_S: Final = 5.0
MAX_PARALLEL_READS: Final = 4
"""Threads that may wait for a store at a time, however many people ask; and as many for this machine's folder."""
LOCAL_FOLDER_TEXT: Final = "this machine's folder mirrorbook/evidence"
MAX_REPORT_BYTES: Final = 32 << 20
"""Bytes of a report: it is held in memory."""
_URL_CREDENTIALS: Final = re.compile(r"//[^/@:]*:.*@|(?<!abfs:)(?<!abfss:)//[^/@]*@")
"""A connection's id, or a key and its secret, which may hold slashes. In Azure's URLs it is a container."""

_log = get_logger(__name__)
T = TypeVar("T")


class ReportsUnreachable(Exception):
    """Why the place told nothing, for the page."""


class ReportTooLarge(Exception):
    """Why a report is not shown, for the page."""


@dataclass(frozen=True, slots=True)
class ReportListing:
    """Files of this folder only: anybody may have written others."""

    local: Sequence[str]
    copied: Sequence[str] = ()
    """Those that only the copy has."""
    error: str = ""
    """Why it is not known what there is, here or in the copy; empty: it is known, or no copy is wanted."""


class RemoteReports:
    """`location`: of the copies; None: not copied."""

    def __init__(self, timeout_s: float = RESPONSE_TIMEOUT_S, max_parallel: int = MAX_PARALLEL_READS) -> None:
        self._timeout_s = timeout_s
        self._slots = {is_local: threading.Semaphore(max_parallel) for is_local in (True, False)}

    def list_reports(self, evidence: Path, location: str | None, folder: str) -> ReportListing:
        try:
            local = self._run_in_thread(LOCAL_FOLDER_TEXT, partial(list_reports, evidence, folder))
        except ReportsUnreachable as error:
            return ReportListing([], error=str(error))
        if location is None:
            return ReportListing(local)
        try:
            copied = self._run_in_thread(location, partial(_list_copies, location, folder))
        except ReportsUnreachable as error:
            return ReportListing(local, error=str(error))
        return ReportListing(local, [name for name in copied if name not in local])

    def read_report(self, evidence: Path, location: str | None, folder: str, name: str) -> Path | bytes | None:
        """One of these; None for whatever else is asked for. NoAnswer, TooLarge."""
        content = self._run_in_thread(LOCAL_FOLDER_TEXT, partial(find_report, evidence, folder, name))
        if content is not None or location is None:
            return content
        return self._run_in_thread(location, partial(_read_copy, location, folder, name))

    def _run_in_thread(self, location: str, read: Callable[[], T]) -> T:
        until_s, slots = time.monotonic() + self._timeout_s, self._slots[location is LOCAL_FOLDER_TEXT]
        results: SimpleQueue[T | Exception] = SimpleQueue()

        def run() -> None:
            try:
                results.put(read())
            except Exception as error:  # noqa: BLE001 - handed to whoever waits, not swallowed
                results.put(error)
            finally:
                slots.release()

        if not slots.acquire(timeout=self._timeout_s):
            raise ReportsUnreachable(f"{redact_location(location)}: earlier questions still wait for its answer")
        # Not a pool: a thread that hangs must not keep the API server from ending.
        threading.Thread(target=run, name="mirrorbook-copies", daemon=True).start()
        try:
            result = results.get(timeout=max(0.0, until_s - time.monotonic()))
        except Empty:
            raise ReportsUnreachable(f"{redact_location(location)}: no answer within {self._timeout_s:g} s") from None
        if isinstance(result, ReportTooLarge):
            raise result
        if isinstance(result, Exception):
            raise ReportsUnreachable(_format_error(result, location)) from None
        return result


def redact_location(location: str) -> str:
    return _URL_CREDENTIALS.sub("//", location.rstrip("/"))


def _to_path(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def _list_copies(location: str, folder: str) -> list[str]:
    if is_url(location):
        return _list_store_names(folder, ObjectFolder(location))
    _check_readable(_to_path(location) / folder)
    return list_reports(_to_path(location), folder)


def _read_copy(location: str, folder: str, name: str) -> Path | bytes | None:
    if is_url(location):
        return _read_store_file(folder, name, ObjectFolder(location))
    _check_readable(_to_path(location) / folder)
    if path := find_report(_to_path(location), folder, name):
        path.open("rb").close()
    return path


def _check_readable(folder: Path) -> None:
    """Raises OSError where a folder is unreadable: hidden is not missing."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for _ in os.walk(folder, onerror=refuse):
        pass


def _list_store_names(folder: str, store: ObjectFolder) -> list[str]:
    """Files of this folder only: anybody may have written others."""
    if "/" in folder:
        return []
    inside = f"{folder}/"
    return select_served(name.removeprefix(inside) for name in store.names(folder) if name.startswith(inside))


def _read_store_file(folder: str, name: str, store: ObjectFolder) -> bytes | None:
    if name not in _list_store_names(folder, store):
        return None
    try:
        content = store.beginning(f"{folder}/{name}", MAX_REPORT_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(content) > MAX_REPORT_BYTES:
        raise ReportTooLarge(
            f"{name} is larger than {MAX_REPORT_BYTES >> 20} MiB: fetch it from {redact_location(store.where)}/{folder}"
        )
    return content


def _format_error(error: Exception, location: str) -> str:
    if isinstance(error, MirrorError | OSError):
        return str(error).replace(location.rstrip("/"), redact_location(location))
    _log.warning("copies of evidence could not be looked at: %s", type(error).__name__)
    return f"{redact_location(location)}: not expected: {type(error).__name__}; see the log of Airflow's API server"
