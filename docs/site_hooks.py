"""Hooks of the site's build: search ranks titles and the glossary's words first, decisions last."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any, Final

RANKS: Final = {
    "this.field('title');": "this.field('title', {boost: 50});",
    "this.add(doc);": (
        "this.add(doc, {boost: doc.location.startsWith('adr/') ? 0.01 : doc.location.includes('#') ? 1 : 2});"
    ),
}
GLOSSARY: Final = "reference/glossary.md"
_ROW: Final = re.compile(r"<tr>\s*<td>(?P<word>.*?)</td>\s*<td>(?P<meaning>.*?)</td>\s*</tr>", re.DOTALL)
_ANCHORED_ROW: Final = re.compile(r'<tr>\s*<td id="(word-[^"]+)">(.*?)</td>\s*<td>(.*?)</td>\s*</tr>', re.DOTALL)
_TAG: Final = re.compile(r"<[^>]+>")


def on_page_content(content: str, page: Any, **_: object) -> str:
    """Each word of the glossary gets an anchor that a search can lead to."""
    if page.file.src_uri != GLOSSARY:
        return content
    return _ROW.sub(lambda row: row[0].replace("<td>", f'<td id="{_anchor(row["word"])}">', 1), content)


def on_post_build(config: Any, **_: object) -> None:
    """Changes what MkDocs' search has written: it ranks a title like any text, and knows headings only."""
    site = Path(config["site_dir"])
    _index_words(site / "search" / "search_index.json", site / GLOSSARY.replace(".md", ".html"))
    worker = site / "search" / "worker.js"
    text = worker.read_text(encoding="utf-8")
    for plain, ranked in RANKS.items():
        if text.count(plain) != 1:
            raise ValueError(f"{worker}: {plain} is not there once: has MkDocs changed it?")
        text = text.replace(plain, ranked)
    worker.write_text(text, encoding="utf-8")


def _index_words(index: Path, glossary: Path) -> None:
    found = json.loads(index.read_text(encoding="utf-8"))
    rows = _ANCHORED_ROW.findall(glossary.read_text(encoding="utf-8"))
    if not rows:
        raise ValueError(f"{glossary}: it has no words")
    location = GLOSSARY.replace(".md", ".html")
    found["docs"] += [
        {"location": f"{location}#{anchor}", "title": _plain(word), "text": _plain(meaning)}
        for anchor, word, meaning in rows
    ]
    index.write_text(json.dumps(found), encoding="utf-8")


def _anchor(word: str) -> str:
    return "word-" + re.sub(r"\W+", "-", _plain(word).lower()).strip("-")


def _plain(content: str) -> str:
    return html.unescape(_TAG.sub("", content))
