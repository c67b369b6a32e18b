"""The documentation as a site: its menu, clicks to each page, and nothing from elsewhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.doc_pages import links

ROOT: Final = Path(__file__).parents[3]
DOCS: Final = ROOT / "docs"
PAGES: Final = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
MENU: Final[list[Any]] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
TASKS: Final = ["Home", "Try", "Install", "Run", "Emergency", "Reference", "Explain"]
ENTRY: Final = "index.md"
CLICKS: Final = 2

_LOADED: Final = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=["'](?:https?:)?//[^"']*""")
_IN_STYLES: Final = re.compile(r"""(?:url\(|@import)\s*["']?(?:https?:)?//[^)"']*""")


def entries(menu: list[Any], depth: int = 1) -> Iterator[tuple[str, int]]:
    """Each page of the menu, and how many clicks it is away: one for each list that has to be opened, and its own."""
    for entry in menu:
        target = next(iter(entry.values())) if isinstance(entry, dict) else entry
        if isinstance(target, list):
            yield from entries(target, depth + 1)
        else:
            yield target, depth


def clicks() -> dict[str, int]:
    """How far each page is from the first one, by the menu, or by links in pages."""
    found = {ENTRY: 0, **{page: depth for page, depth in entries(MENU) if page != ENTRY}}
    for distance in range(CLICKS):
        for page in [page for page, away in found.items() if away == distance]:
            for target in links(DOCS / page):
                path = (DOCS / page).parent.joinpath(target.partition("#")[0]).resolve()
                if path.is_relative_to(DOCS):
                    name = path.relative_to(DOCS).as_posix()
                    found[name] = min(found.get(name, distance + 1), distance + 1)
    return found


def test_the_menu_is_by_task() -> None:
    assert [next(iter(entry)) for entry in MENU] == TASKS


def test_each_page_is_in_the_menu_once() -> None:
    assert sorted(page for page, _ in entries(MENU)) == PAGES


@pytest.mark.parametrize("page", PAGES)
def test_each_page_is_two_clicks_away(page: str) -> None:
    assert clicks()[page] <= CLICKS


def test_the_site_builds_strictly_and_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    mkdocs = str(Path(sys.executable).parent / "mkdocs")
    command = [mkdocs, "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr

    read = {path: path.read_text(encoding="utf-8") for path in tmp_path.rglob("*") if path.suffix in {".html", ".css"}}
    assert {tmp_path / page.replace("README.md", "index.md").replace(".md", ".html") for page in PAGES} <= read.keys()
    for path, text in read.items():
        assert _LOADED.findall(text) == [], path
        assert _IN_STYLES.findall(text) == [], path

    worker = (tmp_path / "search" / "worker.js").read_text(encoding="utf-8")
    assert "this.field('title', {boost: 50})" in worker
    assert "doc.location.startsWith('adr/') ? 0.01" in worker

    found = json.loads((tmp_path / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    (lmo,) = [entry for entry in found if entry["title"].startswith("LMO")]
    page, _, anchor = lmo["location"].partition("#")
    assert page == "reference/glossary.html"
    assert f'id="{anchor}"' in read[tmp_path / page]
    assert len({entry["location"] for entry in found}) == len(found), "Lunr takes each location once"
