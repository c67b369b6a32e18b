"""Reports in a folder of the evidence, as far as this machine has them: only pages and their JSON, and only from that
folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final

from mirror_core.evidence.folders import LocalFolder

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
