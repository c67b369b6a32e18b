"""Hooks of the site's build: search ranks titles first, pages before their sections, and decisions last."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

RANKS: Final = {
    "this.field('title');": "this.field('title', {boost: 50});",
    "this.add(doc);": (
        "this.add(doc, {boost: doc.location.startsWith('adr/') ? 0.01 : doc.location.includes('#') ? 1 : 2});"
    ),
}


def on_post_build(config: Any, **_: object) -> None:
    """Changes the search worker, which MkDocs copies as it is: it ranks a title like any text."""
    worker = Path(config["site_dir"]) / "search" / "worker.js"
    text = worker.read_text(encoding="utf-8")
    for plain, ranked in RANKS.items():
        if text.count(plain) != 1:
            raise ValueError(f"{worker}: {plain} is not there once: has MkDocs changed it?")
        text = text.replace(plain, ranked)
    worker.write_text(text, encoding="utf-8")
