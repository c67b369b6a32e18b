"""What has been done to a folder's names is on the disk."""

from __future__ import annotations

import os
from pathlib import Path


def sync(folder: Path) -> None:
    """Wait until files that came to this folder, or went, have done so for good."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
