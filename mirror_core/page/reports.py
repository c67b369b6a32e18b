"""Reports in a folder of the evidence, here or below `evidence.copy_to`: only pages and their JSON."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import Final, Protocol, TypeVar
from urllib.parse import quote

from mirror_core.evidence.file_store import LocalFolder, is_url
from mirror_core.model.errors import MirrorError
from mirror_core.model.logs import get_logger
from mirror_core.page.poller import BackgroundPoller

REPORT_TYPES: Final = MappingProxyType({".html": "text/html; charset=utf-8", ".json": "application/json"})
"""Salvaged records are none of these: who may see a run may not see what applications wrote."""
MAX_LISTED_FILES: Final = 200


def select_served(names: Iterable[str]) -> list[str]:
    return [name for name in names if PurePosixPath(name).suffix in REPORT_TYPES][:MAX_LISTED_FILES]


def list_reports(evidence: Path, folder: str) -> list[str]:
    """Relative to the folder; none when it is not here."""
    path = _find_folder(evidence, folder)
    return [] if path is None else select_served(LocalFolder(path).names())


def find_report(evidence: Path, folder: str, name: str) -> Path | None:
    """None for other names, and for links that lead out of the folder."""
    report_folder = _find_folder(evidence, folder)
    if report_folder is None or name not in list_reports(evidence, folder):
        return None
    path = (report_folder / name).resolve()
    return path if path.is_relative_to(report_folder.resolve()) else None


def _find_folder(evidence: Path, folder: str) -> Path | None:
    path = evidence / folder
    inside = path.resolve().parent == evidence.resolve()
    return path if inside and path.is_dir() else None


class ReportKind(StrEnum):
    PARITY = "parity"
    CHECK = "check"


_FIRST_PAGES: Final = MappingProxyType({ReportKind.PARITY: "index.html", ReportKind.CHECK: "data-docs/index.html"})
"""It leads to all others of the report."""
_FOLDER_NAME: Final = re.compile(r"(parity|check)-([0-9]{8}T[0-9]{6}Z)")
_MIRROR_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*")
"""A mirror is created with such a name; a state topic may hold others, which somebody else wrote."""
MAX_NEWEST_REPORTS: Final = 5
LIST_INTERVAL_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """`path`: of the first page, under that of all mirrors."""

    kind: ReportKind
    begun: str
    path: str


@dataclass(frozen=True, slots=True)
class NewestReports:
    reports: Sequence[MirrorReport] = ()
    error: str = ""
    """Why they are not known; empty: they are."""


class ReportPoller:
    """The folder may be remote and hang: the page does not wait for it."""

    def __init__(self, evidence: Callable[[], Path]) -> None:
        self._evidence = evidence
        self._lock = threading.Lock()
        self._pollers: dict[str, BackgroundPoller[NewestReports]] = {}

    def get_newest(self, mirror: str) -> NewestReports | None:
        with self._lock:
            new_poller = BackgroundPoller(lambda: list_newest_reports(self._evidence(), mirror), LIST_INTERVAL_S)
            poller = self._pollers.setdefault(mirror, new_poller)
        return poller.get_latest()


def format_folder_name(kind: ReportKind, begun: datetime) -> str:
    return f"{kind}-{begun:%Y%m%dT%H%M%SZ}"


def is_report(mirror: str, folder: str) -> bool:
    """Whether these may be names of a mirror and of a report's folder, and lead nowhere else."""
    return _MIRROR_NAME.fullmatch(mirror) is not None and _FOLDER_NAME.fullmatch(folder) is not None


def format_page_path(root: str, mirror: str, kind: ReportKind, folder: str) -> str:
    return f"{root}/mirrors/{_format_path(mirror, kind, folder)}"


