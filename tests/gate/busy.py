"""How busy this machine is: a test that was starved is told from one that hangs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

PRESSURE: Final = Path("/proc/pressure/cpu")


def how_busy() -> str:
    """Load averages, and the share of the last ten seconds in which some process waited for a core, where known."""
    words = "load " + " ".join(f"{one:.1f}" for one in os.getloadavg())
    if PRESSURE.exists():
        words += f", CPU pressure {PRESSURE.read_text(encoding='ascii').split()[1].removeprefix('avg10=')} %"
    return words
