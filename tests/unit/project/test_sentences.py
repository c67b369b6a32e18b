"""Sentences are for people: no code decides by one, and tests do not spell out long ones."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
PRODUCT: Final = ("mirror_core", "plugins", "demo", "mirrorbook_tools")
_PHRASE: Final = re.compile(r"[A-Za-z]{2,}[,:;]? [A-Za-z]{2,}")
_SEARCHES: Final = frozenset(
    {
        *(
            "startswith",
            "endswith",
            "removeprefix",
            "removesuffix",
            "partition",
            "rpartition",
            "split",
            "find",
            "index",
        ),
        *("count", "match", "search", "fullmatch", "compile", "sub", "findall"),
    }
)
FOREIGN_SENTENCES: Final = {
    "mirror_core/kafka/config.py": ['No such configuration property: "'],  # librdkafka
    "mirror_core/spark/session.py": [  # Spark
        r"Task \d+ in stage \S+ failed (\d+) times, most recent failure: Lost task [^(]*\(TID \d+\) \(([^)]*)\): (.*)",
        " Consider setting ",
    ],
    "demo/airflow.py": ["Database error"],  # Airflow
    "demo/terminal_picture.py": [  # our own page, which is its input
        "<!-- output of make demo: begin -->\\n```\\n(.*?)\\n```\\n<!--",
        "^2  East dies.*?without writes$|^verdict$.*?^offsets equal: yes$",
        "without writes$|^lost: 0$|^offsets equal: yes$",
    ],
}


def list_sought_phrases(source: str) -> Iterator[str]:
    """Literals of two words or more that code compares with, or searches for."""
    for node in ast.walk(ast.parse(source)):
        sought = list[ast.AST]()
        if isinstance(node, ast.Compare):
            sought = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SEARCHES:
            sought = list(node.args)
        for argument in sought:
            if isinstance(argument, ast.Constant | ast.Tuple | ast.Set | ast.List | ast.JoinedStr):
                for part in ast.walk(argument):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str) and _PHRASE.search(part.value):
                        yield part.value


def test_no_code_reads_meaning_out_of_a_sentence() -> None:
    found = dict[str, list[str]]()
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if phrases := list(list_sought_phrases(path.read_text(encoding="utf-8"))):
                found[str(path.relative_to(ROOT))] = phrases
    assert found == FOREIGN_SENTENCES


def test_a_phrase_that_is_sought_is_found() -> None:
    for source in (
        'text.startswith("none, and")',
        '"clocks differ" in str(error)',
        're.compile("loss of (.+) unknown")',
        'found = text == "not known" or text in ("no run", "one run")',
        'text.removeprefix(f"{name} is held by")',
    ):
        assert list(list_sought_phrases(source)), source
    assert not list(list_sought_phrases('text.startswith("mirror.") and name in ("east", "west")'))
