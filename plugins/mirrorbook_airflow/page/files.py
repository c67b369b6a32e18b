"""Reports of a run, as far as this machine has them: only pages and their JSON, and only from the run's own folder."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Final

from mirror_core.evidence.folders import LocalFolder

TYPES: Final = MappingProxyType({".html": "text/html; charset=utf-8", ".json": "application/json"})
"""Salvaged records are none of these: who may see a run may not see what applications wrote."""
LISTED: Final = 200


def reports(evidence: Path, run: str) -> list[str]:
    """Names of a run's pages, relative to its folder; none when there is no such folder here."""
    folder = _folder(evidence, run)
    if folder is None:
        return []
    return [name for name in LocalFolder(folder).names() if Path(name).suffix in TYPES][:LISTED]


def report(evidence: Path, run: str, name: str) -> Path | None:
    """One of these; None for whatever else is asked for, also for what a link leads out of the folder to."""
    folder = _folder(evidence, run)
    if folder is None or name not in reports(evidence, run):
        return None
    path = (folder / name).resolve()
    return path if path.is_relative_to(folder.resolve()) else None


def _folder(evidence: Path, run: str) -> Path | None:
    folder = evidence / f"run-{run}"
    inside = folder.resolve().parent == evidence.resolve()
    return folder if inside and folder.is_dir() else None
