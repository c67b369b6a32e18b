"""Draws the README's picture from the recorded run in `docs/try.md`: `python -m demo.terminal_picture`."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

DOCS: Final = Path(__file__).parents[1] / "docs"
LOG: Final = DOCS / "try.md"
PICTURE: Final = DOCS / "images" / "demo.svg"
COLUMNS: Final = 82

_RECORDED: Final = re.compile(r"<!-- output of make demo: begin -->\n```\n(.*?)\n```\n<!--", re.DOTALL)
_SHOWN: Final = re.compile(
    r"^2  East dies.*?without writes$|^verdict$.*?^offsets equal: yes$", re.DOTALL | re.MULTILINE
)
_FONTS: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # they would come from the internet
_STYLES: Final = (
    (re.compile(r"^\d  |^verdict"), "bold"),
    (re.compile(r"^ +\$ "), "green"),
    (re.compile(r"without writes$|^lost: 0$|^offsets equal: yes$"), "bold cyan"),
)


def draw(log: str) -> str:
    """The second act and the verdict of a recorded `make demo`, as an SVG of a terminal."""
    recorded = _RECORDED.search(log)
    if recorded is None:
        raise ValueError("no output of make demo")
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system="truecolor", legacy_windows=False)
    for line in "\n\n".join(_SHOWN.findall(recorded[1])).splitlines():
        style = next((style for pattern, style in _STYLES if pattern.search(line)), "")
        console.print(Text(line, style=style))
    return _FONTS.sub("", console.export_svg(title="make demo: a cluster dies", unique_id="demo"))


if __name__ == "__main__":
    PICTURE.write_text(draw(LOG.read_text(encoding="utf-8")), encoding="utf-8")
