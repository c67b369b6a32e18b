"""Quantities as people read them."""

from __future__ import annotations


def in_bytes(value: float) -> str:
    """A number of bytes with a decimal unit, such as 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"
