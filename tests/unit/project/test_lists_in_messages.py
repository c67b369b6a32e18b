"""Lists below a sentence are made by `format_items` only: no name in them looks like a line of ours."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
HELPER: Final = ROOT / "mirror_core" / "model" / "text.py"
MARK: Final = "\n  - "


def find_marks(source: str) -> Iterator[int]:
    """Lines of string constants that begin an item of a list. Of f-strings, too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and MARK in node.value:
            yield node.lineno


def test_a_list_that_is_joined_by_hand_is_found() -> None:
    assert list(find_marks('listed = "".join(f"\\n  - {name}" for name in names)')) == [1]
    assert list(find_marks('text = "refused:" + "\\n  - ".join(names)')) == [1]
    assert list(find_marks("listed = format_items(names)")) == []


def test_lists_are_made_by_one_helper() -> None:
    folders = ("mirror_core", "mirrorbook_tools", "plugins", "dags", "demo")
    modules = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")) if path != HELPER]
    assert len(modules) > 300
    found = [f"{path.relative_to(ROOT)}:{line}" for path in modules for line in find_marks(path.read_text("utf-8"))]
    assert found == [], "use `format_items`"
    assert [*find_marks(HELPER.read_text("utf-8"))], "the helper is where it was"
