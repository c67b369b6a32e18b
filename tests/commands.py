"""The command line as users start it, but from this checkout, installed or not."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

MIRRORBOOK: Final = (sys.executable, "-c", "from mirror_core.cli.main import main; main()")


def mirrorbook(*arguments: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; what it said and its exit code, whatever that is."""
    return subprocess.run([*MIRRORBOOK, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False)
