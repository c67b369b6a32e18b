"""Sentences are for people: no code decides by one, and tests do not spell out long ones."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from mirror_core.model.findings import load_catalogue
from tests.support.sentences import load_sentences

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


_OPEN_PLURAL: Final = re.compile(r"[a-z]\(e?s\)")
HASHED_PLURALS: Final = frozenset({"mirror_core/decide/failover_plan.py"})
"""Bound facts: other words would outdate plans that were approved before."""


def test_no_sentence_leaves_it_to_the_reader_whether_it_is_one_or_several() -> None:
    """`format_count` tells."""
    literals = {
        str(path.relative_to(ROOT)): text
        for folder in ("mirror_core", "plugins")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for _, text in list_literals(path.read_text(encoding="utf-8"))
        if _OPEN_PLURAL.search(text)
    }
    assert literals.keys() == HASHED_PLURALS
    assert not [code for code, text in load_catalogue().items() if _OPEN_PLURAL.search(text)]


MAX_PROSE_WORDS: Final = 10
RUN_WORDS: Final = 4
"""A literal with so many words in a row of a literal of the product, or of the catalogue, is the product's prose."""
_WORD: Final = re.compile(r"[(\"'`]*([A-Za-z][a-z'’-]*)[.,:;?!)\"'`]*")
_VALUE: Final = " \0 "


def list_literals(source: str) -> Iterator[tuple[int, str]]:
    """Line and text; a value for each expression. Not docstrings, keys of dictionaries, messages of `assert`."""
    tree = ast.parse(source)
    left_out = set[ast.AST | None]()
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant()):
                left_out.add(node.value)
            case ast.Assert(msg=ast.AST() as message):
                left_out |= set(ast.walk(message))
            case ast.Dict():
                left_out |= set(node.keys)
            case ast.JoinedStr():
                left_out |= set(ast.walk(node)) - {node}
    for node in ast.walk(tree):
        if node in left_out:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(str(v.value) if isinstance(v, ast.Constant) else _VALUE for v in node.values)


def split_words(text: str) -> list[str | None]:
    """Lower-case words between blanks; None: a number, a name with other characters, an option, a value."""
    return [match[1].lower() if (match := _WORD.fullmatch(token)) else None for token in text.split()]


def list_runs(text: str) -> Iterator[tuple[str | None, ...]]:
    words = split_words(text)
    for start in range(len(words) - RUN_WORDS + 1):
        run = tuple(words[start : start + RUN_WORDS])
        if None not in run:
            yield run


@cache
def read_product_runs() -> frozenset[tuple[str | None, ...]]:
    sources = [path.read_text(encoding="utf-8") for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py"))]
    texts = [text for source in sources for _, text in list_literals(source)]
    texts += [re.sub(r"{[{%].*?[%}]}", _VALUE, template) for template in load_catalogue().values()]
    return frozenset(run for text in texts for run in list_runs(text))


def is_long_prose(text: str) -> bool:
    return sum(word is not None for word in split_words(text)) > MAX_PROSE_WORDS and any(
        run in read_product_runs() for run in list_runs(text)
    )


def test_long_prose_of_the_product_stands_in_golden_files_only() -> None:
    """Assert on codes and values, or on `format_sentence` of tests/support/sentences.py."""
    assert not [
        f"{path.relative_to(ROOT)}:{line}: {text[:60]}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path.name != Path(__file__).name
        for line, text in list_literals(path.read_text(encoding="utf-8"))
        if is_long_prose(text)
    ]


def test_long_prose_is_found_in_an_assertion_and_not_where_a_person_explains_a_test() -> None:
    sentence = load_catalogue()["nothing_mirrored"]
    for source in (f"assert {sentence!r} in output", f"with pytest.raises(Refused, match={sentence!r}): ..."):
        assert [text for _, text in list_literals(source) if is_long_prose(text)] == [sentence]
    for source in (f"def test() -> None:\n    {sentence!r}", f"assert lost == 0, {sentence!r}"):
        assert not [text for _, text in list_literals(source) if is_long_prose(text)]


def test_each_sentence_that_tests_compare_with_is_used() -> None:
    used = set[str]()
    for path in (ROOT / "tests").rglob("*.py"):
        used |= set(re.findall(r"""format_sentence\(\s*["'](\w+)["']""", path.read_text(encoding="utf-8")))
    assert used == load_sentences().keys()
