from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Final

from mirror_core.model.errors import BadRequest

BYTE_UNITS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "": 1,
        "B": 1,
        "kB": 10**3,
        "MB": 10**6,
        "GB": 10**9,
        "KiB": 2**10,
        "MiB": 2**20,
        "GiB": 2**30,
    }
)
_RATE_PATTERN: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)(?:/s)?")


def format_bytes(value: float) -> str:
    """Decimal units, such as 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"


def parse_bytes_per_s(text: str) -> int:
    """Accepts 50MB/s or 50000000. BadRequest lists the forms."""
    match = _RATE_PATTERN.fullmatch(text)
    factor = BYTE_UNITS.get(match[2]) if match else None
    if match is None or factor is None:
        units = ", ".join(unit for unit in BYTE_UNITS if unit)
        raise BadRequest(
            f"{text!r} is no rate: give a number of bytes per second, with or without a unit ({units}) and with or "
            "without /s, such as 50MB/s, 1.5GiB or 50000000"
        )
    rate = int(Decimal(match[1]) * factor)
    if rate < 1:
        raise BadRequest(f"{text!r}: nothing is read at that rate; `mirrorbook mirror pause` ends copying for now")
    return rate
