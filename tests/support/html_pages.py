"""A page of a report, taken apart as a browser would."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Final

_INLINE: Final = frozenset({"a", "code", "em", "strong"})


class Page(HTMLParser):
    """The page's rows as a person sees them, and all that a browser would run or ask for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.items: list[str] = []
        self.facts: list[str] = []
        self.headings: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.text = ""
        self._into: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.text += "" if tag in _INLINE else " "
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag == "tr":
            self.rows.append([])
        places = {"li": self.items, "dd": self.facts, "h2": self.headings}
        if tag in ("td", "th"):
            self._into = self.rows[-1]
        elif tag in places:
            self._into = places[tag]
        else:
            return
        self._into.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th", "li", "dd", "h2"):
            self._into = None

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._into is not None:
            self._into[-1] += data
