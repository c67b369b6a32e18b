"""Saved tails, shared by tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


def saved_rows(folder: Path) -> list[dict[str, Any]]:
    """All records of a salvage, in order."""
    rows = [row for path in folder.rglob("*.parquet") for row in pq.read_table(path).to_pylist()]
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))
