"""Which tests may be put aside, and for how long: few, with a reason, and none of exactness or of the fence."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from datetime import date, timedelta
from typing import Final

MOST: Final = 8
LONGEST: Final = timedelta(days=14)
WANTED: Final = ("since", "because", "until")
BARRED_FILES: Final = re.compile(r"tests/unit/|fence|standing|door|sleep|conductor|copier|promot|switch")
"""Unit tests can be mended at once; the others see to it that never both sides can be written."""
BARRED_WORDS: Final = re.compile(r"\b(Inexact|about_data|assert_(same|same_offsets|parity|equal|prefix))\b")
"""A file that uses one of these compares records or offsets."""


def problems(files: Mapping[str, str], today: date) -> list[str]:
    """What is wrong with the quarantine of these files of tests (text by path)."""
    found = [(path, mark) for path, text in sorted(files.items()) for mark in _marks(ast.parse(text))]
    told = [f"{len(found)} tests are quarantined, and at most {MOST} may be"] if len(found) > MOST else []
    for path, mark in found:
        where = f"{path}:{mark.lineno}"
        if BARRED_FILES.search(path) or BARRED_WORDS.search(files[path]):
            told.append(f"{where}: a test of exactness, of the fence, or without brokers is mended, not quarantined")
        told += [f"{where}: {problem}" for problem in _problems_of(mark, today)]
    return told


def _marks(tree: ast.AST) -> Iterator[ast.expr]:
    """Each use of `pytest.mark.flaky`: the call, or the attribute where nothing is called."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_mark(node.func)]
    yield from calls
    called = [call.func for call in calls]
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_mark(node, called))


def _is_mark(node: ast.expr, but: Collection[ast.expr] = ()) -> bool:
    named = isinstance(node, ast.Attribute) and node.attr == "flaky" and ast.unparse(node.value).endswith("mark")
    return named and node not in but


def _problems_of(mark: ast.expr, today: date) -> Iterator[str]:
    keywords = mark.keywords if isinstance(mark, ast.Call) else []
    given = {word.arg: word.value.value for word in keywords if isinstance(word.value, ast.Constant)}
    missing = [name for name in WANTED if not str(given.get(name) or "").strip()]
    if missing:
        yield f"flaky needs {', '.join(missing)}, as literals"
        return
    try:
        since, until = (date.fromisoformat(str(given[name])) for name in ("since", "until"))
    except ValueError as error:
        yield f"flaky: {error}"
        return
    if until - since > LONGEST:
        yield f"quarantined for more than {LONGEST.days} days"
    if until < today:
        yield f"the quarantine expired on {until}: mend the test, or what it found"
