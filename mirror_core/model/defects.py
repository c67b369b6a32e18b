"""A defect of Mirrorbook itself, named without a text that nobody has checked for secrets."""

from __future__ import annotations

import traceback
from pathlib import Path


def type_and_line(error: Exception) -> str:
    """The error's type and the line that raised it, in words."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(last.filename).name} line {last.lineno}"
