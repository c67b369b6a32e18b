"""Doc pages, shared by tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from typer.core import TyperGroup

from mirror_core.cli.lazy_group import LazyGroup, list_lazy_commands, load_command

ROOT = Path(__file__).parents[2]

DOCS = ROOT / "docs"

_LINK = re.compile(r"\]\(([^)\s]+)\)")

_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def printed(page: Path, source: str) -> list[str]:
    """The lines of a page between the marks that say that they come from this source."""
    _, begin, rest = page.read_text(encoding="utf-8").partition(f"<!-- from {source}: begin -->\n")
    inside, end, _ = rest.partition(f"<!-- from {source}: end -->")
    assert begin, f"{page}: no begin mark of {source}"
    assert end, f"{page}: no end mark of {source}"
    return inside.splitlines()


def read_commands_pages() -> str:
    pages = [*sorted((DOCS / "reference").glob("commands*.md")), DOCS / "reference" / "json.md"]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


def links(page: Path) -> Iterator[str]:
    """Targets of relative links, outside of code blocks."""
    for target in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        if "://" not in target and not target.startswith("mailto:"):
            yield target


def anchors(page: Path) -> set[str]:
    """Names of the page's headings, as links to them are written."""
    heads = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def commands(group: TyperGroup, above: str = "") -> Iterator[tuple[str, set[str]]]:
    """Each command below this group, as it is typed, and its long options."""
    lazy = list_lazy_commands().items() if isinstance(group, LazyGroup) else ()
    for name, command in {**group.commands, **{name: load_command(name, later) for name, later in lazy}}.items():
        path = f"{above} {name}".strip()
        if isinstance(command, TyperGroup):
            yield from commands(command, path)
        else:
            yield path, {o for parameter in command.params for o in parameter.opts if o.startswith("--")}