def list_newest_reports(evidence: Path, mirror: str) -> NewestReports:
    """Only finished reports have a first page."""
    if _MIRROR_NAME.fullmatch(mirror) is None:
        return NewestReports()
    try:
        matches = [match for name in os.listdir(evidence / mirror) if (match := _FOLDER_NAME.fullmatch(name))]
        matches.sort(key=lambda match: match[2], reverse=True)
        finished = (
            match for match in matches if (evidence / mirror / match[0] / _FIRST_PAGES[ReportKind(match[1])]).is_file()
        )
        return NewestReports([_make_report(mirror, match) for match in islice(finished, MAX_NEWEST_REPORTS)])
    except FileNotFoundError:
        return NewestReports()
    except OSError as error:
        return NewestReports(error=error.strerror or type(error).__name__)


def _make_report(mirror: str, folder: re.Match[str]) -> MirrorReport:
    kind, at = ReportKind(folder[1]), folder[2]
    begun = f"{at[:4]}-{at[4:6]}-{at[6:8]} {at[9:11]}:{at[11:13]}:{at[13:15]} UTC"
    return MirrorReport(kind, begun, _format_path(mirror, kind, folder[0]))


def _format_path(mirror: str, kind: ReportKind, folder: str) -> str:
    return f"{quote(mirror, safe='')}/reports/{quote(folder, safe='')}/{_FIRST_PAGES[kind]}"


RESPONSE_TIMEOUT_S: Final = 5.0
MAX_PARALLEL_READS: Final = 4
"""Threads that may wait for a store at a time, however many people ask; and as many for this machine's folder."""
LOCAL_FOLDER_TEXT: Final = "this machine's folder mirrorbook/evidence"
MAX_REPORT_BYTES: Final = 32 << 20
"""It is held in memory."""
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
    """Only the copy has them."""
    error: str = ""
    """Why it is not known what there is, here or in the copy; empty: it is known, or no copy is wanted."""


class ReportStore(Protocol):
    """An object store's folder. Read errors raise OSError."""

    where: str

    def names(self, under: str = "") -> list[str]: ...

    def beginning(self, name: str, size: int) -> bytes: ...


class RemoteReports:
    """`location`: of the copies; None: not copied."""

    def __init__(
        self,
        open_store: Callable[[str], ReportStore],
        timeout_s: float = RESPONSE_TIMEOUT_S,
        max_parallel: int = MAX_PARALLEL_READS,
    ) -> None:
        """`open_store`: by URL; raises BadRequest where this process reaches no such store."""
        self._open_store = open_store
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
            copied = self._run_in_thread(location, partial(self._list_copies, location, folder))
        except ReportsUnreachable as error:
            return ReportListing(local, error=str(error))
        return ReportListing(local, [name for name in copied if name not in local])

    def read_report(self, evidence: Path, location: str | None, folder: str, name: str) -> Path | bytes | None:
        """None for anything but a report. Raises ReportsUnreachable, ReportTooLarge."""
        content = self._run_in_thread(LOCAL_FOLDER_TEXT, partial(find_report, evidence, folder, name))
        if content is not None or location is None:
            return content
        return self._run_in_thread(location, partial(self._read_copy, location, folder, name))

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

    def _list_copies(self, location: str, folder: str) -> list[str]:
        if is_url(location):
            return _list_store_names(folder, self._open_store(location))
        _check_readable(_to_path(location) / folder)
        return list_reports(_to_path(location), folder)

    def _read_copy(self, location: str, folder: str, name: str) -> Path | bytes | None:
        if is_url(location):
            return _read_store_file(folder, name, self._open_store(location))
        _check_readable(_to_path(location) / folder)
        if path := find_report(_to_path(location), folder, name):
            path.open("rb").close()
        return path


def redact_location(location: str) -> str:
    return _URL_CREDENTIALS.sub("//", location.rstrip("/"))


def _to_path(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def _check_readable(folder: Path) -> None:
    """Raises OSError: hidden is not missing."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for _ in os.walk(folder, onerror=refuse):
        pass


def _list_store_names(folder: str, store: ReportStore) -> list[str]:
    if "/" in folder:
        return []
    inside = f"{folder}/"
    return select_served(name.removeprefix(inside) for name in store.names(folder) if name.startswith(inside))


def _read_store_file(folder: str, name: str, store: ReportStore) -> bytes | None:
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
    return f"{redact_location(location)}: not expected: {type(error).__name__}; see the log of the page's server"
