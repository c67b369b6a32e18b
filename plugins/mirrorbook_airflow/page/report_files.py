"""Reports in a folder of the evidence, as far as this machine has them: only pages and their JSON, and only from that
folder.

Reports of a mirror's hourly comparisons and checks: how their folders are named, where the page has them, and which
are the newest. Each has a folder of its own in that of the mirror.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import islice
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final
from urllib.parse import quote

from mirror_core.evidence.file_store import LocalFolder
from mirrorbook_airflow.page.background_poller import BackgroundPoller

REPORT_TYPES: Final = MappingProxyType({".html": "text/html; charset=utf-8", ".json": "application/json"})
"""Salvaged records are none of these: who may see a run may not see what applications wrote."""
MAX_LISTED_FILES: Final = 200


def select_served(names: Iterable[str]) -> list[str]:
    return [name for name in names if PurePosixPath(name).suffix in REPORT_TYPES][:MAX_LISTED_FILES]


def list_reports(evidence: Path, folder: str) -> list[str]:
    """Names of its pages, relative to it; none when there is no such folder here."""
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
    """What a report is about."""

    PARITY = "parity"
    """Both sides were compared."""
    CHECK = "check"
    """Readiness and drift were judged."""


_FIRST_PAGES: Final = MappingProxyType({ReportKind.PARITY: "index.html", ReportKind.CHECK: "data-docs/index.html"})
"""The page of a report that leads to all others."""
_FOLDER_NAME: Final = re.compile(r"(parity|check)-([0-9]{8}T[0-9]{6}Z)")
_MIRROR_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*")
"""Names that a mirror is created with; a state topic may hold others, which somebody else wrote."""
MAX_NEWEST_REPORTS: Final = 5
LIST_INTERVAL_S: Final = 10.0
"""Between two looks into a mirror's folder."""


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """`path`: of the first page, under that of all mirrors."""

    kind: ReportKind
    begun: str
    path: str


@dataclass(frozen=True, slots=True)
class NewestReports:
    """The newest reports of a mirror."""

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
