"""Errors in words, without a text that nobody has checked for secrets."""

from __future__ import annotations

import traceback
from pathlib import Path

from mirror_core.model.errors import MirrorError


def type_and_line(error: Exception) -> str:
    """Of a defect of our own: the error's type, and the line that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(last.filename).name} line {last.lineno}"


def named(error: Exception) -> str:
    """What is said of it: ours in words, any other without a text that nobody has checked."""
    return str(error) if isinstance(error, MirrorError) else type(error).__name__
