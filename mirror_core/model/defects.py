from __future__ import annotations

import traceback
from pathlib import Path

from mirror_core.model.errors import MirrorError


def format_error_location(error: Exception) -> str:
    """Type and source line of an unexpected error."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(last.filename).name} line {last.lineno}"


def format_safe_error(error: Exception) -> str:
    """Only the type of unexpected errors: their text may hold secrets."""
    return str(error) if isinstance(error, MirrorError) else type(error).__name__
