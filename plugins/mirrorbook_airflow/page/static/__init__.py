"""Files that browsers get as they are."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Final

_HERE: Final = Path(__file__).parent
STATIC: Final = MappingProxyType(
    {"page.css": (_HERE / "page.css", "text/css"), "page.js": (_HERE / "page.js", "text/javascript")}
)
"""By name: where it lies, and what it is."""
