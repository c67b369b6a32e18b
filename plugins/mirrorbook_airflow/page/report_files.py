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
from mirrorbook_airflow.page.on_demand import OnDemand

TYPES: Final = MappingProxyType({".html": "text/html; charset=utf-8", ".json": "application/json"})
"""Salvaged records are none of these: who may see a run may not see what applications wrote."""
LISTED: Final = 200


def served(names: Iterable[str]) -> list[str]:
    """Those that the page lists, and gives."""
    return [name for name in names if PurePosixPath(name).suffix in TYPES][:LISTED]


def reports(evidence: Path, folder: str) -> list[str]:
    """Names of its pages, relative to it; none when there is no such folder here."""
    found = _folder(evidence, folder)
    return [] if found is None else served(LocalFolder(found).names())


def report(evidence: Path, folder: str, name: str) -> Path | None:
    """One of these; None for whatever else is asked for, also for what a link leads out of the folder to."""
    found = _folder(evidence, folder)
    if found is None or name not in reports(evidence, folder):
        return None
    path = (found / name).resolve()
    return path if path.is_relative_to(found.resolve()) else None


def _folder(evidence: Path, folder: str) -> Path | None:
    path = evidence / folder
    inside = path.resolve().parent == evidence.resolve()
    return path if inside and path.is_dir() else None


class Kind(StrEnum):
    """What a report is about."""

    PARITY = "parity"
    """Both sides were compared."""
    CHECK = "check"
    """Readiness and drift were judged."""


_FIRST: Final = MappingProxyType({Kind.PARITY: "index.html", Kind.CHECK: "data-docs/index.html"})
"""The page of a report that leads to all others."""
_FOLDER: Final = re.compile(r"(parity|check)-([0-9]{8}T[0-9]{6}Z)")
_MIRROR: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*")
"""Names that a mirror is created with; a state topic may hold others, which somebody else wrote."""
SHOWN: Final = 5
LIST_S: Final = 10.0
"""Between two looks into a mirror's folder."""


@dataclass(frozen=True, slots=True)
class Report:
    """One report. `path`: of its first page, under that of all mirrors."""

    kind: Kind
    begun: str
    path: str


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest reports of a mirror."""

    reports: Sequence[Report] = ()
    trouble: str = ""
    """Why they are not known; empty: they are."""


class Reports:
    """All looks of this process. The folder may be of another machine, which hangs: the page waits for none of them."""

    def __init__(self, evidence: Callable[[], Path]) -> None:
        self._evidence = evidence
        self._lock = threading.Lock()
        self._newest: dict[str, OnDemand[Newest]] = {}

    def newest(self, mirror: str) -> Newest | None:
        """Of a mirror that a cluster knows; None before the first look has ended."""
        with self._lock:
            look = OnDemand(lambda: newest(self._evidence(), mirror), LIST_S)
            one = self._newest.setdefault(mirror, look)
        return one.latest()


def folder_name(kind: Kind, begun: datetime) -> str:
    """Of a report that was begun then, in UTC."""
    return f"{kind}-{begun:%Y%m%dT%H%M%SZ}"


def is_report(mirror: str, folder: str) -> bool:
    """Whether these may be names of a mirror and of a report's folder, and lead nowhere else."""
    return _MIRROR.fullmatch(mirror) is not None and _FOLDER.fullmatch(folder) is not None


def page_path(root: str, mirror: str, kind: Kind, folder: str) -> str:
    """Where Airflow shows the report. `root`: path of the DR page."""
    return f"{root}/mirrors/{_path(mirror, kind, folder)}"


def newest(evidence: Path, mirror: str) -> Newest:
    """Those whose first page is there. One that was not finished has none."""
    if _MIRROR.fullmatch(mirror) is None:
        return Newest()
    try:
        found = [match for name in os.listdir(evidence / mirror) if (match := _FOLDER.fullmatch(name))]
        found.sort(key=lambda match: match[2], reverse=True)
        whole = (match for match in found if (evidence / mirror / match[0] / _FIRST[Kind(match[1])]).is_file())
        return Newest([_report(mirror, match) for match in islice(whole, SHOWN)])
    except FileNotFoundError:
        return Newest()
    except OSError as error:
        return Newest(trouble=error.strerror or type(error).__name__)


def _report(mirror: str, folder: re.Match[str]) -> Report:
    kind, at = Kind(folder[1]), folder[2]
    begun = f"{at[:4]}-{at[4:6]}-{at[6:8]} {at[9:11]}:{at[11:13]}:{at[13:15]} UTC"
    return Report(kind, begun, _path(mirror, kind, folder[0]))


def _path(mirror: str, kind: Kind, folder: str) -> str:
    return f"{quote(mirror, safe='')}/reports/{quote(folder, safe='')}/{_FIRST[kind]}"
